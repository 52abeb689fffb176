"""Components that the Operator runs as pods and that change the node.

GPU feature discovery becomes the state ``gpu-labels``. The device plugin's configuration becomes
``device-plugin-config``, which ``gpu-labels`` reads too. The MIG manager becomes ``mig``.

Surprising: the API server sets ``migManager.config.default`` to ``all-disabled`` by default. Carried out, it
would remove every MIG layout that the Operator did not create, though the user may not have meant that.
So it is never carried out. GPUs are partitioned only if a configuration is named for a node, in the label
``nvidia.com/mig.config`` of a Node next to the policy, or with the state ``mig`` in another policy.
A device plugin configuration that no label and no default names is empty, as with the Operator.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (TransformGPUDiscoveryPlugin,
    handleDevicePluginConfig, TransformMIGManager; FALLBACK_STRATEGIES is "empty"),
    assets/state-mig-manager (clients.yaml). NVIDIA/k8s-device-plugin v0.20: cmd/config-manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from gpustate.core.where import NOWHERE
from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin
from gpustate.formats.words import quote
from gpustate.gpu_operator import contents, nodelabels
from gpustate.gpu_operator.companions import CONFIG_MAP, REFERENCES, Companion, inline_of, pad
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.nodelabels import Label
from gpustate.gpu_operator.runtime import flag_of
from gpustate.mig import builtin
from gpustate.mig import config as mig_config

#: The device plugin's configuration if neither a label nor a default names one.
EMPTY, EMPTY_NAME = {"version": "v1"}, "empty"
#: The configuration of mig-parted's own files that switches MIG off.
_DISABLED = "all-disabled"
#: The ConfigMap that the Operator creates itself, with mig-parted's own layouts.
_MIG_MADE = "default-mig-parted-config"
_MIG_KEY = "config.yaml"
_NEXT = (
    f"to set a layout, add Node objects with the label {nodelabels.MIG} (the output of kubectl get nodes -o "
    "yaml) to the file, or apply a policy of gpustate's own with the state mig"
)


def desired_operands(source: Source) -> Iterator[DesiredState]:
    """Yield the states for labels, the device plugin's configuration and MIG.

    Raises:
        PolicyError: a ConfigMap that is missing or invalid, or a label that names nothing in it.
    """
    if source.in_containers("driver"):
        yield from _mig(source)
        return  # GPUs of driver containers are seen by pods alone
    labels = source.enabled("gfd", otherwise=True)
    lacking = None
    if labels or source.enabled("devicePlugin", otherwise=True):
        lacking = missing_reference(source, "devicePlugin.config.name")
        if lacking is None:
            yield from _plugin(source)
    else:
        why = "devicePlugin.enabled and gfd.enabled are false"
        source.note_unused(why, "devicePlugin.config.")
    if lacking is not None:
        # Labels describe how GPUs are shared, which is configured in that object.
        left_out = "device-plugin-config and gpu-labels" if labels else "device-plugin-config"
        source.notes.append(left_out_note(source, lacking, "devicePlugin.config.name", left_out))
        source.note_unused(
            "the ConfigMap was not found", "devicePlugin.config.default", "mig.strategy"
        )
    elif labels:
        state = DesiredState("gpu-labels")
        strategy, place = mig_strategy(source)
        if strategy:
            state.set("mig_strategy", strategy, place)
        yield state
    else:
        source.note_unused("gfd.enabled is false", "mig.strategy")
    yield from _mig(source)


def mig_strategy(source: Source) -> tuple[str, str | None]:
    """``mig.strategy``, which the Operator passes in the environment; the chart has a default."""
    strategy = source.spec.get("mig", "strategy")
    if strategy is not None:
        return strategy.value, source.place(strategy)
    if source.kind == "helm" and not is_null(source.spec, "mig.strategy"):
        return str(source.chart_default("mig.strategy") or ""), None
    return "", None


# --- the device plugin's configuration ---------------------------------------------------


def _plugin(source: Source) -> Iterator[DesiredState]:
    name = source.spec.get("devicePlugin", "config", "name")
    default = source.spec.get("devicePlugin", "config", "default")
    if name is None or not name.value:
        source.note_unused("devicePlugin.config.name is empty", "devicePlugin.config.")
        for label in nodelabels.of_nodes(source.store.nodes, nodelabels.PLUGIN):
            _refuse(label, nodelabels.PLUGIN, "devicePlugin.config.name names no ConfigMap")
        return
    config = require_config_map(source, name, "devicePlugin.config.name")
    configs: Json = {}
    for key, entry in config.entries.items():
        read = deviceplugin.read(pad(entry), entry.file)
        configs[key] = dict(read.data) or dict(EMPTY)
        source.notes.extend(read.warnings)
        source.notes.extend(f"{entry.place()}: {key}: {note}" for note in read.notes)
    state = DesiredState("device-plugin-config")
    chosen, place = _default(source, default, configs, config)
    state.set("configs", configs, source.place(name))
    state.set("default", chosen, place)
    for label in nodelabels.of_nodes(source.store.nodes, nodelabels.PLUGIN):
        if label.value not in configs:
            _refuse(label, nodelabels.PLUGIN, f"{_named(config)} has {', '.join(sorted(configs))}")
        source.for_node(label, state.state, selected=label.value)
    yield state


def _default(
    source: Source, default: Item | None, configs: Json, config: Companion
) -> tuple[str, str | None]:
    """The name of the configuration without a label; an empty one is added if needed."""
    if default is not None and default.value:
        word = str(default.value)
        if word not in configs:
            raise PolicyError(
                f"devicePlugin.config.default is {quote(word)}, and {_named(config)} has "
                f"{', '.join(sorted(configs))}",
                place=source.place(default),
            )
        return word, source.place(default)
    name = EMPTY_NAME
    while name in configs:
        name += "-"
    configs[name] = dict(EMPTY)
    return name, None


# --- MIG ---------------------------------------------------------------------------------


def _mig(source: Source) -> Iterator[DesiredState]:
    if source.in_containers("migManager"):
        return
    labels = tuple(nodelabels.of_nodes(source.store.nodes, nodelabels.MIG))
    if not source.enabled("migManager", otherwise=True):
        why = "migManager.enabled is false"
        source.note_unused(why, "migManager.", exempt=("migManager.enabled",))
        source.notes.extend(
            f"{label.place}: not used: label {nodelabels.MIG}: {why}" for label in labels
        )
        return
    _note_on_default(source, bool(labels))
    if not labels:
        why = (
            f"no Node next to the file has the label {nodelabels.MIG}; the labels of a cluster's Nodes "
            "count where gpustate has access to it"
        )
        source.note_unused(why, "migManager.", exempt=("migManager.enabled",))
        return
    state = _layout(source)
    # Any name in the file: on nodes without the label the state is absent.
    state.parameters.update(config=min(label.value for label in labels), only=NOWHERE)
    path = state.parameters.get("file", "")
    text = state.parameters.get("contents", {}).get(path)
    file = builtin.file_of(text, path)
    for label in labels:
        try:
            file.config(label.value)
        except PolicyError as error:
            raise PolicyError(
                f"label {nodelabels.MIG} is {quote(label.value)}: {error.message}, in {file.path}",
                place=label.place,
                fix=error.fix,
            ) from None
        # Present on this node, absent everywhere else.
        source.for_node(label, "mig", config=label.value, only=None)
    yield state


def _layout(source: Source) -> DesiredState:
    """The state ``mig`` without the name of a layout."""
    state = DesiredState("mig")
    name = source.spec.get("migManager", "config", "name")
    if name is not None and name.value and not _made_by_operator(source, name):
        text, path = _mig_text(source, name)
        state.set("file", path, source.place(name))
        state.set("contents", {path: text}, source.place(name))
    _clients(source, state)
    _reboots(source, state)
    return state


def layout_by_label(source: Source) -> Json | None:
    """Parameters of the state ``mig`` for a Node whose label names a layout; ``None``: none are applied.

    They are the same as beside a Node in the file, where their notes are made.
    """
    if source.in_containers("migManager"):
        return None
    references = ("migManager.config.name", "migManager.gpuClientsConfig.name")
    name = source.spec.get(*references[0].split("."))
    lacking = missing_reference(source, references[0]) is not None
    if lacking and name is not None and _made_by_operator(source, name):
        lacking = False
    if not source.enabled("migManager", otherwise=True) or lacking:
        return None
    if missing_reference(source, references[1]) is not None:
        return None
    noted, notes = set(source.noted), len(source.notes)
    try:
        state = _layout(source)
        file = state.parameters.get("file")
        text = state.parameters.get("contents", {}).get(file) if file else None
        layouts = builtin.file_of(text, str(file))
    except PolicyError as error:
        words = f"labels {nodelabels.MIG} of a cluster's Nodes are not carried out: {error}"
        source.notes[notes:] = [words]  # an error only beside a Node with the label
        return None
    del source.notes[notes:]
    source.noted.intersection_update(noted)
    # The label replaces it on each Node.
    config = _DISABLED if _DISABLED in layouts.configs else next(iter(layouts.configs))
    return {**state.parameters, "config": config}


def _note_on_default(source: Source, labelled: bool) -> None:
    """Note that the Operator's default is not carried out, unless it is empty."""
    path = "migManager.config.default"
    default = source.spec.get(*path.split("."))
    if default is not None and not default.value:
        return
    source.noted.add(path)
    line = f" (line {default.line})" if default is not None else ""
    at = default or source.spec.get("migManager") or source.spec
    where = f" on nodes without the label {nodelabels.MIG}" if labelled else ""
    source.notes.append(
        f"{source.place(at)}: MIG layouts are not changed{where}: the Operator's default, "
        f"all-disabled, {path}{line}, is never carried out; {_NEXT}"
    )


