"""What the driver's steps run on a node, as sh.

Each fragment may be killed anywhere and run again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate import Step, ops, shell
from gpustate.core.queries import Answer, Query
from gpustate.formats import dpkg, driverset, gpu_services
from gpustate.ops import kmod
from gpustate.ops.package_steps import apt_words
from gpustate.probes.kernels import DKMS_HALF, DKMS_WHOLE
from gpustate.states.driver.observed import IN_USE_PATH, LEFT_PATH, STOPPED_PATH, UNINSTALLER

LOAD_ORDER = ("nvidia", "nvidia-uvm", "nvidia-modeset")
#: Whatever is loaded of these goes, dependents first.
UNLOAD_ORDER = (
    *("gdrdrv", "nvidia_fs", "nv_peer_mem", "nvidia_peermem", "nvidia_vgpu_vfio"),
    *("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"),
)
OWN_SERVICES, SERVICES = gpu_services.OF_DRIVER, gpu_services.STOPPABLE

_PACKAGE = "gpustate.states.driver"
_HAVE = DKMS_HALF + DKMS_WHOLE + shell.load("have", _PACKAGE)

_CLEAR = kmod.clear(("nvidia*",))

_ADOPT = shell.load("adopt", _PACKAGE)

#: What comes before an installation; an interrupted run may have left what only can be replaced.
PRELUDE = _HAVE + kmod.COMPLAIN + _CLEAR
#: What comes before packages are configured.
_PRELUDE = _CLEAR + kmod.COMPLAIN + _ADOPT

ARCHIVES = shell.load("archives", _PACKAGE)
_KEEP = shell.load("keep_modules", _PACKAGE)
#: Defines ``spares``.
SPARES = shell.load("foreign", _PACKAGE, FORMAT=dpkg.QUERY_FORMAT, MEMBERS=driverset.MEMBER_ERE)


def fetch(
    install: dict[str, str],
    remove: tuple[str, ...],
    also: tuple[str, ...],
    roll_back: tuple[str, ...],
    absent_holds: tuple[str, ...] = (),
) -> Step:
    """Have everything on the node before anything changes; stop if foreign packages would be removed.

    Args:
        install: name to version.
        remove: packages that leave in the same transaction.
        also: packages that come with it.
        roll_back: files that are put back as they were before this run when it cannot be had.
        absent_holds: packages whose holds end; again held when it cannot be had.
    """
    held = shlex.join(absent_holds)
    return ops.Run(
        f"back() {{ {f'apt-mark hold {held}; ' if held else ''}roll_back {shlex.join(roll_back)}; exit 1; }}\n"
        + (f"apt_wait; apt-mark unhold {held}\n" if held else "")
        # What an interrupted run left half-configured may be just what this replaces.
        + f"{_PRELUDE}set -- {apt_words(install, remove)}\n{SPARES}"
        + shell.load("fetch", _PACKAGE, ALSO=" ".join(also)),
        f"download the driver's {len(install)} packages and their dependencies",
        timeout=3600,
    )


def install(
    install: dict[str, str],
    remove: tuple[str, ...],
    also: tuple[str, ...] = (),
    *,
    again: bool = False,
    apart: bool = False,
    built: Mapping[str, str | None],
    packaged: tuple[str, ...] = (),
    roll_back: tuple[str, ...],
) -> Step:
    """The whole set in one transaction, or what was there before; says the compiler's first complaint.

    Args:
        install: name to version.
        remove: packages that leave in the same transaction.
        also: packages that come with it.
        again: put the files back even where the version is right.
        apart: what leaves is removed before the others are unpacked.
        built: kernel to the module it has now; rebuilt where the packages are put back.
        packaged: kernels whose module is one of the packages that are there.
        roll_back: files that go back with the packages.
    """
    words = "--reinstall " if again else "".join(f"{shlex.quote(name)} " for name in also)
    words += apt_words(install, remove)
    kernels = shlex.join(kernel for kernel, have in built.items() if have)
    first = f"FIRST={shlex.quote(' '.join(remove))}\n" if apart and remove else ""
    return ops.Run(
        PRELUDE + f"{_KEEP}{ARCHIVES}{kmod.APT_FAILED}keep_modules {kernels}\napt_ready\n{first}"
        f'if {"" if again else "along "}apt_swap {words}; then rm -rf "$G/modules"; forget_archives {shlex.join(packaged)}; exit 0; fi\n'
        f'[ -n "$ROLLED" ] || {{ modules_back {kernels}; {which_run()}exit 1; }}\n'
        f"set +e\n{rebuild(built)}modules_back {kernels}\n{start_services()}roll_back {' '.join(map(shlex.quote, roll_back))}\nexit 1",
        f"install the driver's {len(install)} packages",
        timeout=3600,
        joint=not again,
    )


def uninstall() -> Step:
    """Have NVIDIA's installer take its driver away; what is loaded of it stays loaded.

    Its exit code is 0 whatever became of it, so that is looked at. Sources: NVIDIA/nvidia-installer
    590.48.01: nvidia-installer.c, backup.c (``uninstall_existing_driver``).
    """
    return ops.Run(
        shell.load("uninstall", _PACKAGE, UNINSTALLER=UNINSTALLER),
        "uninstall the driver of NVIDIA's .run installer",
        timeout=960,
    )


def hold_all() -> Step:
    """Hold every installed package that belongs to the driver, of every architecture, as dpkg knows them now."""
    return ops.Run(
        f"set -- $(dpkg-query -W -f '{dpkg.QUERY_FORMAT}' | grep -E '{driverset.MEMBER_ERE}' "
        "| grep -vE '\\|(.c|.n).?$' | sed -E 's/\\|all\\|.*//; s/\\|([^|]*)\\|.*/:\\1/' | sort -u)\n"
        "apt_wait\n"
        '[ $# = 0 ] || apt-mark hold "$@"\neffect held',
        "hold the driver's packages",
        timeout=120,
    )


def settle() -> Step:
    """Finish what an interrupted dpkg left."""
    return ops.Run(
        f"{_PRELUDE}apt_ready\napt install -f\neffect configured",
        "finish the interrupted package installation",
        timeout=3600,
    )


#: Defines ``build_module KERNEL VERSION VERSION-WITH-TYPE``.
BUILD = kmod.UNLINKED + shell.load("build_module", _PACKAGE)
#: The same for modules that come with a package: they only have to be found.
CHECK = (
    'build_module() { depmod "$1"; got=$(have "$1"); [ "$got" = "$3" ] || '
    'fail "kernel $1 has nvidia module ${got:-none} from its package, expected $3"; }\n'
)


def build_call(kernel: str, want: str) -> str:
    """The call of ``build_module`` for a kernel."""
    return shlex.join(("build_module", kernel, want.partition(" ")[0], want))


def rebuild(built: Mapping[str, str | None]) -> str:
    """Build modules anew after the packages went back, as far as that works."""
    calls = [f"( {build_call(kernel, have)} ) || :\n" for kernel, have in built.items() if have]
    return BUILD + "".join(calls) if calls else ""


def build(kernel: str, want: str) -> Step:
    """Build and install the module for one kernel with DKMS; say the compiler's first complaint."""
    return ops.Run(
        f"{_CLEAR}{_HAVE}{kmod.COMPLAIN}{BUILD}{build_call(kernel, want)}\neffect built",
        f"build the nvidia module for {kernel}",
        timeout=3600,
    )


