"""Where a repository is on one node: what parameters, distribution and the archive's entries come to.

Sources:
    NVIDIA driver installation guide: addresses and keys of the CUDA repository; NVIDIA/cuda-repo-management#39 (a key
    for each new distribution); public build scripts, read 2026-11-28 (key of ubuntu2604, made 2025-11-24);
    NVIDIA container toolkit installation guide: address and key of libnvidia-container.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from gpustate import NodeFacts, Step, ops
from gpustate.formats import aptsources, openpgp

_WRITTEN = "# Written by gpustate; changes are overwritten.\n"
#: What apt calls a file of packages that its configuration names (``APT::Sources::With``): those kept for a rollback.
KEPT_PIN = "release c=volatile-packages-file"
FOREIGN = re.compile(
    r"developer\.download\.nvidia\.|/compute/cuda/repos/|nvidia\.github\.io|graphics-drivers|"
    r"libnvidia-container|nvidia-docker|nvidia-container-runtime"
)
_ARCHIVE_COMPONENTS = {
    "debian": ("contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("restricted", "multiverse"),
}
#: Suites of the archive that have drivers, as they end after the release's name.
_DRIVER_POCKETS = ("", "-updates", "-security")
#: All suites of the archive that count for a release; Ubuntu's security pocket has another host.
_POCKETS = (
    *_DRIVER_POCKETS,
    *(f"-{kind}-{tail}" for kind in ("infra", "apps") for tail in ("security", "updates")),
)
_CUDATOOLS_KEY = ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
#: File and fingerprint of the key of each distribution's folder. NVIDIA makes a key for each new one and leaves older ones.
_CUDA_KEYS = {
    "debian12": _CUDATOOLS_KEY,
    "debian13": ("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
    "ubuntu2204": _CUDATOOLS_KEY,
    "ubuntu2404": _CUDATOOLS_KEY,
    "ubuntu2604": ("60DF8A40.pub", "14BAFBC7562AD710CA04E69905FBB6DA60DF8A40"),
}


@dataclass(frozen=True, slots=True)
class Repository:
    """Where the packages come from on one node; what parameters and facts come to.

    Args:
        uri, suite, components: as apt wants them; no uri: the archive's own entries suffice.
        hosts: hosts that may offer the packages; "" for files.
        key_url: where the node fetches the key; ``None`` when the policy carries it.
        signed_by: value of ``Signed-By``; "" for the keys of the distribution.
        sha256: of the key's file without its line ``Version:``; then ``fingerprint`` may be the end of it only.
        problem: why there is no such repository.
        os_id: the distribution, which the names of the packages depend on.
        signed: ``nothing``; else of an rpm repository, what is signed with the key: packages, metadata or both.
        private: an rpm repository that wants user and password.
        further: entries of the archive beside the first one: its other suites, with the components they lack.
        beside: codename of the distribution whose archive is on the same host and is not meant; empty: none.
        codename: of the distribution whose archive it is: another repository may be on its host; empty: its hosts are pinned.
        elsewhere: then, hosts of other sources of that release, and of those that have the driver, too.
    """

    uri: str | None = None
    suite: str = "/"
    components: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    key_url: str | None = None
    fingerprint: str | None = None
    sha256: str = ""
    signed_by: str = ""
    problem: str | None = None
    os_id: str = ""
    signed: str = "packages"
    private: bool = False
    further: tuple[aptsources.Source, ...] = ()
    beside: str = ""
    codename: str = ""
    elsewhere: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[aptsources.Source, ...]:
        """Every entry of the source file."""
        if self.uri is None:
            return ()
        first = aptsources.Source("", self.uri, self.suite, self.components, self.signed_by)
        return (first, *self.further)


def cuda_repository(facts: NodeFacts) -> Repository:
    """NVIDIA's CUDA repository, which has the driver."""
    machine = {"x86_64": "x86_64", "aarch64": "sbsa"}.get(facts.machine)
    if machine is None or facts.distribution not in _CUDA_KEYS:
        return Repository(
            problem=f"no apt repository of NVIDIA's, with its key, is known for {facts.distribution} on {facts.machine}; "
            "set origin: mirror with url, key and fingerprint"
        )
    uri = f"https://developer.download.nvidia.com/compute/cuda/repos/{facts.distribution}/{machine}"
    file, fingerprint = _CUDA_KEYS[facts.distribution]
    return Repository(
        uri=uri, hosts=(aptsources.uri_host(uri),), key_url=f"{uri}/{file}", fingerprint=fingerprint
    )


