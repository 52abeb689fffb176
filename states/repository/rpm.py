"""Repositories of dnf and zypper: files, addresses, and the steps that read keys and repodata.

One .repo file and one key file, which ``gpgkey`` names as a file of the node. Where apt has pins, these have
a priority: packages of the same name in a repository with a higher number are not looked at, and the
container toolkit's own repository goes before the CUDA repository, which has the toolkit as well.

Surprising: NVIDIA signs the packages of the CUDA repository, and in the container toolkit's repository not
the packages but the metadata; so what is checked differs. The CUDA repository for RHEL 8 and 9 has module
streams, which hide all drivers but those of one stream, also those of other repositories: ours shows all
(``module_hotfixes``), for versions are exact here. A key is imported into rpm's database by whoever comes
first, and leaves with the state when it came with it.

Sources:
    NVIDIA driver installation guide: addresses of the CUDA repositories by distribution, key D42D0685;
    NVIDIA/cuda-repo-management, table of active public keys (README as of 2026-04): D42D0685 of amzn2023, rhel8, rhel9
    and sles15, and others for newer folders. NVIDIA/gpu-driver-container, rhel10/Dockerfile (commit 0201a90b): CDF6BA43
    of rhel10 and the SHA-256 of its file; NVIDIA publishes no fingerprint of it. CF65...5622 of suse16: reviewed on
    2026-09-16 by two installers for openSUSE Leap 16; SUSE/BCI-dockerfile-generator fetches 3A8B5622.pub there;
    NVIDIA container toolkit installation guide: nvidia-container-toolkit.repo. rpm(8), ``--import``. ``module_hotfixes``:
    dnf.conf(5); for this repository a maintainer of NVIDIA's in NVIDIA/yum-packaging-precompiled-kmod#58 (2025-05-23).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gpustate import NodeFacts, Step, ops, shell
from gpustate.formats import rpmrepos
from gpustate.formats.rpmrepos import RpmSource
from gpustate.ops.upload import BUNDLE_FOLDER
from gpustate.states.repository import logins
from gpustate.states.repository.where import FOREIGN, Repository

_WRITTEN = "# Written by gpustate; changes are overwritten.\n"
SOURCE_PATTERN = "/etc/yum.repos.d/*.repo /etc/zypp/repos.d/*.repo"
#: Which repodata is there.
LISTS = (
    "for f in /var/cache/dnf/*/repodata/repomd.xml "
    '/var/cache/zypp/raw/*/repodata/repomd.xml; do [ -s "$f" ] && printf \'%s\\n\' "$f"; done; :'
)
#: NVIDIA's graphics repositories for SUSE: the driver, at other versions than the CUDA repository has.
GRAPHICS = re.compile(r"//download\.nvidia\.")
#: Amazon's own repository of NVIDIA's packages; the package nvidia-release brings it.
AMAZON = "amazonlinux-nvidia"
_RHEL = frozenset({"rhel", "rocky", "almalinux", "ol", "centos"})
_CUDA_KEY = "610C7B14E068A878070DA4E99CD0A493D42D0685"
#: Key of each folder of the CUDA repository: its fingerprint, or the end of it and the SHA-256 of its file.
_CUDA_KEYS = {
    **dict.fromkeys(("rhel8", "rhel9", "amzn2023", "sles15", "opensuse15"), (_CUDA_KEY, "")),
    "rhel10": ("CDF6BA43", "afbea87d3b979b3788ef34223aeeb323ade481128e2c133723ae99b8a51368bb"),
    "suse16": ("CF65941A859D4B4E6870F188736A284B3A8B5622", ""),
}


def cuda_code(facts: NodeFacts) -> str | None:
    """NVIDIA's name of a distribution in the address of its CUDA repository; ``None`` where it has none."""
    major = facts.os_version.partition(".")[0]
    if facts.os_id in _RHEL:
        return f"rhel{major}" if major in ("8", "9", "10") else None
    if facts.os_id == "amzn":
        return "amzn2023" if major == "2023" else None
    if facts.os_id == "opensuse-tumbleweed":
        return "suse16"
    if facts.os_id in ("sles", "sled", "opensuse-leap"):
        codes = {"15": "opensuse15" if facts.os_id == "opensuse-leap" else "sles15", "16": "suse16"}
        return codes.get(major)
    return None


