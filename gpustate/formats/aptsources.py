"""apt's source entries in both formats, its pins, and the names of its list files.

Sources:
    sources.list(5): one-line and deb822 format; apt_preferences(5);
    apt-cache(8), ``policy``: the version table with a priority for each version;
    Debian/apt: ``URItoFileName`` and ``QuoteString`` for the names in /var/lib/apt/lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpustate.formats import dpkg


@dataclass(frozen=True, slots=True)
class Source:
    """One enabled binary entry of apt's sources: one URI and one suite.

    Args:
        file: its path.
        uri: without a slash at the end.
        suite: a name, or a path ending in ``/`` for a flat repository.
        components: empty for a flat repository.
        signed_by: as written, "" when not given.
        architectures: empty for those of the node.
        line: number of its first line.
    """

    file: str
    uri: str
    suite: str
    components: tuple[str, ...] = ()
    signed_by: str = ""
    architectures: tuple[str, ...] = ()
    line: int = 1

    @property
    def key(self) -> tuple[str, str]:
        """apt's key of an entry: conflicting options of entries with the same key are an error."""
        return self.uri, self.suite.removeprefix("./") or "/"

    @property
    def host(self) -> str:
        """Host name of the URI, as in ``Pin: origin``; empty for files and cdroms."""
        return uri_host(self.uri)


def uri_host(uri: str) -> str:
    """The host of a URI without user, password and port."""
    match = re.match(r"[a-z0-9+]+://(?:[^/@]*@)?(\[[^\]]*\]|[^/:]*)", uri, re.IGNORECASE)
    return match.group(1) if match else ""


def parse_sources(texts: Mapping[str, str]) -> tuple[Source, ...]:
    """Read files by name: ``*.sources`` is deb822, anything else has one entry a line."""
    sources: list[Source] = []
    for path, text in texts.items():
        sources += _deb822(path, text) if path.endswith(".sources") else _one_line(path, text)
    return tuple(sources)


_LINE = re.compile(
    r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>cdrom:\[[^\]]*\]\S*|\S+)\s+(?P<rest>.+)"
)


def _one_line(path: str, text: str) -> list[Source]:
    sources: list[Source] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.match(line.partition("#")[0])
        if match is None:
            continue
        options: dict[str, str] = {}
        for option in (match.group("options") or "").split():
            name, _, value = option.partition("=")
            options[name] = value
        suite, *components = match.group("rest").split()
        sources.append(
            Source(
                path,
                match.group("uri").rstrip("/"),
                suite,
                tuple(components),
                options.get("signed-by", ""),
                tuple(options.get("arch", "").replace(",", " ").split()),
                number,
            )
        )
    return sources


def _deb822(path: str, text: str) -> list[Source]:
    sources: list[Source] = []
    for number, fields in _stanzas(text):
        if fields.get("enabled", "yes").lower() in (
            *("no", "false", "0", "off", "without", "disable"),
        ):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                sources.append(
                    Source(
                        path,
                        uri.rstrip("/"),
                        suite,
                        tuple(fields.get("components", "").split()),
                        fields.get("signed-by", ""),
                        tuple(fields.get("architectures", "").split()),
                        number,
                    )
                )
    return sources


def _stanzas(text: str) -> list[tuple[int, dict[str, str]]]:
    stanzas: list[tuple[int, dict[str, str]]] = []
    fields: dict[str, str] = {}
    start, last = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                stanzas.append((start, fields))
            fields, last = {}, ""
        elif line[0] in " \t" and last:
            fields[last] += "\n" + line.strip()
        elif ":" in line:
            start = start if fields else number
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = value.strip()
    return stanzas


def list_name(uri: str) -> str:
    """The prefix of a URI's files in /var/lib/apt/lists."""
    location = re.sub(r"^[a-z0-9+]+:(//)?", "", uri, flags=re.IGNORECASE)
    if "@" in location.partition("/")[0]:
        location = location.partition("@")[2]
    quoted = "".join(
        f"%{ord(c):02x}" if c in '\\|{}[]<>"^~_=!@#$%&*' or not 0x20 < ord(c) < 0x7F else c
        for c in location
    )
    return quoted.rstrip("/").replace("/", "_")


def render_deb822(
    *,
    uri: str,
    suite: str,
    components: tuple[str, ...] = (),
    signed_by: str = "",
    trusted: bool = False,
) -> str:
    """One stanza of a ``.sources`` file."""
    lines = ["Types: deb", f"URIs: {uri.rstrip('/')}/", f"Suites: {suite}"]
    if components:
        lines.append(f"Components: {' '.join(components)}")
    if "\n" in signed_by:
        # An embedded key: every line is a continuation, and an empty line is a dot.
        lines.append("Signed-By:")
        lines += [f" {line}" for line in signed_by.strip().splitlines()]
    elif signed_by:
        lines.append(f"Signed-By: {signed_by}")
    elif trusted:
        lines.append("Trusted: yes")
    return "\n".join(lines) + "\n"


