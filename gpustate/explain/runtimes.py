"""Causes at the check ``runtime`` with docker or CRI-O.

Surprising: docker without NVIDIA's runtime is healthy by default, since ``--gpus`` and CDI do not need it. It is
not if gpustate has registered the runtime, or if its file names it and the daemon runs without. A runtime that
the policy does not configure fails no check: such a problem is a warning.

Sources:
    systemctl(1); dockerd(8); moby/moby, daemon/nvidia_linux.go: --gpus looks for the hook, not for a runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gpustate.diagnosis import remedies as remedies
from gpustate.explain import damaged
from gpustate.explain.causes import Cause, View, configured, in_use, runtime_down
from gpustate.explain.services import is_masked

_KEY = "runtimes."
_CONFIG = "/etc/docker/daemon.json"


def _down(view: View, runtime: str = "") -> str:
    name, evidence = runtime_down(view)
    unit = view.clues.unit(name)
    how = "masked, so nothing can start it" if is_masked(unit) else unit.enabled
    return f"{evidence}; it is {how or 'not enabled'}" if name and runtime in ("", name) else ""


def _without(view: View) -> str:
    has = view.clues.all("docker_runtime")
    names = [key.removeprefix(_KEY) for key in view.clues.all("docker_ours") if _KEY in key]
    missing = [name for name in names if name not in has]
    if has and missing:
        return f"docker runs without the runtime {missing[0]}, which gpustate has registered; it has {', '.join(has)}"
    named = _CONFIG in view.clues.all("handler_file") and in_use(view, "docker")
    if has and named and not any("nvidia" in name for name in has):
        return (
            f"{_CONFIG} names NVIDIA's runtime, but docker runs without it; it has {', '.join(has)}"
        )
    return ""


def _configuration(view: View) -> str:
    refused = view.clues.first("docker_refuses")
    if not refused:
        return ""
    return f"docker cannot start with {_CONFIG}: {refused}" + damaged.originals_of(view, _CONFIG)


def _crio_configuration(view: View) -> str:
    refused = view.clues.first("crio_refuses")
    if not refused:
        return ""
    return f"CRI-O cannot read its configuration: {refused}" + damaged.originals_named_in(
        view, refused
    )


#: Name, runtime, how it is detected, and the fix.
_PROBLEMS: tuple[tuple[str, str, Callable[[View], str], str], ...] = (
    ("docker-without-runtime", "docker", _without, remedies.by_apply("register the runtime", "docker")),
    ("docker-configuration-broken", "docker", _configuration,
     remedies.by_apply("fix it, or restore its original (cp -p); then apply", "docker")),
    ("crio-configuration-broken", "crio", _crio_configuration,
     remedies.by_apply("fix what the message names, or restore the file's original (cp -p); then apply", "crio")),
)  # fmt: skip


def _of_configured(runtime: str, detect: Callable[[View], str], view: View) -> str:
    validated = view.observed.expected.containers != "none"
    return detect(view) if validated and configured(view, runtime) else ""


def warnings(view: View) -> Iterator[str]:
    """Problems of runtimes that the policy does not configure, one line each."""
    for _, runtime, detect, fix in _PROBLEMS if view.states is not None else ():
        if not configured(view, runtime) and (problem := detect(view)):
            yield f"{problem}; the policy does not configure {runtime}; if something is to use it: {fix}"


CAUSES = (
    *(Cause("runtime-down", "runtime", partial(_down, runtime=name), remedies.runtime_down(name), explains=False)
      for name in ("docker", "crio")),
    Cause("runtime-down", "runtime", _down, ""),
    *(Cause(name, "runtime", partial(_of_configured, runtime, detect), fix, explains=False,
            state=runtime if detect is _without else "")
      for name, runtime, detect, fix in _PROBLEMS),
)  # fmt: skip