def cuda_repository(facts: NodeFacts) -> Repository:
    """NVIDIA's CUDA repository, which has the driver."""
    machine = {"x86_64": "x86_64", "aarch64": "sbsa"}.get(facts.machine)
    code = cuda_code(facts)
    if machine is None or code is None:
        return Repository(
            problem=f"unsupported: no known NVIDIA rpm repository for {facts.distribution} on "
            f"{facts.machine}; "
            "set origin: mirror with a url"
        )
    uri = f"https://developer.download.nvidia.com/compute/cuda/repos/{code}/{machine}"
    fingerprint, sha256 = _CUDA_KEYS[code]
    return Repository(
        uri=uri, key_url=f"{uri}/{fingerprint[-8:]}.pub", fingerprint=fingerprint, sha256=sha256
    )


def toolkit_repository(facts: NodeFacts) -> Repository:
    """NVIDIA's repository of the container toolkit."""
    if facts.machine not in ("x86_64", "aarch64"):
        return Repository(
            problem=f"NVIDIA has no container toolkit for {facts.machine}; set origin: mirror with a url"
        )
    base = "https://nvidia.github.io/libnvidia-container"
    return Repository(
        uri=f"{base}/stable/rpm/{facts.machine}",
        key_url=f"{base}/gpgkey",
        fingerprint="C95B321B61E88C1809C4F759DDCAE044F796ECB0",
        signed="metadata",
    )


def archive(facts: NodeFacts) -> Repository:
    """The distribution's own repositories."""
    return Repository(
        problem=f"how {facts.distribution} itself offers the driver is not supported here; set origin: vendor, or "
        "'mirror' with a url"
    )


def mirror(vendor: Repository, url: str | None, suite: str) -> Repository:
    """The repository at an address of the policy's, signed as NVIDIA's is; NVIDIA's own without one."""
    if url is None:
        return vendor
    problem = "suite and components are apt's: a repository of dnf or zypper has an address only"
    return Repository(
        uri=url.rstrip("/"), signed=vendor.signed, problem=None if suite == "/" else problem
    )


def with_key(where: Repository, name: str, key: str | None, signed: str | None) -> Repository:
    """The same with what the policy says of its key."""
    if signed == "nothing":
        return replace(where, key_url=None, fingerprint=None, signed=signed)
    key_url = where.key_url if key is None else key
    fetched = key_url is not None and key_url.startswith("http")
    return replace(
        where,
        key_url=key_url if fetched else None,
        signed_by=key_path(name),
        signed=signed or where.signed,
    )


def paths(manager: str, name: str) -> dict[str, str]:
    """Files of the fields that are files."""
    return {"sources_text": sources_path(manager, name), "key_text": key_path(name)}


def record_path(name: str) -> str:
    """Which keys came into rpm's database with the state: the ends of their fingerprints."""
    return f"/var/lib/gpustate/{name}.imported"


def sources_path(manager: str, name: str) -> str:
    folder = "/etc/yum.repos.d" if manager == "dnf" else "/etc/zypp/repos.d"
    return f"{folder}/gpustate-{name}.repo"


def key_path(name: str) -> str:
    return f"/etc/pki/rpm-gpg/gpustate-{name}.asc"


def is_bundled(text: str | None) -> bool:
    """A source entry or address is that of a bundle (see the state bundle)."""
    return f"{BUNDLE_FOLDER}/" in (text or "")


def sources_text(manager: str, name: str, where: Repository) -> str:
    return _WRITTEN + rpmrepos.render_repo(
        manager,
        id=f"gpustate-{name}",
        uri=_with_login(manager, name, where),
        key_path=key_path(name),
        packages_signed=where.signed in ("packages", "both"),
        metadata_signed=where.signed in ("metadata", "both"),
        priority=rpmrepos.PRIORITIES.get(name, 50),
        more=_login_rows(name) if where.private and manager == "dnf" else {},
    )


