"""Why a node must not get its driver now, each with the next move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpustate.formats import driverset, nvreg, package_errors, rpm
from gpustate.probes import shadowing_libraries
from gpustate.states.driver import building, files
from gpustate.states.driver.observed import Observed, plain_value, shown_as

WHY_PREBUILT = (
    "Secure Boot is on, and no key for signing locally built modules is enrolled: modules built "
    "and signed by Ubuntu are used"
)

WHY_THERE = (
    "modules that Ubuntu built and signed are installed, and stay; set precompiled: false for DKMS"
)

WHY_HOLD = (
    "signed modules are installed for one kernel at a time, and a kernel that unattended-upgrades brings has none "
    "until the next apply; "
)

WHY_SERVERS = "Ubuntu's packages for servers replace those for desktops, which its Fabric Manager cannot be installed with"

WHY_DESKTOPS = (
    "Ubuntu's Fabric Manager cannot be installed with the packages for desktops, and the archive has no others of this "
    "driver; set a branch or version that it has for servers"
)

WHY_PLUGIN = f"{rpm.LOCKS} is installed, which dnf holds packages with"

WHY_OFFERED = "the repository has prebuilt modules for every bootable kernel: they are used"


def image(observed: Observed, version: str | int | None, module_type: str) -> str | None:
    """What only GPUs could decide has to be said for an image."""
    if not observed.built:
        return "no kernel is installed in the image (looked in /boot and /lib/modules); install linux-image-amd64, or the cloud's kernel, first"
    if observed.gpus:
        return None
    if module_type == "auto":
        return (
            "cannot choose the kernel module type for an image without GPUs; set module_type to "
            "'open' or 'proprietary', or name the GPUs of the image: --gpu 8xH100"
        )
    if version is None and not observed.packages:
        return (
            "cannot choose a driver for an image without GPUs; set branch or version, or name the "
            "GPUs of the image: --gpu 8xH100"
        )
    return None


def headers(
    observed: Observed, desired: Observed, lacking: list[str], *, require: bool
) -> str | None:
    """Kernels that no module can be built for, as far as they matter.

    Args:
        lacking: kernels without headers that no repository offers headers for either.
        require: headers must be there already.
    """
    must = [k for k in lacking if require or k in (observed.running, observed.default_kernel)]
    must = [k for k in must if (observed.built[k] or "").partition(" ")[0] != desired.library]
    if not must:
        return None
    kernels, first = ", ".join(must), must[0]
    if require:
        name = building.headers_name(observed, first)
        return f"no kernel headers for {kernels}; install {name} or set headers: install"
    why, move = _why_no_headers(
        observed, first, "boot a kernel that the repositories have headers for"
    )
    return (
        f"no kernel headers for {kernels} (looked in /lib/modules/{first}/build), and {why}; {move}"
    )


def _why_no_headers(observed: Observed, kernel: str, move: str) -> tuple[str, str]:
    """Why a kernel's headers cannot be installed, and what helps: ``move`` where no repository offers them."""
    name = building.headers_name(observed, kernel)
    path = observed.kernel_pins.get(name)
    if path is None:
        return f"no repository offers {name}", move
    return f"a pin in {path} forbids {name}", "remove that pin"


#: Whose modules are signed, by ``ID`` of os-release.
_SIGNED = {
    "ubuntu": ", or choose a branch that Ubuntu has signed modules of",
    "rhel": ", or enable Red Hat's extensions and supplementary repositories, which have signed modules",
    "almalinux": ", or run dnf install almalinux-release-nvidia-driver, whose repository has signed modules",
    **dict.fromkeys(
        ("sles", "sled", "opensuse-leap", "opensuse-tumbleweed"),
        ", or choose a version that SUSE has signed modules of (nvidia-open-driver-G0x-signed)",
    ),
}


def unsigned(observed: Observed, desired: Observed) -> str | None:
    """A module built here would not load: the firmware does not know the key it is signed with."""
    boot = observed.secure_boot
    # The same driver in another package is not reloaded now, and would not load at the next boot.
    signed = any(map(files.is_signed, observed.packages.keys() - desired.packages.keys()))
    if not boot.on or boot.enrolled or (observed.loaded == desired.loaded and not signed):
        return None
    enrol = (
        f"mokutil --import {boot.key}"
        if boot.key
        else "dkms generate_mok, then mokutil --import /var/lib/dkms/mok.pub"
    )
    advice = _SIGNED.get(observed.os_id, "")
    if observed.signed_pins:
        advice = f", or remove the pins in {observed.signed_pins} that forbid signed modules"
    return (
        "Secure Boot is on, and the key that DKMS signs modules with is not enrolled; run "
        f"{enrol} and confirm at the console at the next boot, add the state secure-boot (key: own), "
        f"which does that, or turn Secure Boot off{advice}"
    )


