"""The result of reading a document: desired states, where their parameters are set, and notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpustate.core.drain import DrainPolicy
from gpustate.core.rollout import RolloutPolicy
from gpustate.documents import Json, JsonView
from gpustate.gpu_operator import history
from gpustate.gpu_operator.check import Setting
from gpustate.gpu_operator.choice import Choice
from gpustate.gpu_operator.companions import CONFIG_MAP, Companion, CompanionStore
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.keys import Support
from gpustate.gpu_operator.nodelabels import Label


@dataclass(slots=True)
class DesiredState:
    """One state that a file requests.

    Args:
        state: its name.
        parameters: plain data, for :func:`gpustate.core.policy.build`.
        places: ``file:line`` of each parameter that the file sets.
        dependents: states that make sense only together with it.
        rollout: of the driver: how many nodes change at a time; ``None``: the file does not set it.
        drain: of the driver: how workloads leave; ``None``: the file does not set it.
    """

    state: str
    parameters: Json = field(default_factory=Json)
    places: dict[str, str] = field(default_factory=dict[str, str])
    dependents: list[DesiredState] = field(default_factory=list["DesiredState"])
    rollout: RolloutPolicy | None = None
    drain: DrainPolicy | None = None

    def set(self, parameter: str, value: object, place: str | None = None) -> None:
        """Set a parameter and record where it is set."""
        self.parameters[parameter] = value
        if place is not None:
            self.places[parameter] = place


@dataclass(frozen=True, slots=True)
class ForNode:
    """Parameters of a state on one node."""

    node: str
    state: str
    parameters: JsonView
    place: str


@dataclass(frozen=True, slots=True)
class ForLabels:
    """Parameters of a state on nodes with labels; ``condition`` in the syntax of :mod:`gpustate.core.where`.

    Args:
        complete: parameters not listed have the state's defaults, whatever other layers set.
        title: of the object: ``NVIDIADriver gold``.
    """

    condition: str
    state: str
    parameters: JsonView
    place: str
    complete: bool = True
    title: str = "NVIDIADriver"


@dataclass(slots=True)
class Source:
    """One document with its settings checked, and the documents next to it.

    Args:
        file: its path.
        spec: ``spec`` of the object, or all of a Helm values file.
        settings: the fields it sets.
        store: the ConfigMaps and Secrets next to it.
        kind: of the document, as in :data:`gpustate.gpu_operator.shape.KINDS`, or ``helm``.
        release: of the Operator that the document is for.
        notes: settings that no state carries out, filled while reading.
        noted: paths that have a note of their own already.
        unused: why settings are not used, by path and line.
        choice: which components run as containers.
        in_objects: paths that only objects of the cluster carry out in this file.
        for_nodes: parameters for single nodes by state, with their places; filled while reading.
        incomplete: places of images that the chart's values complete, by component; filled while reading.
        strict: what the Operator refuses is an error.
    """

    file: str
    spec: Item
    settings: tuple[Setting, ...]
    store: CompanionStore
    kind: str = "clusterpolicy"
    release: str = field(default_factory=history.newest)
    notes: list[str] = field(default_factory=list[str])
    noted: set[str] = field(default_factory=set[str])
    unused: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    in_objects: set[str] = field(default_factory=set[str])
    for_nodes: list[ForNode] = field(default_factory=list["ForNode"])
    choice: Choice = field(default_factory=Choice)
    incomplete: dict[str, str] = field(default_factory=dict[str, str])
    strict: bool = False

    def in_containers(self, section: str) -> bool:
        """Whether a component runs as NVIDIA's containers."""
        return section in self.choice.containers

    def for_node(self, label: Label, state: str, **parameters: object) -> None:
        """Set parameters of a state from a node's label, on that node alone."""
        self.for_nodes.append(ForNode(label.node, state, parameters, label.place))

    def before(self, release: str) -> bool:
        """Whether the document is for a release before this one."""
        return history.before(self.release, release)

    def chart_default(self, path: str) -> Any:
        """The chart's default at a path; ``None`` for an object, and where there is no default."""
        if self.kind != "helm":
            return None
        return history.chart_defaults(self.release).get(path)

    def place(self, item: Item) -> str:
        """``file:line`` of an item."""
        return f"{self.file}:{item.line}"

    def enabled(self, section: str, *, otherwise: bool, switch: str = "enabled") -> bool:
        """The section's ``enabled``; ``otherwise`` is the Operator's default."""
        item = self.spec.get(*section.split("."), switch)
        return otherwise if item is None else bool(item.value)

    def note_unused(
        self, why: str, *prefixes: str, exempt: tuple[str, ...] = (), warn: bool = False
    ) -> None:
        """Note settings that are not used because of ``why``; ``warn``: every verb says so."""
        honoured = [
            s
            for s in self.settings
            if s.field.support is Support.HONOURED
            and s.path.startswith(prefixes)
            and s.path not in exempt
        ]
        unused = [s for s in honoured if s.item.value not in ("", False)]
        if unused:
            self.unused |= {(s.path, s.item.line): why for s in unused}
            level = "warning: " if warn else ""
            text = f"{level}not used: {_listed(unused, 20)}: {why}"
            self.notes.append(f"{_first(self, unused)}: {text}")
        self.noted.update(s.path for s in honoured)

    def config_map(self, name: Item, path: str) -> Companion:
        """Return the ConfigMap that a key names.

        Raises:
            PolicyError: it is neither in the file nor next to it, or contains no data.
        """
        return self.store.require(CONFIG_MAP, name, path)