def _with_login(manager: str, name: str, where: Repository) -> str:
    """The address; zypper's says which credentials it wants."""
    uri = where.uri or ""
    return f"{uri}?credentials=gpustate-{name}" if where.private and manager == "zypper" else uri


def _login_rows(name: str) -> dict[str, str]:
    """What a .repo file of dnf says of a login: the variables it is in."""
    return {word: f"${logins.variable(name, word)}" for word in ("username", "password")}


def is_read(manager: str, repository: str, lists: list[str]) -> bool:
    """The repodata of a repository, by id, is among those found."""
    start = f"dnf/{repository}-" if manager == "dnf" else f"zypp/raw/{repository}/"
    return any(path.startswith(f"/var/cache/{start}") for path in lists)


def foreign_sources(manager: str, name: str, texts: dict[str, str]) -> tuple[RpmSource, ...]:
    """Repositories of other files, of this package manager."""
    own_path = sources_path(manager, name)
    folder = own_path.rpartition("/")[0]
    return rpmrepos.parse_repos(
        {
            file: text
            for file, text in texts.items()
            if file.startswith(f"{folder}/") and file != own_path
        }
    )


def is_foreign(source: RpmSource, where: Repository, *, driver: bool) -> bool:
    """A repository has NVIDIA's packages and is not the one that is wanted.

    Args:
        driver: those of the driver are meant.
    """
    graphics = GRAPHICS.search(source.uri) or source.id == AMAZON
    return (
        bool(FOREIGN.search(source.uri) or (driver and graphics))
        and source.uri != where.uri
        and "gpustate-" not in source.id
    )


def fetch_key(name: str, where: Repository, login_of: str = "") -> Step:
    """Bring the key's file from its address.

    Args:
        name: of the state.
        where: the repository.
        login_of: the manager whose login it takes; empty: none.
    """
    login = logins.curl_configuration(login_of, name) if login_of else ":\n"
    fetch = shell.load(
        "fetch_key",
        "gpustate.states.repository",
        NAME=name,
        URL=where.key_url or "",
        FINGERPRINT=str(where.fingerprint),
        SHA256=where.sha256,
        KEY=key_path(name),
        LOGIN="1" if login_of else "",
    )
    return ops.Run(
        f"login() {{\n{login}}}\n{fetch}", f"fetch the repository key {where.key_url}", timeout=180
    )


def import_key(name: str, fingerprints: tuple[str, ...]) -> Step:
    """Let rpm know the key, and remember whether it was new; a file with another key in it is refused."""
    words = {
        "IDS": " ".join(fingerprint[-8:].lower() for fingerprint in fingerprints),
        "RECORD": record_path(name),
        "KEY": key_path(name),
    }
    return ops.Run(
        shell.load("import_key", "gpustate.states.repository", **words),
        f"import the key of {name} into rpm's database",
        timeout=360,
    )


def forget(manager: str, name: str, stamp_path: str) -> Iterator[Step]:
    """Take back what is not a file of the state: repodata, and the key where it came with it."""
    cache = (
        f"rm -rf /var/cache/dnf/gpustate-{name}-* /var/cache/dnf/gpustate-{name}.solv /var/cache/dnf/gpustate-{name}-*.solvx"
        if manager == "dnf"
        else f"rm -rf /var/cache/zypp/raw/gpustate-{name} /var/cache/zypp/solv/gpustate-{name} /var/cache/zypp/packages/gpustate-{name}"
    )
    key = shell.load("forget_key", "gpustate.states.repository", RECORD=record_path(name))
    yield ops.ForgetOriginal(stamp_path)
    yield ops.Run(
        f"rm -f {stamp_path}; {cache}\n{key}",
        f"remove the package lists of {name}, and its key if it came with them",
        timeout=360,
    )
