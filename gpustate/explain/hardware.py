"""Causes at the links ``pci`` and ``driver``: who holds the GPUs, and why the module is not there.

Sources:
    NVIDIA/open-gpu-kernel-modules#820: the GSP cannot be switched off with the open modules;
    NVIDIA/gpu-operator#141, #497, #1726 (Secure Boot), #504, #564, #1251 (compilers, headers), #910
    (precompiled modules); k8s-device-plugin#231 (GPUs that are gone); kernel, drivers/pci: reads of a
    device that is gone give ones.
"""

from __future__ import annotations

from gpustate.core.facts import PciGpu
from gpustate.diagnosis import remedies as remedies
from gpustate.diagnosis.chain_data import PASSTHROUGH
from gpustate.explain import kept_away
from gpustate.explain.causes import Cause, View, some
from gpustate.probes import shadowing_libraries


def _held(view: View) -> str:
    held = [one for one in view.observed.pci if one.is_gpu and one.driver in PASSTHROUGH]
    if not held or view.observed.gpus:
        return ""
    return f"all {len(held)} GPUs are bound to {held[0].driver}, for virtual machines"


def _none(view: View) -> str:
    return view.broken if not view.observed.gpus else ""


def _gone(view: View) -> str:
    there = {one.address for one in view.observed.pci if one.is_gpu}
    gone = [
        address
        for address in view.clues.all("gone")
        if address in there and not view.observed.quarantine.holds("", address)
    ]
    return f"{some(gone)} answers every read of its PCI configuration with ones" if gone else ""


def _count(view: View) -> str:
    return view.broken if "expected" in view.broken else ""


def _nouveau(view: View) -> str:
    bound = [
        one for one in view.observed.gpus if one.driver in ("nouveau", "nova_core", "nova-core")
    ]
    if not bound:
        return ""
    lines = [
        line for line in view.clues.all("modprobe") if "blacklist" in line or "install" in line
    ]
    kept_away = any("nouveau" in line for line in lines)
    image = view.clues.one("nouveau_initramfs")
    if kept_away and image:
        return f"{view.broken}; modprobe.d keeps nouveau away, but {image} holds and loads it first"
    if kept_away:
        return f"{view.broken}; modprobe.d keeps it away from the next boot on: not rebooted since"
    return f"{view.broken}; nothing below modprobe.d keeps nouveau away"


def _nouveau_in_image(view: View) -> str:
    found = _nouveau(view)
    return found if "loads it first" in found else ""


def _needs(view: View, *, open_modules: bool) -> list[str]:
    found = [PciGpu(one.address, one.device_id, one.class_id, None) for one in view.observed.gpus]
    return [
        one.address
        for one in found
        if (one.needs_open_modules if open_modules else one.needs_proprietary_modules)
    ]


def _is_open(view: View) -> bool | None:
    """The module is the open one; ``None`` when there is none to be asked."""
    if view.observed.loaded:
        return view.observed.open_module
    licence = view.clues.one("license")
    return None if not licence else "MIT" in licence


def _wants_open(view: View) -> str:
    needing = _needs(view, open_modules=True)
    if not needing or _is_open(view) is not False:
        return ""
    return f"the proprietary module is installed, and only the open one drives {some(needing)}"


def _wants_proprietary(view: View) -> str:
    needing = _needs(view, open_modules=False)
    if not needing or _is_open(view) is not True:
        return ""
    return f"the open module is installed, and {some(needing)} is older than Turing: it has no GSP"


def _gsp(view: View) -> str:
    words = (*view.clues.all("modprobe"), view.clues.one("cmdline"))
    where = [word for word in words if "NVreg_EnableGpuFirmware=0" in word]
    if not where or _is_open(view) is not True:
        return ""
    return f"the open module cannot do without its firmware, and is told to: {where[0][:160]}"


def _unsupported(view: View) -> str:
    return view.clues.said("is not supported by the NVIDIA", "not supported by open nvidia.ko")


