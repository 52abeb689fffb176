"""Causes at the checks ``pci`` and ``driver``: which driver holds the GPUs, and why the module is missing.

Sources:
    NVIDIA/open-gpu-kernel-modules#820: the GSP cannot be switched off with the open modules;
    NVIDIA/gpu-operator#141, #497, #1726 (Secure Boot), #504, #564, #1251 (compilers, headers), #910
    (precompiled modules); k8s-device-plugin#231 (missing GPUs).
"""

from __future__ import annotations

from collections.abc import Callable

from gpustate.diagnosis import remedies as remedies
from gpustate.diagnosis.chain_data import PASSTHROUGH
from gpustate.explain import blocked_modules
from gpustate.explain.causes import Cause, View, evidence_with, some
from gpustate.formats.pci_gpus import PciGpu
from gpustate.probes import shadowing_libraries


def _held(view: View) -> str:
    held = [d for d in view.observed.pci if d.is_gpu and d.driver in PASSTHROUGH]
    if not held or view.observed.gpus:
        return ""
    return f"all {len(held)} GPUs are bound to {held[0].driver} for virtual machines"


def _nouveau(view: View) -> str:
    bound = [
        gpu for gpu in view.observed.gpus if gpu.driver in ("nouveau", "nova_core", "nova-core")
    ]
    if not bound:
        return ""
    lines = [
        line for line in view.clues.all("modprobe") if "blacklist" in line or "install" in line
    ]
    blocked = any("nouveau" in line for line in lines)
    image = view.clues.first("nouveau_initramfs")
    if blocked and image:
        return (
            f"{view.broken}; modprobe.d blocks nouveau, but {image} contains it and loads it first"
        )
    if blocked:
        return f"{view.broken}; modprobe.d blocks it from the next boot on: not rebooted since"
    return f"{view.broken}; modprobe.d does not block nouveau"


def _nouveau_in_image(view: View) -> str:
    evidence = _nouveau(view)
    return evidence if "loads it first" in evidence else ""


def _needs(view: View, *, open_modules: bool) -> list[str]:
    gpus = [PciGpu(gpu.address, gpu.device_id, gpu.class_id, None) for gpu in view.observed.gpus]
    return [
        gpu.address
        for gpu in gpus
        if (gpu.needs_open_modules if open_modules else gpu.needs_proprietary_modules)
    ]


def _is_open(view: View) -> bool | None:
    """Whether the module is the open one; ``None`` if there is no module."""
    if view.observed.loaded:
        return view.observed.open_module
    licence = view.clues.first("license")
    return None if not licence else "MIT" in licence


def _wants_open(view: View) -> str:
    needing = _needs(view, open_modules=True)
    if not needing or _is_open(view) is not False:
        return ""
    return f"the proprietary module is installed, but {some(needing)} needs the open one"


def _wants_proprietary(view: View) -> str:
    needing = _needs(view, open_modules=False)
    if not needing or _is_open(view) is not True:
        return ""
    return f"the open module is installed, but {some(needing)} is older than Turing and has no GSP"


def _gsp(view: View) -> str:
    words = (*view.clues.all("modprobe"), view.clues.first("cmdline"))
    where = [word for word in words if "NVreg_EnableGpuFirmware=0" in word]
    if not where or _is_open(view) is not True:
        return ""
    return f"the open module requires GSP firmware, which is disabled: {where[0][:160]}"


def _unsupported(view: View) -> str:
    words = ("is not supported by the NVIDIA", "not supported by open nvidia.ko", "legacy drivers")
    return view.clues.kernel_message(*words)


def _not_enrolled(view: View) -> str:
    clues = view.clues
    if not clues.has("secure_boot") or view.observed.loaded or not view.observed.on_disk:
        return ""
    signer = clues.first("signer")
    if not signer:
        return f"Secure Boot is on, and the module for {view.observed.kernel} is not signed"
    enrolled = any(key.startswith(f"{signer}:") for key in clues.all("key"))
    if enrolled or not clues.all("key"):
        return ""
    return (
        f"Secure Boot is on, and the module's signer {signer!r} is in none of the kernel's keyrings"
    )


def _enrolment_waits(view: View) -> str:
    evidence = _not_enrolled(view)
    waiting = view.clues.all("mok_new")
    signer = view.clues.first("signer")
    if not evidence or not signer or not any(signer in key or key in signer for key in waiting):
        return ""
    return f"{evidence}; its enrolment is pending and must be confirmed at the console"


