"""The container side a document asks for: toolkit packages, the runtimes' handler, CDI.

The real settings of the Operator's toolkit stand in ``toolkit.env``; :data:`ENVIRONMENT` says what
each name means on a node.

Surprising: the Operator finds out one runtime for a whole cluster. Here each node is looked at, so a
file that does not say ``RUNTIME`` asks for the states of all runtimes a kubelet of today talks to; each
does nothing where its runtime is not. docker is set up only where the file names it: a docker beside
another runtime is somebody's own.

Sources:
    NVIDIA/nvidia-container-toolkit v1.20: cmd/nvidia-ctk-installer (names and defaults).
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go, TransformToolkit; v25.3.4: the same (what
    cdi.default did); v1.8.2: controllers/object_controls.go (operator.defaultRuntime).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats.words import shown
from gpustate.gpu_operator import history
from gpustate.gpu_operator.asked import Source, Wanted
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.driver import software_version
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.records import records

#: States by what ``RUNTIME`` may be; those of a distribution bring a containerd of their own.
DISTRIBUTIONS = ("k3s", "k0s", "microk8s")
RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "containerd": ("containerd", *DISTRIBUTIONS),
    "crio": ("crio",),
    "docker": ("docker",),
}
#: Where nobody says it: those that a kubelet of today talks to.
FOUND_OUT = (*RUNTIMES["containerd"], *RUNTIMES["crio"])
#: Folders of a distribution: a path below one says which it is.
HOMES: Mapping[str, str] = {
    "/var/lib/rancher/": "k3s",
    "/run/k3s/": "k3s",
    "/etc/k0s/": "k0s",
    "/run/k0s/": "k0s",
    "/var/lib/k0s/": "k0s",
    "/var/snap/microk8s/": "microk8s",
}
_WITH_HANDLER = ("containerd", "k0s", "microk8s", "crio", "docker")
_WITH_RESTART = ("containerd", "k3s", "microk8s", "crio", "docker")


@dataclass(frozen=True, slots=True)
class Variable:
    """What one name in ``toolkit.env`` means.

    Args:
        states: who takes its value, of those that are there; empty: nobody, and ``why`` says the reason.
        parameter: of these states.
        key: the parameter is a mapping, and this is its key.
        flag: the value is a boolean.
        values: the only values it may have, and what the parameter is then.
        path: the value is a path, and one of a distribution says which that is.
        why: for who takes none.
    """

    states: tuple[str, ...] = ()
    parameter: str = ""
    key: str = ""
    flag: bool = False
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    path: bool = False
    why: str = ""


def _config(key: str, *, flag: bool = False) -> Variable:
    """A key of the toolkit's config.toml."""
    return Variable(("container-toolkit",), "config", key, flag)


def _containerd(parameter: str) -> Variable:
    return Variable(("containerd",), parameter, path=True, why="only containerd's can be elsewhere")


_DEFAULT = Variable(FOUND_OUT + RUNTIMES["docker"], "default", flag=True)
_CONFIG = _containerd("config_path")
_INSIDE = Variable(why="about the inside of the toolkit's container")
_SOCKET = _containerd("socket")
_DROP_IN = _containerd("drop_in_path")
_HANDLER = Variable(_WITH_HANDLER, "handler")
_ENABLE_CDI = Variable(
    ("containerd", "docker"), "enable_cdi", flag=True, why="this runtime always injects CDI devices"
)
_FINDS = "the runtime itself is asked where its files are"
#: A signal ends containerd, and its unit starts it again: the same thing with less care.
_RESTARTS = {"signal": "systemd", "systemd": "systemd", "none": "none"}

