"""The driver on nodes with dnf and with zypper: installed, moved, damaged, fixed, removed; never a mixed set.

Real: systemd, sshd, dnf with versionlock and module streams, zypper, rpm, DKMS, which compiles for two kernels.
Simulated: the distribution (Rocky 9, SLES 15) on a Debian root, its kernel, the GPUs, and what is in NVIDIA's packages,
which have the names, versions and relations of theirs. Looked at with rpm, dnf, zypper and modinfo, not
with the probes.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import rpmnodes
from labnodes import LabFactory
from rpmdriver import KERNELS, DriverRpms, stream
from rpmnodes import Repository, become, gpustate
from rpmworld import Rpm, build, documents, index, patches
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "driver": ("simulated node", "rhel", "suse"),
    "cuda-toolkit": ("simulated node", "rhel", "suse"),
}
OLD, NEW, BROKEN, NEWEST = "580.65.06", "580.178.04", "595.91.07", "615.71.09"
BODY = """
policy = Policy(
    get("driver-repository")(origin="mirror", url="file:///srv/nvidia", key=KEY, signed="metadata"),
    {},
)
"""
DRIVER, TOOLKITS = 'get("driver")({})', 'get("cuda-toolkit")(versions=("12.9", "13.0"))'
#: What automatic updates are to move, beside what they may not.
OTHERS = [Rpm("lab-other", version, arch="noarch") for version in ("1.0-1", "2.0-1")]
EPEL = [Rpm("dkms", "3.2.1-1", arch="noarch")]
#: Amazon Linux's, which would replace the Fabric Manager of later drivers (release notes 2023.8.20250804).
OBSOLETER = Rpm("nvidia-fabric-manager", "570.211.01-1", obsoletes=("nvidia-fabricmanager",))
BASE = [rpmnodes.BASE, *OTHERS]
V = f"3:{NEW}"
FULL = f"{V}-1.el9"
#: Twins of a repository in which one thing is wrong: packages that it lacks, by pattern, what it has instead, and what the
#: plan says. A package of the site's own, or a line of dnf.conf, may be what is in the way.
TWINS: dict[str, dict[str, tuple[str, tuple[Rpm, ...], str]]] = {
    "rocky": {
        "a library renamed": (
            f"libnvidia-ml-{NEW}*.x86_64",
            (Rpm("libnvidia-ml1", FULL),),
            f"nothing provides libnvidia-ml(x86-64) = {FULL} needed by nvidia-driver-cuda-libs",
        ),
        "a relation tightened": (
            f"nvidia-driver-cuda-{NEW}*",
            (Rpm("nvidia-driver-cuda", FULL, ("nvidia-persistenced = 3:580.999.99",)),),
            "nothing provides nvidia-persistenced = 3:580.999.99 needed by nvidia-driver-cuda",
        ),
        "DKMS too old": (
            f"kmod-nvidia-open-dkms-{NEW}*",
            (Rpm("kmod-nvidia-open-dkms", FULL, ("dkms >= 9",), (f"nvidia-kmod = {V}",)),),
            "nothing provides dkms >= 9 needed by kmod-nvidia-open-dkms",
        ),
        "another architecture alone": (
            f"nvidia-driver-cuda-libs-{NEW}*.x86_64",
            (),
            f"nothing provides nvidia-driver-cuda-libs(x86-64) = {V} needed by nvidia-driver-cuda",
        ),
        "a package lost": (
            f"nvidia-kmod-common-{NEW}*",
            (),
            f"nothing provides nvidia-kmod-common = {V} needed by",
        ),
    },
    "sles": {
        "a library renamed": (
            f"libnvidia-ml-{NEW}*",
            (Rpm("libnvidia-ml1", f"{NEW}-1"),),
            f"nothing provides libnvidia-ml = {NEW} needed by nvidia-compute-G06",
        ),
        "no DKMS": ("dkms-*", (), "nothing provides dkms needed by nvidia-open-driver-G06"),
        "a relation tightened": (
            f"nvidia-compute-utils-G06-{NEW}*",
            (Rpm("nvidia-compute-utils-G06", f"{NEW}-1", ("nvidia-persistenced = 580.999.99",)),),
            "nothing provides nvidia-persistenced = 580.999.99 needed by nvidia-compute-utils-G06",
        ),
    },
}
DKMS = {
    "rocky": ("kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"),
    "sles": ("nvidia-open-driver-G06", "nvidia-driver-G06"),
}


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> DriverRpms:
    return DriverRpms(tmp_path_factory.mktemp("drivers"), BROKEN)


@pytest.fixture(scope="module")
def repositories(
    rpms: DriverRpms, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Repository]:
    """One for each distribution, made when it is asked for."""
    return _Repositories(rpms, tmp_path_factory)


class _Repositories(dict[str, Repository]):
    def __init__(self, rpms: DriverRpms, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._rpms, self._factory = rpms, factory

    def __missing__(self, distribution: str) -> Repository:
        folder = self._factory.mktemp(distribution)
        made = rpmnodes.repository(folder / "world")
        make = self._rpms.rhel if distribution == "rocky" else self._rpms.suse
        newest = (NEWEST,) if distribution == "rocky" else ()
        sets = {version: make(version) for version in (OLD, NEW, BROKEN, *newest)}
        kernels = (KERNELS[distribution][0], platform.release())
        modules_of = self._rpms.precompiled if distribution == "rocky" else self._rpms.signed
        ready = [modules_of(NEW, kernel) for kernel in kernels]
        rows = [*BASE, *self._rpms.kernel(distribution), *ready, *self._rpms.cuda()]
        rows += [OBSOLETER] if newest else EPEL
        modules = documents(_streams(sets, ready)) if distribution == "rocky" else ""
        rows += [one for some in sets.values() for one in some]
        news = {"LAB-2026-1": OTHERS[1:], "LAB-2026-2": sets[NEW]}
        made.fill(rows, folder / "build", modules=modules, patches=patches(news))
        self[distribution] = made
        return made


def _streams(sets: dict[str, list[Rpm]], ready: list[Rpm]) -> list[dict[str, Any]]:
    """Streams as NVIDIA's repository for RHEL 9 has them."""
    r580 = [*sets[OLD], *sets[NEW]]
    return [
        stream("580-open", r580),
        stream("580-dkms", r580),
        stream("580", [*sets[NEW], *ready]),
        stream("595-open", sets[BROKEN]),
        stream("615-open", sets[NEWEST]),
        stream("open-dkms", [*r580, *sets[BROKEN], *sets[NEWEST]]),
    ]


