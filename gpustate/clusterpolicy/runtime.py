"""The container side a document asks for: toolkit packages, containerd's handler, CDI.

The real settings of the Operator's toolkit stand in ``toolkit.env``; :data:`ENVIRONMENT` says what
each name means on a node.

Sources:
    NVIDIA/nvidia-container-toolkit v1.20: cmd/nvidia-ctk-installer (names and defaults).
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go, TransformToolkit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpustate.clusterpolicy.asked import Source, Wanted
from gpustate.clusterpolicy.documents import Item
from gpustate.clusterpolicy.driver import software_version
from gpustate.errors import PolicyError
from gpustate.text.words import shown


@dataclass(frozen=True, slots=True)
class Variable:
    """What one name in ``toolkit.env`` means.

    Args:
        state, parameter: who takes its value; empty: nobody, and ``why`` says the reason.
        key: the parameter is a mapping, and this is its key.
        flag: the value is a boolean.
        values: the only values it may have, and what the parameter is then.
    """

    state: str = ""
    parameter: str = ""
    key: str = ""
    flag: bool = False
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    why: str = ""


def _config(key: str, *, flag: bool = False) -> Variable:
    """A key of the toolkit's config.toml."""
    return Variable("container-toolkit", "config", key, flag)


_DEFAULT = Variable("containerd", "default", flag=True)
_CONFIG = Variable("containerd", "config_path")
_INSIDE = Variable(why="about the inside of the toolkit's container")
_SOCKET = Variable("containerd", "socket")
_DROP_IN = Variable("containerd", "drop_in_path")
_ENABLE_CDI = Variable("containerd", "enable_cdi", flag=True)
#: A signal ends containerd, and its unit starts it again: the same thing with less care.
_RESTARTS = {"signal": "systemd", "systemd": "systemd", "none": "none"}

ENVIRONMENT = {
    "CONTAINERD_CONFIG": _CONFIG,
    "RUNTIME_CONFIG": _CONFIG,
    "CONTAINERD_SET_AS_DEFAULT": _DEFAULT,
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": _DEFAULT,
    "CONTAINERD_RUNTIME_CLASS": Variable("containerd", "handler"),
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": _config(
        "accept-nvidia-visible-devices-envvar-when-unprivileged", flag=True
    ),
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": _config(
        "accept-nvidia-visible-devices-as-volume-mounts", flag=True
    ),
    "NVIDIA_CONTAINER_RUNTIME_MODE": _config("nvidia-container-runtime.mode"),
    "NVIDIA_CONTAINER_RUNTIME_DEBUG": _config("nvidia-container-runtime.debug"),
    "NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL": _config("nvidia-container-runtime.log-level"),
    "NVIDIA_CONTAINER_CLI_DEBUG": _config("nvidia-container-cli.debug"),
    "CONTAINERD_SOCKET": _SOCKET,
    "RUNTIME_SOCKET": _SOCKET,
    "RUNTIME_DROP_IN_CONFIG": _DROP_IN,
    "RUNTIME_DROP_IN_CONFIG_HOST_PATH": _DROP_IN,
    "RUNTIME_RESTART_MODE": Variable("containerd", "restart", values=_RESTARTS),
    "RUNTIME_ENABLE_CDI": _ENABLE_CDI,
    "CDI_ENABLED": _ENABLE_CDI,
    "ROOT": _INSIDE,
    "TOOLKIT_PID_FILE": _INSIDE,
}
#: Values of ``RUNTIME`` that have a state.
_RUNTIMES = ("containerd",)
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def wanted_runtime(source: Source) -> Iterator[Wanted]:
    """Yield the states for the container toolkit, containerd and CDI.

    Raises:
        PolicyError: settings that contradict one another, or a value that is no boolean.
    """
    spec = source.spec
    toolkit_enabled = source.enabled("toolkit", otherwise=True)
    cdi_enabled = source.enabled("cdi", otherwise=True)
    nri = spec.get("cdi", "nriPluginEnabled")
    if nri is not None and nri.value and not (cdi_enabled and toolkit_enabled):
        raise PolicyError(
            "cdi.nriPluginEnabled wants cdi.enabled and toolkit.enabled, and one of them is false",
            place=source.place(nri),
        )
    if not toolkit_enabled:
        section = spec.get("toolkit") or spec
        source.notes.append(
            f"{source.place(section)}: toolkit.enabled is false: toolkit, runtime and CDI are "
            "somebody else's and stay as they are"
        )
        unused = ("toolkit.", "cdi.", "operator.runtimeClass")
        source.not_used("toolkit.enabled is false", *unused, but=("toolkit.enabled",))
        return
    toolkit, containerd = Wanted("container-toolkit"), Wanted("containerd")
    version = spec.get("toolkit", "version")
    if version is not None and version.value:
        text = software_version(source, version, "toolkit.version")
        toolkit.give("version", text, source.place(version))
    runtime_class = spec.get("operator", "runtimeClass")
    if runtime_class is not None and runtime_class.value:
        containerd.give("handler", runtime_class.value, source.place(runtime_class))
    # As the Operator does: with CDI nothing has to become the default runtime, without it has to.
    containerd.give("default", not cdi_enabled)
    if not cdi_enabled:
        containerd.give("enable_cdi", None)
    with_containerd = _environment(source, {w.state: w for w in (toolkit, containerd)})
    yield Wanted("toolkit-repository")
    yield toolkit
    if with_containerd:
        yield containerd
    if cdi_enabled:
        yield Wanted("cdi")


