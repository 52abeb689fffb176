"""Read the text of an Operator file into desired states.

Files are recognised by content, not by name: a ClusterPolicy (``nvidia.com/v1``), an NVIDIADriver or a
GPUCluster (``nvidia.com/v1alpha1``), Helm values (no ``apiVersion`` and no ``kind``). ConfigMaps and
Secrets that they name are searched in the same file and next to it.

A missing ``enabled`` is not ``false``: the Operator's default applies, like the defaults of the API server.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go, the ``IsEnabled`` methods;
    internal/validator: settings refused in an NVIDIADriver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpustate.core.drain import DrainPolicy
from gpustate.core.rollout import RolloutPolicy
from gpustate.errors import PolicyError
from gpustate.formats.words import quote, quote_name
from gpustate.gpu_operator import (
    choice,
    containers,
    documents,
    history,
    nodelabels,
    shape,
    umbrella,
)
from gpustate.gpu_operator.check import Checker, Strict, always_strict, never_strict
from gpustate.gpu_operator.choice import Choice
from gpustate.gpu_operator.companions import CompanionStore, check_companions
from gpustate.gpu_operator.desired import (
    ONLY_WITH_OBJECTS,
    DesiredState,
    ForLabels,
    ForNode,
    Source,
    notes_on,
)
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.driver import desired_driver
from gpustate.gpu_operator.helm import (
    chart_notes,
    chart_selector,
    check_chart,
    deploys_dra,
    is_null,
)
from gpustate.gpu_operator.keys import Support, fields
from gpustate.gpu_operator.machines import with_machines
from gpustate.gpu_operator.metrics import desired_metrics
from gpustate.gpu_operator.objects import cluster_settings
from gpustate.gpu_operator.operands import desired_operands
from gpustate.gpu_operator.other_files import OtherFiles
from gpustate.gpu_operator.parts import Part, parts
from gpustate.gpu_operator.pools import Pool, combine, condition_of, driver_stack, of_selector
from gpustate.gpu_operator.references import ReferenceResolver
from gpustate.gpu_operator.runtime import desired_links, desired_runtime, desired_validator
from gpustate.gpu_operator.upgrades import desired_drain, desired_rollout
from gpustate.manifests import ClusterSettings
from gpustate.manifests.settings import DriverContainer

#: Enabled by default, as pods.
_ON_BY_DEFAULT = ("devicePlugin", "dcgm", "dcgmExporter")
_OF_DRIVER = ("driver.", "gds.", "gdrcopy.")
#: Allowed top-level keys of an object.
_HEAD = ("apiVersion", "kind", "metadata", "spec", "status")
_SWITCHES = ("driver.enabled", "driver.useNvidiaDriverCRD")
#: The states of a driver; ``None`` if it is managed elsewhere.
Stack = tuple[DesiredState, ...] | None


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a file.

    Args:
        kind: ``clusterpolicy``, ``nvidiadriver``, ``gpucluster`` or ``helm``.
        name: ``metadata.name``; empty for Helm values.
        states: the desired states.
        notes: everything else in the file, each with its place.
        for_nodes: parameters from labels of single nodes, in their order.
        for_labels: parameters of nodes with labels, by NVIDIADriver.
        rollout: how many nodes change at a time; ``None``: the file does not set it.
        drain: how workloads leave; ``None``: the file does not set it.
        release: of the Operator that it was read for, as tagged.
        objects: settings of the cluster's objects; ``None`` if the file has none.
        unused: why settings are not used, by path and line.
    """

    kind: str
    name: str
    states: tuple[DesiredState, ...]
    notes: tuple[str, ...]
    for_nodes: tuple[ForNode, ...] = ()
    for_labels: tuple[ForLabels, ...] = ()
    rollout: RolloutPolicy | None = None
    drain: DrainPolicy | None = None
    release: str = ""
    objects: ClusterSettings | None = None
    unused: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])


def read(text: str, file: str, *, strict: Strict = never_strict, release: str = "") -> Reading:
    """Read the text of an Operator file; arguments and errors as for :func:`read_parts`."""
    return read_parts(parts(text, file), file, strict=strict, release=release)


