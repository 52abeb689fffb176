"""The kernels a node can boot, and the NVIDIA module each of them has.

A node that works today may come up without GPUs tomorrow: the next boot takes another kernel, one
without headers, without a built module, or with nouveau in its initramfs. So states look at every
kernel with an image in /boot, and at the running one, which a container has no image of. In an
image that is baked no kernel runs: there, each that is installed below /lib/modules counts too.

The NVIDIA module is looked up where modprobe looks, in ``modules.dep``: a file that was built but
never indexed cannot be loaded by name. Debian's own packages call it ``nvidia-current.ko``.

Sources:
    modules.dep(5), modinfo(8); update-initramfs(8) and dracut(8) for the names of the images;
    NVIDIA/open-gpu-kernel-modules: MODULE_LICENSE "Dual MIT/GPL" of the open modules;
    :mod:`gpustate.formats.grub`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import certificates, grub
from gpustate.formats.dpkg import version_key
from gpustate.probes.module_files import KO


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a node.

    Args:
        release: as ``uname -r`` has it.
        image: path of the kernel's own image; ``None`` for the running kernel of a container.
        running: it runs now.
        bootable: it has an image and a folder of modules.
        lacks_video: it has no module ``video``, which nvidia-modeset needs: packages of further modules are not there.
        headers: modules can be built for it (``/lib/modules/RELEASE/build`` leads somewhere).
        module_path: the nvidia module modprobe would take, ``None`` where there is none.
        nvidia_version, nvidia_license, nvidia_signer: what modinfo says of it; the signer is
            ``None`` for a module without a signature.
        nvidia_key: serial number of the certificate it is signed with, hexadecimal digits without leading zeros.
        boots_next: GRUB's menu and environment say that the next boot takes it.
    """

    release: str
    image: str | None = None
    running: bool = False
    bootable: bool = False
    headers: bool = False
    lacks_video: bool = False
    nvidia_version: str | None = None
    nvidia_license: str | None = None
    nvidia_signer: str | None = None
    nvidia_key: str | None = None
    module_path: str | None = None
    boots_next: bool = False

    @property
    def nvidia_open(self) -> bool | None:
        """The module is of the open kind; ``None`` where there is no module."""
        return None if self.nvidia_license is None else "GPL" in self.nvidia_license


def default_kernel(kernels: Iterable[Kernel]) -> Kernel | None:
    """The kernel the next boot takes: GRUB's choice; where that cannot be read, the newest."""
    bootable = [kernel for kernel in kernels if kernel.bootable]
    for kernel in bootable:
        if kernel.boots_next:
            return kernel
    return max(bootable, key=lambda kernel: version_key(kernel.release), default=None)


#: sh: DKMS was killed between the first and the last module it installs for a kernel, so that one of
#: the right version is there and another may be missing.
DKMS_HALF = shell.load("dkms_half", "gpustate.probes")

#: sh: the modules that belong to an nvidia module are beside it, and can be read: without nvidia-uvm no program
#: computes. Wants ``sound PATH``: one of them can be. Where it fails, ``wl`` is the file that is missing or no module.
DKMS_WHOLE = shell.load("dkms_whole", "gpustate.probes")

#: sh: :data:`DKMS_WHOLE` with ``sound``, and :data:`gpustate.probes.module_files.KO`.
MODULE_CHECKS = (
    DKMS_WHOLE
    + KO
    + r"""nl='
'
# Of a file that is no module modinfo tells nothing, or its name alone.
sound() { [ -s "$1" ] || return 1; case $KO_ABOUT in *" $1$nl"[!f]*) ;; *) return 1;; esac; }
"""
)
#: sh: names that distributions give the module, as patterns of ``ko``.
NAMES = "nvidia 'nvidia-current*' 'nvidia-tesla*' 'nvidia-legacy*'"

_SCRIPT = (
    DKMS_HALF
    + MODULE_CHECKS
    + shell.fill(shell.load("kernels", "gpustate.probes"), LINES=grub.LINES_ERE, NAMES=NAMES)
)


@dataclass(frozen=True, slots=True)
class Kernels(Query[tuple[Kernel, ...]]):
    """Every kernel with an image in /boot and the running one, oldest first, in one fragment.

    In an image that is baked: every kernel that is installed, and none that runs.
    """

    def script(self) -> str:
        return _SCRIPT

    def parse(self, answer: Answer) -> tuple[Kernel, ...]:
        rows: list[dict[str, str]] = []
        listed, _, menu = answer.text.partition("grub=\n")
        for line in listed.splitlines():
            if line.startswith("kernel|"):
                parts = line.split("|")
                if len(parts) != 6:
                    raise ProbeError(f"the list of kernels is torn at {line!r}")
                rows.append(dict(zip(_KEYS, parts[1:], strict=True)))
            elif rows:
                key, _, value = line.partition(":")
                if key in ("module", "version", "license", "signer", "sig_key", "lacks"):
                    rows[-1].setdefault(key, value.strip())
        image = any(line == "no kernel runs" for line in answer.text.splitlines())
        if not image and not any(keys["running"] for keys in rows):
            raise ProbeError("the node did not say which kernel it runs (uname failed)")
        chosen = grub.next_release(menu.splitlines())
        kernels = (_kernel(keys, chosen) for keys in rows)
        return tuple(sorted(kernels, key=lambda kernel: version_key(kernel.release)))

    def placeholder(self) -> tuple[Kernel, ...]:
        return ()


_KEYS = ("release", "image", "running", "modules", "headers")


def _kernel(keys: dict[str, str], chosen: str | None) -> Kernel:
    return Kernel(
        release=keys["release"],
        image=keys["image"] or None,
        running=keys["running"] == "1",
        bootable=bool(keys["image"]) and bool(keys["modules"]),
        headers=bool(keys["headers"]),
        lacks_video="lacks" in keys,
        nvidia_version=keys.get("version") or None,
        nvidia_license=keys.get("license") or None,
        nvidia_signer=keys.get("signer") or None,
        nvidia_key=certificates.digits(keys.get("sig_key", "")) or None,
        module_path=keys.get("module") or None,
        boots_next=keys["release"] == chosen,
    )
