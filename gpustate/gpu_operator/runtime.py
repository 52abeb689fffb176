"""The container stack that a document requests: toolkit packages, the runtimes' handler, CDI.

The Operator's toolkit is configured in ``toolkit.env``. ``data/variables.txt`` maps its variables to states.

Surprising: the Operator detects one runtime for the whole cluster. gpustate inspects each node, so a
file without ``RUNTIME`` results in the states of all runtimes that current kubelets support, and each does
nothing on nodes without its runtime. docker is configured only if the file names it: a docker next to
another runtime may be unmanaged on purpose.

Sources:
    NVIDIA/nvidia-container-toolkit v1.20: cmd/nvidia-ctk-installer (names and defaults).
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go, TransformToolkit; v25.3.4: the same (what
    cdi.default did).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.gpu_operator import history, tables
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.driver import software_version
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.keys import records

#: States by value of ``RUNTIME``; Kubernetes distributions include their own containerd.
DISTRIBUTIONS = ("k3s", "k0s", "microk8s")
RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "containerd": ("containerd", *DISTRIBUTIONS),
    "crio": ("crio",),
    "docker": ("docker",),
}
#: By default, those that current kubelets support.
FOUND_OUT = (*RUNTIMES["containerd"], *RUNTIMES["crio"])
#: Folders by which a distribution is recognised.
HOMES: Mapping[str, str] = {
    "/var/lib/rancher/": "k3s",
    "/run/k3s/": "k3s",
    "/etc/k0s/": "k0s",
    "/run/k0s/": "k0s",
    "/var/lib/k0s/": "k0s",
    "/var/snap/microk8s/": "microk8s",
}
_WITH_HANDLER = ("containerd", "k0s", "microk8s", "crio", "docker")


@dataclass(frozen=True, slots=True)
class Variable:
    """The meaning of one variable in ``toolkit.env``.

    Args:
        states: the states it configures, if present; empty if unsupported, see ``why``.
        parameter: of these states.
        key: if the parameter is a mapping, the key in it.
        flag: whether the value is a boolean.
        values: the allowed values, with the parameter's value for each.
        path: whether the value is a path, which may identify a distribution.
        why: why no state uses it.
    """

    states: tuple[str, ...] = ()
    parameter: str = ""
    key: str = ""
    flag: bool = False
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    path: bool = False
    why: str = ""


@cache
def environment() -> Mapping[str, Variable]:
    """The variables of the toolkit by name, as ``data/variables.txt`` has them."""
    return {
        name: _variable(*cells)
        for names, *cells in tables.sections("variables.txt")["toolkit"]
        for name in names.split()
    }


def _variable(effect: str, states: str, why: str) -> Variable:
    target, *words = effect.split() or [""]
    parameter, _, key = target.rstrip("?").partition(".")
    pairs = (word.partition("=") for word in words if "=" in word)
    values = {name: value for name, _, value in pairs}
    flag, path = target.endswith("?"), "path" in words
    return Variable(tuple(states.split()), parameter, key, flag, values, path, why)


#: The first release that uses CDI alone.
_CDI_ALONE = "v25.10.0"
_MODE = "nvidia-container-runtime.mode"
#: The toolkit is installed, but no runtime is configured.
_NONE = "NO_RUNTIME_CONFIG"
_NO_LINKS = "DISABLE_DEV_CHAR_SYMLINK_CREATION"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def desired_runtime(source: Source) -> Iterator[DesiredState]:
    """Yield the states for the container toolkit, the runtimes and CDI.

    Raises:
        PolicyError: contradictory settings, or a value that is not a boolean.
    """
    spec = source.spec
    toolkit_enabled = source.enabled("toolkit", otherwise=True)
    cdi_enabled = source.enabled("cdi", otherwise=cdi_by_default(source))
    nri = spec.get("cdi", "nriPluginEnabled")
    if nri is not None and nri.value and not (cdi_enabled and toolkit_enabled):
        raise PolicyError(
            "cdi.nriPluginEnabled requires cdi.enabled and toolkit.enabled, and one of them is false",
            place=source.place(nri),
        )
    if not toolkit_enabled:
        section = spec.get("toolkit") or spec
        source.notes.append(
            f"{source.place(section)}: toolkit.enabled is false: toolkit, runtime and CDI are "
            "managed elsewhere and not changed"
        )
        by_pods = ("cdi.enabled", "operator.runtimeClass")
        source.in_objects.update(by_pods)
        exempt = ("toolkit.enabled", *by_pods)
        source.note_unused("toolkit.enabled is false", "toolkit.", "cdi.", exempt=exempt)
        return
    toolkit = DesiredState("container-toolkit")
    version = spec.get("toolkit", "version")
    if version is not None and version.value:
        text = software_version(source, version, "toolkit.version")
        toolkit.set("version", text, source.place(version))
    runtimes = {name: DesiredState(name) for name in _runtimes(source)}
    runtime_class = spec.get("operator", "runtimeClass")
    for name, state in runtimes.items():
        if runtime_class is not None and runtime_class.value and name in _WITH_HANDLER:
            state.set("handler", runtime_class.value, source.place(runtime_class))
        # Like the Operator: only without CDI does the handler become the default runtime.
        state.set("default", not cdi_enabled or source.before(_CDI_ALONE))
    if runtimes and not set(runtimes) & set(_WITH_HANDLER) and _other_name(runtime_class):
        source.note_unused("in k3s it is always nvidia", "operator.runtimeClass")
    if not cdi_enabled and "containerd" in runtimes:
        runtimes["containerd"].set("enable_cdi", None)
    default = spec.get("cdi", "default")
    if default is not None and default.value and cdi_enabled and source.before(_CDI_ALONE):
        toolkit.set("config", {_MODE: "cdi"}, source.place(default))
    _environment(source, {toolkit.state: toolkit, **runtimes})
    yield DesiredState("toolkit-repository")
    yield toolkit
    yield from runtimes.values()
    if cdi_enabled:
        yield DesiredState("cdi")


def cdi_by_default(source: Source) -> bool:
    """The default of ``cdi.enabled``: the API server's or the chart's."""
    if source.kind == "helm" and is_null(source.spec, "cdi.enabled"):
        return bool(history.api_default("clusterpolicy", "cdi.enabled", source.release))
    return bool(records(source.kind, source.release)["cdi.enabled"].default)


def _other_name(item: Item | None) -> bool:
    return item is not None and item.value not in ("", "nvidia")


def desired_links(source: Source) -> Iterator[DesiredState]:
    """Yield the state for links below /dev/char, which the Operator's validator creates too."""
    env = source.spec.get("validator", "driver", "env")
    links_wanted = True
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is None:
            continue
        if item.text("name") == _NO_LINKS:
            links_wanted = not flag_of(source, f"validator.driver.env {_NO_LINKS}", value)
        else:
            source.notes.append(
                f"{source.place(value)}: not carried out: validator.driver.env {item.text('name')}: "
                "the validator has no such setting"
            )
    if links_wanted:
        yield DesiredState("dev-char")


