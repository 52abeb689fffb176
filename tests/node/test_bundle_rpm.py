"""A node with dnf, or zypper, that reaches no repository gets its driver and its toolkit from a bundle.

Real: systemd, sshd, reboot, dnf with versionlock, zypper, rpm, DKMS, signed packages and signed repodata served by
http, and the bundle's own repodata as those programs read it. The node's way to that server is closed in its network
namespace; ssh is all that is left. Simulated: the distribution (Rocky 9, SLES 15) on a Debian root with an empty
base, its kernel, the GPUs, and what is in NVIDIA's packages. Looked at with rpm, dnf, zypper and the server's log.
"""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import rpmnodes
from commands import gpustate
from labnodes import LabFactory
from rpmcomponents import sign
from rpmdriver import KERNELS, DriverRpms
from rpmnodes import Repository, become, versions
from rpmworld import Rpm
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"bundle": ("simulated node", "rhel", "suse")}
DRIVER, TOOLKIT = "580.65.06", "1.18.0-1"
FOLDER = "/var/lib/gpustate-bundle"
POLICY = """
from gpustate import Policy
from gpustate.registry import get

policy = Policy(
    get("driver-repository")(origin="mirror", url={driver!r}, key={driver_key!r}, signed="packages"),
    get("driver")(version={version!r}, precompiled=False),
    get("toolkit-repository")(origin="mirror", url={toolkit!r}, key={toolkit_key!r}, signed="metadata"),
    get("container-toolkit")(),
    without=["cdi"],  # the toolkit's packages here have no nvidia-ctk
)
"""
#: The distribution's repository, as the node has it: dnf checks packages, zypper the metadata.
REPO = "[base]\nname=base\nbaseurl={url}\nenabled=1\ngpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/base.asc\n"
TOOLKITS = (
    *("nvidia-container-toolkit", "nvidia-container-toolkit-base"),
    *("libnvidia-container-tools", "libnvidia-container1"),
)


class Site:
    """Three repositories with a key each, served by http; who asked for what is written down."""

    def __init__(self, folder: Path, rpms: DriverRpms, distribution: str) -> None:
        folder.mkdir()
        self.base, self.driver, self.toolkit, self.foreign = (
            rpmnodes.repository(folder / name) for name in ("base", "driver", "toolkit", "foreign")
        )
        dkms = Rpm("dkms", "3.2.1-1", ("gcc", "/usr/bin/make"), arch="noarch")
        make = "%install\nmkdir -p %{buildroot}/usr/bin\necho >%{buildroot}/usr/bin/make.rpm\n"
        tools = [
            Rpm("gcc", "11-1", ("(gcc-plugins if annobin)",)),
            Rpm("make", "4-1", provides=("/usr/bin/make",), more=make, files="/usr/bin/make.rpm\n"),
            Rpm("unused", "1-1", ("gcc",)),
        ]
        kernel = rpms.kernel(distribution)
        drivers = rpms.rhel(DRIVER) if distribution == "rocky" else rpms.suse(DRIVER)
        for one, packages in (
            (self.base, [rpmnodes.BASE, rpmnodes.PLUGIN, dkms, *tools, *kernel]),
            (self.driver, drivers),
            (self.toolkit, [Rpm(name, TOOLKIT) for name in TOOLKITS]),
        ):
            one.fill(packages, folder / f"build-{one.folder.parent.name}")
            if one is not self.toolkit:
                sign(one)
                one.index()
        self.asked: list[tuple[str, str]] = []
        self.server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), self._handler(folder))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _handler(self, folder: Path) -> type[http.server.SimpleHTTPRequestHandler]:
        asked = self.asked

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *words: Any) -> None:
                super().__init__(*words, directory=str(folder))

            def log_message(self, format: str, *args: object) -> None:
                asked.append((self.client_address[0], self.path))

        return Handler

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def url(self, host: str, one: Repository) -> str:
        return f"http://{host}:{self.port}/{one.folder.parent.name}/packages"