#: The running ones of ``SERVICES``, and others that systemd stops along with them.
_SERVICES = shell.load("stopped_with", "gpustate.probes") + shell.load(
    "services",
    _PACKAGE,
    STOPPED=STOPPED_PATH,
    LEFT=LEFT_PATH,
    SERVICES=" ".join(SERVICES),
    OWN_SERVICES=" ".join(OWN_SERVICES),
    VALIDATION=gpu_services.VALIDATION,
)
_UNLOAD = _SERVICES + shell.load(
    "unload", _PACKAGE, IN_USE=IN_USE_PATH, UNLOAD_ORDER=" ".join(UNLOAD_ORDER)
)


@dataclass(frozen=True, slots=True)
class ServicesQuery(Query[tuple[str, ...]]):
    """Units that a reload of the modules stops; only worth asking when one is due."""

    def script(self) -> str:
        return f"{_SERVICES}[ ! -d /run/systemd/system ] || running_services\n:\n"

    def parse(self, answer: Answer) -> tuple[str, ...]:
        return tuple(answer.text.split())

    def placeholder(self) -> tuple[str, ...]:
        return ()


def note_services() -> Step:
    """Write down which services hold the GPUs, before new libraries break them."""
    return ops.RunLive(
        f"{_SERVICES}[ ! -d /run/systemd/system ] || note_services\neffect noted",
        "record the services that use the driver",
        timeout=60,
    )


def start_services() -> str:
    """Start what was stopped, and forget about it; without a loaded driver, leave it to the next installation."""
    return f"{_SERVICES}start_services\n"


def which_run() -> str:
    """Say which of the services that were noted run; the note stays for the next apply."""
    return f"[ ! -r {STOPPED_PATH} ] || which_run <{STOPPED_PATH}\n"


def reload(want: str) -> Step:
    """Unload every NVIDIA module and load the ones on disk, with the known services stopped."""
    return ops.RunLive(
        f"{_HAVE}{_UNLOAD}{shell.load('reload', _PACKAGE, WANT=want, LOAD_ORDER=' '.join(LOAD_ORDER))}",
        "reload the nvidia modules",
        timeout=600,
    )


def first_load(want: str) -> Step:
    """At the first boot of an image: the modules that were built for it are loaded, where GPUs are."""
    return ops.RunLive(
        shell.load("first_load", _PACKAGE, WANT=want, LOAD_ORDER=" ".join(LOAD_ORDER)),
        "load the nvidia modules",
        timeout=300,
    )


def unload() -> Step:
    """Unload every NVIDIA module; the services that were stopped for it stay so until there is a driver again."""
    return ops.RunLive(
        f"{_UNLOAD}unload_modules\nleave_services\neffect unloaded",
        "unload the nvidia modules",
        timeout=600,
    )


def restart_stopped() -> Step:
    """Start the services that an interrupted reload left stopped."""
    return ops.Run(start_services() + "effect started", "restart the stopped services", timeout=300)


def leave_stopped() -> Step:
    """Record for the next installation which services an interrupted removal has stopped."""
    return ops.RunLive(
        f"{_SERVICES}leave_services\neffect left",
        "record the services that stay stopped without a driver",
        timeout=60,
    )


def start_left() -> Step:
    """Start the services that a removal of the driver stopped, as far as they are still enabled."""
    return ops.RunLive(
        f"{_SERVICES}start_left\neffect started",
        "start the services that the removal of the driver stopped",
        timeout=300,
    )