def _made_by_operator(source: Source, name: Item) -> bool:
    return name.value == _MIG_MADE and source.store.find(CONFIG_MAP, _MIG_MADE) is None


def _mig_text(source: Source, name: Item) -> tuple[str, str]:
    """The text and the name of the mig-parted file."""
    config_map = require_config_map(source, name, "migManager.config.name")
    entry = config_map.entries.get(_MIG_KEY)
    if entry is None:
        raise missing_key_error(config_map, _MIG_KEY)
    mig_config.read(pad(entry), entry.file)  # for the line number of an error
    return entry.text, f"{CONFIG_MAP} {config_map.name}"


def _clients(source: Source, state: DesiredState) -> None:
    """``gpuClientsConfig``: services that use GPUs."""
    path = "migManager.gpuClientsConfig.name"
    name = source.spec.get(*path.split("."))
    if name is None or not name.value:
        return
    config_map = source.config_map(name, path)
    services: dict[str, str] = {}
    for key, entry in config_map.entries.items():
        if key == contents.CLIENTS_KEY:
            for item in contents.clients(entry):
                services[str(item.value)] = f"{entry.file}:{item.line}"
    if contents.CLIENTS_KEY not in config_map.entries:
        raise missing_key_error(config_map, contents.CLIENTS_KEY)
    # The Operator's default list includes the kubelet, which gpustate never stops.
    units = tuple(name for name in services if name != "kubelet.service")
    if len(units) < len(services):
        at = services["kubelet.service"]
        source.notes.append(f"{at}: not carried out: kubelet.service: the kubelet is never stopped")
    state.set("clients", list(units), source.place(name))


