"""Names of the packages of one NVIDIA driver, as data: by origin, distribution, branch and module type.

These are assumptions about repositories, so nothing is installed because of them alone: a set is chosen from the
packages in the node's own repositories (:mod:`gpustate.formats.driverset`).

Surprising: NVIDIA's Ubuntu packages carried the branch in their names up to 580 and no longer do from 590 on;
Ubuntu's own still do. NVIDIA's packages for the RHEL family and Amazon Linux have the same names in every
branch. For SUSE they carry a generation (G06, G07) that moves with the branch, and since 575 they are built by
DKMS, where before a package (KMP) brought the modules; in the graphics repository it does with 580, too. SUSE itself builds and signs KMPs of the open modules, of two
kinds that exclude each other: ``-signed-cuda-kmp`` at the versions of NVIDIA's CUDA repository, ``-signed-kmp`` at
those of its graphics repository. Their versions go on with the kernel they were built for
(``580.126.09_k6.4.0_150600.21-...``), and they fit other kernels of its service pack.

Sources:
    NVIDIA driver installation guide r615 (compute-only sets, streams); NVIDIA/gpu-driver-container, ubuntu24.04 and
    ubuntu26.04; packages.debian.org and packages.ubuntu.com. NVIDIA/yum-packaging-dkms-nvidia,
    dkms-open-nvidia.spec (kmod-nvidia-open-dkms conflicts with kmod-nvidia-latest-dkms, both provide
    nvidia-kmod); NVIDIA/yum-packaging-precompiled-kmod, kmod-nvidia.spec (name of a precompiled module, x86_64) and
    DISTROS.md (commit a66bc128: modules that AlmaLinux, CIQ, Red Hat and SUSE build and sign); AlmaLinux/ALESCo#8;
    mizdebsk/radii, internal/nvidia tests (kmod-nvidia-open-... and kmod-64k-nvidia-open-... of RHEL 10). SUSE's
    BCI-dockerfile-generator, NVIDIA driver images (names by branch, G05 to G07, DKMS since 575; signed KMPs of G07 for
    SLES 15 SP7 and 16.0); package lists of openSUSE Tumbleweed with 580.76.05 and 580.126.18 (KMPs of the graphics
    repository); SUSE security notices of nvidia-open-driver-G06-signed (names and versions of signed KMPs);
    build.opensuse.org, nvidia-open-driver-G06-signed.spec (kinds gfx and cuda, each with its own version); redhat,
    MicroShift with GPUs (streams of the preview repository); awslabs and aws, images of Amazon Linux 2023 (nvidia-release
    and its packages have NVIDIA's names).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpustate.formats import kernelnames

OPEN, PROPRIETARY = "open", "proprietary"
#: The last branch with proprietary modules: later packages of those names are empty, or install the open ones.
LAST_PROPRIETARY = 610
#: ``ID`` of os-release where NVIDIA's rpm packages are installed with dnf, and with zypper.
RHEL = ("rhel", "rocky", "almalinux", "ol", "centos", "amzn", "fedora")
SUSE = ("sles", "sled", "opensuse-leap", "opensuse-tumbleweed")
#: Packages of rpm distributions that hold built modules; AlmaLinux's and CIQ's are not named after a version, and the last
#: two are names that ask for them.
BUILT_MODULES = re.compile(
    r"kmod-([0-9a-z]+-)?nvidia(-open)?-[0-9]{3}\.|kmod-([0-9a-z]+-)?nvidia(-dc)?-open(-latest)?$|"
    r"nvidia-open-driver-G[0-9]+-signed|nvidia-open-kmod$|nv-prefer-signed"
)


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to name the packages of a driver.

    In names ``{b}`` stands for the branch, ``{v}`` for the version, ``{o}`` for ``-open``; where they are of
    one kernel, ``{k}`` for its release, and what :func:`gpustate.formats.kernelnames.parts` says for the others.

    Args:
        name: its name in messages.
        os_id: distribution it is for, or family: rhel, suse.
        kernel: the package that builds the kernel module, for open and for proprietary modules.
        compute, full: packages that must be there besides, without and with display libraries.
        full_open, full_proprietary: metapackages of the full set.
        optional: taken along where they are offered.
        prebuilt: names of packages with modules built for one kernel, of which one is needed; the first is preferred.
        branches: the first and the last branch that has these names.
        dkms: modules are built on the node by DKMS; otherwise they come with the package.
        display: packages with display libraries, which stand for the metapackage where modules are prebuilt: it depends
            on modules of DKMS.
        display_wanted: taken along with those where they are offered.
        tools_apart: small tools have versions of their own there.
    """

    name: str
    os_id: str
    kernel: tuple[str, str]
    compute: tuple[str, ...]
    full_open: str
    full_proprietary: str
    optional: tuple[str, ...]
    prebuilt: tuple[str, ...] = ()
    branches: tuple[int, int] = (0, 9999)
    dkms: bool = True
    display: tuple[str, ...] = ()
    display_wanted: tuple[str, ...] = ()
    tools_apart: bool = False

    def has(self, branch: int) -> bool:
        """Whether the branch uses these names."""
        return self.branches[0] <= branch <= self.branches[1]

    @property
    def by_branch(self) -> bool:
        """Whether the names contain the branch."""
        return "{b}" in self.kernel[0]

    def required(
        self, branch: int, module_type: str, *, full: bool, prebuilt: bool
    ) -> tuple[str, ...]:
        """Names of the required packages, all at one version."""
        is_open = module_type == OPEN
        if prebuilt and (self.display or not full):
            names = (*self.compute, *(self.display if full else ()))
        elif full:
            names = (self.full_open if is_open else self.full_proprietary,)
        else:
            names = self.compute
        if not prebuilt:
            names = (self.kernel[0 if is_open else 1], *names)
        return tuple(self.fill(name, branch, is_open) for name in names)

    def extra(self, branch: int, module_type: str, *, display: bool = False) -> tuple[str, ...]:
        """Names of the packages to install as well if available; ``display``: of the full set with prebuilt modules."""
        names = (*self.optional, *(self.display_wanted if display else ()))
        return tuple(self.fill(name, branch, module_type == OPEN) for name in names)

    def metapackages(self, branch: int) -> tuple[str, ...]:
        """Names of the packages that depend on modules of DKMS; for schemes with packages for display."""
        stem = self.full_proprietary
        names = (stem, stem.replace("-driver-", "-headless-")) if self.display else ()
        return tuple(self.fill(f"{name}{{o}}", branch, o) for name in names for o in (True, False))

    @staticmethod
    def fill(name: str, branch: int, is_open: bool) -> str:
        """A name with branch and module type in their places."""
        return name.replace("{b}", str(branch)).replace("{o}", "-open" if is_open else "")

    def built_for(self, kernel: str, version: str, module_type: str) -> tuple[str, ...]:
        """Packages with modules of one version, built for one kernel; one of them is needed."""
        manager = {"rhel": "dnf", "suse": "zypper"}.get(self.os_id, "apt")
        parts = {"v": version, **kernelnames.parts(manager, kernel)}
        names: list[str] = []
        for stem in self.prebuilt:
            if "-open" in stem and module_type != OPEN:
                continue
            name = self.fill(stem, int(version.partition(".")[0]), module_type == OPEN)
            for key, value in parts.items():
                name = name.replace(f"{{{key}}}", value)
            names.append(name)
        return tuple(names)