def read_parts(
    file_parts: Sequence[Part], file: str, *, strict: Strict = never_strict, release: str = ""
) -> Reading:
    """Read the documents of an Operator file.

    Args:
        file_parts: the documents.
        file: its path, for places, and for the folder of ConfigMaps next to it.
        strict: in which lines unknown keys are errors; elsewhere they become notes, as the Operator
            accepts such a file.
        release: of the Operator; by default that of the wrapper, or the newest supported.

    Raises:
        PolicyError: it is not one of the supported kinds, or is invalid.
    """
    resolver = ReferenceResolver(file)
    if resolver.is_patch:
        raise PolicyError(
            "is a patch of a kustomization, not a complete object",
            place=f"{file}:{file_parts[0].item.line}",
            fix=f"render it first: kubectl kustomize {resolver.directory} > rendered.yaml",
        )
    by_kind: dict[str, list[Item]] = {}
    for part in file_parts:
        by_kind.setdefault(part.kind, []).append(part.item)
    declared = next((part.release for part in file_parts if part.release), "")
    wrapped = [part.held for part in file_parts if part.held is not None]
    reader = _Reader(file, strict, by_kind, release or declared or history.newest(), bool(wrapped))
    reader.store.used.update(reference for held in wrapped for reference in held.used)
    origins = file_parts[0].origins
    try:
        reading = reader.read()
        notes = (*reading.notes, *reader.unused_objects())
    except PolicyError as error:
        raise origins.error(error) from None
    above = [note for held in wrapped for note in held.notes]
    if declared and not release and declared != history.newest():
        above.append(
            f"{file}: read for release {declared} of the Operator, as set in the file; override it with --release"
        )
    notes = tuple(map(origins.text, (*above, *notes)))
    reading = replace(reading, notes=notes, release=reader.release)
    return _placed(reading, origins) if origins else reading


def _placed(reading: Reading, origins: OtherFiles) -> Reading:
    """The reading with the real places of values from other files."""
    for state in reading.states:
        state.places = {name: origins.place(place) for name, place in state.places.items()}
    nodes = (replace(node, place=origins.place(node.place)) for node in reading.for_nodes)
    labels = (replace(label, place=origins.place(label.place)) for label in reading.for_labels)
    return replace(reading, for_nodes=tuple(nodes), for_labels=tuple(labels))