def _not_enrolled(view: View) -> str:
    clues = view.clues
    if not clues.has("secure_boot") or view.observed.loaded or not view.observed.on_disk:
        return ""
    signer = clues.one("signer")
    if not signer:
        return f"Secure Boot is on, and the module of {view.observed.kernel} is not signed"
    enrolled = any(key.startswith(f"{signer}:") for key in clues.all("key"))
    if enrolled or not clues.all("key"):
        return ""
    return (
        f"Secure Boot is on, and the module's signer {signer!r} is in none of the kernel's keyrings"
    )


def _enrolment_waits(view: View) -> str:
    found = _not_enrolled(view)
    waiting = view.clues.all("mok_new")
    signer = view.clues.one("signer")
    if not found or not signer or not any(signer in one or one in signer for one in waiting):
        return ""
    return f"{found}; its enrolment waits for somebody at the console"


def _build(view: View) -> str:
    if view.observed.on_disk or not view.clues.build_error:
        return ""
    return f"the build of the module failed: {view.clues.build_error}"


def _compiler(view: View) -> str:
    wanted = view.clues.kernel_compiler
    missing = wanted and wanted not in view.clues.all("compiler")
    plain = "gcc" in view.clues.all("compiler")
    if view.observed.on_disk or not missing or (plain and not view.clues.build_error):
        return ""
    return f"kernel {view.observed.kernel} was built with {wanted}, which is not installed" + (
        f"; the build said: {view.clues.build_error}" if view.clues.build_error else ""
    )


def _from_source(view: View) -> bool:
    return any(
        name.startswith("nvidia") and "dkms" in name
        for name in (*view.clues.packages, *(name for name, _ in view.observed.packages))
    ) or bool(view.clues.all("dkms"))


def _headers(view: View) -> str:
    if view.observed.on_disk or view.clues.has("headers") or not _from_source(view):
        return ""
    return f"there are no headers of kernel {view.observed.kernel} to build the module with"


def _precompiled(view: View) -> str:
    mark = "linux-modules-nvidia-"
    names = [name for name in view.clues.packages if name.startswith(mark)]
    if (
        view.observed.on_disk
        or not names
        or any(name.endswith(view.observed.kernel) for name in names)
    ):
        return ""
    return f"there are precompiled modules for other kernels ({some(names)}), none for {view.observed.kernel}"


def _other_kernel(view: View) -> str:
    others = [kernel for kernel in view.clues.all("module_for") if kernel != view.observed.kernel]
    if view.observed.on_disk or not others or view.observed.kernel in view.clues.all("module_for"):
        return ""
    return f"the module was built for {some(others)}, and {view.observed.kernel} runs: it was never built for it"


def _offline(view: View) -> str:
    gone = view.clues.all("unreachable")
    if view.observed.on_disk or not gone:
        return ""
    return f"no driver is installed, and its repository does not answer: {some(list(gone))}"


def _not_installed(view: View) -> str:
    if (
        view.observed.on_disk
        or view.observed.loaded
        or view.observed.packages
        or view.clues.all("module_for")
    ):
        return ""
    drivers = [n for n in view.clues.packages if n.startswith(("nvidia-", "cuda-drivers"))]
    return "" if drivers else "no driver is installed"


def _offered(view: View) -> str:
    found, offered = _not_installed(view), view.clues.all("offered")
    if not found or (view.clues.has("searched") and not offered):
        return ""
    return found + (f"; repositories offer {offered[0]}" if offered else "")


def _not_offered(view: View) -> str:
    found = "" if _offered(view) else _not_installed(view)
    return f"{found}; no repository offers one" if found else ""


def _moved(view: View) -> str:
    """Who moved packages last, in words; empty when no history tells."""
    rows = view.clues.fields("history", 3)
    if not rows:
        return ""
    date, who, what = rows[-1]
    by = "unattended-upgrades" if "unattended-upgrade" in who else who.partition(" ")[0] or "apt"
    return f"; {date}: {by}: {what.strip()[:160]}"


def _holders(view: View) -> str:
    rows = view.clues.fields("holder", 2)
    return f"; in use by {some([f'{name} (pid {pid})' for pid, name in rows])}" if rows else ""


def _upgraded(view: View) -> str:
    others = {
        *([view.observed.on_disk] if view.observed.on_disk else []),
        *dict(view.observed.packages).values(),
    }
    if not view.observed.loaded or not others or view.observed.loaded in others or len(others) != 1:
        return ""
    return view.broken + _moved(view) + _holders(view)