@pytest.fixture(scope="module")
def rpm_lab(lab_factory: LabFactory) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=("debian12-rpm",), gpus=("2xH100",)))


class Trial:
    """One node that has become one of a distribution, with two kernels, of which one lacks headers."""

    def __init__(self, lab: Lab, packages: Repository, folder: Path, distribution: str) -> None:
        self.lab, self.packages, self.folder = lab, packages, folder
        self.node: Node = lab.nodes[0]
        self.distribution, self.dnf = distribution, distribution == "rocky"
        become(self.node, distribution, packages)
        kernel = "kernel-core" if self.dnf else "kernel-default"
        (image,) = packages.folder.glob(f"{kernel}-[0-9]*.rpm")
        self.node.run(f"rm /boot/vmlinuz-*-lab; rpm -i --nosignature /srv/nvidia/{image.name}")
        if self.dnf:
            self.add("epel", EPEL)
            self.node.run("dnf -y install dkms")
        self.kernels = {KERNELS[distribution][0], self.said("uname -r")}

    def add(self, name: str, packages: list[Rpm]) -> None:
        """Let the node have another repository, which is the distribution's or its administrator's."""
        folder = self.folder / name
        folder.mkdir()
        build(packages, folder, self.folder / f"{name}.build")
        index(folder)
        subprocess.run(["cp", "-r", str(folder), str(self.node.root / "srv")], check=True)
        text = f"[{name}]\nname={name}\nbaseurl=file:///srv/{name}\ngpgcheck=0\n"
        (self.node.root / f"etc/yum.repos.d/{name}.repo").write_text(text)

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=120, check=False).stdout.strip()

    def run(
        self, verb: str, parameters: str, status: int = 0, *, state: str = DRIVER
    ) -> dict[str, Any]:
        body = BODY.replace("{}", state.replace("{}", parameters))
        return gpustate(verb, self.lab, self.node, self.folder, self.packages, body, status=status)

    def summary(self, verb: str, parameters: str = "", status: int = 0, **more: str) -> str:
        return str(self.run(verb, parameters, status, **more)["summary"])

    def driver(self) -> dict[str, str]:
        """Driver version of every installed package of the driver."""
        rows = self.said("rpm -qa --qf '%{NAME} %{VERSION}\\n' '*nvidia*' 'cuda-drivers*'")
        pairs = (row.split() for row in rows.splitlines())
        return {name: version.partition("_k")[0] for name, version in pairs}

    def held(self) -> set[str]:
        """Names that the package manager itself says are locked."""
        if self.dnf:
            rows = self.said("dnf -q versionlock list").split()
            return {row.rsplit("-", 2)[0] for row in rows}
        rows = self.said("zypper -n locks").splitlines()
        return {row.split("|")[1].strip() for row in rows if "| package" in row}

    def stream(self) -> str:
        """The stream that dnf itself says is enabled."""
        rows = self.said("dnf -C -q module list --enabled nvidia-driver 2>/dev/null").splitlines()
        return next((row.split()[1] for row in rows if row.startswith("nvidia-driver ")), "")

    def modules(self) -> dict[str, str]:
        """Version and license of the module of each kernel that can boot, as modinfo has it."""
        return {
            kernel: self.said(
                f"modinfo -k {kernel} -F version nvidia; modinfo -k {kernel} -F license nvidia"
            ).replace("\n", " ")
            for kernel in self.kernels
        }

    def is_whole(self, version: str, dkms: str | None, kind: str = "Dual MIT/GPL") -> None:
        """One matched set, held, with a module for every kernel, loaded, and used."""
        there = self.driver()
        assert set(there.values()) == {version}, there
        assert set(DKMS[self.distribution]) & set(there) == ({dkms} if dkms else set())
        assert set(there) <= self.held()
        assert self.modules() == dict.fromkeys(self.kernels, f"{version} {kind}")
        assert self.said("cat /run/gpustate-lab/sys/module/nvidia/version") == version
        query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
        assert set(self.said(query).splitlines()) == {version}

    def upgrade(self) -> None:
        """What an administrator, or a timer, does."""
        words = "dnf -y upgrade" if self.dnf else "zypper -n update"
        self.said(words)