def _variables(source: Source) -> Iterator[tuple[Item, str, Item]]:
    """The elements of ``toolkit.env`` with a value: element, name and value."""
    env = source.spec.get("toolkit", "env")
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is not None and value.value:
            yield item, item.text("name"), value


def _runtimes(source: Source) -> tuple[str, ...]:
    """The states of all possible runtimes."""
    states = FOUND_OUT
    for _, name, value in _variables(source):
        if name == "RUNTIME":
            if value.value not in RUNTIMES:
                raise PolicyError(
                    f"toolkit.env RUNTIME is {quote(value.value)}, wanted "
                    f"{' or '.join(map(repr, RUNTIMES))}",
                    place=source.place(value),
                )
            states = RUNTIMES[value.value]
    for _, name, value in _variables(source):
        variable = environment().get(name)
        home = _home(value.value) if variable is not None and variable.path else None
        if home is not None and "containerd" in states:
            states = (home,)
        elif name == _NONE and flag_of(source, f"toolkit.env {name}", value):
            return ()
    return states


def _home(path: str) -> str | None:
    """The distribution that a path belongs to."""
    return next((state for folder, state in HOMES.items() if path.startswith(folder)), None)


def desired_validator(source: Source, before: tuple[DesiredState, ...]) -> DesiredState:
    """Return the validator, configured for the states ``before`` it."""
    states = {state.state: state for state in before}
    validator = DesiredState("validator")
    validator.set("cdi", "cdi" in states)
    containerd = states.get("containerd")
    if containerd is not None and "handler" in containerd.parameters:
        place = containerd.places["handler"]
        validator.set("handler", containerd.parameters["handler"], place)
    env = source.spec.get("validator", "cuda", "env")
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is None:
            continue
        if item.text("name") == "WITH_WORKLOAD":
            flag = flag_of(source, "validator.cuda.env WITH_WORKLOAD", value)
            validator.set("cuda", flag, source.place(value))
        else:
            source.notes.append(
                f"{source.place(value)}: not carried out: validator.cuda.env {item.text('name')}: "
                "the validator has no such setting"
            )
    return validator


def _environment(source: Source, states: Mapping[str, DesiredState]) -> None:
    """Pass the variables to their states."""
    for _, name, value in _variables(source):
        if name in ("RUNTIME", _NONE):
            continue
        variable = environment().get(name, Variable(why="no state has such a setting"))
        taking = [states[state] for state in variable.states if state in states]
        home = _home(value.value) if variable.path else None
        if home is not None or not taking:
            why = variable.why or "no state of this runtime has such a setting"
            if home is not None:
                why = f"the state {home} detects the paths itself"
            source.notes.append(
                f"{source.place(value)}: not carried out: toolkit.env {name}: {why}"
            )
            continue
        parameter = _parameter_of(source, name, variable, value)
        for state in taking:
            content = parameter
            if variable.key:
                content = {**state.parameters.get(variable.parameter, {}), variable.key: parameter}
            state.set(variable.parameter, content, source.place(value))


def _parameter_of(source: Source, name: str, variable: Variable, item: Item) -> Any:
    """A variable's value as a parameter."""
    if variable.flag:
        return flag_of(source, f"toolkit.env {name}", item)
    if variable.values and item.value not in variable.values:
        raise PolicyError(
            f"toolkit.env {name} is {quote(item.value)}, wanted "
            f"{' or '.join(map(repr, variable.values))}",
            place=source.place(item),
        )
    return variable.values[item.value] if variable.values else item.value


def flag_of(source: Source, name: str, item: Item) -> bool:
    """A variable's boolean value, parsed like in Go.

    Raises:
        PolicyError: it is not a boolean.
    """
    if item.value in _TRUE:
        return True
    if item.value in _FALSE:
        return False
    raise PolicyError(
        f"{name} is {quote(item.value)}, wanted 'true' or 'false'", place=source.place(item)
    )
