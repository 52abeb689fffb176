"""The rpm repositories of a node, as dnf is configured: enabled ones, their repodata, enabled module streams.

:class:`RepositoriesQuery` brings dnf's settings and each repository's ``repomd.xml`` out of dnf's cache. Their content
is queried by :mod:`~gpustate.resolver.rpm_indexes`.

Surprising: nothing is downloaded; dnf's cache shows what dnf would install. Equal repositories count as equal,
although their cache folders have different names on each node.

Sources:
    dnf.conf(5): repository options, cache; dnf5 keeps its cache in /var/cache/libdnf5.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError, RefusedError
from gpustate.formats.words import quote
from gpustate.solve import modules, repodata
from gpustate.solve.packages import Repository

_KEYS = (
    "enabled|baseurl|mirrorlist|metalink|priority|exclude|excludepkgs|includepkgs|"
    "module_hotfixes|skip_if_unavailable"
)
_USER = re.compile(r"//[^/@]*@")
_CACHE = re.compile(r"/var/cache/(?:libdnf5|dnf)/(.+)-[0-9a-f]{16}/repodata/repomd\.xml")
_NO_RPM = 69
FIX = "run dnf makecache on the node"


@dataclass(frozen=True, slots=True)
class RpmRepository:
    """An enabled repository and its repodata on the node.

    Args:
        name: its id.
        site: its address.
        folder: cache folder, above ``repodata/``.
        primary, modules: its files; ``None`` where it has no module streams.
        priority: the lowest number wins.
        excluded, included: name patterns; with ``included``, only matching packages.
        hotfixes: module streams do not hide its packages.
    """

    name: str
    site: str
    folder: str
    primary: repodata.Location
    modules: repodata.Location | None = None
    priority: int = 99
    excluded: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    hotfixes: bool = False

    @property
    def origin(self) -> Repository:
        """As packages have it: a repository's id is its origin."""
        return Repository(self.name, "/", "", self.site)


@dataclass(frozen=True, slots=True)
class Repositories:
    """dnf's repositories.

    Args:
        machine: as ``uname -m`` says.
        rows: enabled repositories with cached repodata.
        streams: module and enabled stream; empty for a disabled module.
        missing: enabled repositories without cached repodata.
        digest: equal for equal repositories.
    """

    machine: str = ""
    rows: tuple[RpmRepository, ...] = ()
    streams: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    digest: str = ""

    def checked(self) -> Repositories:
        """Itself, if repodata of every repository is cached.

        Raises:
            RefusedError: repodata is missing.
        """
        if self.missing:
            raise RefusedError(
                f"dnf has no cached repodata of {', '.join(self.missing[:4])}", fix=FIX
            )
        return self


@dataclass(frozen=True, slots=True)
class RepositoriesQuery(Query[Repositories]):
    """dnf's settings and every cached ``repomd.xml``; empty without rpm."""

    def script(self) -> str:
        keep = (
            f"/^\\[/ {{ keep = 1 }} /^[A-Za-z]/ {{ keep = ($0 ~ /^({_KEYS})[ \\t]*=/) }}"
            " keep && !/^[#;]/ { print }"
        )
        return shell.fill(shell.load("rpm_repositories", "gpustate.resolver"), KEEP=keep)

    def parse(self, answer: Answer) -> Repositories:
        if answer.status == _NO_RPM:
            return Repositories()
        head, *files = answer.text.split("\n=repomd|")
        machine, _, rest = head.partition("\n=main\n")
        main, found, rest = rest.partition("=repos\n")
        repos, also_found, streams = rest.partition("=streams\n")
        if not (found and also_found and re.fullmatch(r"[0-9A-Za-z_]+", machine.strip())):
            raise ProbeError(f"dnf's settings were answered with {quote(answer.text)}")
        chosen = tuple(sorted(modules.enabled_streams([streams]).items()))
        everywhere = _settings(main).get("main", {})
        rows, missing = _repositories(_settings(repos), everywhere, _caches(files))
        bare = [replace(row, folder="") for row in rows]
        digest = hashlib.sha256(repr((machine, bare, chosen, missing)).encode()).hexdigest()
        return Repositories(machine.strip(), rows, chosen, missing, digest)

    def placeholder(self) -> Repositories:
        return Repositories()


def _settings(text: str) -> dict[str, dict[str, str]]:
    """Sections of dnf's files; a line that begins with a space continues the previous one."""
    found: dict[str, dict[str, str]] = {}
    section, key = found.setdefault("main", {}), ""
    for line in text.splitlines():
        if line[:1] in (" ", "\t"):
            if key and line.strip():
                section[key] += f" {line.strip()}"
        elif line.startswith("[") and line.rstrip().endswith("]"):
            section, key = found.setdefault(line.strip()[1:-1], {}), ""
        elif "=" in line:
            name, _, value = line.partition("=")
            key = name.strip()
            section[key] = value.strip()
    return found


def _caches(files: Iterable[str]) -> dict[str, tuple[str, bytes]]:
    """By repository id: the folder above ``repodata/`` and ``repomd.xml``, the newest where there are several."""
    found: dict[str, tuple[int, str, bytes]] = {}
    for file in files:
        head, _, body = file.partition("\n")
        time, _, path = head.partition("|")
        match = _CACHE.fullmatch(path)
        if match is None or not time.isdigit():
            continue
        row = (int(time), path.removesuffix("/repodata/repomd.xml"), body.strip().encode())
        found[match[1]] = max(found.get(match[1], row), row)
    return {name: row[1:] for name, row in found.items()}


def _repositories(
    settings: Mapping[str, Mapping[str, str]],
    everywhere: Mapping[str, str],
    caches: Mapping[str, tuple[str, bytes]],
) -> tuple[tuple[RpmRepository, ...], tuple[str, ...]]:
    rows: list[RpmRepository] = []
    missing: list[str] = []
    for name, keys in sorted(settings.items()):
        if name == "main" or not _is_on(keys.get("enabled", "1")):
            continue
        if name not in caches:
            if not _is_on(keys.get("skip_if_unavailable", "0")):
                missing.append(name)
            continue
        folder, repomd = caches[name]
        files = repodata.parse_repomd(repomd, f"repomd.xml of {name}")
        priority = keys.get("priority", everywhere.get("priority", "99"))
        site = next((keys[k] for k in ("baseurl", "metalink", "mirrorlist") if keys.get(k)), "")
        rows.append(
            RpmRepository(
                name,
                _USER.sub("//", site.split()[0] if site else ""),
                folder,
                files["primary"],
                files.get("modules"),
                int(priority) if re.fullmatch(r"-?[0-9]{1,6}", priority) else 99,
                (*_patterns(keys, "exclude"), *_patterns(everywhere, "exclude")),
                _patterns(keys, "include"),
                _is_on(keys.get("module_hotfixes", "0")),
            )
        )
    return tuple(rows), tuple(missing)


def _is_on(text: str) -> bool:
    return text.strip().lower() not in ("0", "no", "false", "off")


def _patterns(keys: Mapping[str, str], kind: str) -> tuple[str, ...]:
    words = f"{keys.get(kind, '')} {keys.get(f'{kind}pkgs', '')}"
    return tuple(filter(None, re.split(r"[\s,]+", words)))
