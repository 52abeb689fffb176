"""Causes at the link ``runtime`` that lie with docker or CRI-O, where one of them gives containers their GPUs.

Having one installed says nothing. It is meant to serve where gpustate has set it up, or where the chain found
no other runtime that could; and one that is switched off there is somebody's choice as long as another works.

Surprising: docker without NVIDIA's runtime is well where nobody has asked for it, for ``--gpus`` and CDI do
without. It is not where gpustate has registered the runtime, or its file names it and the daemon runs without.

Sources:
    systemctl(1); dockerd(8); moby/moby, daemon/nvidia_linux.go: --gpus looks for the hook, not for a runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    """Runtimes that gpustate has given docker."""
    keys = view.clues.all("docker_ours")
    return [key.removeprefix(_KEY) for key in keys if key.startswith(_KEY)]


def _asked(look: Callable[[View], str]) -> Callable[[View], str]:
    """Only where containers are to be served."""
    return lambda view: "" if view.observed.wanted.containers == "none" else look(view)


def _serves(view: View, name: str) -> bool:
    """By the chain's judgement, and nothing else runs that could."""
    if view.check is None or not view.check.evidence.startswith(f"{name} serves containers"):
        return False
    active = [one for one in _OTHERS if view.clues.unit(one).active == "active"]
    return not active and "podman" not in view.observed.other_runtimes


def _set_up(view: View) -> str:
    names = _registered(view)
    return f"gpustate has given it the runtime {names[0]}" if names else ""


def _served(name: str) -> Callable[[View], str]:
    def look(view: View) -> str:
        told = name in view.clues.all("served")
        return "gpustate has registered NVIDIA's runtime with it" if told else ""

    return look


def _named(view: View) -> str:
    """docker's file has NVIDIA's runtime."""
    return f"{_CONFIG} names NVIDIA's runtime" if _CONFIG in view.clues.all("handler_file") else ""


def _stopped(name: str, meant: Callable[[View], str]) -> Callable[[View], str]:
    def look(view: View) -> str:
        if not view.clues.unit(name).missed:
            return ""
        why = meant(view) or ("no other runtime here has NVIDIA's" if _serves(view, name) else "")
        return f"{name} is enabled and does not run; {why}" if why else ""

    return look


def _masked(name: str, meant: Callable[[View], str]) -> Callable[[View], str]:
    def look(view: View) -> str:
        if not is_masked(view.clues.unit(name)):
            return ""
        why = "" if view.observed.kubelet else meant(view)
        why = why or ("no other runtime here has NVIDIA's" if _serves(view, name) else "")
        return f"{name} is masked, so that nothing starts it; {why}" if why else ""

    return look


def _without(view: View) -> str:
    has = view.clues.all("docker_runtime")
    if not has:
        return ""
    lacks = [name for name in _registered(view) if name not in has]
    if lacks:
        return f"docker runs without the runtime {lacks[0]}, which gpustate has given it; it has {', '.join(has)}"
    if _named(view) and _serves(view, "docker") and not any("nvidia" in name for name in has):
        return f"{_named(view)}, and docker runs without it; it has {', '.join(has)}"
    return ""


def _no_file(view: View) -> str:
    unit, kind = view.clues.unit("docker"), view.clues.one("docker_odd")
    if not kind or not unit.exists or unit.enabled == "disabled":
        return ""
    if kind == _NOWHERE:
        return f"{_CONFIG} is a {kind}: docker starts without what it said, or not at all"
    return f"{_CONFIG} is a {kind}, no file; docker does not start with it"


def _configuration(view: View) -> str:
    written = any(path == _CONFIG for path, _ in view.clues.fields("kept", 2))
    rows = view.clues.all("docker_config")
    if view.clues.unit("docker").enabled == "disabled":
        return ""
    refused = view.clues.one("docker_refuses")
    if refused and (written or _set_up(view) or _named(view) or _serves(view, "docker")):
        return f"docker starts with {_CONFIG} no more: {refused}" + damaged.as_before(view, _CONFIG)
    if not written or not rows:
        return ""
    try:
        data = jsonedit.parse("\n".join(rows), _CONFIG)
        runtimes = data.get("runtimes")
        if runtimes is not None and not isinstance(runtimes, Mapping):
            raise ProbeError("runtimes is not an object", place=_CONFIG)
    except ProbeError as error:
        where = error.place or _CONFIG
        return f"{where}: {error.message}; docker starts with it no more" + damaged.as_before(
            view, _CONFIG
        )
    return ""


def _no_handler(view: View) -> str:
    """By the chain's judgement another runtime serves containers here, and gpustate has set this one up too."""
    found = view.observed.containerd
    if found is None or not found.active or found.dump_status != 0:
        return ""
    has = any("nvidia-container-runtime" in binary for _, binary, _ in found.handlers)
    why = "" if has else _served("containerd")(view)
    return (
        f"containerd has no runtime of NVIDIA's (containerd config dump), and {why}" if why else ""
    )


def _crio_configuration(view: View) -> str:
    refused = view.clues.one("crio_refuses")
    if not refused or view.clues.unit("crio").enabled == "disabled":
        return ""
    if not (_served("crio")(view) or _serves(view, "crio")):
        return ""
    return f"CRI-O cannot read its configuration: {refused}" + damaged.named_in(view, refused)


def _crio_without(view: View) -> str:
    why = _served("crio")(view) if view.clues.one("crio_handlers") == "0" else ""
    if not why:
        return ""
    return f"CRI-O has no runtime of NVIDIA's (crio config), and {why}"


def _cause(name: str, look: Callable[[View], str], remedy: str, state: str = "") -> Cause:
    return Cause(name, "runtime", _asked(look), remedy, state=state, explains=False)


CAUSES = (
    _cause("containerd-without-handler", _no_handler, "register it again: gpustate apply with the state containerd", "containerd"),
    _cause("docker-configuration-no-file", _no_file,
           "move it away, then gpustate apply with the state docker"),
    _cause("docker-configuration-broken", _configuration,
           "fix it, or copy back what is kept of it (cp -p); then gpustate apply with the state docker"),
    _cause("docker-masked", _masked("docker", _set_up),
           "systemctl unmask docker, then gpustate apply with the state docker, which starts it"),
    _cause("docker-stopped", _stopped("docker", lambda v: _set_up(v) or _named(v)),
           "start it: gpustate apply with the state docker, or systemctl start docker", "docker"),
    _cause("docker-without-runtime", _without, "register it again: gpustate apply with the state docker", "docker"),
    _cause("crio-configuration-broken", _crio_configuration,
           "fix what it names, or copy back what is kept of it (cp -p); then gpustate apply with the state crio"),
    _cause("crio-without-handler", _crio_without, "register it again: gpustate apply with the state crio", "crio"),
    _cause("crio-masked", _masked("crio", _served("crio")),
           "systemctl unmask crio, then gpustate apply with the state crio, which starts it"),
    _cause("crio-stopped", _stopped("crio", _served("crio")),
           "start it: gpustate apply with the state crio, or systemctl start crio", "crio"),
)  # fmt: skip
