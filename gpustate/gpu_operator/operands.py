"""What the Operator runs as pods, as far as it leaves something on the node.

GPU feature discovery becomes the state ``gpu-labels``; the device plugin's configuration becomes
``device-plugin-config``, which that reads too; the MIG manager becomes ``mig``.

Surprising: ``migManager.config.default`` is ``all-disabled``, and the API server fills that in. Nobody
need have meant it, and carried out it would remove every MIG layout that the Operator did not make.
So it is never carried out: GPUs are divided where somebody names a configuration for a node, in the
label ``nvidia.com/mig.config`` of a Node beside the policy, or with the state ``mig`` in a policy of
one's own. A configuration of the device plugin, on the other hand, that no label and no default names
is an empty one, as it is under the Operator.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (TransformGPUDiscoveryPlugin,
    handleDevicePluginConfig, TransformMIGManager; FALLBACK_STRATEGIES is "empty"),
    assets/state-mig-manager (clients.yaml). NVIDIA/k8s-device-plugin v0.20: cmd/config-manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin
from gpustate.formats.words import shown
from gpustate.gpu_operator import contents, nodelabels
from gpustate.gpu_operator.asked import Source, Wanted
from gpustate.gpu_operator.companions import (
    CONFIG_MAP,
    REFERENCES,
    Companion,
    inline_of,
    padded,
)
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.nodelabels import Label
from gpustate.gpu_operator.runtime import flag_of
from gpustate.mig import builtin
from gpustate.mig import config as mig_config

#: What counts where neither a label nor a default names a configuration of the device plugin.
EMPTY, EMPTY_NAME = {"version": "v1"}, "empty"
#: The ConfigMap that the Operator makes itself, of what every mig-parted has.
_MIG_MADE = "default-mig-parted-config"
_MIG_KEY = "config.yaml"
#: On no node, unless a narrower layer says otherwise.
NOWHERE = "~node('*')"
_NEXT = (
    f"name a layout in the label {nodelabels.MIG} of a Node beside the file, or with the state mig in a "
    "policy of your own"
)


def wanted_operands(source: Source) -> Iterator[Wanted]:
    """Yield the states for labels, the device plugin's configuration and MIG.

    Raises:
        PolicyError: a ConfigMap that is missing or makes no sense, or a label that names nothing in it.
    """
    labels = source.enabled("gfd", otherwise=True)
    lacking = None
    if labels or source.enabled("devicePlugin", otherwise=True):
        lacking = missing(source, "devicePlugin.config.name")
        if lacking is None:
            yield from _plugin(source)
    else:
        why = "devicePlugin.enabled and gfd.enabled are false"
        source.not_used(why, "devicePlugin.config.")
    if lacking is not None:
        # Labels tell how GPUs are shared, which that object says.
        left_out = "device-plugin-config and gpu-labels" if labels else "device-plugin-config"
        source.notes.append(without(source, lacking, "devicePlugin.config.name", left_out))
        source.not_used("that object is not there", "devicePlugin.config.default", "mig.strategy")
    elif labels:
        state = Wanted("gpu-labels")
        strategy, place = _strategy(source)
        if strategy:
            state.give("mig_strategy", strategy, place)
        yield state
    else:
        source.not_used("gfd.enabled is false", "mig.strategy")
    yield from _mig(source)


def _strategy(source: Source) -> tuple[str, str | None]:
    """``mig.strategy``, which the Operator hands over in the environment; the chart has a default."""
    found = source.spec.get("mig", "strategy")
    if found is not None:
        return found.value, source.place(found)
    if source.kind == "helm" and not is_null(source.spec, "mig.strategy"):
        return str(source.of_chart("mig.strategy") or ""), None
    return "", None


# --- the device plugin's configuration ---------------------------------------------------


def _plugin(source: Source) -> Iterator[Wanted]:
    name = source.spec.get("devicePlugin", "config", "name")
    default = source.spec.get("devicePlugin", "config", "default")
    if name is None or not name.value:
        source.not_used("devicePlugin.config.name is empty", "devicePlugin.config.")
        for label in nodelabels.of_nodes(source.shelf.nodes, nodelabels.PLUGIN):
            _refuse(label, nodelabels.PLUGIN, "devicePlugin.config.name names no ConfigMap")
        return
    found = needed(source, name, "devicePlugin.config.name")
    configs: dict[str, Any] = {}
    for key, entry in found.entries.items():
        read = deviceplugin.read(padded(entry), entry.file)
        configs[key] = dict(read.data) or dict(EMPTY)
        source.notes.extend(read.warnings)
        source.notes.extend(f"{entry.place()}: {key}: {note}" for note in read.notes)
    state = Wanted("device-plugin-config")
    chosen, place = _default(source, default, configs, found)
    state.give("configs", configs, source.place(name))
    state.give("default", chosen, place)
    for label in nodelabels.of_nodes(source.shelf.nodes, nodelabels.PLUGIN):
        if label.value not in configs:
            _refuse(label, nodelabels.PLUGIN, f"{_named(found)} has {', '.join(sorted(configs))}")
        source.for_node(label, state.state, selected=label.value)
    yield state


def _default(
    source: Source, default: Item | None, configs: dict[str, Any], found: Companion
) -> tuple[str, str | None]:
    """The name of the configuration that counts without a label; an empty one is added if need be."""
    if default is not None and default.value:
        word = str(default.value)
        if word not in configs:
            raise PolicyError(
                f"devicePlugin.config.default is {shown(word)}, and {_named(found)} has "
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


def _mig(source: Source) -> Iterator[Wanted]:
    labels = tuple(nodelabels.of_nodes(source.shelf.nodes, nodelabels.MIG))
    if not source.enabled("migManager", otherwise=True):
        why = "migManager.enabled is false"
        source.not_used(why, "migManager.", but=("migManager.enabled",))
        source.notes.extend(
            f"{one.place}: not used: label {nodelabels.MIG}: {why}" for one in labels
        )
        return
    _note_on_default(source, bool(labels))
    if not labels:
        why = f"no Node beside the file has the label {nodelabels.MIG}"
        source.not_used(why, "migManager.", but=("migManager.enabled",))
        return
    # A name that the file has; on other nodes it does not count either.
    state = Wanted("mig", {"config": min(one.value for one in labels), "only": NOWHERE})
    name = source.spec.get("migManager", "config", "name")
    text, path = None, ""
    if name is not None and name.value and not _made_by_operator(source, name):
        text, path = _mig_text(source, name)
        state.give("file", path, source.place(name))
        state.give("contents", {path: text}, source.place(name))
    _clients(source, state)
    _reboots(source, state)
    file = builtin.config_file() if text is None else mig_config.read(text, path)
    for label in labels:
        try:
            file.config(label.value)
        except PolicyError as error:
            raise PolicyError(
                f"label {nodelabels.MIG} is {shown(label.value)}: {error.message}, in {file.path}",
                place=label.place,
                fix=error.fix,
            ) from None
        # What holds nowhere holds here.
        source.for_node(label, "mig", config=label.value, only=None)
    yield state


def _note_on_default(source: Source, labelled: bool) -> None:
    """Say that the Operator's default is not carried out; an empty one asks for nothing."""
    path = "migManager.config.default"
    default = source.spec.get(*path.split("."))
    if default is not None and not default.value:
        return
    source.told.add(path)
    line = f" (line {default.line})" if default is not None else ""
    at = default or source.spec.get("migManager") or source.spec
    where = f" on nodes without the label {nodelabels.MIG}" if labelled else ""
    source.notes.append(
        f"{source.place(at)}: MIG layouts stay as they are{where}: the Operator's default, "
        f"all-disabled, {path}{line}, is never carried out; {_NEXT}"
    )