#: Read only by earlier releases, and read here for files of those, with what carries them out.
READ_THEN = {
    "cdi.default": "container-toolkit, its mode",
    "driver.useOpenKernelModules": "driver.module_type",
    "useOpenKernelModules": "driver.module_type",
    "driver.nvidiaDriverCRD.nodeSelector": "driver, on the nodes with these labels",
}


def read_then(path: str, until: str, release: str) -> bool:
    """Whether a release reads a key that later ones ignore, and gpustate reads it for that release.

    Args:
        path: of the key.
        until: the last release that reads it.
        release: of the Operator; empty for the newest.
    """
    read = path in READ_THEN and bool(release and until)
    return read and not history.before(until, release)


#: Sections that affect only nodes for virtual machines.
SANDBOX = (
    *("sandboxWorkloads", "vgpuManager", "vgpuDeviceManager", "vfioManager"),
    *("sandboxDevicePlugin", "kataSandboxDevicePlugin", "ccManager"),
)


#: Words of the notes about objects of the cluster.
ONLY_WITH_OBJECTS = "only with --cluster-objects"
_LABELS = {Support.DEPRECATED: "deprecated", Support.DEAD: "ignored by the Operator as well"}
_SUMMED_UP = {
    Support.NO_MEANING: "not applicable on a host",
    Support.KUBERNETES: "about Kubernetes objects, not nodes",
}
#: Sections that have no effect unless their ``enabled`` is true; the others are on by default.
_OFF_BY_DEFAULT = ("gds", "gdrcopy", "nodeStatusExporter")


def notes_on(source: Source) -> Iterator[str]:
    """Yield a note on every setting that no state honours, and on incomplete images."""
    for place in list(source.incomplete.values())[:1]:
        yield (
            f"{place}: warning: only a part of the image of {', '.join(source.incomplete)} is set, which the "
            f"Operator refuses; the other parts are those of the chart of {source.release}"
        )
    unused = [
        s
        for s in source.settings
        if s.field.support is not Support.HONOURED and s.path not in source.noted
    ]
    read_then = [
        s for s in unused if s.field.until and not history.before(s.field.until, source.release)
    ]
    unused = [s for s in unused if s not in read_then]
    asking = [s for s in read_then if s.path not in READ_THEN and s.has_effect]
    yield from _note(source, asking, f"specific to {source.release}, not carried out")
    sandbox = source.spec.get("sandboxWorkloads", "enabled")
    if sandbox is None or not sandbox.value:
        off = [s for s in unused if s.path.partition(".")[0] in SANDBOX]
        unused = [s for s in unused if s.path.partition(".")[0] not in SANDBOX]
        yield from _note(source, off, "no effect, sandboxWorkloads.enabled is not true")
    later = [s for s in unused if s.field.support is Support.LATER]
    asking = [s for s in later if s.has_effect and not _switched_off(source, s)]
    for reason, settings in _by_reason(asking).items():
        listing = _listed(settings, most=20)
        yield f"{_first(source, settings)}: not carried out: {listing}: {reason}"
    nothing = [s for s in later if s not in asking]
    yield from _note(source, nothing, "no effect at these values", most=1000)
    for support, label in _LABELS.items():
        matching = [s for s in unused if s.field.support is support]
        for reason, settings in _by_reason(matching).items():
            yield f"{_first(source, settings)}: {label}: {_listed(settings)}: {reason}"
    objects = [
        s
        for s in source.settings
        if (s.field.objects or s.path in source.in_objects) and s.path not in source.noted
    ]
    yield from _note(source, objects, f"carried out {ONLY_WITH_OBJECTS}")
    for support, label in _SUMMED_UP.items():
        yield from _note(source, [s for s in unused if s.field.support is support], label)


def _note(source: Source, settings: list[Setting], label: str, most: int = 3) -> Iterator[str]:
    if settings:
        yield f"{_first(source, settings)}: {label}: {_listed(settings, most)}"


def _by_reason(settings: list[Setting]) -> dict[str, list[Setting]]:
    by_reason: dict[str, list[Setting]] = {}
    for setting in settings:
        by_reason.setdefault(setting.field.detail, []).append(setting)
    return by_reason


def _switched_off(source: Source, setting: Setting) -> bool:
    section = setting.path.partition(".")[0]
    if section == "draDriver" and source.kind == "helm":
        return not source.enabled("gpuCluster", otherwise=False, switch="deployCR")
    return not source.enabled(section, otherwise=section not in _OFF_BY_DEFAULT)


def _first(source: Source, settings: list[Setting]) -> str:
    return f"{source.file}:{min(s.item.line for s in settings)}"


def _listed(settings: list[Setting], most: int = 3) -> str:
    """List settings with their lines; more than ``most`` of one section become a count."""
    sections: dict[str, list[Setting]] = {}
    for setting in settings:
        sections.setdefault(setting.path.partition(".")[0], []).append(setting)
    parts: list[str] = []
    for section, members in sections.items():
        lines = sorted({s.item.line for s in members})
        if len(members) > most:
            parts.append(f"{section} ({len(members)} keys in lines {lines[0]}-{lines[-1]})")
        else:
            parts.extend(
                f"{_named(s)} (line {s.item.line})"
                for s in members
                if not s.path.endswith("env[].value")
            )
    return ", ".join(parts)


def _named(setting: Setting) -> str:
    if setting.path.endswith("env[].name"):
        return f"{setting.path.removesuffix('[].name')} {setting.item.value}"
    return setting.path