def _beside(view: View) -> str:
    found = shadowing_libraries.describe(view.clues.all("beside")) if view.observed.loaded else ()
    return f"{some(list(found))}; the loaded driver is {view.observed.loaded}" if found else ""


def _module_file(view: View) -> str:
    """The libraries and the packages are of one version, and only the module's file is of another."""
    observed = view.observed
    libraries = (
        one.version for one in (observed.nvml_library, observed.cuda_library) if one is not None
    )
    others = {*libraries, *dict(observed.packages).values()} - {""}
    if (
        not observed.loaded
        or not observed.on_disk
        or len(others) != 1
        or observed.on_disk in others
    ):
        return ""
    return (
        f"the module file for kernel {observed.kernel} is of version {observed.on_disk}, the libraries are of {others.pop()}; "
        f"loaded is {observed.loaded}"
    )


def _mixed(view: View) -> str:
    return view.broken + _moved(view) if view.observed.loaded else ""


def _open_run(view: View) -> str:
    runs = view.clues.all("open_run")
    if not runs or view.observed.loaded:
        return ""
    return f"run {runs[-1]} of gpustate on this node has no end: it goes on, or was broken off"


def _unloaded(view: View) -> str:
    if not view.observed.on_disk or view.observed.loaded:
        return ""
    said = view.clues.said("NVRM", "nvidia:")
    return view.broken + (f"; dmesg: {said}" if said else "")


def _not_whole(view: View) -> str:
    path = view.clues.one("not_whole")
    if not path or not view.observed.loaded or view.clues.has("operator_driver"):
        return ""
    return (
        f"{path} is missing or no module: nvidia is loaded now, and the next boot brings it no more"
    )


def _no_module(view: View) -> str:
    # Without packages of its own the driver is foreign, with its modules in a container or elsewhere.
    if not view.clues.has("no_module") or view.clues.has("operator_driver"):
        return ""
    if not view.observed.loaded or view.observed.on_disk:
        return ""
    names = {*view.clues.packages, *(name for name, _ in view.observed.packages)}
    if not any(name.startswith(_WITH_MODULE) for name in names):
        return ""
    return (
        f"no nvidia module of /lib/modules/{view.observed.kernel} is left: nvidia is loaded now, and the next boot "
        "brings it no more"
    )