def _made_by_operator(source: Source, name: Item) -> bool:
    return name.value == _MIG_MADE and source.shelf.find(CONFIG_MAP, _MIG_MADE) is None


def _mig_text(source: Source, name: Item) -> tuple[str, str]:
    """The text of the mig-parted file, and what it is called."""
    found = needed(source, name, "migManager.config.name")
    entry = found.entries.get(_MIG_KEY)
    if entry is None:
        raise lacks(found, _MIG_KEY)
    mig_config.read(padded(entry), entry.file)  # so that an error has its line
    return entry.text, f"{CONFIG_MAP} {found.name}"


def _clients(source: Source, state: Wanted) -> None:
    """``gpuClientsConfig``: services that hold GPUs."""
    path = "migManager.gpuClientsConfig.name"
    name = source.spec.get(*path.split("."))
    if name is None or not name.value:
        return
    found = source.config_map(name, path)
    services: dict[str, str] = {}
    for key, entry in found.entries.items():
        if key == contents.CLIENTS_KEY:
            for item in contents.clients(entry):
                services[str(item.value)] = f"{entry.file}:{item.line}"
    if contents.CLIENTS_KEY not in found.entries:
        raise lacks(found, contents.CLIENTS_KEY)
    # The kubelet is the Operator's to stop, and never gpustate's; the list of every node has it.
    units = tuple(name for name in services if name != "kubelet.service")
    if len(units) < len(services):
        at = services["kubelet.service"]
        source.notes.append(f"{at}: not carried out: kubelet.service: the kubelet is never stopped")
    state.give("clients", list(units), source.place(name))