#: How DKMS's repository is enabled, by ``ID`` of os-release; ``rpm -E %rhel`` is the major version.
_EPEL = {
    **dict.fromkeys(("rocky", "almalinux", "centos"), "dnf install epel-release && crb enable"),
    "ol": "dnf install oracle-epel-release-el$(rpm -E %rhel)",
    "rhel": "subscription-manager repos --enable codeready-builder-for-rhel-$(rpm -E %rhel)-$(arch)-rpms && dnf install "
    "https://dl.fedoraproject.org/pub/epel/epel-release-latest-$(rpm -E %rhel).noarch.rpm",
}


#: NVIDIA's guide wants contrib on Debian, also with NVIDIA's own repository.
_COMPONENTS = (
    "no repository of the node has it: add contrib and non-free to Debian's entries in /etc/apt/sources.list or "
    "/etc/apt/sources.list.d/debian.sources, and run apt-get update"
)


def unsolvable(observed: Observed, version: str) -> str:
    """The repositories of the node do not have what the set depends on, or a pin forbids it, or something installed conflicts with it."""
    for package, path in observed.pins.items():
        why = f"it depends on {package}, which a pin in {path} forbids; remove that pin"
        return f"{observed.manager} cannot install driver {version}: {why}"
    line, move = package_errors.find_error(observed.unsolvable) or (observed.unsolvable, "")
    line = line.removeprefix("error: ")
    epel = _EPEL.get(observed.os_id)
    if epel and re.search(r"nothing provides '?dkms\b", line):
        move = f"it is in EPEL; run on the node: {epel}"
    if observed.os_id == "debian" and line.endswith("but it is not installable"):
        move = _COMPONENTS
    return f"{observed.manager} cannot install driver {version}: {line}" + (move and f"; {move}")


def admitting_pins(observed: Observed, desired: Observed) -> Iterator[str]:
    """Somebody's pins that let the driver come from another repository than the policy's."""
    changes = observed.packages != desired.packages
    for path, repositories in observed.admitting_pins.items() if changes else ():
        yield (
            f"pins in {path} come before those of driver-repository, and let the driver come from any of "
            f"{', '.join(repositories)}"
        )


def barred(observed: Observed) -> str:
    """Somebody's line in modprobe.d lets a module be loaded neither now nor at boot."""
    return f"{observed.barred[0]} prevents the module from loading; remove that line"


def beside(observed: Observed) -> str:
    """A library of nobody's package wins over the driver's own, also over one that is installed again."""
    return f"{observed.beside[0]}; {shadowing_libraries.REMEDY}"


def overruled(observed: Observed, requested: Mapping[str, int | str]) -> str | None:
    """Somebody's line in modprobe.d is read after gpustate's own and gives a parameter another value."""
    for name, (place, value) in observed.overruled.items():
        if name in requested and plain_value(value) != plain_value(requested[name]):
            return (
                f"{place} is read after gpustate's file and overrides it, and the policy has "
                f"{name}={requested[name]}; remove that line, or set the same value in the policy"
            )
    return None


def unlisted(observed: Observed, names: tuple[str, ...]) -> tuple[str, ...]:
    """Parameters of the nvidia module that the loaded driver does not show."""
    if not observed.known_parameters:
        return ()
    listed = set(observed.known_parameters)
    return tuple(name for name in names if "." not in name and shown_as(name) not in listed)


def parameters(observed: Observed, requested: Mapping[str, int | str], branch: int) -> str | None:
    """A parameter that the driver has not, or that has a value which keeps the module from loading.

    What the loaded driver lists decides as long as it is of the branch that is wanted.
    """
    stays = observed.loaded is not None and observed.loaded.startswith(f"{branch}.")
    strange = unlisted(observed, tuple(requested))
    for name, value in requested.items():
        listed = stays and bool(observed.known_parameters) and name not in strange
        why = nvreg.problem(name, value, branch)
        if why and not (listed and "no parameter" in why):
            return why
        unheard = name in strange and name.removeprefix(nvreg.PREFIX) not in nvreg.PARAMETERS
        near = nvreg.nearest(shown_as(name), observed.known_parameters) if unheard else None
        if near:
            return f"driver {observed.loaded} has no parameter {name}; did you mean {near}"
    return None