#: dnf-automatic is two lines around this; Debian packages it without them. It is told to install what it finds, of
#: all updates and of security updates.
AUTOMATIC = (
    "python3 -c 'import sys; from dnf.automatic.main import main; sys.exit(main(sys.argv[1:]))' "
    "--installupdates /root/automatic.conf"
)
CONF = "[commands]\nupgrade_type = {}\nrandom_sleep = 0\n[emitters]\nemit_via = stdio\n"
#: What os-update(8) runs on SLES, what it and transactional-update(8) run on Tumbleweed, and what it runs for security
#: updates and YaST for its online update; and what another package is at then. A patch that has the held driver in it
#: is a question to zypper, which without an answer does nothing at all.
ZYPPER = {"update": "2.0", "dup": "2.0", "patch --category security": "1.0", "patch": "1.0"}

#: What is done on a node of either distribution; another share with each commit.
GROUPS = [
    (distribution, group)
    for distribution in ("rocky", "sles")
    for group in ("whole-set", "updates", "toolkits", "built-modules", "broken-modules")
] + [*(("rocky", group) for group in ("copies", "minimal", "streams", "twins")), ("sles", "twins")]
TAKEN = share("driver with rpm", GROUPS, most=2)


def of_group(group: str) -> pytest.MarkDecorator:
    taken = [one for one, mine in TAKEN if mine == group]
    skip = pytest.mark.skip(reason="not in this commit's share")
    rows: list[Any] = taken or [pytest.param("rocky", marks=skip)]
    return pytest.mark.parametrize("trial", rows, indirect=True)