def toolkit_repository(facts: NodeFacts) -> Repository:
    """NVIDIA's repository of the container toolkit."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(facts.machine)
    if machine is None:
        return Repository(
            problem=f"NVIDIA has no container toolkit for {facts.machine}; "
            "set origin: mirror with a url"
        )
    base = "https://nvidia.github.io/libnvidia-container"
    return Repository(
        uri=f"{base}/stable/deb/{machine}",
        hosts=("nvidia.github.io",),
        key_url=f"{base}/gpgkey",
        fingerprint="C95B321B61E88C1809C4F759DDCAE044F796ECB0",
    )


def _archive_entries(
    facts: NodeFacts, sources: tuple[aptsources.Source, ...]
) -> list[aptsources.Source]:
    """Entries of the distribution's own archive, main suite only.

    Others have that suite and component, too; only the archive has updates beside it.
    """
    entries = [
        source
        for source in sources
        if source.suite == facts.os_codename
        and "main" in source.components
        and not FOREIGN.search(source.uri)
    ]
    updated = {s.host for s in sources if s.suite == f"{facts.os_codename}-updates"}
    return [source for source in entries if source.host in updated] or entries


def archive_lists(facts: NodeFacts, sources: tuple[aptsources.Source, ...]) -> set[str]:
    return {aptsources.list_name(source.uri) for source in _archive_entries(facts, sources)}


def archive(facts: NodeFacts, sources: tuple[aptsources.Source, ...], own_path: str) -> Repository:
    """The distribution's archive, as the node has it, with the components that the driver is in."""
    entries = [s for s in _archive_entries(facts, sources) if s.file != own_path]
    needed = _ARCHIVE_COMPONENTS.get(facts.os_id)
    if not entries or needed is None:
        return Repository(
            problem=f"no enabled source for {facts.os_codename or facts.os_id} main in /etc/apt; "
            "set origin: mirror with a url, or fix the node's sources"
        )
    pockets = {facts.os_codename + tail for tail in _POCKETS}
    hosts = tuple(
        dict.fromkeys(
            s.host
            for s in (*entries, *(s for s in sources if s.suite != facts.os_codename))
            if s.suite in pockets and "main" in s.components and not FOREIGN.search(s.uri)
        )
    )
    same_host = [
        s for s in sources if s.file != own_path and s.host in hosts and not FOREIGN.search(s.uri)
    ]
    lacking: list[aptsources.Source] = []
    for suite in (facts.os_codename + tail for tail in _DRIVER_POCKETS):
        of_suite = [s for s in same_host if s.suite == suite]
        have = {component for s in of_suite for component in s.components}
        missing = tuple(component for component in needed if component not in have)
        main = next((s for s in of_suite if "main" in s.components), None)
        if missing and main is not None:
            # The same address must carry the same Signed-By everywhere.
            lacking.append(replace(main, file="", components=missing, architectures=(), line=1))
    if not lacking:
        return Repository(hosts=hosts, codename=facts.os_codename)
    first, *further = lacking
    return Repository(
        uri=first.uri,
        suite=first.suite,
        components=first.components,
        hosts=hosts,
        codename=facts.os_codename,
        signed_by=first.signed_by,
        further=tuple(further),
    )


def archive_beside(
    facts: NodeFacts, where: Repository, sources: tuple[aptsources.Source, ...]
) -> str:
    """The codename of the node's release, where its archive is on the host of a flat repository, as a mirror has both."""
    pockets = {facts.os_codename + tail for tail in _POCKETS} if facts.os_codename else set[str]()
    flat = where.uri is not None and where.suite.endswith("/")
    beside = any(s.suite in pockets and s.host in where.hosts for s in sources)
    return facts.os_codename if flat and beside else ""


