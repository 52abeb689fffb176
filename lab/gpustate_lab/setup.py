"""Initialise the disk of a node: names, keys, users and apt sources.

The controller writes into the node's root. :func:`_inside` refuses symbolic links that lead out of it, although
none are expected.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from gpustate.errors import LabError
from gpustate.files import write_private

#: Home folder and uid of each user; ``base.sh`` creates them with the first uids of Debian's range.
USERS = {"root": ("root", 0), "op": ("home/op", 1000), "oppw": ("home/oppw", 1001)}


def make_key(path: Path, comment: str) -> None:
    """Generate an Ed25519 key pair, unless it exists."""
    if path.exists():
        return
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + f" {comment}\n".encode())
    # The private key is written last and atomically: its existence means that the pair is complete.
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


def host_key_of(node_directory: Path) -> Path:
    """Return the host key file; it is outside the root, so that a reset node keeps its key."""
    return node_directory / "ssh_host_ed25519_key"


def fill(
    root: Path,
    node_directory: Path,
    lab_directory: Path,
    name: str,
    sources: Iterable[tuple[str, str]],
) -> None:
    """Write names, keys and apt sources into a new root; without ``sources`` those of the image stay."""
    _write(root, "etc/hostname", f"{name}\n")
    _write(root, "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost\n")
    # With an empty file systemd would treat this boot as the first boot of a new machine.
    _write(root, "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    # systemd.unit(5), ConditionNeedsUpdate=: older than /usr would trigger update jobs.
    for stamp in ("etc/.updated", "var/.updated"):
        _write(root, stamp, "")
    key = host_key_of(node_directory)
    _write(root, "etc/ssh/ssh_host_ed25519_key", key.read_text(), 0o600)
    _write(root, "etc/ssh/ssh_host_ed25519_key.pub", key.with_suffix(".pub").read_text())
    login = "HostKey /etc/ssh/ssh_host_ed25519_key\nUseDNS no\n"
    _write(root, "etc/ssh/sshd_config.d/gpustate-lab.conf", login)
    # A boot image that nothing boots: with the usual level compression costs half of a driver's installation.
    if (root / "etc/initramfs-tools/conf.d").is_dir():
        _write(root, "etc/initramfs-tools/conf.d/gpustate-lab", "COMPRESSLEVEL=1\n")
    authorized = (lab_directory / "id_ed25519.pub").read_text()
    for home, uid in USERS.values():
        path = _write(root, f"{home}/.ssh/authorized_keys", authorized, 0o600)
        path.parent.chmod(0o700)
        shutil.chown(path.parent, uid, uid)
        shutil.chown(path, uid, uid)
    _replace_sources(root, sources)


def _replace_sources(root: Path, sources: Iterable[tuple[str, str]]) -> None:
    """Replace all apt sources with the lab's repository, the only one that is reachable."""
    files = list(sources)
    if not files:
        return
    apt = _inside(root, "etc/apt")
    (apt / "sources.list").unlink(missing_ok=True)
    for path in (apt / "sources.list.d").iterdir():
        path.unlink()
    for name, text in files:
        _write(root, name.lstrip("/"), text)


def _inside(root: Path, name: str) -> Path:
    path = root / name
    parent = path.parent.resolve()
    if not parent.is_relative_to(root.resolve()):
        raise LabError(f"{path} leads out of the node's root, to {parent}")
    return path


def _write(root: Path, name: str, text: str, mode: int = 0o644) -> Path:
    path = _inside(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path