def _reboots(source: Source, state: Wanted) -> None:
    """``migManager.env``: ``WITH_REBOOT`` says what to do where a GPU is in use."""
    env = source.spec.get("migManager", "env")
    for item in env.value if env is not None else ():
        value = item.get("value")
        if value is None:
            continue
        if item.text("name") == "WITH_REBOOT":
            flag = flag_of(source, "migManager.env WITH_REBOOT", value)
            state.give("in_use", "reboot" if flag else "refuse", source.place(value))
        else:
            source.notes.append(
                f"{source.place(value)}: about Kubernetes objects, not nodes: migManager.env "
                f"{item.text('name')}"
            )


# --- both --------------------------------------------------------------------------------


def missing(source: Source, path: str) -> Item | None:
    """The key at a path, where it names a ConfigMap that is nowhere."""
    name = source.spec.get(*path.split("."))
    if name is None or not name.value or _made(source, path, str(name.value)) is not None:
        return None
    return name if source.shelf.find(CONFIG_MAP, str(name.value)) is None else None


def without(source: Source, name: Item, path: str, states: str) -> str:
    """The note on states that are left out because nobody can know what they are to hold."""
    return (
        f"{source.place(name)}: warning: {states} left out: {path} names the ConfigMap "
        f"{shown(name.value)}, which is not beside the file; kubectl get configmap {name.value} -o yaml "
        f"> {source.shelf.folder.name}/{name.value}.yaml puts it there"
    )


def _made(source: Source, path: str, name: str) -> Companion | None:
    """The ConfigMap that the chart makes of the values."""
    if source.kind != "helm":
        return None
    reference = next(one for one in REFERENCES["helm"] if one.path == path)
    return inline_of(source.spec, reference, name, source.file)


def needed(source: Source, name: Item, path: str) -> Companion:
    """Return the ConfigMap that a key names: one the chart makes of the values, else one beside them.

    Raises:
        PolicyError: it is nowhere.
    """
    made = _made(source, path, str(name.value))
    if made is not None:
        return made
    return source.config_map(Item(str(name.value), name.line), path)


def _named(found: Companion) -> str:
    return f"the {found.kind} {shown(found.name)}"


def lacks(found: Companion, key: str) -> PolicyError:
    """The error for a ConfigMap without the one key that is read of it."""
    return PolicyError(
        f"{_named(found)} has no key {key}, which is all that is read of it (it has "
        f"{', '.join(sorted(found.entries)) or 'none'})",
        place=found.place,
        fix=f"call the key {key}",
    )


def _refuse(label: Label, name: str, why: str) -> NoReturn:
    raise PolicyError(
        f"label {name} of Node {shown(label.node)} is {shown(label.value)}, and {why}",
        place=label.place,
    )