@pytest.fixture
def trial(
    request: pytest.FixtureRequest,
    rpm_lab: Lab,
    repositories: dict[str, Repository],
    tmp_path: Path,
) -> Trial:
    return Trial(rpm_lab, repositories[request.param], tmp_path, request.param)


@of_group("whole-set")
def test_one_set_is_installed_held_mended_moved_switched_and_taken_away(trial: Trial) -> None:
    before = trial.said(
        "rpm -qa | grep -v gpg-pubkey | sort; cat /etc/zypp/locks /etc/dnf/plugins/versionlock.list"
    )
    opened, closed = DKMS[trial.distribution]
    new = f"version='{NEW}', precompiled=False"
    # A plan names the driver although the repository is not there yet, and leaves nothing behind.
    there = "ls -A /etc/yum.repos.d /etc/zypp/repos.d /var/cache/zypp/raw /tmp; ls -d /var/cache/dnf/*/; rpm -qa"
    files = trial.said(f"{there} | sort")
    planned = trial.run("plan", "branch=580, precompiled=False")
    driver = next(one for one in planned["nodes"][0]["states"] if one["state"] == "driver")
    assert driver["notes"] == [
        f"will install driver {NEW} with open kernel modules, built on the node with DKMS"
    ], driver
    assert trial.said(f"{there} | sort") == files
    assert "changed=1" in trial.summary("apply", new)
    trial.is_whole(NEW, opened)
    assert "changed=0" in trial.summary("apply", new)
    assert trial.stream() == ("580-open" if trial.dnf else "")

    trial.upgrade()
    trial.is_whole(NEW, opened)

    # Both in packages whose names are others on RHEL and on SUSE.
    lost = trial.said("ls /usr/lib/*-linux-gnu/libcuda.so.5*; which nvidia-smi").split()
    assert len(lost) == 2
    trial.said(f"rm {' '.join(lost)}")
    assert all(path in str(trial.run("drift", new, status=2)) for path in lost)
    assert "changed=1" in trial.summary("apply", new)
    assert trial.said(f"rpm -qf {' '.join(lost)} | xargs rpm -V") == ""
    assert "changed=0" in trial.summary("apply", new)

    trial.said("rpm -e --nodeps libnvidia-ml")
    trial.run("drift", new, status=2)
    assert "changed=1" in trial.summary("apply", new)
    trial.is_whole(NEW, opened)

    assert "changed=1" in trial.summary("apply", f"version='{OLD}', module_type='proprietary'")
    trial.is_whole(OLD, closed, "NVIDIA")
    assert trial.stream() == ("580-dkms" if trial.dnf else "")

    trial.run("remove", f"version='{OLD}'")
    assert not trial.stream()
    assert trial.driver() == {}
    assert trial.held() == set()
    assert set(trial.modules().values()) == {""}
    after = trial.said(
        "rpm -qa | grep -v gpg-pubkey | sort; cat /etc/zypp/locks /etc/dnf/plugins/versionlock.list"
    )
    # Kernel headers and DKMS stay: other modules are built with them.
    assert {row for row in after.splitlines() if not row.startswith(("kernel", "dkms"))} == {
        row for row in before.splitlines() if not row.startswith(("kernel", "dkms"))
    }