def between_releases(facts: NodeFacts, sources: tuple[aptsources.Source, ...]) -> str | None:
    """Why nothing can be chosen while Ubuntu's sources are of another release than the node."""
    suites = {s.suite for s in sources if "main" in s.components and not FOREIGN.search(s.uri)}
    foreign = sorted(suite for suite in suites if f"{suite}-security" in suites)
    if facts.os_id != "ubuntu" or not foreign or facts.os_codename in (*suites, ""):
        return None
    return (
        f"apt's sources are of {foreign[0]}, and this node is {facts.os_codename} (/etc/os-release): a release upgrade "
        "is under way; finish it, then apply again"
    )


def fingerprints(key: str | None) -> tuple[str, ...]:
    try:
        return openpgp.fingerprints(key) if key else ()
    except ValueError:
        return ()


def place(source: aptsources.Source) -> str:
    return f"{source.file}:{source.line}: {source.uri}"


def hosts(places: tuple[str, ...]) -> list[str]:
    return [aptsources.uri_host(place.rsplit(": ", 1)[1]) for place in places]


def sources_text(where: Repository) -> str:
    """The source file; empty when none is needed."""
    if where.uri is None:
        return ""
    suites: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for entry in where.entries:
        suites.setdefault((entry.uri, entry.components, entry.signed_by), []).append(entry.suite)
    stanzas = (
        aptsources.render_deb822(
            uri=uri,
            suite=" ".join(some),
            components=components,
            signed_by=signed_by,
            trusted=where.signed == "nothing",
        )
        for (uri, components, signed_by), some in suites.items()
    )
    return _WRITTEN + "\n".join(stanzas)


def pin_text(where: Repository, packages: tuple[str, ...], priority: int) -> str:
    """Pins that let the packages, of every architecture, come from the repository, and from nowhere else."""
    names = tuple(f"{name}:any" for name in packages)
    pins: list[tuple[str, int, str]] = []
    if where.beside:
        # By host it would be the repository in use.
        pins.append((f"release n={where.beside}*", -1, "never from the archive on that host"))
    # A PPA has the codename, too.
    pins += [(f'origin "{host}"', -1, "never from there") for host in where.elsewhere]
    used = [f'origin "{host}"' for host in where.hosts]
    if where.codename:
        used = [f"release n={where.codename}*"]
    pins += [(pin, priority, "the repository in use") for pin in used]
    pins.append((KEPT_PIN, priority, "kept for a rollback"))
    pins.append(("release *", -1, "never from anywhere else"))
    return "\n".join([_WRITTEN, *(aptsources.render_pin(names, *pin) for pin in pins)])


def list_prefixes(where: Repository, *, shared: bool) -> tuple[str, ...]:
    """How names of this repository's package lists begin.

    Args:
        shared: the node has other lists of the same address, which are not meant.
    """
    prefixes: dict[str, None] = {}
    for entry in where.entries:
        base = f"{aptsources.list_name(entry.uri)}_"
        parts = [f"{base}dists_{entry.suite}_{part}_" for part in entry.components if shared]
        prefixes.update(dict.fromkeys(parts or [base]))
    return tuple(prefixes)


def unread(sources: list[aptsources.Source], lists: list[str]) -> tuple[str, ...]:
    """Cloud images come without any package lists; compiler and headers are in those of others."""
    files: dict[str, None] = {}
    for source in sources:
        base = f"/var/lib/apt/lists/{aptsources.list_name(source.uri)}_"
        if not source.uri.startswith("cdrom:") and not any(path.startswith(base) for path in lists):
            files[source.file] = None
    return tuple(files)


def read_if_possible(file: str) -> Step:
    """Read the package lists of one source file, as far as they can be had."""
    # Best effort: where only the mirror is reachable, the rest is the driver's to find missing.
    options = "-o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o Acquire::Retries=0"
    # Once in a program: the other repositories' states ask for the same.
    return ops.Run(
        f'! grep -qsxF -e {shlex.quote(file)} "$R/read" || exit 0\necho {shlex.quote(file)} >>"$R/read"\n'
        f"apt update -o Dir::Etc::sourcelist={shlex.quote(file)} -o Dir::Etc::sourceparts=- "
        f"-o APT::Get::List-Cleanup=0 {options} || echo 'not all could be read'",
        f"refresh the package lists of {file}, where there are none",
        timeout=600,
    )