def _extra(suffix: str) -> tuple[str, ...]:
    """Of Ubuntu's names, what the libraries for computing do without; from 580.95.05 on NVIDIA's repository may lack it."""
    names = ("nvidia-headless-no-dkms{s}{o}", "nvidia-utils{s}", "nvidia-compute-utils{s}")
    return (*(name.replace("{s}", suffix) for name in names), "nvidia-modprobe")


SCHEMES = (
    Scheme(
        "NVIDIA's repository for Debian",
        "debian",
        ("nvidia-kernel-open-dkms", "nvidia-kernel-dkms"),
        ("nvidia-driver-cuda",),
        "nvidia-open",
        "cuda-drivers",
        ("nvidia-persistenced", "nvidia-modprobe"),
    ),
    Scheme(
        "Debian's archive",
        "debian",
        ("nvidia-open-kernel-dkms", "nvidia-kernel-dkms"),
        ("nvidia-smi", "libcuda1", "libnvidia-ml1"),
        "nvidia-driver",
        "nvidia-driver",
        (
            *("nvidia-persistenced", "nvidia-modprobe", "libnvidia-ptxjitcompiler1"),
            # Its alternatives load modules of the type; those of proprietary ones have precedence.
            *("nvidia-cuda-mps", "nvidia{o}-kernel-support"),
        ),
        tools_apart=True,
    ),
    Scheme(
        "Ubuntu's archive",
        "ubuntu",
        ("nvidia-dkms-{b}-server-open", "nvidia-dkms-{b}-server"),
        ("libnvidia-compute-{b}-server",),
        "nvidia-driver-{b}-server-open",
        "nvidia-driver-{b}-server",
        _extra("-{b}-server"),
        prebuilt=("linux-modules-nvidia-{b}-server{o}-{k}",),
        display=(
            "libnvidia-gl-{b}-server",
            "libnvidia-decode-{b}-server",
            "libnvidia-encode-{b}-server",
            "libnvidia-extra-{b}-server",
            "libnvidia-fbc1-{b}-server",
        ),
        display_wanted=("xserver-xorg-video-nvidia-{b}-server",),
        tools_apart=True,
    ),
    Scheme(
        "NVIDIA's repository for Ubuntu",
        "ubuntu",
        ("nvidia-dkms-open", "nvidia-dkms"),
        ("libnvidia-compute",),
        "nvidia-open",
        "cuda-drivers",
        (*_extra(""), "nvidia-persistenced"),
    ),
    Scheme(
        "NVIDIA's repository for Ubuntu, up to 580",
        "ubuntu",
        ("nvidia-dkms-{b}-open", "nvidia-dkms-{b}"),
        ("libnvidia-compute-{b}",),
        "nvidia-open-{b}",
        "cuda-drivers-{b}",
        (*_extra("-{b}"), "nvidia-persistenced"),
    ),
    Scheme(
        "Ubuntu's archive, for desktops",
        "ubuntu",
        ("nvidia-dkms-{b}-open", "nvidia-dkms-{b}"),
        ("libnvidia-compute-{b}",),
        "nvidia-driver-{b}-open",
        "nvidia-driver-{b}",
        _extra("-{b}"),
        prebuilt=("linux-modules-nvidia-{b}{o}-{k}",),
        display=(
            "libnvidia-gl-{b}",
            "libnvidia-decode-{b}",
            "libnvidia-encode-{b}",
            "libnvidia-extra-{b}",
            "libnvidia-fbc1-{b}",
        ),
        display_wanted=("xserver-xorg-video-nvidia-{b}",),
        tools_apart=True,
    ),
    Scheme(
        "NVIDIA's rpm repository",
        "rhel",
        ("kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"),
        ("nvidia-driver-cuda",),
        "nvidia-open",
        "cuda-drivers",
        ("nvidia-persistenced", "nvidia-modprobe"),
        prebuilt=(
            "kmod{s}-nvidia{o}-{v}-{r}",
            "kmod{s}-nvidia-open",
            "kmod{s}-nvidia-dc-open-latest",
        ),
    ),
    Scheme(
        "NVIDIA's repository for SUSE",
        "suse",
        ("nvidia-open-driver-G07", "nvidia-driver-G07"),
        ("nvidia-compute-G07", "nvidia-compute-utils-G07"),
        "nvidia-open",
        "cuda-drivers",
        ("nvidia-persistenced", "nvidia-modprobe"),
        prebuilt=(
            "nvidia{o}-driver-G07-signed-cuda-kmp-{f}",
            "nvidia{o}-driver-G07-signed-kmp-{f}",
        ),
        branches=(590, 999),
    ),
    Scheme(
        "NVIDIA's repository for SUSE, up to 580",
        "suse",
        ("nvidia-open-driver-G06", "nvidia-driver-G06"),
        ("nvidia-compute-G06", "nvidia-compute-utils-G06"),
        "nvidia-open",
        "cuda-drivers",
        ("nvidia-persistenced", "nvidia-modprobe"),
        prebuilt=(
            "nvidia{o}-driver-G06-signed-cuda-kmp-{f}",
            "nvidia{o}-driver-G06-signed-kmp-{f}",
        ),
        branches=(550, 589),
    ),
    Scheme(
        "NVIDIA's repository for SUSE, with modules for one kernel",
        "suse",
        ("nvidia-open-driver-G06-kmp-default", "nvidia-driver-G06-kmp-default"),
        ("nvidia-compute-G06", "nvidia-compute-utils-G06"),
        "nvidia-open",
        "cuda-drivers",
        ("nvidia-persistenced", "nvidia-modprobe"),
        branches=(550, 589),
        dkms=False,
    ),
)


def of(os_id: str) -> tuple[Scheme, ...]:
    """Schemes of a distribution, in order of preference."""
    family = "rhel" if os_id in RHEL else "suse" if os_id in SUSE else os_id
    return tuple(scheme for scheme in SCHEMES if scheme.os_id == family)


def is_rpm(os_id: str) -> bool:
    """Whether the distribution uses rpm packages."""
    return os_id in RHEL or os_id in SUSE


def streams(branch: int, module_type: str, *, prebuilt: bool) -> tuple[str, ...]:
    """The module streams that have a driver: the one of its branch, and the one that follows the newest."""
    if prebuilt and module_type == OPEN:
        # Signed by Red Hat, in NVIDIA's preview repository.
        return f"{branch}-open-gpu", "latest-open-gpu"
    if prebuilt:
        return str(branch), "latest"
    if module_type == OPEN:
        return f"{branch}-open", "open-dkms"
    return f"{branch}-dkms", "latest-dkms"
