"""Back to before a run on Debian 12: packages, holds, module parameters, files, MIG layout, looked at with other eyes.

Real apt, dpkg, dkms, containerd and systemd; GPUs, driver and NVIDIA's packages are simulated.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
import shares
from commands import GPUSTATE, Ran, gpustate
from goingback import OBSOLETE

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = pytest.mark.long

POLICY = """
from gpustate import Policy
from gpustate.registry import get

policy = Policy(
    get("preflight")(),
    get("nouveau")(),
    get("driver-repository")(),
    get("driver")(branch={branch}, parameters={parameters}),
    get("fabric-manager")(),
    get("persistenced")(),
    get("toolkit-repository")(),
    get("container-toolkit")(version={toolkit!r}, mode={mode!r}),
    get("containerd")(default={default}),
    get("mig")("all", file={mig!r}),
    get("cdi")(),
    {more}
)
"""
OLD = {
    "branch": 570, "parameters": {"NVreg_EnableStreamMemOPs": 1}, "toolkit": "1.18.2",
    "mode": "auto", "default": False, "more": "",
}  # fmt: skip
NEW = {
    "branch": 580, "parameters": {"NVreg_RestrictProfilingToAdminUsers": 0}, "toolkit": "1.20.1",
    "mode": "cdi", "default": True, "more": 'get("dcgm")(),',
}  # fmt: skip
MIG = """version: v1
mig-configs:
  all:
    - devices: [0]
      mig-enabled: true
      mig-devices: {devices}
