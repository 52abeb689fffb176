"""Nodes whose packages are managed with dnf or zypper: the lab's ``debian12-rpm`` image, told to be another distribution.

Real: systemd, sshd, rpm, dnf with versionlock, zypper, rpmbuild, createrepo_c, gpg. Simulated: the distribution
(an os-release, and one base package that provides /bin/sh), and NVIDIA's packages, which are empty.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forkserver
import yaml
from rpmworld import Rpm, build, index, needs
from shortpaths import short_folder

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: /etc/os-release of the distributions.
RELEASES = {
    "rocky": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\nNAME="Rocky Linux"\nPLATFORM_ID="platform:el9"\n',
    "rocky10": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="10.1"\nNAME="Rocky Linux"\nPLATFORM_ID="platform:el10"\n',
    "amzn": 'ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\nNAME="Amazon Linux"\nPLATFORM_ID="platform:al2023"\n',
    "sles": 'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.7"\nNAME="SLES"\n',
}
#: dnf's plugin as a package of the distribution's own: the files are those of the node's image, put aside.
PLUGIN = Rpm(
    "python3-dnf-plugin-versionlock",
    "4.3.0-1",
    arch="noarch",
    more="%post\ncp -r /srv/versionlock/. /\n",
)
BASE = Rpm("bash", "5.1.8-9.el9", provides=("/bin/sh",))
POLICY = """
from gpustate import Policy
from gpustate.registry import get

KEY = '''{key}'''
{body}
"""


@dataclass
class Repository:
    """A repository on the controller, whose metadata and packages are signed or not."""

    folder: Path
    key: str  # armored
    home: Path  # of gpg, removed with this object

    def fill(
        self, packages: Iterable[Rpm], scratch: Path, *, modules: str = "", patches: str = ""
    ) -> None:
        """Build packages into it, write its repodata, with module streams and patches or without, and sign that."""
        build(packages, self.folder, scratch)
        self.index(modules=modules, patches=patches)

    def index(self, *, modules: str = "", patches: str = "", primary: Path | None = None) -> None:
        index(self.folder, modules=modules, patches=patches, primary=primary)
        data = self.folder / "repodata/repomd.xml"
        data.with_suffix(".xml.asc").unlink(missing_ok=True)
        self._gpg("--armor", "--detach-sign", str(data))
        data.with_suffix(".xml.key").write_text(self.key)

    def _gpg(self, *words: str) -> str:
        argv = ["gpg", "--homedir", str(self.home), "--batch", "--yes", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def repository(folder: Path) -> Repository:
    """An empty one with a key of its own."""
    needs("rpmbuild", "createrepo_c", "gpg")
    home = short_folder()  # gpg-agent's sockets lie in it
    made = Repository(folder / "packages", "", home)
    weakref.finalize(made, _forget, home)
    made.folder.mkdir(parents=True)
    made._gpg("--passphrase", "", "--quick-gen-key", "lab@example", "rsa2048", "sign", "never")
    made.key = made._gpg("--armor", "--export")
    return made


def _forget(home: Path) -> None:
    """End gpg's agent and remove its folder."""
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    shutil.rmtree(home, ignore_errors=True)


def become(
    node: Node, distribution: str, repository: Repository, place: str = "srv/nvidia"
) -> None:
    """Let a node be of a distribution, with an empty base, and show it the repository below its root."""
    node.reset()
    root = node.root
    (root / "etc/os-release").unlink()
    (root / "etc/os-release").write_text(RELEASES[distribution])
    # Debian's rpm has a database of each user's own unless it is told otherwise.
    (root / "etc/rpm").mkdir(exist_ok=True)
    (root / "etc/rpm/macros").write_text("%_dbpath /var/lib/rpm\n")
    copy(node, repository, place)
    bash = next(repository.folder.glob("bash-*.rpm")).name
    node.run(["rpm", "-i", "--nosignature", f"/{place}/{bash}"])


def remove_plugin(node: Node) -> None:
    """Leave a node without dnf's plugin versionlock, as minimal ones are; :data:`PLUGIN` brings it."""
    files = node.run(
        "ls /etc/dnf/plugins/versionlock.* /usr/lib/python3*/*-packages/dnf-plugins/versionlock.py"
    ).stdout.split()
    assert len(files) >= 2
    node.run(
        f"for f in {' '.join(files)}; do mkdir -p /srv/versionlock/${{f%/*}}; mv $f /srv/versionlock/$f; done"
    )


def copy(node: Node, repository: Repository, place: str = "srv/nvidia") -> None:
    """Bring what is in the repository to the node."""
    target = node.root / place
    subprocess.run(["rm", "-rf", str(target)], check=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", str(repository.folder), str(target)], check=True)


def gpustate(
    verb: str,
    lab: Lab,
    node: Node,
    folder: Path,
    repository: Repository,
    body: str,
    *,
    status: int = 0,
) -> dict[str, Any]:
    """Run a verb on one node with a policy; the document it prints."""
    policy = folder / "policy.py"
    policy.write_text(POLICY.format(key=repository.key, body=body))
    target = ["-i", str(inventory(lab, folder)), "-l", node.name, "-o", "json"]
    if verb in ("apply", "remove"):
        target.append("--yes")
    done = forkserver.run([verb, str(policy), *target], 500)
    assert done.returncode == status, done.stdout[-6000:] + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def inventory(lab: Lab, folder: Path) -> Path:
    """The lab's inventory, without the parameters that lead to its repository for apt."""
    rows = yaml.safe_load(lab.inventory.read_text())
    for group in rows["all"]["children"].values():
        group.get("vars", {}).pop("gpustate", None)
    file = folder / "inventory.yml"
    file.write_text(yaml.safe_dump(rows))
    return file


def versions(node: Node) -> dict[str, str]:
    """Packages that rpm knows on a node, apart from keys."""
    shape = "%{NAME} %{VERSION}-%{RELEASE}\\n"
    rows = node.run(["rpm", "-qa", "--qf", shape]).stdout.splitlines()
    return dict(row.split(" ", 1) for row in rows if not row.startswith("gpg-pubkey "))