def _build(view: View) -> str:
    if view.observed.on_disk or not view.clues.build_error:
        return ""
    return f"the build of the module failed: {view.clues.build_error}"


def _compiler(view: View) -> str:
    compiler = view.clues.kernel_compiler
    missing = compiler and compiler not in view.clues.all("compiler")
    plain = "gcc" in view.clues.all("compiler")
    if view.observed.on_disk or not missing or (plain and not view.clues.build_error):
        return ""
    return f"kernel {view.observed.kernel} was built with {compiler}, which is not installed" + (
        f"; build error: {view.clues.build_error}" if view.clues.build_error else ""
    )


def _from_source(view: View) -> bool:
    return any(
        name.startswith("nvidia") and "dkms" in name
        for name in (*view.clues.packages, *(name for name, _ in view.observed.packages))
    ) or bool(view.clues.all("dkms"))


def _headers(view: View) -> str:
    if view.observed.on_disk or view.clues.has("headers") or not _from_source(view):
        return ""
    return f"the headers of kernel {view.observed.kernel}, which the module's build needs, are not installed"


def _precompiled(view: View) -> str:
    mark = "linux-modules-nvidia-"
    names = [name for name in view.clues.packages if name.startswith(mark)]
    if (
        view.observed.on_disk
        or not names
        or any(name.endswith(view.observed.kernel) for name in names)
    ):
        return ""
    return f"precompiled modules are installed for other kernels ({some(names)}), but not for {view.observed.kernel}"


def _other_kernel(view: View) -> str:
    kernels = [kernel for kernel in view.clues.all("module_for") if kernel != view.observed.kernel]
    if view.observed.on_disk or not kernels or view.observed.kernel in view.clues.all("module_for"):
        return ""
    return f"the module was built for {some(kernels)}, but not for the running kernel {view.observed.kernel}"


def _offline(view: View) -> str:
    unreachable = view.clues.all("unreachable")
    if view.observed.on_disk or not unreachable:
        return ""
    return f"no driver is installed, and its repository is unreachable: {some(list(unreachable))}"


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
    evidence, offered = _not_installed(view), view.clues.all("offered")
    if not evidence or (view.clues.has("searched") and not offered):
        return ""
    return evidence + (f"; available: {offered[0]}" if offered else "")


def _not_offered(view: View) -> str:
    evidence = "" if _offered(view) else _not_installed(view)
    return f"{evidence}, and no repository offers one" if evidence else ""


def _last_change(view: View) -> str:
    """The last change of packages, by the package manager's history; empty if unknown."""
    rows = view.clues.fields("history", 3)
    if not rows:
        return ""
    date, user, changes = rows[-1]
    by = "unattended-upgrades" if "unattended-upgrade" in user else user.partition(" ")[0] or "apt"
    return f"; {date}: {by}: {changes.strip()[:160]}"


def _holders(view: View) -> str:
    rows = view.clues.fields("holder", 2)
    return f"; in use by {some([f'{name} (pid {pid})' for pid, name in rows])}" if rows else ""


def _upgraded(view: View) -> str:
    versions = {
        *([view.observed.on_disk] if view.observed.on_disk else []),
        *dict(view.observed.packages).values(),
    }
    if (
        not view.observed.loaded
        or not versions
        or view.observed.loaded in versions
        or len(versions) != 1
    ):
        return ""
    return view.broken + _last_change(view) + _holders(view)


def _beside(view: View) -> str:
    files = shadowing_libraries.describe(view.clues.all("beside")) if view.observed.loaded else ()
    return f"{some(list(files))}; the loaded driver is {view.observed.loaded}" if files else ""


def _module_file(view: View) -> str:
    """Libraries and packages have the same version, only the module's file has another."""
    observed = view.observed
    libraries = (
        lib.version for lib in (observed.nvml_library, observed.cuda_library) if lib is not None
    )
    versions = {*libraries, *dict(observed.packages).values()} - {""}
    if (
        not observed.loaded
        or not observed.on_disk
        or len(versions) != 1
        or observed.on_disk in versions
    ):
        return ""
    return (
        f"the module file for kernel {observed.kernel} has version {observed.on_disk}, the libraries have {versions.pop()}; "
        f"loaded: {observed.loaded}"
    )


def _mixed(view: View) -> str:
    return view.broken + _last_change(view) if view.observed.loaded else ""


def _open_run(view: View) -> str:
    runs = view.clues.all("open_run")
    if not runs or view.observed.loaded:
        return ""
    return f"gpustate run {runs[-1]} on this node is unfinished: it is still running, or was interrupted"