def _reboots(source: Source, state: DesiredState) -> None:
    """``migManager.env``: ``WITH_REBOOT`` decides what to do if a GPU is in use."""
    env = source.spec.get("migManager", "env")
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is None:
            continue
        if item.text("name") == "WITH_REBOOT":
            flag = flag_of(source, "migManager.env WITH_REBOOT", value)
            state.set("in_use", "reboot" if flag else "refuse", source.place(value))
        else:
            source.notes.append(
                f"{source.place(value)}: about Kubernetes objects, not nodes: migManager.env "
                f"{item.text('name')}"
            )


# --- both --------------------------------------------------------------------------------


def missing_reference(source: Source, path: str) -> Item | None:
    """The key at a path, if it names a ConfigMap that was not found."""
    name = source.spec.get(*path.split("."))
    if name is None or not name.value or _of_chart(source, path, str(name.value)) is not None:
        return None
    return name if source.store.find(CONFIG_MAP, str(name.value)) is None else None


def left_out_note(source: Source, name: Item, path: str, states: str) -> str:
    """The note on states that are left out because their ConfigMap was not found."""
    return (
        f"{source.place(name)}: warning: {states} left out: {path} names the ConfigMap "
        f"{quote(name.value)}, which was not found; save it: kubectl get configmap {name.value} "
        f"-o yaml > {source.store.folder.name}/{name.value}.yaml"
    )


def _of_chart(source: Source, path: str, name: str) -> Companion | None:
    """The ConfigMap that the chart creates from the values."""
    if source.kind != "helm":
        return None
    reference = next(candidate for candidate in REFERENCES["helm"] if candidate.path == path)
    return inline_of(source.spec, reference, name, source.file)


def require_config_map(source: Source, name: Item, path: str) -> Companion:
    """Return the ConfigMap that a key names: created by the chart, or next to the values.

    Raises:
        PolicyError: it was not found.
    """
    config_map = _of_chart(source, path, str(name.value))
    if config_map is not None:
        return config_map
    return source.config_map(Item(str(name.value), name.line), path)


def _named(companion: Companion) -> str:
    return f"the {companion.kind} {quote(companion.name)}"


def missing_key_error(companion: Companion, key: str) -> PolicyError:
    """The error for a ConfigMap without the only key that is read."""
    return PolicyError(
        f"{_named(companion)} has no key {key}, the only one that is read (it has "
        f"{', '.join(sorted(companion.entries)) or 'none'})",
        place=companion.place,
        fix=f"rename the key to {key}",
    )


def _refuse(label: Label, name: str, why: str) -> NoReturn:
    raise PolicyError(
        f"label {name} of Node {quote(label.node)} is {quote(label.value)}, and {why}",
        place=label.place,
    )