_DRIVER = "driver"
#: Packages that bring modules or need those that do.
_WITH_MODULE = (
    *("nvidia-driver", "nvidia-kernel-", "nvidia-open", "nvidia-dkms-", "cuda-drivers"),
    *("linux-modules-nvidia-", "kmod-nvidia"),
)
CAUSES = (
    Cause("gpus-held-for-virtual-machines", "pci", _held,
          "restore them (unbind vfio-pci, take vfio-pci.ids off the kernel command line), or leave this node out"),
    Cause("no-gpu-on-pci", "pci", _none, remedies.NO_GPU),
    Cause("nouveau-in-initramfs", "pci", _nouveau_in_image,
          "build the initramfs anew without it and reboot: gpustate apply with the state nouveau",
          ("NVIDIA/k8s-driver-manager#37", "NVIDIA/gpu-operator#974"), "nouveau"),
    Cause("nouveau-bound", "pci", _nouveau, remedies.FOREIGN_DRIVER,
          ("kubernetes-sigs/image-builder#1468", "NVIDIA/gpu-operator#8"), "nouveau"),
    Cause("gpu-missing", "pci", _count, remedies.GPU_COUNT, ("NVIDIA/k8s-device-plugin#231",)),
    Cause("gpu-off-the-bus", "pci", _gone,
          "drain the node and power-cycle it; have a GPU that falls off again replaced",
          ("NVIDIA/k8s-device-plugin#2038",), explains=False),
    Cause("mok-enrolment-waits", _DRIVER, _enrolment_waits,
          "reboot with somebody at the console, who enrols the key in MokManager with the password that was set",
          ("NVIDIA/gpu-operator#1726",)),
    Cause("module-not-signed-for-secure-boot", _DRIVER, _not_enrolled,
          "install modules that the distribution signs, or enrol the key that signs them: mokutil --import",
          ("NVIDIA/gpu-operator#141", "NVIDIA/gpu-operator#497")),
    Cause("open-modules-needed", _DRIVER, _wants_open, "install the open modules: gpustate apply with the state driver (module_type auto or open)",
          ("Start9Labs/start-technologies#3693",), "driver"),
    Cause("proprietary-modules-needed", _DRIVER, _wants_proprietary,
          "install the proprietary modules, of branch 580 or older: gpustate apply with the state driver (module_type auto or proprietary)",
          ("NVIDIA/cloud-native-docs#173",), "driver"),
    Cause("gsp-off-with-open-modules", _DRIVER, _gsp,
          "take NVreg_EnableGpuFirmware=0 away, or install the proprietary modules",
          ("NVIDIA/open-gpu-kernel-modules#820",)),
    Cause("gpu-not-supported-by-branch", _DRIVER, _unsupported,
          "install a branch that drives this GPU: gpustate matrix check says which"),
    Cause("library-of-no-package-in-the-way", _DRIVER, lambda v: "" if _upgraded(v) else _beside(v), shadowing_libraries.REMEDY),
    Cause("module-file-of-another-version", _DRIVER, _module_file,
          "build or install it in the libraries' version: gpustate apply with the state driver", state="driver"),
    Cause("library-version-mismatch", _DRIVER, lambda v: "" if _upgraded(v) else _mixed(v), remedies.ONE_SET,
          ("lyulyul/shine-cluster#30",), "driver"),
    Cause("upgraded-under-a-loaded-module", _DRIVER, _upgraded, remedies.RELOAD,
          ("pando85/homelab#4110", "NVIDIA/gpu-operator#367"), "driver"),
    Cause("kernel-compiler-missing", _DRIVER, _compiler,
          "install the compiler the kernel was built with, then gpustate apply with the state driver",
          ("NVIDIA/gpu-operator#504", "NVIDIA/gpu-operator#1251")),
    Cause("module-build-failed", _DRIVER, _build,
          "fix what the build names, then gpustate apply with the state driver",
          ("NVIDIA/gpu-operator#564", "NVIDIA/gpu-operator#457")),
    Cause("kernel-headers-missing", _DRIVER, _headers,
          "install the headers of the running kernel: gpustate apply with the state driver",
          ("NVIDIA/gpu-operator#210",), "driver"),
    Cause("precompiled-module-missing", _DRIVER, _precompiled,
          "boot the kernel that has a module, or install the module of this one when it is published",
          ("NVIDIA/gpu-operator#910",)),
    Cause("module-for-another-kernel", _DRIVER, _other_kernel,
          "build it for the running kernel: gpustate apply with the state driver",
          ("NVIDIA/gpu-operator#564",), "driver"),
    Cause("module-file-missing", _DRIVER, _not_whole,
          "rebuild it: gpustate apply with the state driver", state="driver", explains=False),
    Cause("module-files-gone", _DRIVER, _no_module,
          "rebuild them: gpustate apply with the state driver", state="driver", explains=False),
    Cause("repository-unreachable", _DRIVER, _offline,
          "let the node reach it, or name a mirror it reaches: driver-repository with a URL of your own",
          ("NVIDIA/gpu-operator#91", "NVIDIA/gpu-operator#427")),
    Cause("run-broken-off", _DRIVER, _open_run,
          "wait for it if it goes on; otherwise apply the policy again", ("NVIDIA/gpu-operator#2509",), "driver"),
    Cause("driver-not-installed", _DRIVER, _offered, "install it: gpustate apply with the state driver",
          state="driver"),
    Cause("driver-not-offered", _DRIVER, _not_offered,
          "name a repository and install it: gpustate apply with the states driver-repository and driver"),
    kept_away.BLACKLISTED,
    Cause("module-not-loaded", _DRIVER, _unloaded, remedies.NOT_LOADED, state="driver"),
    Cause("module-missing", _DRIVER, lambda v: "" if v.observed.loaded else v.broken, remedies.NO_MODULE, state="driver"),
)  # fmt: skip