class Trial:
    """One node that has become one of a distribution, with a kernel that lacks headers and nothing to build with."""

    def __init__(self, lab: Lab, site: Site, folder: Path, distribution: str) -> None:
        self.lab, self.site, self.folder = lab, site, folder
        self.node: Node = lab.nodes[0]
        self.dnf = distribution == "rocky"
        self.release = KERNELS[distribution][0]
        become(self.node, distribution, site.base)
        kernel = "kernel-core" if self.dnf else "kernel-default"
        (image,) = site.base.folder.glob(f"{kernel}-[0-9]*.rpm")
        self.said(f"rm /boot/vmlinuz-*-lab; rpm -i --nosignature /srv/nvidia/{image.name}")
        self.said("rm -rf /srv/nvidia")
        if self.dnf:
            rpmnodes.remove_plugin(self.node)
        host = urlsplit(lab.repository_url).hostname or ""
        place = "etc/yum.repos.d" if self.dnf else "etc/zypp/repos.d"
        (self.node.root / place).mkdir(parents=True, exist_ok=True)
        (self.node.root / place / "base.repo").write_text(
            REPO.format(url=site.url(host, site.base))
        )
        keys = self.node.root / "etc/pki/rpm-gpg"
        keys.mkdir(parents=True, exist_ok=True)
        (keys / "base.asc").write_text(site.base.key)
        self.policy = folder / "policy.py"
        self.policy.write_text(
            POLICY.format(
                driver=site.url(host, site.driver),
                driver_key=site.driver.key,
                toolkit=site.url(host, site.toolkit),
                toolkit_key=site.toolkit.key,
                version=DRIVER,
            )
        )
        self.target = ("-i", rpmnodes.inventory(lab, folder), "-l", self.node.name)
        self.bundle = folder / "b.tar"

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=120, check=False).stdout.strip()

    def make(self) -> dict[str, Any]:
        """Let the node fetch the bundle, while it has the repositories and nothing else; its manifest."""
        repositories = self.folder / "repositories.py"
        text = re.sub(
            r'(?m)^ *(get\("(driver|container-toolkit)"\)|without=).*\n',
            "",
            self.policy.read_text(),
        )
        repositories.write_text(text)
        gpustate("apply", repositories, *self.target, "--yes", code=0, timeout=500)
        if not self.dnf:  # as on every node that somebody has installed from it
            self.said("zypper -n --gpg-auto-import-keys refresh base")
        before, lock = self.files(), self.folder / "gpustate.lock"
        gpustate("driver", "solve", self.policy, *self.target, "--lock", lock, code=0, timeout=300)
        (locked,) = json.loads(lock.read_text())["sets"]
        assert locked["driver"] == DRIVER
        words = ("image", "bundle", "make", self.policy, *self.target, "--lock", lock)
        words += ("--out", self.bundle)
        words = (*words, "-o", "json")
        self.refuse_foreign_signature(*words)
        found: dict[str, Any] = json.loads(gpustate(*words, code=0, timeout=500).out)
        gpustate("image", "bundle", "check", self.bundle, code=0)
        rows = next(iter(found["targets"]))["repositories"]
        bundled = {row["name"]: row["version"] for one in rows for row in one["packages"]}
        assert locked["packages"].items() <= bundled.items()
        assert self.files() == before, "the node is as it was"
        gpustate("remove", repositories, *self.target, "--yes", code=0, timeout=500)
        self.said(
            "rpm -e --allmatches gpg-pubkey; zypper -n clean --all; rm /var/lib/gpustate/runs/*/out.*"
        )
        self.site.asked.clear()
        return found

    def refuse_foreign_signature(self, *words: object) -> None:
        """One package of the driver has a signature by a key that the node does not know, and the index fits it."""
        driver, name = self.site.driver, "nvidia-persistenced-*"
        (file,) = driver.folder.glob(f"{name}.rpm")
        right = file.read_bytes()

        def index() -> None:
            driver.index()
            self.said("dnf -q makecache --refresh; zypper -n refresh --force")

        sign(driver, name, by=self.site.foreign)
        index()
        refused = gpustate(*words, timeout=500)
        assert refused.code != 0
        assert "is not signed with the policy's key" in refused.err, refused.err
        assert not self.bundle.exists()
        file.write_bytes(right)
        index()

    def ran(self, verb: str, *more: str, code: int = 0) -> dict[str, Any]:
        words = (verb, self.policy, *self.target, "--bundle", self.bundle, *more, "-o", "json")
        found: dict[str, Any] = json.loads(gpustate(*words, code=code, timeout=500).out)["nodes"][0]
        return found

    def changed(self, verb: str, *more: str, code: int = 0) -> list[str]:
        row = self.ran(verb, *more, code=code)
        assert row["status"] == "ok", row
        same = ("unchanged", "not applicable")
        return [one["state"] for one in row["states"] if one["outcome"] not in same]

    def by_node(self) -> list[str]:
        """What the node itself asked the server for."""
        return [path for host, path in self.site.asked if host == self.node.address]

    def files(self) -> str:
        """What a removal must not leave behind."""
        places = "/etc/yum.repos.d /etc/zypp /etc/pki/rpm-gpg /var/cache/dnf /var/lib/dnf/repos /var/cache/zypp"
        found = self.said(f"find {places} {FOLDER} -name '*gpustate*'; ls -d {FOLDER}")
        return f"{found}\n{self.said('rpm -qa gpg-pubkey; cat /etc/dnf/plugins/versionlock.list')}"

    def is_whole(self) -> None:
        """The driver is there as one set with a module for the kernel, and the toolkit, all of it held."""
        there = versions(self.node)
        mine = {name: v for name, v in there.items() if "nvidia" in name and name not in TOOLKITS}
        assert {v.partition("-")[0] for v in mine.values()} == {DRIVER}, there
        assert {there.get(name) for name in TOOLKITS} == {TOOLKIT}
        assert {"gcc", "make", "dkms"} <= set(there)
        assert self.said(f"modinfo -k {self.release} -F version nvidia") == DRIVER
        if self.dnf:
            rows = self.said("dnf -C -q versionlock list").split()  # it would ask its repositories
            held = {row.rsplit("-", 2)[0] for row in rows}
        else:
            rows = self.said("zypper -n locks").splitlines()
            held = {row.split("|")[1].strip() for row in rows if "| package" in row}
        assert {*mine, *TOOLKITS} <= held


