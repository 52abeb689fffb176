"""The .repo files of dnf and zypper: what other repositories a node has, and the text of one of ours.

Sources:
    dnf.conf(5), repository options; zypper(8) and libzypp, zypp/RepoInfo.h: the same file format in
    /etc/zypp/repos.d, with ``type``, ``autorefresh`` and ``pkg_gpgcheck`` of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_OFF = frozenset({"0", "no", "false", "off"})


@dataclass(frozen=True, slots=True)
class RpmSource:
    """One enabled repository of a .repo file."""

    file: str
    line: int
    id: str
    uri: str  # its first address


def parse_repos(texts: Mapping[str, str]) -> tuple[RpmSource, ...]:
    """Enabled repositories of some files, by path; what cannot be read is no repository."""
    found: list[RpmSource] = []
    for file, text in texts.items():
        keys: dict[str, str] = {}
        section, place, key = "", 0, ""
        for number, line in enumerate([*text.splitlines(), "[]"], 1):
            head = re.fullmatch(r"\s*\[(.*)\]\s*", line)
            if head is not None:
                uri = (
                    keys.get("baseurl") or keys.get("mirrorlist") or keys.get("metalink") or ""
                ).split()
                if (
                    section
                    and section != "main"
                    and uri
                    and keys.get("enabled", "1").lower() not in _OFF
                ):
                    found.append(RpmSource(file, place, section, uri[0].rstrip(",").rstrip("/")))
                keys, section, place, key = {}, head[1], number, ""
            elif line[:1] in (" ", "\t"):
                if key and line.strip():
                    keys[key] += f" {line.strip()}"
            elif line[:1] not in ("#", ";") and "=" in line:
                name, _, value = line.partition("=")
                key = name.strip()
                keys[key] = value.strip()
    return tuple(found)


def render_repo(
    manager: str,
    *,
    id: str,
    uri: str,
    key_path: str,
    packages_signed: bool,
    metadata_signed: bool,
    priority: int,
    title: str = "NVIDIA packages",
) -> str:
    """The text of a .repo file.

    Args:
        manager: ``dnf`` or ``zypper``.
        id: the repository's id.
        uri: its address, up to the folder with ``repodata``.
        key_path: its key, a file on the node.
        packages_signed, metadata_signed: what is signed with that key, and so is checked.
        priority: the lower, the more it is preferred; 99 is the others'.
        title: what is in it, for people.
    """
    rows = {
        "name": f"{title} ({id})",
        "baseurl": re.sub(r"^file:/(?!/)", "file:///", uri),
        "enabled": "1",
        "gpgcheck": _flag(packages_signed or (manager == "zypper" and metadata_signed)),
        "repo_gpgcheck": _flag(metadata_signed),
        "gpgkey": f"file://{key_path}",
        "priority": str(priority),
    }
    if manager == "zypper":
        rows |= {"pkg_gpgcheck": _flag(packages_signed), "type": "rpm-md", "autorefresh": "0"}
    else:
        # Module streams would hide every driver but those of the one that is enabled.
        rows["module_hotfixes"] = "1"
    return f"[{id}]\n" + "".join(f"{key}={value}\n" for key, value in rows.items())


def _flag(value: bool) -> str:
    return "1" if value else "0"
