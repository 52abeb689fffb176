"""What the driver's steps run on a node with dnf or zypper, as sh; the others are in :mod:`.scripts`.

NVIDIA's rpm packages build the module in their ``%post``, and end well whatever came of that. So the build is
looked at before the transaction counts: where the kernel that runs, or the one that boots next, has no module
of the new version, all packages go back to what was there.

Sources:
    NVIDIA/yum-packaging-dkms-nvidia, dkms-open-nvidia.spec: ``%post`` and ``%preun``. rpm(8).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from gpustate import Step, ops, shell
from gpustate.formats import driverset
from gpustate.ops.rpm import transaction
from gpustate.states.driver import scripts

_FORMAT = r"%{NAME}|%{ARCH}|%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}|\n"
#: Names of the driver's among the locked ones: a part that is missing may be locked at its version still.
LOCKED = (
    "{ sed -n 's/^\\([^!#].*\\)-[^-]*-[^-]*$/\\1/p' \"$(rpm_locklist)\"; "
    "sed -n 's/^solvable_name:[ \t]*//p' /etc/zypp/locks; } 2>/dev/null "
    "| grep -E '^(lib)?(nvidia|nvsdm|cuda-drivers)|-nvidia' | grep -v container | sort -u"
)
Packages = Mapping[str, str]


def _open(manager: str, install: Packages, remove: tuple[str, ...], *, again: bool) -> str:
    released = f"$({LOCKED})"
    return transaction(manager, [*install.items()], remove, again=again, released=released)


def fetch(
    manager: str,
    install: Packages,
    remove: tuple[str, ...],
    *,
    again: bool,
    hold: bool,
    roll_back: tuple[str, ...],
) -> Step:
    """Have everything on the node before anything changes; stop if foreign packages would be removed.

    Args:
        manager: dnf or zypper.
        install: name to version.
        remove: packages that leave in the same transaction.
        again: put the files back even where the version is right.
        hold: they are to be held, which dnf must be able to.
        roll_back: files that are put back as they were before this run when it cannot be had.
    """
    can_hold = "rpm_can_hold && " if hold else ""
    return ops.Run(
        _open(manager, install, remove, again=again)
        + f"{{ {can_hold}rpm_along rpm_fetch; }} || {{ roll_back {shlex.join(roll_back)}; exit 1; }}\neffect fetched",
        f"download the driver's {len(install)} packages and their dependencies",
        timeout=3600,
    )


def install(
    manager: str,
    install: Packages,
    remove: tuple[str, ...],
    *,
    again: bool,
    built: Mapping[str, str | None],
    packaged: tuple[str, ...] = (),
    desired: Mapping[str, str],
    dkms: bool,
    roll_back: tuple[str, ...],
) -> Step:
    """The whole set in one transaction, with its modules, or what was there before.

    Args:
        manager: dnf or zypper.
        install: name to version.
        remove: packages that leave in the same transaction.
        again: put the files back even where the version is right.
        built: kernel to the module it has now; rebuilt where the packages are put back.
        packaged: kernels whose module is one of the packages that are there.
        desired: kernel to the module it must have afterwards.
        dkms: modules are built on the node; else the packages bring them.
        roll_back: files that go back with the packages.
    """
    checks = "".join(
        f"  ( {scripts.build_call(kernel, want)} ) || bad=1\n" for kernel, want in desired.items()
    )
    return ops.Run(
        scripts.PRELUDE
        + scripts.ARCHIVES
        + _open(manager, install, remove, again=again)
        + (scripts.BUILD if dkms else scripts.CHECK)
        + f"check_modules() {{\n  :\n{checks}}}\n"
        + shell.load("swap_rpm", "gpustate.states.driver", OWN=" ".join(packaged))
        + f'[ -n "$ROLLED" ] || {{ {scripts.which_run()}exit 1; }}\n'
        f"set +e\n{scripts.rebuild(built)}{scripts.start_services()}roll_back {shlex.join(roll_back)}\nexit 1",
        f"install the driver's {len(install)} packages",
        timeout=3600,
        joint=not again,
    )


def hold_all(manager: str, removed: tuple[str, ...]) -> Step:
    """Hold every installed package that belongs to the driver, as rpm knows them now; forget those that left."""
    release = f"rpm_hold release {shlex.join(removed)}\n" if removed else ""
    return ops.Run(
        f"PM={manager}; rpm_can_hold || exit 1\n"
        f"set -- $(rpm -qa --qf '{_FORMAT}' | grep -E '{driverset.MEMBER_ERE}' | cut -d '|' -f 1 | sort -u)\n"
        f'[ $# = 0 ] || rpm_hold hold "$@"\n{release}effect held',
        "hold the driver's packages",
        timeout=600,
    )


def settle(manager: str, names: tuple[str, ...], desired: Packages) -> Step:
    """Of packages that a killed transaction left in two versions, keep the one that is wanted, or the newest."""
    keep = "".join(
        f"keep_version {shlex.quote(name)} {shlex.quote(desired.get(name, '').rpartition(':')[2])}\n"
        for name in names
    )
    return ops.Run(
        f"PM={manager}; rpm_wait || exit 1\n{shell.load('settle_rpm', 'gpustate.states.driver')}"
        f"{keep}effect configured",
        "finish the interrupted package installation",
        timeout=3600,
    )
