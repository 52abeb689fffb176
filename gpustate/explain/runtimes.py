"""Causes at the check ``runtime`` with docker or CRI-O, if one of them gives containers their GPUs.

An installed runtime need not be in use. It is expected to run if gpustate has configured it, or if the check
found no other runtime; a disabled one is intended as long as another works.

Surprising: docker without NVIDIA's runtime is healthy by default, since ``--gpus`` and CDI do not need it. It is
not if gpustate has registered the runtime, or if its file names it and the daemon runs without.

Sources:
    systemctl(1); dockerd(8); moby/moby, daemon/nvidia_linux.go: --gpus looks for the hook, not for a runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpustate.diagnosis import remedies as remedies
from gpustate.errors import ProbeError
from gpustate.explain import damaged
from gpustate.explain.causes import Cause, View
from gpustate.explain.services import is_masked
from gpustate.formats import jsonedit

_OTHERS = ("crio", "k3s", "k3s-agent", "rke2-server", "rke2-agent")
_KEY = "runtimes."
_NOWHERE = "link that leads nowhere"
_CONFIG = "/etc/docker/daemon.json"


def _registered(view: View) -> list[str]:
    """Runtimes that gpustate has registered with docker."""
    keys = view.clues.all("docker_ours")
    return [key.removeprefix(_KEY) for key in keys if key.startswith(_KEY)]


def _unless_disabled(detect: Callable[[View], str]) -> Callable[[View], str]:
    """Skip a cause if containers are not validated."""
    return lambda view: "" if view.observed.wanted.containers == "none" else detect(view)


def _serves(view: View, name: str) -> bool:
    """The check found that this runtime serves containers, and no other one runs."""
    if view.check is None or not view.check.evidence.startswith(f"{name} serves containers"):
        return False
    active = [one for one in _OTHERS if view.clues.unit(one).active == "active"]
    return not active and "podman" not in view.observed.other_runtimes


def _registration(view: View) -> str:
    names = _registered(view)
    return f"gpustate has registered the runtime {names[0]} with it" if names else ""


def _served(name: str) -> Callable[[View], str]:
    def detect(view: View) -> str:
        registered = name in view.clues.all("served")
        return "gpustate has registered NVIDIA's runtime with it" if registered else ""

    return detect


def _named(view: View) -> str:
    """docker's configuration file names NVIDIA's runtime."""
    return f"{_CONFIG} names NVIDIA's runtime" if _CONFIG in view.clues.all("handler_file") else ""


def _stopped(name: str, meant: Callable[[View], str]) -> Callable[[View], str]:
    def detect(view: View) -> str:
        if not view.clues.unit(name).missed:
            return ""
        why = meant(view) or ("no other runtime has NVIDIA's" if _serves(view, name) else "")
        return f"{name} is enabled and does not run; {why}" if why else ""

    return detect


def _disabled(name: str, meant: Callable[[View], str]) -> Callable[[View], str]:
    def detect(view: View) -> str:
        unit, socket = view.clues.unit(name), view.clues.units.get(f"{name}.socket")
        if not unit.exists or unit.enabled != "disabled" or unit.active != "inactive":
            return ""
        beside = [view.clues.unit(one) for one in (*_OTHERS, "containerd") if one != name]
        if name == "docker":
            beside.pop()  # it runs on containerd
        works = [one for one in (*beside, socket) if one is not None and one.active == "active"]
        why = "" if works else meant(view)
        return f"{name} is disabled and does not run; {why}" if why else ""

    return detect


def _masked(name: str, meant: Callable[[View], str]) -> Callable[[View], str]:
    def detect(view: View) -> str:
        if not is_masked(view.clues.unit(name)):
            return ""
        why = "" if view.observed.kubelet else meant(view)
        why = why or ("no other runtime has NVIDIA's" if _serves(view, name) else "")
        return f"{name} is masked, so nothing can start it; {why}" if why else ""

    return detect


def _without(view: View) -> str:
    has = view.clues.all("docker_runtime")
    if not has:
        return ""
    lacks = [name for name in _registered(view) if name not in has]
    if lacks:
        return f"docker runs without the runtime {lacks[0]}, which gpustate has registered; it has {', '.join(has)}"
    if _named(view) and _serves(view, "docker") and not any("nvidia" in name for name in has):
        return f"{_named(view)}, but docker runs without it; it has {', '.join(has)}"
    return ""


def _no_file(view: View) -> str:
    unit, kind = view.clues.unit("docker"), view.clues.one("docker_odd")
    if not kind or not unit.exists or unit.enabled == "disabled":
        return ""
    if kind == _NOWHERE:
        return f"{_CONFIG} is a {kind}: docker ignores it or does not start"
    return f"{_CONFIG} is a {kind}, not a file: docker cannot start"


def _configuration(view: View) -> str:
    written = any(path == _CONFIG for path, _ in view.clues.fields("kept", 2))
    rows = view.clues.all("docker_config")
    if view.clues.unit("docker").enabled == "disabled":
        return ""
    refused = view.clues.one("docker_refuses")
    if refused and (written or _registration(view) or _named(view) or _serves(view, "docker")):
        return f"docker cannot start with {_CONFIG}: {refused}" + damaged.originals_of(
            view, _CONFIG
        )
    if not written or not rows:
        return ""
    try:
        data = jsonedit.parse("\n".join(rows), _CONFIG)
        runtimes = data.get("runtimes")
        if runtimes is not None and not isinstance(runtimes, Mapping):
            raise ProbeError("runtimes is not an object", place=_CONFIG)
    except ProbeError as error:
        where = error.place or _CONFIG
        return f"{where}: {error.message}; docker cannot start with it" + damaged.originals_of(
            view, _CONFIG
        )
    return ""


def _crio_configuration(view: View) -> str:
    refused = view.clues.one("crio_refuses")
    if not refused or view.clues.unit("crio").enabled == "disabled":
        return ""
    if not (_served("crio")(view) or _serves(view, "crio")):
        return ""
    return f"CRI-O cannot read its configuration: {refused}" + damaged.originals_named_in(
        view, refused
    )


def _cause(name: str, detect: Callable[[View], str], remedy: str, state: str = "") -> Cause:
    return Cause(name, "runtime", _unless_disabled(detect), remedy, state=state, explains=False)


CAUSES = (
    _cause("docker-configuration-no-file", _no_file,
           remedies.by_apply("move it away, then apply", "docker")),
    _cause("docker-configuration-broken", _configuration,
           remedies.by_apply("fix it, or restore its original (cp -p); then apply", "docker")),
    _cause("docker-masked", _masked("docker", _registration),
           remedies.by_apply("unmask it: systemctl unmask docker; start it", "docker")),
    _cause("docker-stopped", _stopped("docker", lambda v: _registration(v) or _named(v)),
           f"start it: systemctl start docker; or apply (state docker): {remedies.APPLY}", "docker"),
    _cause("docker-disabled", _disabled("docker", _registration),
           f"enable and start it: systemctl enable --now docker; or apply (state docker): {remedies.APPLY}", "docker"),
    _cause("docker-without-runtime", _without, remedies.by_apply("register the runtime", "docker"), "docker"),
    _cause("crio-configuration-broken", _crio_configuration,
           remedies.by_apply("fix what the message names, or restore the file's original (cp -p); then apply", "crio")),
    _cause("crio-masked", _masked("crio", _served("crio")),
           remedies.by_apply("unmask it: systemctl unmask crio; start it", "crio")),
    _cause("crio-stopped", _stopped("crio", _served("crio")),
           f"start it: systemctl start crio; or apply (state crio): {remedies.APPLY}", "crio"),
    _cause("crio-disabled", _disabled("crio", _served("crio")),
           f"enable and start it: systemctl enable --now crio; or apply (state crio): {remedies.APPLY}", "crio"),
)  # fmt: skip