@of_group("updates")
def test_automatic_updates_move_others_and_leave_the_set_alone(trial: Trial) -> None:
    """The programs that timers run, told to take whatever the repository offers: it offers a newer driver."""
    older = f"version='{OLD}', precompiled=False"
    assert "changed=1" in trial.summary("apply", older)
    trial.is_whole(OLD, DKMS[trial.distribution][0])
    other = "rpm -q --qf '%{VERSION}' lab-other"
    kinds = [CONF.format(kind) for kind in ("default", "security")]
    runs = {f"printf '{conf}' >/root/automatic.conf; {AUTOMATIC}": "2.0" for conf in kinds}
    if not trial.dnf:
        runs = {f"zypper -n {words}": version for words, version in ZYPPER.items()}
    older_one = "/srv/nvidia/lab-other-1.0-1.noarch.rpm"
    for run, version in runs.items():
        trial.node.run(f"rpm -U --oldpackage --replacepkgs --nosignature {older_one}")
        done = trial.node.run(f"{run} 2>&1", timeout_s=300, check=False)
        assert trial.said(other) == version, f"{run}: {done.returncode}: {done.stdout[-3000:]}"
        trial.is_whole(OLD, DKMS[trial.distribution][0])
    assert "changed=0" in trial.summary("apply", older)


@of_group("toolkits")
def test_cuda_toolkits_stand_side_by_side_and_bring_no_driver(trial: Trial) -> None:
    left = "rpm -qa | grep -v gpg-pubkey | sort; find /usr/local/cuda* ! -type d"
    before = trial.said(left)
    assert "changed=1" in trial.summary("apply", state=TOOLKITS)
    for version in ("12.9", "13.0"):
        assert f"V{version}" in trial.said(f"/usr/local/cuda-{version}/bin/nvcc --version")
    assert trial.driver() == {}
    assert trial.said("readlink -f /usr/local/cuda") == "/usr/local/cuda-13.0"
    assert "changed=0" in trial.summary("apply", state=TOOLKITS)

    trial.said("rm /usr/local/cuda-12.9/bin/nvcc; rpm -e --nodeps cuda-nvcc-13-0")
    trial.run("drift", "", 2, state=TOOLKITS)
    assert "changed=1" in trial.summary("apply", state=TOOLKITS)
    for version in ("12.9", "13.0"):
        assert f"V{version}" in trial.said(f"/usr/local/cuda-{version}/bin/nvcc --version")

    trial.run("remove", "", state=TOOLKITS)
    assert trial.said(left) == before


@of_group("built-modules")
def test_built_modules_are_taken_where_every_kernel_has_them_and_can_be_left(trial: Trial) -> None:
    kind = "module_type='proprietary'" if trial.dnf else "module_type='open'"
    text, other = ("NVIDIA", DKMS["rocky"][1]) if trial.dnf else ("Dual MIT/GPL", DKMS["sles"][0])
    assert "changed=1" in trial.summary("apply", f"version='{NEW}', {kind}")
    trial.is_whole(NEW, None, text)
    assert trial.stream() == ("580" if trial.dnf else "")
    assert "changed=0" in trial.summary("apply", f"version='{NEW}', {kind}")
    # Nothing was compiled here.
    assert trial.said("ls /var/lib/dkms") == ""
    assert "changed=0" in trial.summary("apply", f"branch=580, {kind}")

    assert "changed=1" in trial.summary("apply", f"version='{NEW}', {kind}, precompiled=False")
    trial.is_whole(NEW, other, text)


@of_group("broken-modules")
def test_modules_that_do_not_compile_bring_the_whole_set_back(trial: Trial) -> None:
    trial.run("apply", f"version='{OLD}'")
    done = trial.run("apply", f"version='{BROKEN}'", status=7)
    assert "rolled_back=1" in done["summary"]
    assert "of_node" in str(done["nodes"])
    assert "#error" in trial.said("cat /var/lib/gpustate/runs/*/make.log.*")
    trial.is_whole(OLD, DKMS[trial.distribution][0])
    assert "changed=0" in trial.summary("apply", f"version='{OLD}'")


COPIES = ("libnvidia-ml", "nvidia-driver-cuda-libs")