@dataclass(slots=True)
class _Reader:
    """Reads the documents of one file, sorted by kind."""

    file: str
    strict: Strict
    by_kind: dict[str, list[Item]]
    release: str
    wrapped: bool = False
    store: CompanionStore = field(init=False)
    stray: list[str] = field(default_factory=list[str])
    for_nodes: list[ForNode] = field(default_factory=list[ForNode])
    for_labels: list[ForLabels] = field(default_factory=list[ForLabels])
    choice: Choice = field(init=False)
    drivers: list[DriverContainer] = field(default_factory=list[DriverContainer])
    rollout: RolloutPolicy | None = None
    drain: DrainPolicy | None = None

    def __post_init__(self) -> None:
        objects = (*self.by_kind.get("configmap", ()), *self.by_kind.get("secret", ()))
        self.store = CompanionStore(
            self.file, objects, own_nodes=tuple(self.by_kind.get("node", ()))
        )
        self.choice = self.store.choice()

    def unused_objects(self) -> Iterator[str]:
        """Note the objects in the file that no key refers to."""
        yield from self.stray
        yield from nodelabels.notes(
            self.store.nodes, workloads=self.store.workloads, systems=bool(self.drivers)
        )
        for kind in ("configmap", "secret", "other"):
            for item in self.by_kind.get(kind, ()):
                name = item.text("metadata", "name")
                if (item.text("kind"), name) not in self.store.used:
                    yield (
                        f"{self.file}:{item.line}: not read: {quote_name(item.text('kind'))} {quote(name)}, "
                        "because no key of the policy refers to it"
                    )

    def read(self) -> Reading:
        for kind in ("clusterpolicy", "gpucluster", "helm"):
            self._only_one(kind)
        stacks = [kind for kind in ("clusterpolicy", "gpucluster", "helm") if kind in self.by_kind]
        if len(stacks) > 1:
            names = {"clusterpolicy": "a ClusterPolicy", "gpucluster": "a GPUCluster"}
            first, second = (names.get(kind, "Helm values") for kind in stacks[:2])
            raise PolicyError(
                f"contains {first} and {second}, wanted one of them",
                place=f"{self.file}:{self.by_kind[stacks[1]][0].line}",
            )
        if "clusterpolicy" in self.by_kind:
            return self._cluster_policy(self.by_kind["clusterpolicy"][0])
        if "gpucluster" in self.by_kind:
            return self._gpu_cluster(self.by_kind["gpucluster"][0])
        if "helm" in self.by_kind:
            return self._helm(self.by_kind["helm"][0])
        if "nvidiadriver" in self.by_kind:
            return self._nvidia_drivers_alone()
        if set(self.by_kind) <= {"configmap", "secret", "node"}:
            raise PolicyError(
                "contains no policy, only objects that a policy refers to",
                place=self.file,
                fix=f"move it to the folder {self.store.folder.name} of the policy's file; gpustate lint "
                "and gpustate node mig plan accept it without a policy",
            )
        kinds = sorted({item.text("kind") for items in self.by_kind.values() for item in items})
        listed = ", ".join(map(quote_name, kinds[:5])) + (", ..." if len(kinds) > 5 else "")
        raise PolicyError(f"contains no policy, only {listed}", place=self.file, fix=shape.EXPECTED)

    def _only_one(self, kind: str) -> None:
        items = self.by_kind.get(kind, [])
        if len(items) > 1:
            raise PolicyError(
                f"a second {items[1].text('kind') or 'Helm values document'}, the first is in line "
                f"{items[0].line}",
                place=f"{self.file}:{items[1].line}",
                fix="keep one",
            )

    def _cluster_policy(self, item: Item) -> Reading:
        source = self._source(self._spec(item), "clusterpolicy")
        crd = source.spec.get("driver", "useNvidiaDriverCRD")
        drivers = self.by_kind.get("nvidiadriver", [])
        driver: Stack = None
        if source.enabled("driver", otherwise=True):
            section = source.spec.get("driver") or source.spec
            if crd is not None and crd.value:
                driver = self._pools(source.notes, source.place(crd))
                source.note_unused("set by the NVIDIADriver", *_OF_DRIVER, exempt=_SWITCHES)
            elif source.in_containers("driver"):
                self.drivers.append(containers.of_policy(source))
                self._upgrades(source, section, "driver.")
            else:
                driver = driver_stack(desired_driver(source, section, "driver."))
        if drivers and (crd is None or not crd.value):
            source.notes.append(
                f"{self.file}:{drivers[0].line}: the NVIDIADriver is not used: driver.useNvidiaDriverCRD "
                "is not true"
            )
        states = with_machines(source, lambda: _stack(source, driver))
        return self._reading("clusterpolicy", item, source, states, _ON_BY_DEFAULT, objects=True)

    def _gpu_cluster(self, item: Item) -> Reading:
        source = self._source(self._spec(item), "gpucluster")
        driver: Stack = None
        if "nvidiadriver" in self.by_kind or self.store.objects_of("NVIDIADriver"):
            driver = self._pools(source.notes, None)
        else:
            source.notes.append(
                f"{source.place(item)}: no NVIDIADriver in this file: the driver is managed elsewhere "
                "and not changed"
            )
        states = (*_dra_stack(driver), *desired_metrics(source))
        return self._reading("gpucluster", item, source, states, (), objects=True)

    def _helm(self, item: Item) -> Reading:
        source = self._source(item, "helm")
        self._is_of_this_chart(item)
        left_to_crd = check_chart(source)
        driver: Stack = None
        if left_to_crd is not None:
            driver = self._pools(source.notes, source.place(left_to_crd))
            source.note_unused("set by the NVIDIADriver", *_OF_DRIVER, exempt=_SWITCHES)
        elif source.in_containers("driver") and source.enabled("driver", otherwise=True):
            crd = source.spec.get("driver", "nvidiaDriverCRD", "enabled")
            by_object = crd is not None and bool(crd.value)
            make = containers.of_chart if by_object else containers.of_policy
            self.drivers.append(make(source))
            self._upgrades(source, source.spec.get("driver") or source.spec, "driver.")
        elif source.enabled("driver", otherwise=True):
            section = source.spec.get("driver") or source.spec
            driver = driver_stack(desired_driver(source, section, "driver."))
            selector = chart_selector(source)
            parts = list(of_selector(selector))
            if selector is not None and parts:
                condition = " & ".join(parts)
                pool = Pool(
                    driver, f"({condition})" if parts[1:] else condition, source.place(selector)
                )
                driver = self._together([pool], source.notes)
        source.notes.extend(chart_notes(source))
        if deploys_dra(source):
            source.note_unused(
                "not part of a GPUCluster", "toolkit.", "cdi.", "operator.runtimeClass"
            )
            states = (*_dra_stack(driver), *desired_metrics(source))
            return self._reading("helm", item, source, states, (), objects=True)
        source.note_unused("gpuCluster.deployCR is not true", "draDriver.")
        states = with_machines(source, lambda: _stack(source, driver))
        # The chart disables dcgm, unless null removes its default.
        of_chart = bool(source.chart_default("dcgm.enabled"))
        on = tuple(
            n
            for n in _ON_BY_DEFAULT
            if n != "dcgm" or of_chart or is_null(source.spec, "dcgm.enabled")
        )
        return self._reading("helm", item, source, states, on, objects=True)

    def _nvidia_drivers_alone(self) -> Reading:
        notes: list[str] = []
        if self.choice.containers:
            raise PolicyError(
                "an NVIDIADriver alone has no objects of a cluster",
                place=self.choice.place,
                fix="add the ClusterPolicy or the GPUCluster to its file",
            )
        stack = self._pools(notes, None)
        item = self.by_kind["nvidiadriver"][0]
        source = Source(self.file, item, (), self.store, "nvidiadriver", self.release, notes)
        return self._reading("nvidiadriver", item, source, _dra_stack(stack), ())

    def _pools(self, notes: list[str], place: str | None) -> Stack:
        """The driver's states from the NVIDIADrivers of the file and its folder.

        Args:
            notes: filled with theirs.
            place: where the policy leaves the driver to them; ``None`` if it does not.
        """
        own_drivers = [(self.file, item) for item in self.by_kind.get("nvidiadriver", [])]
        pools: list[Pool] = []
        for file, item in (*own_drivers, *self.store.objects_of("NVIDIADriver")):
            spec = self._spec(item, file)
            source = self._source(spec, "nvidiadriver", file)
            kind = spec.get("driverType")
            if kind is not None and kind.value != "gpu":
                raise PolicyError(
                    f"driverType {kind.value!r} is unsupported, wanted 'gpu'",
                    place=source.place(kind),
                )
            name = item.text("metadata", "name")
            title = f"NVIDIADriver {quote_name(name)}"
            if source.in_containers("driver"):
                self.drivers.append(containers.of_object(source, name, condition_of(source)))
                self._upgrades(source, spec, "")
                notes.extend((*source.notes, *notes_on(source)))
                continue
            states = driver_stack(desired_driver(source, spec, ""))
            pools.append(Pool(states, condition_of(source), f"{file}:{item.line}", title))
            notes.extend((*source.notes, *notes_on(source)))
        if self.drivers:
            return None
        if not pools:
            notes.append(
                f"{place}: warning: the driver is left to an NVIDIADriver, and none was found: it is not "
                "changed; save it: kubectl get nvidiadrivers -o yaml "
                f"> {self.store.folder.name}/drivers.yaml"
            )
            return None
        return self._together(pools, notes)

    def _upgrades(self, source: Source, section: Item, prefix: str) -> None:
        """The limits and drains of a driver in containers hold for what else changes on its nodes."""
        self.rollout = self.rollout or desired_rollout(source, section, prefix)
        self.drain = self.drain or desired_drain(source, section, prefix)

    def _together(self, pools: list[Pool], notes: list[str]) -> Stack:
        """One driver on its nodes, or several; Nodes next to the file add their own parameters."""
        stack, narrow, nodes = combine(pools, self.store, notes)
        self.for_labels.extend(narrow)
        self.for_nodes.extend(nodes)
        return stack

    def _spec(self, item: Item, file: str = "") -> Item:
        for key, child in item.value.items() if isinstance(item.value, dict) else ():
            if key not in _HEAD:
                self._stray(key, child)
        spec = item.get("spec")
        if spec is None:
            raise PolicyError(
                f"the {item.text('kind')} has no spec", place=f"{file or self.file}:{item.line}"
            )
        return spec

    def _stray(self, key: str, child: Item) -> None:
        """Report an unknown key at the level of ``spec``."""
        is_spec_key = any(
            path.partition(".")[0] == key
            for path in (*fields("clusterpolicy"), *fields("nvidiadriver"))
        )
        error = PolicyError(
            f"unknown key {quote(key)} next to spec, which the API server would silently drop",
            place=f"{self.file}:{child.line}",
            fix=f"move it below spec: spec.{key}"
            if is_spec_key
            else f"supported keys: {', '.join(_HEAD)}",
        )
        if self.strict(child.line):
            raise error
        self.stray.append(f"{error.place}: warning: {error.message}; {error.fix}")

    def _source(self, spec: Item, kind: str, file: str = "") -> Source:
        file = file or self.file
        checker = Checker(file, fields(kind), kind, self.strict, self.release)
        settings = checker.settings(spec)
        for setting in settings:
            value = setting.item.value
            unfilled = documents.placeholder(value, self.file)
            if unfilled is not None and setting.field.support is Support.HONOURED:
                raise PolicyError(
                    f"{setting.path} is {quote(value)}, a placeholder of another program",
                    place=f"{file}:{setting.item.line}",
                    fix=unfilled,
                )
        spec = checker.as_of_release(spec)
        check_companions(self.store, spec, kind)
        notes = checker.notes
        if kind == "helm" and "driver.branch" in checker.unknown:
            raise PolicyError(
                "driver.branch is a key of gpustate's own policies, and without preset or states the file is read as Helm values",
                place=self.file,
                fix='add a preset (kubernetes-node, slurm-node, plain-node), or write the branch as driver.version: "580"',
            )
        if kind == "helm" and checker.unknown and not self.wrapped:
            notes.append(
                f"{file}: read as Helm values of the GPU Operator; a policy of gpustate's own begins with "
                "'format: gpustate.policy/1'"
            )
        settings = tuple(choice.applied(setting, self.choice) for setting in settings)
        source = Source(
            file, spec, settings, self.store, kind, self.release, notes, choice=self.choice
        )
        source.strict = self.strict is always_strict
        return source

    def _is_of_this_chart(self, values: Item) -> None:
        """Refuse values with hardly any key of the chart, which would result in nothing but defaults.

        Raises:
            PolicyError: with the first unknown key.
        """
        error = None if self.wrapped else umbrella.foreign(values, self.file)
        if error is not None:
            raise error

    def _reading(
        self,
        kind: str,
        item: Item,
        source: Source,
        states: tuple[DesiredState, ...],
        on: tuple[str, ...],
        *,
        objects: bool = False,
    ) -> Reading:
        implicit = [name for name in on if source.spec.get(name, "enabled") is None]
        if implicit:
            source.notes.append(
                f"{self.file}: enabled in the Operator by default, and set up {ONLY_WITH_OBJECTS}: "
                f"{', '.join(implicit)}"
            )
        if objects:
            choice.check(self.choice, kind)
            source.in_objects.update(_of_containers(source))
        settings = cluster_settings(source, states, self.drivers) if objects else None
        if settings is not None and not settings.systems:
            settings = replace(settings, systems=tuple(nodelabels.systems(self.store.nodes)))
        notes = (*source.notes, *notes_on(source))
        name = item.text("metadata", "name")
        of_states = (state.rollout for state in states if state.rollout is not None)
        rollout = next(of_states, self.rollout)
        drain = next((state.drain for state in states if state.drain is not None), self.drain)
        nodes = (*self.for_nodes, *source.for_nodes)
        labels = tuple(self.for_labels)
        return Reading(
            kind,
            name,
            states,
            notes,
            for_nodes=nodes,
            for_labels=labels,
            rollout=rollout,
            drain=drain,
            objects=settings,
            unused=source.unused,
        )


