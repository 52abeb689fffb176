"""Causes at the checks ``toolkit``, ``runtime`` and ``cdi``.

Surprising: a container that lost its GPUs to a ``systemctl daemon-reload`` is detected from outside. systemd
reports when it last read its units; a container that was started before, and that systemd allows no GPU, has
none any more.

Sources:
    NVIDIA/nvidia-container-toolkit#48, #251 (daemon-reload), #982 and gpu-operator#992 (imports),
    rancher/rke2#3385 (templates); CDI specification: two specifications of one folder must not name one device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpustate.diagnosis import chain
from gpustate.diagnosis import remedies as remedies
from gpustate.errors import ProbeError
from gpustate.explain import damaged, gpus, services
from gpustate.explain.causes import Cause, View, evidence_with, runtime_down, some
from gpustate.formats import cdi
from gpustate.formats.containerd import marks
from gpustate.formats.numbers import parse_uint
from gpustate.probes import file_owners

_DROP_INS = "/etc/containerd/conf.d/"
_stale = evidence_with("names missing files")
_missing_mig_devices = evidence_with("MIG devices that no longer exist")


def _toolkit_unusable(view: View) -> str:
    odd = [problem for name, problem in view.observed.odd if name.startswith("nvidia-")]
    return view.broken if view.broken in odd else ""


def _no_file(view: View) -> bool:
    """Without its file containerd runs with built-in defaults, but ``config dump`` fails."""
    return not _other_file(view) and "config.toml: no such file" in view.broken


def _other_file(view: View) -> str:
    """The configuration file that containerd's service names; empty if it uses the default."""
    return view.observed.containerd.config if view.observed.containerd is not None else ""


def _config(view: View) -> str:
    if "config dump ended" not in view.broken or _no_file(view):
        return ""
    return view.broken + damaged.originals_named_in(
        view, view.broken, _other_file(view) or "/etc/containerd/config.toml"
    )


def _down(view: View) -> str:
    if view.broken != chain.STOPPED:
        return ""
    why = view.clues.unit("containerd").why
    return view.broken + (f"; its journal: {why}" if why else "")


def _stopped(enabled: str, suffix: str = "") -> Callable[[View], str]:
    """It was stopped by hand, and would start at the next boot or not."""

    def detect(view: View) -> str:
        unit = view.clues.unit("containerd")
        stopped = unit.active == "inactive" and unit.enabled == enabled
        return view.broken + suffix if stopped and view.broken == chain.STOPPED else ""

    return detect


def _imports(view: View) -> str:
    if "no runtime handler" not in view.broken or _other_file(view):
        return ""
    files = [name for name in view.clues.all("handler_file") if name.startswith(_DROP_INS)]
    imported = any(_DROP_INS.rstrip("/") in line for line in view.clues.all("imports"))
    if not files or imported:
        return ""
    return f"{view.broken}; {files[0]} defines it, but /etc/containerd/config.toml no longer imports that folder"


def _unclosed(view: View) -> str:
    """No apply edits a file in which nobody knows where gpustate's lines end."""
    place = view.clues.first("unclosed")
    if not place or "no runtime handler" not in view.broken:
        return ""
    return f"{view.broken}; {place}: {marks.UNCLOSED}"


def _handler(view: View) -> str:
    if _no_file(view):
        return (
            "containerd has no runtime handler for GPUs: /etc/containerd/config.toml does not exist"
        )
    return view.broken if "no runtime handler" in view.broken else ""


def _cri_dead(view: View) -> str:
    words = ("without its CRI service", "runs and does not answer", "is not ready")
    return view.broken if any(phrase in view.broken for phrase in words) else ""


def _failed(view: View) -> str:
    """Why a runtime that does not run has failed, or what it has been waiting for."""
    name, evidence = runtime_down(view)
    unit = view.clues.unit(name)
    if not unit.failure:
        return ""
    return f"{evidence}; {unit.failure}{damaged.originals_named_in(view, unit.why)}"


def _template(view: View, unit: str) -> str:
    """A server is also where neither runs."""
    if unit.endswith("-agent") and not view.clues.unit(unit).exists:
        return ""
    lacking = [name for name, count in view.clues.fields("rancher", 2) if count == "0"]
    templates = [t for t in view.clues.all("template") if any(f"/{name}/" in t for name in lacking)]
    if not templates or view.observed.runtime_binary is None or not unit.startswith(lacking[0]):
        return ""
    return f"{templates[0]} replaces the configuration that {lacking[0]} generates, and has no nvidia runtime"