@of_group("copies")
def test_32_bit_copies_and_fabric_manager_move_with_the_set_through_both_layouts(
    trial: Trial,
) -> None:
    trial.run("apply", f"version='{OLD}', precompiled=False")
    files = [f"{name}-{OLD}-1.el9.i686" for name in COPIES]
    files.append(f"nvidia-fabricmanager-{OLD}-1.x86_64")
    trial.node.run(f"cd /srv/nvidia; rpm -i --nosignature {'.rpm '.join(files)}.rpm")
    copies = "rpm -qa --qf '%{NAME} %{VERSION}\\n' | sort -u; rpm -qa '*.i686'"
    # What is there moves along, so it is held from now on.
    assert "changed=1" in trial.summary("apply", f"version='{OLD}', precompiled=False")
    assert "changed=0" in trial.summary("apply", f"version='{OLD}', precompiled=False")

    for version, base in (
        (NEW, "libnvidia-ml"),
        (NEWEST, "nvidia-driver-common"),
        (NEW, "libnvidia-ml"),
    ):
        wanted = f"version='{version}', precompiled=False"
        assert "changed=1" in trial.summary("apply", wanted), trial.said(copies)
        trial.is_whole(version, DKMS["rocky"][0])
        there = trial.said("rpm -qa '*nvidia*' '*fabric*'").splitlines()
        there = [one for one in there if one.endswith(".i686") or "fabric" in one]
        # Once gone, the base of the other layout comes as what the next one needs.
        assert {one.rsplit("-", 2)[0] for one in there} == {
            base,
            "nvidia-driver-cuda-libs",
            "nvidia-fabricmanager",
        }, there
        # In either layout a library that is lost is seen, and comes back.
        trial.said("rm /usr/lib/*-linux-gnu/libnvidia-ml.so.[56]*")
        assert "libnvidia-ml.so" in str(trial.run("drift", wanted, status=2))
        assert "changed=1" in trial.summary("apply", wanted)
        assert "changed=0" in trial.summary("apply", wanted)
    trial.run("remove", "")
    assert trial.driver() == {}


@of_group("minimal")
def test_what_a_minimal_node_lacks_is_named_or_brought(trial: Trial) -> None:
    """Neither EPEL nor the plugin versionlock is there."""
    rpmnodes.remove_plugin(trial.node)
    trial.node.run("rm /etc/yum.repos.d/epel.repo; rpm -e dkms; rm -rf /var/cache/dnf/*")
    trial.add("base", [rpmnodes.PLUGIN])
    wanted = f"version='{NEW}', precompiled=False"
    planned = str(trial.run("plan", wanted, status=5))
    assert "nothing provides dkms >= 3.1.8 needed by kmod-nvidia-open-dkms" in planned
    assert "dnf install epel-release && crb enable" in planned
    assert trial.driver() == {}

    trial.node.run(
        "printf '[epel]\nname=epel\nbaseurl=file:///srv/epel\ngpgcheck=0\n' >/etc/yum.repos.d/epel.repo"
    )
    assert "python3-dnf-plugin-versionlock is installed" in str(trial.run("plan", wanted))
    assert "changed=1" in trial.summary("apply", wanted)
    trial.is_whole(NEW, DKMS["rocky"][0])
    assert "changed=0" in trial.summary("apply", wanted)


