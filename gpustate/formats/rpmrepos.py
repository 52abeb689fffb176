"""The .repo files of dnf and zypper: a node's other repositories, and the text of our own.

Sources:
    dnf.conf(5), repository options; zypper(8) and libzypp, zypp/RepoInfo.h: the same file format in
    /etc/zypp/repos.d, with ``type``, ``autorefresh`` and ``pkg_gpgcheck`` of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

#: Values that disable an option.
OFF = frozenset({"0", "no", "false", "off"})
#: Priority of our repositories: lower takes precedence, and the default of others is 99.
PRIORITIES = {"driver-repository": 50, "toolkit-repository": 40}


@dataclass(frozen=True, slots=True)
class RpmSource:
    """One enabled repository of a .repo file."""

    file: str
    line: int
    id: str
    uri: str  # its first address


@dataclass(frozen=True, slots=True)
class Section:
    """One enabled repository: its id, line and options."""

    id: str
    line: int
    options: Mapping[str, str]


def sections(text: str) -> Iterator[Section]:
    """Enabled repositories of a .repo file."""
    section, place, key = "", 0, ""
    options: dict[str, str] = {}
    for number, line in enumerate([*text.splitlines(), "[]"], 1):
        head = re.fullmatch(r"\s*\[(.*)\]\s*", line)
        if head is not None:
            if section not in ("", "main") and options.get("enabled", "1").lower() not in OFF:
                yield Section(section, place, options)
            options, section, place, key = {}, head[1], number, ""
        elif line[:1] in (" ", "\t"):
            if key and line.strip():
                options[key] += f" {line.strip()}"
        elif line[:1] not in ("#", ";") and "=" in line:
            name, _, value = line.partition("=")
            key = name.strip()
            options[key] = value.strip()


def parse_repos(texts: Mapping[str, str]) -> tuple[RpmSource, ...]:
    """Enabled repositories of some files, by path; unreadable ones are ignored."""
    sources: list[RpmSource] = []
    for file, text in texts.items():
        for section in sections(text):
            locations = (section.options.get(key) for key in ("baseurl", "mirrorlist", "metalink"))
            uri = next(filter(None, locations), "").split()
            if uri:
                sources.append(
                    RpmSource(file, section.line, section.id, uri[0].rstrip(",").rstrip("/"))
                )
    return tuple(sources)


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
    more: Mapping[str, str] | None = None,
) -> str:
    """The text of a .repo file.

    Args:
        manager: ``dnf`` or ``zypper``.
        id: the repository's id.
        uri: its address, up to the folder with ``repodata``.
        key_path: its key, a file on the node.
        packages_signed, metadata_signed: whether signatures with that key are checked.
        priority: lower takes precedence; 99 is the default of others.
        title: human-readable name.
        more: further options, such as those for a login.
    """
    rows = {
        "name": f"{title} ({id})",
        "baseurl": re.sub(r"^file:/(?!/)", "file:///", uri),
        "enabled": "1",
        "gpgcheck": _flag(packages_signed or (manager == "zypper" and metadata_signed)),
        "repo_gpgcheck": _flag(metadata_signed),
        **({"gpgkey": f"file://{key_path}"} if packages_signed or metadata_signed else {}),
        "priority": str(priority),
    }
    if manager == "zypper":
        rows |= {"pkg_gpgcheck": _flag(packages_signed), "type": "rpm-md", "autorefresh": "0"}
    else:
        # Module streams would hide all drivers except those of the enabled stream.
        rows["module_hotfixes"] = "1"
    rows |= more or {}
    return f"[{id}]\n" + "".join(f"{key}={value}\n" for key, value in rows.items())


def _flag(value: bool) -> str:
    return "1" if value else "0"
