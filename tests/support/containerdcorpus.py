"""Configurations of containerd as images and installers ship them, and what becomes of them.

A file of ``tests/data/containerd/corpus`` is one configuration: its first line names what it has the shape of;
``#@ PATH`` begins a further file of /etc/containerd.
"""

from __future__ import annotations

import re
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "data" / "containerd" / "corpus"
NAMES = sorted(path.stem for path in CORPUS.glob("*.toml"))


def parts(name: str) -> dict[str, str]:
    """Path below /etc/containerd to text."""
    first, *rest = re.split(r"(?m)^#@ (.*)\n", (CORPUS / f"{name}.toml").read_text())
    return {"config.toml": first, **dict(zip(rest[::2], rest[1::2], strict=True))}


def lay_out(name: str, etc: Path, place: str = "/etc/containerd") -> None:
    """Write a configuration into ``etc``, with the paths in it below ``place``."""
    for path, text in parts(name).items():
        (etc / path).parent.mkdir(parents=True, exist_ok=True)
        (etc / path).write_text(text.replace("/etc/containerd", place))


def cannot_load(name: str, release: str) -> bool:
    """This containerd knows no such version of a file, and does not start."""
    text = parts(name)["config.toml"]
    version = int((re.search(r"(?m)^version = (\d)", text) or [0, 0])[1])
    newest = {"1.6": 9, "1.7": 2, "2.1": 3, "2.2": 3}
    return version > newest.get(release, 4)


#: Files whose CRI settings containerd 2.0 to 2.2 ignores.
IGNORED = ("bottlerocket-v1-nvidia", "version1-kubeadm", "unversioned-v2-names")
#: Files by which no pods are served.
DISABLED = ("docker-ce", "docker-ce-version2")


def refusal(name: str, release: str, default: bool) -> str:
    """Words of the refusal that is due; empty where there is none."""
    text = parts(name)["config.toml"]
    if release == "1.6" and re.search(r"(?m)^version = [34]", text):
        return "ignores the plugins"
    if release in ("2.1", "2.2") and name in IGNORED:
        return f"containerd {release} ignores"
    if name == "default-nope" and not default:
        return "which no file defines"
    return ""