def render_pin(packages: tuple[str, ...], pin: str, priority: int, explanation: str) -> str:
    """One stanza of a file below /etc/apt/preferences.d."""
    return f"Explanation: {explanation}\nPackage: {' '.join(packages)}\nPin: {pin}\nPin-Priority: {priority}\n"


@dataclass(frozen=True, slots=True)
class Offer:
    """One version of a package that apt may install.

    Args:
        version: Debian version.
        priority: the highest pin priority of its sources; below zero it is never installed.
        origins: address and suite of each source, as apt prints them; empty if it is only installed.
    """

    version: str
    priority: int
    origins: tuple[str, ...] = ()


# deb-version(7): it becomes an argument of commands.
_VERSION = re.compile(
    r"^ (?:\*\*\*|   ) (?P<version>[0-9A-Za-z.+:~-]+) (?P<priority>-?[0-9]{1,6})\b"
)
_ORIGIN = re.compile(r"^ {7,}(?P<priority>-?[0-9]{1,6}) (?P<origin>\S.*)")


def parse_policy(text: str) -> dict[str, tuple[Offer, ...]]:
    """Read ``apt-cache policy NAME...``: every version with its origins, newest first.

    Versions only in dpkg's database have no origins.
    """
    by_name: dict[str, list[Offer]] = {}
    name = ""
    for line in text.splitlines():
        version, origin = _VERSION.match(line), _ORIGIN.match(line)
        if line and not line.startswith(" ") and line.endswith(":"):
            name = line[:-1] if dpkg.is_name(line[:-1]) else ""
            if name:
                by_name.setdefault(name, [])
        elif version and name:
            by_name[name].append(Offer(version.group("version"), int(version.group("priority"))))
        elif (
            origin
            and name
            and by_name[name]
            and not origin.group("origin").startswith("/var/lib/dpkg/status")
        ):
            last = by_name[name][-1]
            by_name[name][-1] = Offer(
                last.version, last.priority, (*last.origins, origin.group("origin"))
            )
    return {key: tuple(offers) for key, offers in by_name.items() if offers}


#: Foreign file of pins: priorities that differ from the usual with it alone, by name and version.
Pins = Mapping[str, Mapping[tuple[str, str], int]]
#: Of the pins of the state driver-repository, unless the policy says otherwise; then all versions of it have the other one.
REPOSITORY_PRIORITY = 700


def parse_pins(text: str) -> Pins:
    """Read the rows of ``foreign_pins``: file, name, version and priority."""
    priorities_by_path: dict[str, dict[tuple[str, str], int]] = {}
    for line in text.splitlines():
        path, *row = line.split("|")
        if len(row) == 3 and re.fullmatch(r"-?[0-9]{1,6}", row[2]):
            priorities_by_path.setdefault(path, {})[row[0], row[1]] = int(row[2])
    return priorities_by_path


def is_forbidden(offer: Offer, offers: Iterable[Offer], limit: int = REPOSITORY_PRIORITY) -> bool:
    """Pins keep apt from a version: a negative one, or one for another version.

    Args:
        offers: all of its package.
        limit: priority up to which a pin for another version does not.
    """
    highest = max(candidate.priority for candidate in offers)
    return offer.priority < (highest if highest > limit else 0)


def forbidding_file(name: str, version: str, offers: Iterable[Offer], pins: Pins) -> str | None:
    """The foreign file of pins that alone would keep apt from a version."""
    for path, priorities in pins.items():
        alone = [replace(o, priority=priorities.get((name, o.version), 500)) for o in offers]
        if any(is_forbidden(o, alone) for o in alone if o.version == version):
            return path
    return None


def forbidden(text: str, *, overridden: bool = False) -> dict[tuple[str, str], str]:
    """Read the rows of ``pins_of``: versions that apt may not install, by name, and the foreign file that forbids them.

    Args:
        overridden: also versions that it may install, since other pins override the file.
    """
    rows, _, policy = text.partition("=policy\n")
    pins = parse_pins(rows)
    return {
        (name, offer.version): path
        for name, offers in parse_policy(policy).items()
        for offer in offers
        if overridden or is_forbidden(offer, offers)
        if (path := forbidding_file(name, offer.version, offers, pins))
    }
