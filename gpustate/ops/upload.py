"""A step whose files the controller sends before the program that it is part of starts."""

from __future__ import annotations

from dataclasses import dataclass

from gpustate import shell
from gpustate.core.step import Step

#: Where the part of a bundle lies that a node needs. Not below /var/lib/gpustate, which root alone may
#: enter: apt drops root's rights before it reads a repository, the user's own apt too.
BUNDLE_FOLDER = "/var/lib/gpustate-bundle"
APT_CONF = f"{BUNDLE_FOLDER}/apt.conf"
#: Where the repositories of a bundle are for dnf and zypper.
RPM_REPOS = f"{BUNDLE_FOLDER}/repos.d"
#: sh: a rollback, of which KEPT_PACKAGES tells, sees the packages that were kept for it, beside those of the repositories.
#: They are not below /var/lib/gpustate for the same reason.
_WITH_KEPT = (
    '[ -z "${KEPT_PACKAGES-}" ] || [ ! -e "$G-packages/apt.conf" ] || '
    "{ APT_CONFIG=$G-packages/apt.conf; KEPT_OFFERS=$G-packages/offers; export APT_CONFIG KEPT_OFFERS; }\n"
)
#: sh: as long as a node has a bundle, apt, dnf and zypper see the bundle and no other repository in whatever we do.
#: dnf reads repositories out of dnf.conf too, so all but ours are switched off (and --disablerepo forbids --repo).
ONLY_BUNDLE = (
    _WITH_KEPT
    + f"[ ! -e {APT_CONF} ] || {{ APT_CONFIG={APT_CONF}; KEPT_OFFERS=; export APT_CONFIG; }}\n"
    f"DNF=dnf; ZYPPER=zypper; REPOS=; [ ! -d {RPM_REPOS} ] || {{ REPOS={RPM_REPOS}\n"
    f'  DNF="dnf --setopt=reposdir={RPM_REPOS} --setopt=*.enabled=0 --setopt=gpustate-*.enabled=1"\n'
    f'  ZYPPER="zypper --reposd-dir {RPM_REPOS}"; }}; export DNF ZYPPER REPOS\n'
)
#: What apt, dnf and zypper keep of a bundle's own repositories.
BUNDLE_CACHES = (
    "/var/lib/apt/lists/*gpustate-bundle* /var/cache/dnf/gpustate-bundle-* /var/lib/dnf/repos/gpustate-bundle-* "
    "/var/cache/zypp/*/gpustate-bundle-*"
)
#: sh: the bundle goes when no repository of ours is in it any more.
LEAVE_BUNDLE = (
    "grep -qs gpustate-bundle /etc/apt/sources.list.d/gpustate-*.sources /etc/yum.repos.d/gpustate-*.repo "
    f"/etc/zypp/repos.d/gpustate-*.repo || rm -rf {BUNDLE_FOLDER} {BUNDLE_CACHES}; effect left"
)
#: sh: what came of a bundle goes while nothing reads it: its configuration is written when all has come.
FORGET_UPLOAD = (
    f"[ -e {APT_CONF} ] || [ -e {RPM_REPOS} ] || rm -rf {BUNDLE_FOLDER}; effect forgotten"
)


@dataclass(frozen=True, slots=True)
class Upload(Step):
    """Files of a bundle are on the node.

    They go over the connection that is there, each once: what is there is not sent again, what was cut is
    continued, and nothing keeps its name whose hash does not fit. The step itself only sees that they came.

    Args:
        source: the bundle on the controller.
        prefix: below what in the bundle they are.
        folder: where they go.
        files: path below the prefix and below the folder, SHA-256, size in bytes.
    """

    source: str
    prefix: str
    folder: str
    files: tuple[tuple[str, str, int], ...]

    @property
    def label(self) -> str:
        mib = sum(size for _, _, size in self.files) / (1 << 20)
        return f"upload {len(self.files)} files ({mib:.0f} MiB) to {self.folder}"

    def script(self) -> str:
        rows = "".join(f"{size} {name}\n" for name, _, size in self.files)
        text = shell.load("uploaded", "gpustate.ops", FOLDER=self.folder)
        return shell.fill(text, ROWS=rows)