def _logged(*words: str) -> Callable[[View], str]:
    """A check that failed, and why by the kernel's log."""

    def detect(view: View) -> str:
        message = view.clues.kernel_message(*words, of=view.broken)
        inapplicable = (
            not message
            or view.check is None
            or (view.check.name == _DRIVER and view.observed.loaded)
        )
        return "" if inapplicable else f"{view.broken}; dmesg: {message}"

    return detect


def _unloaded(view: View) -> str:
    if not view.observed.on_disk or view.observed.loaded:
        return ""
    message = view.clues.kernel_message("NVRM", "nvidia:")
    return view.broken + (f"; dmesg: {message}" if message else "")


def _not_whole(view: View) -> str:
    path = view.clues.first("not_whole")
    if not path or not view.observed.loaded or view.observed.driver_root:
        return ""
    return (
        f"{path} is missing or not a module: nvidia is loaded now, but the next boot cannot load it"
    )


def _no_module(view: View) -> str:
    # A driver without packages is foreign; its modules may be in a container or elsewhere.
    if not view.clues.has("no_module") or view.observed.driver_root:
        return ""
    if not view.observed.loaded or view.observed.on_disk:
        return ""
    names = {*view.clues.packages, *(name for name, _ in view.observed.packages)}
    if not any(name.startswith(_WITH_MODULE) for name in names):
        return ""
    return (
        f"/lib/modules/{view.observed.kernel} has no nvidia module: nvidia is loaded now, but the next boot "
        "cannot load it"
    )