@pytest.fixture(scope="module")
def rpm_lab(lab_factory: LabFactory) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=("debian12-rpm",), gpus=("2xH100",)))


@pytest.fixture(params=share("bundle: distributions with rpm", ("rocky", "sles"), most=1))
def trial(
    request: pytest.FixtureRequest, rpm_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Trial]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    site = Site(tmp_path / "site", DriverRpms(tmp_path / "rpms"), request.param)
    yield Trial(rpm_lab, site, tmp_path, request.param)
    site.server.shutdown()
    site.server.server_close()


def rule(trial: Trial, verb: str) -> None:
    """Close or open the node's way to the server."""
    words = ["ip", "-n", trial.node.network.namespace(trial.node.name), "rule", verb]
    port = str(trial.site.port)
    subprocess.run([*words, "ipproto", "tcp", "dport", port, "prohibit"], check=True)


def test_a_node_without_a_way_out_is_made_from_a_bundle(trial: Trial) -> None:
    node, before = trial.node, (versions(trial.node), trial.files())
    data = trial.make()
    (target,) = data["targets"]
    there = {r["name"]: {p["name"] for p in r["packages"]} for r in target["repositories"]}
    assert there["toolkit-repository"] == set(TOOLKITS)
    assert {"dkms", "gcc", "make"} <= there["base"]
    assert not {"unused", "bash", "kernel-core", "kernel-default"} & there["base"]
    assert "nvidia-driver-cuda" in there["driver-repository"] or not trial.dnf

    rule(trial, "add")
    try:
        host = urlsplit(trial.lab.repository_url).hostname
        reach = f"bash -c 'echo >/dev/tcp/{host}/{trial.site.port}'"
        assert node.run(reach, check=False).returncode != 0, "the node is not cut off"

        # A kernel that the bundle has no headers for: refused in one line, and nothing was touched.
        other = trial.release.replace("503", "999").replace("150600", "999999")
        node.run(f"touch /boot/vmlinuz-{other}; mkdir -p /lib/modules/{other}/kernel")
        reason = trial.ran("apply", "--yes", code=5)["reason"]
        assert f"is not in the bundle {trial.bundle}; build one that has it: " in reason
        assert f"--kernel {other} --out FILE" in reason
        assert node.run(f"ls {FOLDER}", check=False).returncode != 0
        node.run(f"rm -r /boot/vmlinuz-{other} /lib/modules/{other}")

        assert {"bundle", "driver", "container-toolkit"} <= set(trial.changed("apply", "--yes"))
        trial.is_whole()
        printed = node.run("cat /var/lib/gpustate/runs/*/out.*").stdout
        assert f":{trial.site.port}" not in printed, "some other repository was tried"
        assert trial.changed("apply", "--yes") == []

        node.run(f"rm $(find {FOLDER} -name 'gcc-*.rpm')")
        assert trial.changed("drift", code=2) == ["bundle"]
        assert trial.changed("apply", "--yes") == ["bundle"]
        node.reboot()
        assert trial.changed("drift") == []
        assert trial.changed("apply", "--yes") == []
    finally:
        rule(trial, "del")

    # The way is open again, and gpustate still asks nobody but the bundle. The user's own program does.
    node.run("rpm -e --nodeps libnvidia-ml; rpm -e --nodeps libnvidia-container1")
    changes = {state["state"]: state.get("changes") for state in trial.ran("plan")["states"]}
    assert "from the bundle" in json.dumps(changes["container-toolkit"]), changes
    assert set(trial.changed("apply", "--yes")) == {"driver", "container-toolkit"}
    assert trial.by_node() == []
    trial.is_whole()
    assert node.run("rpm -qa 'gpg-pubkey*'").stdout == ""
    own = "dnf -y makecache" if trial.dnf else "zypper -n --gpg-auto-import-keys refresh base"
    node.run(own, timeout_s=120)
    assert any("/base/packages/repodata" in path for path in trial.by_node())

    gpustate("remove", trial.policy, *trial.target, "--yes", "-o", "json", code=0, timeout=500)
    node.run("rpm -e --allmatches gpg-pubkey", check=False)  # what that program took in
    after = versions(node)
    assert trial.files() == before[1]
    # Headers and what builds modules stay: other modules are built with them.
    assert not {name for name in set(after) - set(before[0]) if "nvidia" in name}
    assert before[0].items() <= after.items()