def _of_containers(source: Source) -> Iterator[str]:
    """Paths of components that run as containers."""
    for setting in source.settings:
        section = setting.path.partition(".")[0]
        if "upgradePolicy" not in setting.path and source.in_containers(
            {"gds": "driver", "gdrcopy": "driver"}.get(section, section)
        ):
            yield setting.path


def _dra_stack(driver: Stack) -> tuple[DesiredState, ...]:
    """The stack of a node that gets nothing but a driver."""
    validator = DesiredState("validator", {"containers": "none", "handler": "", "cdi": False})
    return (DesiredState("preflight"), *(driver or ()), validator)


def _stack(source: Source, driver: Stack) -> Iterator[DesiredState]:
    """The stack of a ClusterPolicy; without ``driver`` the driver is managed elsewhere."""
    yield DesiredState("preflight")
    if driver is not None:
        yield from driver
    elif source.enabled("driver", otherwise=True):
        pass  # containers, or left to an NVIDIADriver that was not found, which has a note already
    else:
        section = source.spec.get("driver") or source.spec
        source.notes.append(
            f"{source.place(section)}: driver.enabled is false: the driver is managed elsewhere and "
            "not changed"
        )
        source.note_unused("driver.enabled is false", *_OF_DRIVER, exempt=_SWITCHES)
    runtime = () if source.in_containers("toolkit") else tuple(desired_runtime(source))
    yield from runtime
    if not source.in_containers("validator"):
        yield from desired_links(source)
    yield from desired_operands(source)
    yield from desired_metrics(source)
    if not source.in_containers("validator"):
        yield desired_validator(source, runtime)