def notes(
    observed: Observed, desired: Observed, names: tuple[str, ...], lacking: list[str]
) -> Iterator[str]:
    """What a person should know though nothing is wrong.

    Args:
        names: parameters of the policy.
        lacking: kernels that no module can be built for, though it would have to be.
    """
    strange = unlisted(observed, names)
    for name in names:
        key = name.removeprefix(nvreg.PREFIX)
        unheard = key != name and key not in nvreg.PARAMETERS
        near = nvreg.nearest(key, nvreg.PARAMETERS, 0.6) if unheard else None
        hint = f"; did you mean {near}" if near else ""
        if name in strange:
            yield f"the loaded driver does not show {name}: it is set, and cannot be compared{hint}"
        elif unheard and not observed.known_parameters:
            yield (
                f"{name} is not a known driver parameter: it is set, and ignored by modules "
                f"without it{hint}"
            )
    for name, full in desired.packages.items():
        after = driverset.named_after(name)
        if (
            name.startswith("nvidia-utils-")
            and driverset.release_of(full)
            and (after in observed.relations.ended_names)
        ):
            branch = driverset.branch_of(driverset.driver_version(full))
            successor = observed.relations.branches()[branch]
            yield (
                f"branch {branch} has ended in Ubuntu's archive: its driver stays, without updates; "
                f"set branch: {successor} to go on"
            )
    for kernel in lacking:
        version = (desired.built[kernel] or "").partition(" ")[0]
        offered = building.headers_of(observed, kernel) is not None
        if version != desired.library and not offered and kernel != observed.running:
            why, move = _why_no_headers(observed, kernel, "remove that kernel")
            yield f"kernel {kernel} can boot, and {why}: it will have no nvidia module; {move}"


def flavour(observed: Observed, packages: Mapping[str, str]) -> Iterator[str]:
    """What Fabric Manager has to do with the build of Ubuntu's driver for desktops."""
    before, after = (
        any(driverset.is_for_desktops(*one) for one in some.items())
        for some in (observed.packages, packages)
    )
    if observed.switches and after:
        yield WHY_DESKTOPS
    elif observed.switches and before and any("-server" in name for name in packages):
        yield WHY_SERVERS


def overridden(
    observed: Observed, packages: Mapping[str, str], *, hold: bool, full: bool
) -> Iterator[str]:
    """What somebody wanted kept and a set of packages does not keep: holds that are not gpustate's, display packages.

    Args:
        packages: the set, with versions.
        hold: gpustate holds the set itself, so that holds on a node with its files are its own.
        full: display packages are part of the set.
    """
    if observed.absent_holds and any(observed.packages.get(n) != v for n, v in packages.items()):
        yield f"holds on packages that are not installed end: {', '.join(observed.absent_holds)}"
    managed = any((observed.pin_text, observed.autoload_text, observed.options_text))
    if not managed or not (hold or set(observed.held) >= observed.packages.keys()):
        ends = [name for name in observed.held if name not in packages]
        if ends:
            yield f"holds end with their packages: {', '.join(ends)}"
        moved = [
            f"{name} {observed.packages[name]} -> {packages[name]}"
            for name in observed.held
            if name in packages and packages[name] != observed.packages.get(name, packages[name])
        ]
        if moved:
            yield f"held packages change: {', '.join(moved)}"
    removed = [n for n in observed.packages if n not in packages and driverset.is_display(n)]
    if removed and not full:
        yield (
            f"display packages are removed: {', '.join(removed)}; set packages: full to install "
            "those of the new driver"
        )


def warnings(observed: Observed) -> Iterator[str]:
    """The effect of foreign lines on the next boot of a node on which nothing is wrong now."""
    for module, place in observed.left_out.items():
        yield (
            f"{place} prevents boots from loading {module.replace('_', '-')}, for udev and "
            "modules-load.d heed it: programs that need it before it is loaded by name then fail; "
            "remove that line"
        )


def complaints(observed: Observed, desired: Observed) -> str:
    """What the compiler said of modules that are still to be built."""
    return "; ".join(
        f"{kernel}: {error}"
        for kernel, error in observed.build_errors.items()
        if kernel in observed.built and desired.built[kernel] != observed.built[kernel]
    )


def reboot(observed: Observed, want: str) -> str | None:
    """The kernel that boots next has no module, or one that does not fit the libraries."""
    kernel = observed.default_kernel or observed.running
    have = observed.built.get(kernel)
    if have == want:
        return None
    error = observed.build_errors.get(kernel)
    return (
        f"kernel {kernel}, which boots next, has {'nvidia module ' + have if have else 'no nvidia module'}, "
        f"wanted {want}{f' ({error})' if error else ''}; build it first, or the node comes back without GPUs"
    )


def blocker(observed: Observed, target: driverset.Target | None, problem: str | None) -> str | None:
    """Why the node must not be rebooted as it is."""
    if target is None:
        kernel = observed.default_kernel or observed.running
        return None if observed.built.get(kernel) else f"no driver can be chosen: {problem}"
    return reboot(observed, f"{target.version} {target.module_type}")