_DRIVER = "driver"
#: Packages with modules, and packages that depend on those.
_WITH_MODULE = (
    *("nvidia-driver", "nvidia-kernel-", "nvidia-open", "nvidia-dkms-", "cuda-drivers"),
    *("linux-modules-nvidia-", "kmod-nvidia"),
)
#: Lines of the kernel's log: cause, words, fix, threads, state.
_REASONS = (
    ("gsp-firmware-missing", ("gsp_ga10x.bin failed with", "gsp_tu10x.bin failed with", "gsp_log.bin failed with"),
     remedies.by_apply("reinstall the driver's firmware", "driver"), ("NVIDIA/open-gpu-kernel-modules#943",), "driver"),
    ("gpu-needs-power-cycle", ("unexpected WPR2 already up",),
     "drain the node and switch its power off and on (a warm reboot may not do): systemctl poweroff; replace the GPU if it happens again",
     ("NVIDIA/open-gpu-kernel-modules#1230",), ""),
    ("gpu-without-memory-window", ("is 0M @ 0x0", "region assigned to your NVIDIA device is invalid"),
     "enable Above 4G Decoding in the firmware's settings; in a VM, enlarge its 64-bit MMIO window; then: systemctl reboot",
     ("canonical/lxd#14381",), ""),
)  # fmt: skip
CAUSES = (
    Cause("gpus-held-for-virtual-machines", "pci", _held,
          "remove vfio-pci.ids from the kernel command line, then: systemctl reboot; or leave this node to its VMs: -l '!NODE'"),
    Cause("no-gpu-on-pci", "pci", lambda v: "" if v.observed.gpus else v.broken, remedies.NO_GPU),
    Cause("nouveau-in-initramfs", "pci", _nouveau_in_image,
          "rebuild the initramfs without it and reboot: gpustate apply nouveau -l NODE",
          ("NVIDIA/k8s-driver-manager#37", "NVIDIA/gpu-operator#974"), "nouveau"),
    Cause("nouveau-bound", "pci", _nouveau, remedies.FOREIGN_DRIVER,
          ("kubernetes-sigs/image-builder#1468", "NVIDIA/gpu-operator#8"), "nouveau"),
    Cause("gpu-missing", "pci", lambda v: v.broken if "expected" in v.broken or "last good validation" in v.broken else "", remedies.GPU_COUNT,
          ("NVIDIA/k8s-device-plugin#231", "aws/eks-node-monitoring-agent#121", "NVIDIA/NVSentinel#684")),
    Cause("gpu-off-the-bus", "pci", evidence_with("returns only ones"), remedies.LOST, ("NVIDIA/k8s-device-plugin#2038",)),
    Cause("mok-enrolment-waits", _DRIVER, _enrolment_waits,
          "reboot and enrol the key in MokManager at the console, with the password that was set; show it: mokutil --list-new",
          ("NVIDIA/gpu-operator#1726",)),
    Cause("module-not-signed-for-secure-boot", _DRIVER, _not_enrolled,
          "install modules that the distribution signs, or enrol their key: mokutil --import KEY.der",
          ("NVIDIA/gpu-operator#141", "NVIDIA/gpu-operator#497")),
    Cause("open-modules-needed", _DRIVER, _wants_open, f"install the open modules: {remedies.APPLY} --set driver.module_type=open",
          ("Start9Labs/start-technologies#3693",), "driver"),
    Cause("proprietary-modules-needed", _DRIVER, _wants_proprietary,
          f"install the proprietary modules, of branch 580 or older: {remedies.APPLY} --set driver.module_type=proprietary",
          ("NVIDIA/cloud-native-docs#173",), "driver"),
    Cause("gsp-off-with-open-modules", _DRIVER, _gsp,
          f"remove NVreg_EnableGpuFirmware=0, or install the proprietary modules: {remedies.APPLY} --set driver.module_type=proprietary",
          ("NVIDIA/open-gpu-kernel-modules#820",)),
    *(Cause(name, link, _logged(*words), fix, threads, state)
      for link in (_DRIVER, "libraries") for name, words, fix, threads, state in _REASONS),
    Cause("gpu-not-supported-by-branch", _DRIVER, _unsupported,
          "install a branch that supports this GPU; check one: gpustate policy matrix check --set driver=580 gpu=MODEL"),
    Cause("library-of-no-package-in-the-way", _DRIVER, lambda v: "" if _upgraded(v) else _beside(v), shadowing_libraries.REMEDY),
    Cause("module-file-of-another-version", _DRIVER, _module_file,
          remedies.ONE_MODULE, state="driver"),
    Cause("library-version-mismatch", _DRIVER, lambda v: "" if _upgraded(v) else _mixed(v), remedies.ONE_SET,
          ("lyulyul/shine-cluster#30",), "driver"),
    Cause("upgraded-under-a-loaded-module", _DRIVER, _upgraded, remedies.RELOAD,
          ("pando85/homelab#4110", "NVIDIA/gpu-operator#367"), "driver"),
    Cause("kernel-compiler-missing", _DRIVER, _compiler,
          remedies.by_apply("install the compiler that built the kernel; then apply", "driver"),
          ("NVIDIA/gpu-operator#504", "NVIDIA/gpu-operator#1251")),
    Cause("module-build-failed", _DRIVER, _build,
          remedies.by_apply("fix what the build error names; then apply", "driver"),
          ("NVIDIA/gpu-operator#564", "NVIDIA/gpu-operator#457")),
    Cause("kernel-headers-missing", _DRIVER, _headers,
          remedies.by_apply("install the headers of the running kernel", "driver"),
          ("NVIDIA/gpu-operator#210",), "driver"),
    Cause("precompiled-module-missing", _DRIVER, _precompiled,
          "build the module: gpustate apply POLICY -l NODE --set driver.precompiled=false; or boot a kernel that has one",
          ("NVIDIA/gpu-operator#910",)),
    Cause("module-for-another-kernel", _DRIVER, _other_kernel,
          remedies.by_apply("build it for the running kernel", "driver"),
          ("NVIDIA/gpu-operator#564",), "driver"),
    Cause("module-file-missing", _DRIVER, _not_whole,
          remedies.by_apply("rebuild it", "driver"), state="driver", explains=False),
    Cause("module-files-gone", _DRIVER, _no_module,
          remedies.by_apply("rebuild them", "driver"), state="driver", explains=False),
    Cause("repository-unreachable", _DRIVER, _offline,
          "give the node access to the repository, or use a mirror: gpustate apply POLICY -l NODE --set driver-repository.origin=mirror --set driver-repository.url=URL",
          ("NVIDIA/gpu-operator#91", "NVIDIA/gpu-operator#427")),
    Cause("run-broken-off", _DRIVER, _open_run,
          f"wait until it ends; if it was interrupted, continue: {remedies.APPLY}", ("NVIDIA/gpu-operator#2509",), "driver"),
    Cause("driver-not-installed", _DRIVER, _offered, remedies.by_apply("install it", "driver"),
          state="driver"),
    Cause("driver-not-offered", _DRIVER, _not_offered,
          remedies.by_apply("configure a repository and install the driver", "driver-repository", "driver")),
    blocked_modules.BLACKLISTED,
    Cause("module-not-loaded", _DRIVER, _unloaded, remedies.NOT_LOADED, state="driver"),
    Cause("module-missing", _DRIVER, lambda v: "" if v.observed.loaded else v.broken, remedies.NO_MODULE, state="driver"),
)  # fmt: skip