def wanted_validator(source: Source, before: tuple[Wanted, ...]) -> Wanted:
    """Return the validator, told to prove what the states ``before`` it set up."""
    states = {wanted.state: wanted for wanted in before}
    validator = Wanted("validator")
    validator.give("cdi", "cdi" in states)
    containerd = states.get("containerd")
    if containerd is not None and "handler" in containerd.parameters:
        place = containerd.places["handler"]
        validator.give("handler", containerd.parameters["handler"], place)
    elif containerd is None and "container-toolkit" in states:
        validator.give("handler", "")  # another runtime's, which it does not know
    env = source.spec.get("validator", "cuda", "env")
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is None:
            continue
        if item.text("name") == "WITH_WORKLOAD":
            flag = _flag(source, "validator.cuda.env WITH_WORKLOAD", value)
            validator.give("cuda", flag, source.place(value))
        else:
            source.notes.append(
                f"{source.place(value)}: not carried out: validator.cuda.env {item.text('name')}: "
                "the validator has no such setting"
            )
    return validator


def _environment(source: Source, states: dict[str, Wanted]) -> bool:
    """Hand the variables to their states; return whether containerd is the runtime."""
    with_containerd = True
    env = source.spec.get("toolkit", "env")
    for item in env.value if env is not None else ():
        name, value = item.text("name"), item.get("value")
        if value is None or not value.value:
            continue
        if name == "RUNTIME":
            with_containerd = value.value in _RUNTIMES
            if not with_containerd:
                source.notes.append(
                    f"{source.place(value)}: not carried out: toolkit.env RUNTIME: "
                    f"{shown(value.value)} is not set up from such a file yet; its configuration stays"
                )
            continue
        variable = ENVIRONMENT.get(name, Variable(why="no state has such a setting"))
        if variable.state:
            given = _given(source, name, variable, value)
            state = states[variable.state]
            if variable.key:
                given = {**state.parameters.get(variable.parameter, {}), variable.key: given}
            state.give(variable.parameter, given, source.place(value))
        else:
            source.notes.append(
                f"{source.place(value)}: not carried out: toolkit.env {name}: {variable.why}"
            )
    return with_containerd


def _given(source: Source, name: str, variable: Variable, item: Item) -> Any:
    """What a variable's value is as a parameter."""
    if variable.flag:
        return _flag(source, f"toolkit.env {name}", item)
    if variable.values and item.value not in variable.values:
        raise PolicyError(
            f"toolkit.env {name} is {shown(item.value)}, wanted "
            f"{' or '.join(map(repr, variable.values))}",
            place=source.place(item),
        )
    return variable.values[item.value] if variable.values else item.value


def _flag(source: Source, name: str, item: Item) -> bool:
    if item.value in _TRUE:
        return True
    if item.value in _FALSE:
        return False
    raise PolicyError(
        f"{name} is {shown(item.value)}, wanted 'true' or 'false'",
        place=source.place(item),
    )