ENVIRONMENT = {
    "CONTAINERD_CONFIG": _CONFIG,
    "RUNTIME_CONFIG": _CONFIG,
    "CONTAINERD_SET_AS_DEFAULT": _DEFAULT,
    "DOCKER_SET_AS_DEFAULT": _DEFAULT,
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": _DEFAULT,
    "CONTAINERD_RUNTIME_CLASS": _HANDLER,
    "DOCKER_RUNTIME_NAME": _HANDLER,
    "NVIDIA_RUNTIME_NAME": _HANDLER,
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
    "RUNTIME_RESTART_MODE": Variable(
        _WITH_RESTART, "restart", values=_RESTARTS, why="k0s restarts its containerd itself"
    ),
    "RUNTIME_ENABLE_CDI": _ENABLE_CDI,
    "CDI_ENABLED": _ENABLE_CDI,
    "CRIO_CONFIG": Variable(why=_FINDS),
    "CRIO_CONFIG_MODE": Variable(
        why="a hook gives containers their GPUs behind the runtime's back; the handler is set up"
    ),
    "DOCKER_CONFIG": Variable(why=_FINDS),
    "DOCKER_SOCKET": Variable(why=_FINDS),
    "RUNTIME_CONFIG_SOURCE": Variable(why=_FINDS),
    "RUNTIME_CONFIG_SOURCES": Variable(why=_FINDS),
    "RUNTIME_EXECUTABLE_PATH": Variable(why=_FINDS),
    "ROOT": _INSIDE,
    "TOOLKIT_PID_FILE": _INSIDE,
}
#: The first release that leaves containers to CDI alone, and the first that looks for the runtime.
_CDI_ALONE, _FINDS_OUT = "v25.10.0", "v1.9.0"
_MODE = "nvidia-container-runtime.mode"
#: The toolkit is there, and no runtime is told of it.
_NONE = "NO_RUNTIME_CONFIG"
_NO_LINKS = "DISABLE_DEV_CHAR_SYMLINK_CREATION"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def wanted_runtime(source: Source) -> Iterator[Wanted]:
    """Yield the states for the container toolkit, the runtimes and CDI.

    Raises:
        PolicyError: settings that contradict one another, or a value that is no boolean.
    """
    spec = source.spec
    toolkit_enabled = source.enabled("toolkit", otherwise=True)
    cdi_enabled = source.enabled("cdi", otherwise=cdi_by_default(source))
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
            "managed elsewhere and stay as they are"
        )
        unused = ("toolkit.", "cdi.", "operator.runtimeClass")
        source.not_used("toolkit.enabled is false", *unused, but=("toolkit.enabled",))
        return
    toolkit = Wanted("container-toolkit")
    version = spec.get("toolkit", "version")
    if version is not None and version.value:
        text = software_version(source, version, "toolkit.version")
        toolkit.give("version", text, source.place(version))
    runtimes = {name: Wanted(name) for name in _runtimes(source)}
    runtime_class = spec.get("operator", "runtimeClass")
    for name, state in runtimes.items():
        if runtime_class is not None and runtime_class.value and name in _WITH_HANDLER:
            state.give("handler", runtime_class.value, source.place(runtime_class))
        # As the Operator does: with CDI nothing has to become the default runtime, without it has to.
        state.give("default", not cdi_enabled or source.before(_CDI_ALONE))
    if runtimes and not set(runtimes) & set(_WITH_HANDLER) and _other_name(runtime_class):
        source.not_used("k3s always calls it nvidia", "operator.runtimeClass")
    if not cdi_enabled and "containerd" in runtimes:
        runtimes["containerd"].give("enable_cdi", None)
    default = spec.get("cdi", "default")
    if default is not None and default.value and cdi_enabled and source.before(_CDI_ALONE):
        toolkit.give("config", {_MODE: "cdi"}, source.place(default))
    _environment(source, {toolkit.state: toolkit, **runtimes})
    yield Wanted("toolkit-repository")
    yield toolkit
    yield from runtimes.values()
    if cdi_enabled:
        yield Wanted("cdi")


def cdi_by_default(source: Source) -> bool:
    """``cdi.enabled`` where nothing is said: the API server's default, or the chart's."""
    if source.kind == "helm" and is_null(source.spec, "cdi.enabled"):
        return bool(history.filled("clusterpolicy", "cdi.enabled", source.release))
    return bool(records(source.kind, source.release)["cdi.enabled"].default)


def _other_name(item: Item | None) -> bool:
    return item is not None and item.value not in ("", "nvidia")


