"""Repositories and the container toolkit on nodes with dnf and with zypper, from bare to removed.

Real: systemd, sshd, dnf with versionlock, zypper, rpm, signed repodata. Simulated: the distribution (Rocky 9, SLES 15)
on a Debian root, and NVIDIA's packages, which have the names and relations of theirs and nothing in them. Looked
at with rpm, dnf and zypper, not with the probes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import rpmnodes
from labnodes import LabFactory
from rpmnodes import Repository, become, copy, gpustate, versions
from rpmworld import Rpm
from shares import share

from gpustate.ops import LIBRARY
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "toolkit-repository": ("simulated node", "rhel", "suse"),
    "container-toolkit": ("simulated node", "rhel", "suse"),
}
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
OLD, NEW, TORN = "1.17.8-1", "1.18.0-1", "1.19.0-1"
BODY = """
policy = Policy(
    get("toolkit-repository")(origin="mirror", url="file:///srv/nvidia", key=KEY),
    get("container-toolkit")(version="{version}"),
)
"""


def toolkit(version: str, more: str = "") -> list[Rpm]:
    """The four packages; ``more`` goes into the last one that is installed."""
    first, base, tools, library = TOOLKIT
    folder = "%install\nmkdir -p %{buildroot}/etc/nvidia-container-runtime\n"
    return [
        Rpm(first, version, (f"{base} = {version}", f"{tools} >= {version}"), more=more),
        Rpm(base, version, more=folder, files="%dir /etc/nvidia-container-runtime\n"),
        Rpm(tools, version, (f"{library} >= {version}",)),
        Rpm(library, version),
    ]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("rpm")
    made = rpmnodes.repository(folder / "world")
    torn = toolkit(TORN, "%pre\nexit 1\n")
    site = Rpm("site-monitor", "1-1", (f"libnvidia-container1 = {NEW}",))
    made.fill([rpmnodes.BASE, site, *toolkit(OLD), *toolkit(NEW), *torn], folder / "build")
    return made


@pytest.fixture(scope="module")
def rpm_lab(lab_factory: LabFactory, packages: Repository) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=("debian12-rpm",), gpus=("none",)))


class Trial:
    """One node that has become one of a distribution."""

    def __init__(self, lab: Lab, packages: Repository, folder: Path, distribution: str) -> None:
        self.lab, self.packages, self.folder = lab, packages, folder
        self.node: Node = lab.nodes[0]
        become(self.node, distribution, packages)
        self.dnf = distribution == "rocky"

    def run(self, verb: str, version: str, status: int = 0) -> str:
        body = BODY.format(version=version)
        found = gpustate(verb, self.lab, self.node, self.folder, self.packages, body, status=status)
        return str(found.get("summary", found))

    def toolkit(self) -> set[str]:
        """Versions of the four packages that are installed."""
        there = versions(self.node)
        return {there.get(name, "none") for name in TOOLKIT}

    def held(self) -> set[str]:
        """Names that the package manager itself says are locked."""
        if self.dnf:
            said = self.node.run(["dnf", "-q", "versionlock", "list"]).stdout
            rows = [row.rsplit("-", 2)[0] for row in said.split()]
        else:
            said = self.node.run(["zypper", "-n", "locks"]).stdout
            rows = [row.split("|")[1].strip() for row in said.splitlines() if "| package" in row]
        return set(rows)

    def upgrade(self) -> None:
        """What an administrator, or a timer, does."""
        words = ["dnf", "-y", "upgrade"] if self.dnf else ["zypper", "-n", "update"]
        self.node.run(words, check=False, timeout_s=120)

    def files(self) -> str:
        """What a removed state must not leave behind."""
        places = "/etc/yum.repos.d /etc/zypp/repos.d /etc/pki/rpm-gpg /etc/nvidia-container-runtime"
        found = self.node.run(
            f"find {places} -type f; rpm -qa gpg-pubkey; cat /etc/zypp/locks", check=False
        )
        locked = self.node.run("cat /etc/dnf/plugins/versionlock.list").stdout
        return f"{found.stdout}{locked}".strip()


@pytest.fixture(params=share("distributions with rpm", ["rocky", "sles"], most=1))
def trial(
    request: pytest.FixtureRequest, rpm_lab: Lab, packages: Repository, tmp_path: Path
) -> Trial:
    return Trial(rpm_lab, packages, tmp_path, request.param)


def test_the_toolkit_is_installed_held_mended_upgraded_and_taken_away(trial: Trial) -> None:
    before = (versions(trial.node), trial.files())
    assert "changed=1" in trial.run("apply", OLD)
    assert trial.toolkit() == {OLD}
    assert trial.held() == set(TOOLKIT)
    assert "changed=0" in trial.run("apply", OLD)

    trial.upgrade()
    assert trial.toolkit() == {OLD}

    trial.node.run(["rpm", "-e", "--nodeps", "libnvidia-container1"])
    trial.run("drift", OLD, status=2)
    assert "changed=1" in trial.run("apply", OLD)
    assert trial.toolkit() == {OLD}

    assert "changed=1" in trial.run("apply", NEW)
    assert trial.toolkit() == {NEW}
    assert trial.held() == set(TOOLKIT)

    assert "changed=1" in trial.run("remove", NEW)
    assert (versions(trial.node), trial.files()) == before


def test_a_transaction_that_fails_in_the_middle_is_undone(trial: Trial) -> None:
    trial.run("apply", OLD)
    before, held = versions(trial.node), trial.held()
    said = trial.run("apply", TORN, status=7)
    assert "rolled_back=1" in said
    # It had begun: what came was removed again.
    assert trial.node.run("cat /var/lib/gpustate/runs/*/back.log").stdout.strip()
    assert versions(trial.node) == before
    assert trial.held() == held
    assert "changed=0" in trial.run("apply", OLD)


def test_what_is_somebody_elses_stays_and_the_node_with_it(trial: Trial) -> None:
    trial.run("apply", NEW)
    name = next(trial.packages.folder.glob("site-monitor-*.rpm")).name
    trial.node.run(["rpm", "-i", "--nosignature", f"/srv/nvidia/{name}"])
    before = versions(trial.node)
    trial.run("apply", OLD, status=7)
    assert versions(trial.node) == before


def test_a_repository_with_another_signature_is_not_used(trial: Trial) -> None:
    (trial.node.root / "srv/nvidia/repodata/repomd.xml.asc").unlink()
    said = trial.run("apply", OLD, status=7)
    assert "rolled_back=1" in said
    assert trial.toolkit() == {"none"}
    trial.run("remove", OLD)
    assert trial.files() == ""
    copy(trial.node, trial.packages)
    assert "changed=1" in trial.run("apply", OLD)


def test_whoever_holds_the_package_lock_is_named(rpm_lab: Lab, packages: Repository) -> None:
    node = rpm_lab.nodes[0]
    (node.root / "root/library").write_text(LIBRARY)
    held = "sleep 60 & echo $! >/run/zypp.pid; R=/tmp G=/tmp PROC=/proc SYS=/sys; . /root/library; RPM_WAIT_S=1; rpm_wait"
    done = node.run(f"{held}; s=$?; kill $!; rm /run/zypp.pid; exit $s", check=False)
    assert done.returncode != 0
    assert "held by sleep (process" in done.stdout