@of_group("streams")
def test_module_streams_of_another_repository_hide_no_driver(trial: Trial) -> None:
    """NVIDIA's repository as its guide adds it, with a stream enabled, beside a mirror that has newer packages and no streams."""
    whole, folder = trial.packages, trial.folder
    mirror = Repository(folder / "mirror", whole.key, whole.home)
    vendor = folder / "vendor"
    for target in (mirror.folder, vendor):
        subprocess.run(["cp", "-rl", str(whole.folder), str(target)], check=True)
        shutil.rmtree(target / "repodata")
        (target / "modules.yaml").unlink()
    mirror.index()
    for file in vendor.glob(f"*{NEW}*.rpm"):
        file.unlink()
    streams = (whole.folder / "modules.yaml").read_text().splitlines()
    there = [json.loads(line) for line in streams if line.startswith("{")]
    for row in there:
        names = row["data"]["artifacts"]
        names["rpms"] = [name for name in names["rpms"] if NEW not in name]
    index(vendor, modules=documents(there))
    rpmnodes.copy(trial.node, mirror)
    rpmnodes.copy(trial.node, Repository(vendor, whole.key, whole.home), "srv/vendor")
    text = "[cuda-rhel9-x86_64]\nname=cuda\nbaseurl=file:///srv/vendor\ngpgcheck=0\n"
    (trial.node.root / "etc/yum.repos.d/cuda-rhel9.repo").write_text(text)
    trial.node.run("dnf -y module enable nvidia-driver:580-open")

    newer = f"version='{NEW}', precompiled=False"
    assert "changed=1" in trial.summary("apply", newer)
    trial.is_whole(NEW, DKMS["rocky"][0])
    assert trial.stream() == "580-open"
    assert "changed=0" in trial.summary("apply", newer)
    trial.upgrade()
    trial.is_whole(NEW, DKMS["rocky"][0])
    query = f"repoquery nvidia-driver-cuda-{NEW}"
    assert trial.said(f"dnf -C -q {query}")
    hidden = "--setopt=gpustate-driver-repository.module_hotfixes=0"
    assert trial.said(f"dnf -C -q {hidden} {query}") == "", "the stream would hide it"
    trial.run("remove", "")

    # Without a repository of gpustate's own, the stream that has the set is enabled in place of another.
    trial.node.run("dnf -y module reset nvidia-driver; dnf -y module enable nvidia-driver:595-open")
    body = BODY.replace("(origin=", "(unless_offered=True, origin=").replace("{}", DRIVER)
    body = body.replace("{}", f"version='{OLD}', precompiled=False")
    for changes in (1, 0):
        done = gpustate("apply", trial.lab, trial.node, folder, whole, body)
        assert f"changed={changes}" in str(done["summary"])
        trial.is_whole(OLD, DKMS["rocky"][0])
    assert trial.stream() == "580-open"
    assert trial.said("ls /etc/yum.repos.d") == "cuda-rhel9.repo\nepel.repo"


@of_group("twins")
def test_a_repository_with_one_thing_wrong_is_refused_by_the_plan_with_the_right_words(
    trial: Trial,
) -> None:
    wanted = f"version='{NEW}', precompiled=False, module_type='open'"
    before = trial.said("rpm -qa | sort")
    whole = trial.packages
    for number, (name, (lacking, instead, words)) in enumerate(TWINS[trial.distribution].items()):
        twin = Repository(trial.folder / f"twin{number}", whole.key, whole.home)
        subprocess.run(["cp", "-rl", str(whole.folder), str(twin.folder)], check=True)
        removed = list(twin.folder.glob(f"{lacking}.rpm"))
        assert removed, name
        for file in removed:
            file.unlink()
        shutil.rmtree(twin.folder / "repodata")
        (twin.folder / "modules.yaml").unlink(missing_ok=True)
        build(instead, twin.folder, trial.folder / f"{number}.build")
        twin.index()
        rpmnodes.copy(trial.node, twin)
        planned = str(trial.run("plan", wanted, status=5))
        assert words in planned, f"{name}: {planned[-3000:]}"
    # What is installed or set on the node may be in the way, too.
    rpmnodes.copy(trial.node, whole)
    other = DKMS[trial.distribution][0]
    site = Rpm("site-tools", "1.0-1", conflicts=(other,), arch="noarch")
    (trial.folder / "site").mkdir()
    build([site], trial.folder / "site", trial.folder / "site.build")
    subprocess.run(
        f"cp {trial.folder}/site/*.rpm {trial.node.root}/root/site.rpm", shell=True, check=True
    )
    trial.node.run("rpm -i --nosignature /root/site.rpm")
    planned = str(trial.run("plan", wanted, status=5))
    assert "site-tools" in planned
    assert "remove the package that is in the way" in planned
    trial.node.run("rpm -e site-tools")
    trial.run("plan", wanted)
    assert trial.said("rpm -qa | sort") == before