def wanted_links(source: Source) -> Iterator[Wanted]:
    """Yield the state for links below /dev/char, which the Operator's validator makes too."""
    env = source.spec.get("validator", "driver", "env")
    wanted = True
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is None:
            continue
        if item.text("name") == _NO_LINKS:
            wanted = not flag_of(source, f"validator.driver.env {_NO_LINKS}", value)
        else:
            source.notes.append(
                f"{source.place(value)}: not carried out: validator.driver.env {item.text('name')}: "
                "the validator has no such setting"
            )
    if wanted:
        yield Wanted("dev-char")


def _variables(source: Source) -> Iterator[tuple[Item, str, Item]]:
    """The elements of ``toolkit.env`` that say something: each with its name and its value."""
    env = source.spec.get("toolkit", "env")
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is not None and value.value:
            yield item, item.text("name"), value


def _runtimes(source: Source) -> tuple[str, ...]:
    """The states of the runtimes there may be."""
    states = _of_default_runtime(source) or FOUND_OUT
    for _, name, value in _variables(source):
        if name == "RUNTIME":
            if value.value not in RUNTIMES:
                raise PolicyError(
                    f"toolkit.env RUNTIME is {shown(value.value)}, wanted "
                    f"{' or '.join(map(repr, RUNTIMES))}",
                    place=source.place(value),
                )
            states = RUNTIMES[value.value]
    for _, name, value in _variables(source):
        variable = ENVIRONMENT.get(name)
        home = _home(value.value) if variable is not None and variable.path else None
        if home is not None and "containerd" in states:
            states = (home,)
        elif name == _NONE and flag_of(source, f"toolkit.env {name}", value):
            return ()
    return states


def _of_default_runtime(source: Source) -> tuple[str, ...]:
    """What ``operator.defaultRuntime`` asks for; later releases find the runtime out themselves."""
    if not source.before(_FINDS_OUT):
        return ()
    item = source.spec.get("operator", "defaultRuntime")
    word = item.value if item is not None else source.of_chart("operator.defaultRuntime")
    return RUNTIMES.get(str(word or "docker"), ())


def _home(path: str) -> str | None:
    """The distribution whose path it is."""
    return next((state for folder, state in HOMES.items() if path.startswith(folder)), None)


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
            flag = flag_of(source, "validator.cuda.env WITH_WORKLOAD", value)
            validator.give("cuda", flag, source.place(value))
        else:
            source.notes.append(
                f"{source.place(value)}: not carried out: validator.cuda.env {item.text('name')}: "
                "the validator has no such setting"
            )
    return validator


def _environment(source: Source, states: Mapping[str, Wanted]) -> None:
    """Hand the variables to their states."""
    for _, name, value in _variables(source):
        if name in ("RUNTIME", _NONE):
            continue
        variable = ENVIRONMENT.get(name, Variable(why="no state has such a setting"))
        taking = [states[state] for state in variable.states if state in states]
        home = _home(value.value) if variable.path else None
        if home is not None or not taking:
            why = variable.why or "no state of this runtime has such a setting"
            if home is not None:
                why = f"the state {home} finds {home}'s own files"
            source.notes.append(
                f"{source.place(value)}: not carried out: toolkit.env {name}: {why}"
            )
            continue
        given = _given(source, name, variable, value)
        for state in taking:
            whole = given
            if variable.key:
                whole = {**state.parameters.get(variable.parameter, {}), variable.key: given}
            state.give(variable.parameter, whole, source.place(value))


def _given(source: Source, name: str, variable: Variable, item: Item) -> Any:
    """What a variable's value is as a parameter."""
    if variable.flag:
        return flag_of(source, f"toolkit.env {name}", item)
    if variable.values and item.value not in variable.values:
        raise PolicyError(
            f"toolkit.env {name} is {shown(item.value)}, wanted "
            f"{' or '.join(map(repr, variable.values))}",
            place=source.place(item),
        )
    return variable.values[item.value] if variable.values else item.value


def flag_of(source: Source, name: str, item: Item) -> bool:
    """What the value of a variable says, as Go reads booleans.

    Raises:
        PolicyError: it is none.
    """
    if item.value in _TRUE:
        return True
    if item.value in _FALSE:
        return False
    raise PolicyError(
        f"{name} is {shown(item.value)}, wanted 'true' or 'false'",
        place=source.place(item),
    )