"""
#: A configuration with comments, as somebody has written it.
CONTAINERD = """# ours
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  max_container_log_line_size = 16384   # long lines
"""
#: What apt, ldconfig and systemd make of other files, and what has its own time or number in it.
VOLATILE = "ld.so.cache|/etc/gpustate-lab|machine-id|resolv.conf"
#: What packages leave when they go: their users. So does dpkg, which knows of their configuration files.
USERS = "/etc/(passwd|group|shadow|gshadow)-?$"


class Bench:
    """One node, with the policies of before and after."""

    def __init__(self, lab: Lab, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.target = ["-i", str(lab.inventory), "-l", node.name]

    def policy(self, values: dict[str, object], devices: str) -> Path:
        mig = self.folder / f"{values['branch']}.yaml"
        mig.write_text(MIG.format(devices=devices))
        path = self.folder / f"{values['branch']}.py"
        path.write_text(POLICY.format(**values, mig=str(mig)))
        return path

    def old(self) -> Path:
        return self.policy(OLD, '{"3g.40gb": 2}')

    def new(self) -> Path:
        return self.policy(NEW, '{"1g.10gb": 7}')

    def run(self, verb: str, *words: object, code: int = 0) -> Ran:
        return gpustate(verb, *words, *self.target, "-o", "json", "--yes", code=code, timeout=500)

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=120).stdout

    def seen(self) -> dict[str, str]:
        """What rollback has to restore, by the distribution's and NVIDIA's own tools."""
        commands = {
            "packages": "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n' | "
            "grep -E 'nvidia|cuda|datacenter-gpu' | grep -v '^rc'",
            "holds": "apt-mark showhold | sort",
            "files": "find /etc /run/cdi /usr/lib/systemd/system -type f -exec sha256sum {} + "
            f"| grep -vE '{VOLATILE}|{USERS}' | sort -k 2",
            "modes": "find /etc/containerd /etc/modprobe.d /etc/nvidia-container-runtime -type f "
            "-exec stat -c '%n %a %U:%G' {} + | sort",
            "loaded": "cat /run/gpustate-lab/sys/module/nvidia/version; "
            "cat /run/gpustate-lab/proc/driver/nvidia/params",
            "mig": "nvidia-smi mig -lgi | grep -oE 'MIG .*'; nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
            "cdi": "nvidia-ctk cdi list 2>/dev/null",
            "units": "systemctl list-unit-files --no-legend --no-pager | grep -E 'nvidia|gpustate|dcgm|containerd'",
            "active": "systemctl is-active nvidia-persistenced nvidia-fabricmanager containerd nvidia-dcgm || :",
            "built": "for i in /boot/vmlinuz-*; do k=${i#/boot/vmlinuz-}; echo $k; "
            "modinfo -k $k -F version nvidia; done",
        }
        seen = {name: self.said(command) for name, command in commands.items()}
        # They stay when a package goes back to a version without them, and their units with them.
        obsolete = self.said(OBSOLETE).split()
        for part, names in {
            "files": obsolete,
            "units": [Path(path).name for path in obsolete],
        }.items():
            lines = seen[part].splitlines()
            seen[part] = "\n".join(line for line in lines if not {*line.split()} & {*names})
        return seen


#: What is tried on a node; another share with each commit.
TRIALS = (
    "a_driver_goes_up_and_back_with_all_that_belongs_to_it",
    "foreign_changes_since_the_run_stay_and_those_of_ours_are_named",
    "a_version_that_is_gone_is_named_by_the_plan_and_nothing_is_changed",
    "packages_that_no_repository_has_come_from_the_node_or_are_named_by_the_plan",
    "killed_in_the_middle_of_a_rollback_it_converges",
    "its_controller_killed_in_the_middle_of_a_rollback_it_converges",
    "an_upgrade_that_fails_goes_back_by_itself",
    "an_upgrade_to_a_version_that_is_not_offered_is_one_line",
)
TAKEN = shares.share("rollbacks on a node", TRIALS, most=1)


@pytest.fixture
def on(request: pytest.FixtureRequest, lab: Lab, node12: Node, tmp_path: Path) -> Bench:
    if request.node.name.removeprefix("test_") not in TAKEN:
        pytest.skip("not in this commit's share")
    bench = Bench(lab, node12, tmp_path)
    config = node12.root / "etc/containerd/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(CONTAINERD)
    node12.run("systemctl restart containerd; echo '# ours' >/etc/modprobe.d/site.conf")
    return bench


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """Lines that differ."""
    return {
        name: sorted(set(before[name].splitlines()) ^ set(after[name].splitlines()))
        for name in before
        if before[name] != after[name]
    }


def test_a_driver_goes_up_and_back_with_all_that_belongs_to_it(on: Bench) -> None:
    on.run("apply", on.old())
    before = on.seen()
    assert "570.211.01" in before["loaded"]
    run = on.run("upgrade", on.new(), "--driver", "580", "--serial", "1").document["run"]
    middle = on.seen()
    assert "580.178.04" in middle["loaded"]
    assert {"packages", "files", "loaded", "mig", "cdi", "built"} <= set(changes(before, middle))

    refused = gpustate("rollback", run, *on.target, code=1)
    assert "pass --yes" in refused.err
    planned = gpustate("rollback", run, *on.target, "--dry-run", code=0)
    assert f"goes back to before run {run}" in planned.out
    assert "/var/lib/gpustate-packages" not in planned.out
    assert changes(middle, on.seen()) == {}
    back = on.run("rollback")
    (row,) = back.document["nodes"]
    assert back.document["verb"] == "rollback"
    assert f"goes back to before run {run}" in row["notes"]
    assert not [note for note in row["notes"] if "cannot" in note]
    assert changes(before, on.seen()) == {}

    again = on.run("rollback")
    assert again.summary["changed"] == "0"
    assert changes(before, on.seen()) == {}
    # And the other way: the rollback is a run, too.
    on.run("rollback", back.document["run"])
    assert changes(middle, on.seen()) == {}


def test_foreign_changes_since_the_run_stay_and_those_of_ours_are_named(on: Bench) -> None:
    on.run("apply", on.old())
    on.run("apply", on.new())
    config = on.node.root / "etc/containerd/config.toml"
    config.write_text(config.read_text() + "# theirs\n")
    options = on.node.root / "etc/modprobe.d/gpustate-nvidia.conf"
    ours = options.read_text()
    options.write_text(ours + "options nvidia NVreg_EnableMSI=1\n")
    refused = on.run("rollback", code=5)
    assert (
        "changed by something else since the run: /etc/modprobe.d/gpustate-nvidia.conf"
        in refused.out
    )
    assert "580.178.04" in on.seen()["loaded"]
    options.write_text(ours)
    on.run("rollback")
    assert "570.211.01" in on.seen()["loaded"]
    text = config.read_text()
    assert "# ours" in text
    assert "# theirs" in text
    assert "NVreg_EnableStreamMemOPs=1" in options.read_text()


def test_a_version_that_is_gone_is_named_by_the_plan_and_nothing_is_changed(on: Bench) -> None:
    on.run("apply", on.old())
    on.run("apply", on.new())
    middle = on.seen()
    # Packages by name: gpustate's own pins would win over a pattern.
    names = "nvidia-driver-cuda nvidia-kernel-open-dkms libcuda1 libnvidia-ml1"
    pin = f"Package: {names}\\nPin: version 570.211.01*\\nPin-Priority: -1\\n"
    on.said(f"printf '{pin}' >/etc/apt/preferences.d/00site")
    refused = on.run("rollback", "--all-or-nothing", code=5)
    assert "570.211.01" in refused.out
    on.said("rm /etc/apt/preferences.d/00site")
    assert changes(middle, on.seen()) == {}


def test_packages_that_no_repository_has_come_from_the_node_or_are_named_by_the_plan(
    on: Bench,
) -> None:
    on.run("apply", on.old())
    before = on.seen()
    on.run("apply", on.new())
    middle = on.seen()
    replaced = {line for line in before["packages"].splitlines() if "570.211.01" in line}
    kept = on.said("ls /var/lib/gpustate-packages").split()
    for line in replaced:
        _, name, version = line.split()
        assert [one for one in kept if one.startswith(f"{name}_{version}_")], (line, kept)
    on.said(
        "apt-get clean; for f in /var/lib/apt/lists/*_Packages; do "
        'awk \'BEGIN { RS = ""; ORS = "\\n\\n" } !/\\nVersion: 570\\./\' "$f" >/tmp/p; cat /tmp/p >"$f"; done'
    )
    assert "570.211.01" not in on.said("apt-cache policy libcuda1")

    # They are gone: the plan says so, and nothing is changed.
    folder = "/var/lib/gpustate-packages"
    on.said(f"mv {folder} {folder}.away")
    for last in ("--dry-run", "--yes"):
        refused = gpustate("rollback", "--all-or-nothing", *on.target, last, code=5)
        assert " has no driver 570.211.01; it has " in refused.out, refused.out
    on.said(f"mv {folder}.away {folder}")
    assert changes(middle, on.seen()) == {}

    # One is damaged: apt refuses it, and the driver's packages stay.
    package = on.node.root / f"{folder[1:]}/libcuda1_570.211.01-1_amd64.deb"
    sound = package.read_bytes()
    package.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    failed = gpustate("rollback", *on.target, "-o", "json", "--yes", timeout=500)
    assert failed.code not in (0, 1)
    assert package.name in failed.out
    assert "570.211.01" not in on.seen()["packages"]
    package.write_bytes(sound)

    planned = gpustate("rollback", *on.target, "--dry-run", code=0)
    assert f"from {folder}/Packages" in planned.out
    on.run("rollback")
    assert changes(before, on.seen()) == {}


def test_killed_in_the_middle_of_a_rollback_it_converges(on: Bench) -> None:
    converges_after_death(on, controller=False)


def test_its_controller_killed_in_the_middle_of_a_rollback_it_converges(on: Bench) -> None:
    """The node goes on by itself, and the next rollback follows it to its end."""
    converges_after_death(on, controller=True)


def converges_after_death(on: Bench, *, controller: bool) -> None:
    on.run("apply", on.old())
    before = on.seen()
    on.run("apply", on.new())
    words = [GPUSTATE, "rollback", *on.target, "--yes", "-o", "json"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 300
        torn = "dpkg-query -W -f '${db:Status-Status} ' '*nvidia*' libcuda1 | grep -q 'unpacked\\|half-'"
        while on.node.run(torn, check=False).returncode != 0:
            assert time.monotonic() < deadline, "dpkg never began"
            assert run.poll() is None, "the rollback ended too early"
        if controller:
            run.kill()
        else:
            on.node.kill()
        run.wait(timeout=200)
    if not controller:
        on.node.boot()
    on.run("rollback")
    assert changes(before, on.seen()) == {}


def test_an_upgrade_that_fails_goes_back_by_itself(on: Bench) -> None:
    old = on.old()
    text = re.sub(r'.*get\("(containerd|mig|cdi)"\).*\n', "", old.read_text())
    old.write_text(text)
    on.run("apply", old)
    before = on.seen()
    on.node.fault("containerd", on=True)
    failed = on.run("upgrade", on.new(), "--driver", "580.65.06", code=7)
    on.node.fault("containerd", on=False)
    (row,) = failed.document["nodes"]
    assert row["status"] == "rolled back"
    assert "rolled back to before run" in row["reason"]
    assert changes(before, on.seen()) == {}


def test_an_upgrade_to_a_version_that_is_not_offered_is_one_line(on: Bench) -> None:
    on.run("apply", on.old())
    refused = on.run("upgrade", on.new(), "--driver", "580.1.2", code=5)
    assert refused.out == ""
    assert re.match(
        r"gpustate: gpu1: http\S+ has no driver 580\.1\.2; it has 580\.",
        refused.err.splitlines()[-1],
    )