def _reloaded(view: View) -> str:
    loaded = parse_uint(view.clues.first("units_loaded_us"))
    if not loaded:
        return ""
    robbed = [
        scope
        for scope, since in view.clues.fields("exposed", 2)
        if 0 < (parse_uint(since) or 0) < loaded
    ]
    if not robbed:
        return ""
    return f"{some(robbed)} lost its GPUs to systemctl daemon-reload: NVML returns 'Unknown Error' in it"


def _persistenced(view: View) -> str:
    """NVIDIA's specification names its socket, which exists while it runs."""
    unit = view.clues.unit("nvidia-persistenced")
    if "/run/nvidia-persistenced/" not in _stale(view) or unit.active == "active":
        return ""
    if not (unit.exists or unit.masked) or services.drop_in(view, unit.name):
        return ""
    how = "is masked" if unit.masked else "failed" if unit.failed else "does not run"
    return f"nvidia-persistenced {how}, and {view.broken}"


def _persistenced_drop_in(view: View) -> str:
    missed = "/run/nvidia-persistenced/" in _stale(view)
    return services.drop_in(view, "nvidia-persistenced") if missed else ""


def _missing_files(view: View) -> str:
    evidence, unit = _stale(view), view.clues.unit("nvidia-persistenced")
    if "/run/nvidia-persistenced/" in evidence and not (unit.exists or unit.masked):
        return f"{evidence}; nvidia-persistenced, which creates it, is not installed"
    return evidence


def _lost(view: View) -> tuple[str, dict[str, str]]:
    """The specification that names missing files, and those that belong to packages: path to package."""
    spec = next((spec for spec in view.observed.cdi if spec.missing), None)
    if spec is None or not _stale(view):
        return "", {}
    owners = file_owners.parse(view.clues.all("owned"))
    return spec.path, {path: owners[path] for path in spec.missing if path in owners}


def _package_files(state: str) -> Callable[[View], str]:
    """Missing files of packages that one state reinstalls; with an empty name, of the packages that none does."""

    def detect(view: View) -> str:
        spec, lost = _lost(view)
        names = [
            f"{path} ({package})"
            for path, package in lost.items()
            if file_owners.state_of(package, path) == state
        ]
        return f"{spec} names missing files of packages: {some(names)}" if names else ""

    return detect


def _foreign(view: View) -> str:
    """A specification that was not generated: the state cdi refuses a node that has one."""
    path, _ = _lost(view)
    if not path or path == cdi.SPEC_PATH:
        return ""
    try:
        generated = cdi.parse(damaged.cdi_texts(view).get(path, "")).generated
    except ProbeError:
        return ""
    return "" if generated else f"{_stale(view)}; the file is foreign, not generated by nvidia-ctk"


def _undivided(view: View) -> str:
    lost = gpus.lost_devices(view) if _missing_mig_devices(view) else ""
    return f"{_missing_mig_devices(view)}; {lost}" if lost else ""


CAUSES = (
    Cause("low-level-runtime-missing", "toolkit", evidence_with(chain.NO_LOW_LEVEL), remedies.NO_LOW_LEVEL),
    Cause("toolkit-broken", "toolkit", evidence_with("ended with"), remedies.TOOLKIT_BROKEN, state="container-toolkit"),
    Cause("toolkit-missing", "toolkit", evidence_with("not installed"), remedies.NO_TOOLKIT, state="container-toolkit"),
    Cause("toolkit-not-usable", "toolkit", _toolkit_unusable,
          remedies.by_apply("reinstall its package", "container-toolkit"), state="container-toolkit"),
    Cause("containerd-configuration-broken", "runtime", _config, remedies.CONTAINERD_CONFIG,
          ("NVIDIA/gpu-operator#598",)),
    Cause("containerd-stopped", "runtime", _stopped("enabled"), remedies.CONTAINERD_STOPPED, state="containerd"),
    Cause("containerd-disabled", "runtime", _stopped("disabled", ", and it is disabled"), remedies.CONTAINERD_DISABLED, state="containerd"),
    Cause("containerd-down", "runtime", _down, remedies.CONTAINERD_DOWN),
    Cause("containerd-missing", "runtime", evidence_with("containerd is not installed"), remedies.NO_CONTAINERD),
    Cause("containerd-cri-disabled", "runtime", evidence_with("serves no pods", "disabled_plugins"), remedies.CRI_DISABLED),
    Cause("containerd-runc-missing", "runtime", evidence_with("without its CRI service", 'default_runtime_name = "runc"'),
          remedies.by_apply("define it", "containerd"), ("containerd/containerd#5837",), "containerd"),
    Cause("cri-dead", "runtime", _cri_dead, remedies.CRI_DEAD),
    Cause("containerd-configuration-unread", "runtime", evidence_with("has not read its configuration files"), remedies.NOT_READ,
          state="containerd"),
    Cause("cgroup-drivers-disagree", "runtime", evidence_with("cgroup drivers disagree"), ""),
    Cause("crio-configuration-unread", "runtime", evidence_with("running CRI-O has no runtime handler"),
          remedies.NO_CRIO_HANDLER, state="crio"),
    Cause("containerd-block-unclosed", "runtime", _unclosed, remedies.by_apply(f"{marks.CLOSE}; then apply", "containerd")),
    Cause("containerd-imports-lost", "runtime", _imports,
          remedies.by_apply("import it", "containerd"),
          ("NVIDIA/gpu-operator#992", "NVIDIA/nvidia-container-toolkit#982"), "containerd"),
    Cause("containerd-handler-missing", "runtime", _handler, remedies.NO_HANDLER,
          ("NVIDIA/gpu-operator#623",), "containerd"),
    Cause("handler-left-behind", "runtime", evidence_with("does not exist"), remedies.HANDLER_BINARY,
          ("NVIDIA/nvidia-container-toolkit#1328", "NVIDIA/gpu-operator#188"), "containerd"),
    Cause("handler-without-type", "runtime", evidence_with("has no runtime_type"), remedies.NO_TYPE,
          ("NVIDIA/nvidia-container-toolkit#1956",), "containerd"),
    Cause("handler-of-another-program", "runtime", evidence_with("not nvidia-container-runtime"), remedies.HANDLER_BINARY,
          state="containerd"),
    *(Cause("runtime-template-in-the-way", "runtime", partial(_template, unit=unit),
            f"remove the template, or add the nvidia runtime to it; then: systemctl restart {unit}",
            ("rancher/rke2#3385",), explains=False, harmless_if_tested=True)
      for unit in ("k3s-agent", "k3s", "rke2-agent", "rke2-server")),
    Cause("container-runtime-failed", "runtime", _failed,
          "fix what the message names, or restore the file's original (cp -p), and restart the runtime; then apply "
          f"(the runtime's state): {remedies.APPLY}",
          ("NVIDIA/gpu-operator#992",), explains=False),
    Cause("daemon-reload-took-gpus", "runtime", _reloaded,
          "recreate those containers; " + remedies.by_apply("prevent it", "dev-char", "cdi"),
          ("NVIDIA/nvidia-container-toolkit#48", "NVIDIA/gpu-operator#485"), explains=False),
    Cause("every-gpu-in-quarantine", "cdi", lambda v: v.broken if "every GPU is in quarantine" in v.broken else "",
          remedies.ALL_HELD),
    Cause("cdi-missing", "cdi", evidence_with("no CDI specification"), remedies.CDI, state="cdi"),
    Cause("cdi-foreign", "cdi", _foreign, f"remove that file, or fix what it names and rename its devices; then: {remedies.APPLY}"),
    Cause("driver-files-missing", "cdi", _package_files("driver"),
          remedies.by_apply("reinstall the packages", "driver"), state="driver"),
    Cause("toolkit-files-missing", "cdi", _package_files("container-toolkit"),
          remedies.by_apply("reinstall the packages", "container-toolkit"), state="container-toolkit"),
    Cause("package-files-missing", "cdi", _package_files(""),
          "reinstall the package: apt-get install --reinstall PACKAGE, or dnf reinstall PACKAGE"),
    Cause("persistenced-drop-in", "cdi", _persistenced_drop_in, services.drop_in_fix("nvidia-persistenced")),
    Cause("persistenced-stopped", "cdi", _persistenced,
          remedies.by_apply("unmask it if it is masked (systemctl unmask nvidia-persistenced), then apply", "persistenced"),
          state="persistenced"),
    Cause("cdi-names-missing-files", "cdi", _missing_files, "",
          ("NVIDIA/nvidia-container-toolkit#1828", "NVIDIA/NemoClaw#4733"), "cdi"),
    Cause("cdi-lacks-devices", "cdi", evidence_with("no device for"), "", ("NVIDIA/nvidia-container-toolkit#1895",), "cdi"),
    Cause("mig-devices-lost", "cdi", _undivided,
          remedies.by_apply("recreate them", "mig", "cdi"), state="mig"),
    Cause("cdi-names-gone-devices", "cdi", _missing_mig_devices, "", state="cdi"),
    Cause("cdi-device-numbers", "cdi", evidence_with("has the numbers"), "", ("NVIDIA/NemoClaw#4733",), "cdi"),
    Cause("cdi-device-named-twice", "cdi", evidence_with("both define"), "", ("NVIDIA/k8s-dra-driver-gpu#787",)),
)  # fmt: skip
