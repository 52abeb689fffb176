"""From the text of an Operator file to the states it asks for.

Recognised by their content, not by the file's name: a ClusterPolicy (``nvidia.com/v1``), an
NVIDIADriver or a GPUCluster (``nvidia.com/v1alpha1``), Helm values (no ``apiVersion`` and no
``kind``). ConfigMaps and Secrets that they name are looked for in the same file and beside it.

A ``nil`` is not a ``false``: a component whose ``enabled`` is missing is on or off as the Operator
has it, and the defaults the API server would fill in hold here too.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go, the ``IsEnabled`` methods;
    internal/validator: what an NVIDIADriver may not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpustate.errors import PolicyError
from gpustate.formats.words import named, shown
from gpustate.gpu_operator import documents, history, nodelabels, shape, umbrella
from gpustate.gpu_operator.asked import ForLabels, ForNode, Source, Wanted, notes_on
from gpustate.gpu_operator.beside import Beside
from gpustate.gpu_operator.blocks import Fate, Leaves
from gpustate.gpu_operator.check import Checker, Strict, nowhere
from gpustate.gpu_operator.companions import Companion, Shelf, found_beside
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.driver import wanted_driver
from gpustate.gpu_operator.gpucluster import GPU_CLUSTER
from gpustate.gpu_operator.helm import (
    HELM,
    chart_notes,
    chart_selector,
    check_chart,
    deploys_dra,
    is_null,
)
from gpustate.gpu_operator.leaves import CLUSTER_POLICY, NVIDIA_DRIVER
from gpustate.gpu_operator.machines import with_machines
from gpustate.gpu_operator.metrics import wanted_metrics
from gpustate.gpu_operator.operands import wanted_operands
from gpustate.gpu_operator.parts import parts
from gpustate.gpu_operator.pools import (
    Pool,
    condition_of,
    driver_stack,
    of_selector,
    together,
)
from gpustate.gpu_operator.runtime import wanted_links, wanted_runtime, wanted_validator

#: On when nothing is said, and nothing of a node, or without a state yet.
_ON_BY_DEFAULT = ("devicePlugin", "dcgm", "dcgmExporter")
_OF_DRIVER = ("driver.", "gds.", "gdrcopy.")
_FLUX_RENDERS = "render it first: flux envsubst --strict < FILE > rendered.yaml"
#: What an object may have at its top.
_HEAD = ("apiVersion", "kind", "metadata", "spec", "status")
_SWITCHES = ("driver.enabled", "driver.useNvidiaDriverCRD")
#: The states of a driver; ``None``: it is not managed here.
Stack = tuple[Wanted, ...] | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file asks for.

    Args:
        kind: ``clusterpolicy``, ``nvidiadriver``, ``gpucluster`` or ``helm``.
        name: ``metadata.name``; empty for Helm values.
        wanted: the states.
        notes: everything else the file says, each with its place.
        companions: ConfigMaps and Secrets that were found, by the path of the key that names each.
        for_nodes: parameters that labels of single nodes give to states, in their order.
        for_labels: the same for nodes with labels, by NVIDIADriver.
        pace: what a batch of nodes must not exceed.
        release: of the Operator that it was read for, as it is tagged.
    """

    kind: str
    name: str
    wanted: tuple[Wanted, ...]
    notes: tuple[str, ...]
    companions: tuple[tuple[str, Companion], ...] = ()
    for_nodes: tuple[ForNode, ...] = ()
    for_labels: tuple[ForLabels, ...] = ()
    pace: tuple[str, ...] = ()
    release: str = ""


def read(text: str, file: str, *, strict: Strict = nowhere, release: str = "") -> Reading:
    """Read the text of an Operator file.

    Args:
        text: all of it.
        file: its path, for places, and for the folder of ConfigMaps beside it.
        strict: in which lines unknown keys are errors; in the others they become notes, as the Operator
            runs such a file.
        release: of the Operator; where nobody says it, that of the wrapper, else the newest known.

    Raises:
        PolicyError: it is none of the known kinds, or something in it is wrong.
    """
    found = parts(text, file)
    beside = Beside(file)
    if beside.is_patch:
        raise PolicyError(
            "is a patch of a kustomization: by itself it leaves out what the object has beside it",
            place=f"{file}:{found[0].item.line}",
            fix=f"render it first: kubectl kustomize {beside.directory} > rendered.yaml",
        )
    by_kind: dict[str, list[Item]] = {}
    for one in found:
        by_kind.setdefault(one.kind, []).append(one.item)
    said = next((one.release for one in found if one.release), "")
    wrapped = [one.held for one in found if one.held is not None]
    reader = _Reader(file, strict, by_kind, release or said or history.newest(), bool(wrapped))
    reader.shelf.used.update(one for held in wrapped for one in held.used)
    reading = reader.read()
    above = [note for held in wrapped for note in held.notes]
    if said and not release and said != history.newest():
        above.append(
            f"{file}: read as for {said} of the Operator, which the file says; --release says another one"
        )
    notes = (*above, *reading.notes, *reader.beside())
    return replace(
        reading, notes=notes, companions=tuple(reader.companions), release=reader.release
    )


@dataclass(slots=True)
class _Reader:
    """Reads the documents of one file, sorted by kind."""

    file: str
    strict: Strict
    by_kind: dict[str, list[Item]]
    release: str
    wrapped: bool = False
    shelf: Shelf = field(init=False)
    companions: list[tuple[str, Companion]] = field(default_factory=list[tuple[str, Companion]])
    stray: list[str] = field(default_factory=list[str])
    for_nodes: list[ForNode] = field(default_factory=list[ForNode])
    for_labels: list[ForLabels] = field(default_factory=list[ForLabels])

    def __post_init__(self) -> None:
        beside = (*self.by_kind.get("configmap", ()), *self.by_kind.get("secret", ()))
        self.shelf = Shelf(self.file, beside, own_nodes=tuple(self.by_kind.get("node", ())))

    def beside(self) -> Iterator[str]:
        """Note the objects in the file that nothing asked for."""
        yield from self.stray
        yield from nodelabels.notes(self.shelf.nodes, workloads=self.shelf.workloads)
        for kind in ("configmap", "secret", "other"):
            for item in self.by_kind.get(kind, ()):
                name = item.text("metadata", "name")
                if (item.text("kind"), name) not in self.shelf.used:
                    yield (
                        f"{self.file}:{item.line}: not read: {named(item.text('kind'))} {shown(name)}, "
                        "which no key of the policy names"
                    )

    def read(self) -> Reading:
        for kind in ("clusterpolicy", "gpucluster", "helm"):
            self._only_one(kind)
        here = [kind for kind in ("clusterpolicy", "gpucluster", "helm") if kind in self.by_kind]
        if len(here) > 1:
            names = {"clusterpolicy": "a ClusterPolicy", "gpucluster": "a GPUCluster"}
            first, second = (names.get(kind, "Helm values") for kind in here[:2])
            raise PolicyError(
                f"holds {first} and {second}, wanted one of them",
                place=f"{self.file}:{self.by_kind[here[1]][0].line}",
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
                "holds no policy, only what one names",
                place=self.file,
                fix=f"put it into the folder {self.shelf.folder.name} of the policy's file; gpustate lint "
                "and gpustate mig plan read it alone",
            )
        kinds = sorted({item.text("kind") for items in self.by_kind.values() for item in items})
        told = ", ".join(map(named, kinds[:5])) + (", ..." if len(kinds) > 5 else "")
        raise PolicyError(f"holds no policy, only {told}", place=self.file, fix=shape.WANTED)

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
        source = self._source(self._spec(item), CLUSTER_POLICY, "clusterpolicy")
        crd = source.spec.get("driver", "useNvidiaDriverCRD")
        drivers = self.by_kind.get("nvidiadriver", [])
        driver: Stack = None
        if source.enabled("driver", otherwise=True):
            section = source.spec.get("driver") or source.spec
            if crd is not None and crd.value:
                driver = self._pools(source.notes, source.place(crd))
                source.not_used("the NVIDIADriver says it", *_OF_DRIVER, but=_SWITCHES)
            else:
                driver = driver_stack(wanted_driver(source, section, "driver."))
        if drivers and (crd is None or not crd.value):
            source.notes.append(
                f"{self.file}:{drivers[0].line}: an NVIDIADriver, which driver.useNvidiaDriverCRD "
                "does not ask for"
            )
        wanted = with_machines(source, lambda: _stack(source, driver))
        return self._reading("clusterpolicy", item, source, wanted, _ON_BY_DEFAULT)

    def _gpu_cluster(self, item: Item) -> Reading:
        source = self._source(self._spec(item), GPU_CLUSTER, "gpucluster")
        driver: Stack = None
        if "nvidiadriver" in self.by_kind or self.shelf.beside_of("NVIDIADriver"):
            driver = self._pools(source.notes, None)
        else:
            source.notes.append(
                f"{source.place(item)}: no NVIDIADriver in this file: the driver is managed elsewhere "
                "and stays as it is"
            )
        wanted = (*_dra_stack(driver), *wanted_metrics(source))
        return self._reading("gpucluster", item, source, wanted, ())

    def _helm(self, item: Item) -> Reading:
        source = self._source(item, HELM, "helm")
        self._is_of_this_chart(item)
        left_to_crd = check_chart(source)
        driver: Stack = None
        if left_to_crd is not None:
            driver = self._pools(source.notes, source.place(left_to_crd))
            source.not_used("the NVIDIADriver says it", *_OF_DRIVER, but=_SWITCHES)
        elif source.enabled("driver", otherwise=True):
            section = source.spec.get("driver") or source.spec
            driver = driver_stack(wanted_driver(source, section, "driver."))
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
            source.not_used(
                "a GPUCluster has none of it", "toolkit.", "cdi.", "operator.runtimeClass"
            )
            wanted = (*_dra_stack(driver), *wanted_metrics(source))
            return self._reading("helm", item, source, wanted, ())
        wanted = with_machines(source, lambda: _stack(source, driver))
        # dcgm is off in the chart, as long as nobody removes that with null.
        of_chart = bool(source.of_chart("dcgm.enabled"))
        on = tuple(
            n for n in _ON_BY_DEFAULT if n != "dcgm" or of_chart or is_null(item, "dcgm.enabled")
        )
        return self._reading("helm", item, source, wanted, on)

    def _nvidia_drivers_alone(self) -> Reading:
        own: list[str] = []
        stack = self._pools(own, None)
        item = self.by_kind["nvidiadriver"][0]
        source = Source(self.file, item, (), self.shelf, "nvidiadriver", self.release, own)
        return self._reading("nvidiadriver", item, source, _dra_stack(stack), ())

    def _pools(self, notes: list[str], asked: str | None) -> Stack:
        """The driver's states, as the NVIDIADrivers of the file and its folder have them.

        Args:
            notes: filled with theirs.
            asked: where the policy leaves the driver to them.
        """
        here = [(self.file, item) for item in self.by_kind.get("nvidiadriver", [])]
        pools: list[Pool] = []
        for file, item in (*here, *self.shelf.beside_of("NVIDIADriver")):
            spec = self._spec(item, file)
            source = self._source(spec, NVIDIA_DRIVER, "nvidiadriver", file)
            kind = spec.get("driverType")
            if kind is not None and kind.value != "gpu":
                raise PolicyError(
                    f"driverType {kind.value!r} has no state yet, wanted 'gpu'",
                    place=source.place(kind),
                )
            states = driver_stack(wanted_driver(source, spec, ""))
            pools.append(Pool(states, condition_of(source), f"{file}:{item.line}"))
            notes.extend((*source.notes, *notes_on(source)))
        if not pools:
            notes.append(
                f"{asked}: warning: the driver is left to an NVIDIADriver, and there is none beside the "
                "file: the driver stays as it is; kubectl get nvidiadrivers -o yaml "
                f"> {self.shelf.folder.name}/drivers.yaml puts it there"
            )
            return None
        return self._together(pools, notes)

    def _together(self, pools: list[Pool], notes: list[str]) -> Stack:
        """One driver on its nodes, or several side by side; Nodes beside the file have their own word."""
        stack, narrow, nodes = together(pools, self.shelf, notes)
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
        """A key beside ``spec``, where the schema has none."""
        known = any(path.partition(".")[0] == key for path in (*CLUSTER_POLICY, *NVIDIA_DRIVER))
        error = PolicyError(
            f"unknown key {shown(key)} beside spec, which the API server would drop in silence",
            place=f"{self.file}:{child.line}",
            fix=f"move it below spec: spec.{key}" if known else f"known here: {', '.join(_HEAD)}",
        )
        if self.strict(child.line):
            raise error
        self.stray.append(f"{error.place}: warning: {error.message}; {error.fix}")

    def _source(self, spec: Item, leaves: Leaves, kind: str, file: str = "") -> Source:
        file = file or self.file
        checker = Checker(file, leaves, kind, self.strict, self.release)
        settings = checker.settings(spec)
        for one in settings:
            value = one.item.value
            unfilled = documents.UNFILLED.search(value) if isinstance(value, str) else None
            if unfilled is not None and one.leaf.fate is Fate.HONOURED:
                raise PolicyError(
                    f"{one.path} is {shown(value)}, which another program fills in",
                    place=f"{file}:{one.item.line}",
                    fix=_FLUX_RENDERS if unfilled[0][0] == "$" else documents.rendering(self.file),
                )
        spec = checker.known(spec)
        self.companions.extend(found_beside(self.shelf, spec, kind))
        notes = checker.notes
        return Source(file, spec, settings, self.shelf, kind, self.release, notes)

    def _is_of_this_chart(self, values: Item) -> None:
        """Refuse values of which hardly a key is the chart's: with them everything would be default.

        Raises:
            PolicyError: naming the first key that is not.
        """
        error = None if self.wrapped else umbrella.foreign(values, self.file)
        if error is not None:
            raise error

    def _reading(
        self, kind: str, item: Item, source: Source, wanted: tuple[Wanted, ...], on: tuple[str, ...]
    ) -> Reading:
        silent = [name for name in on if source.spec.get(name, "enabled") is None]
        if silent:
            source.notes.append(
                f"{self.file}: on in the Operator when nothing is said, and not set up here: "
                f"{', '.join(silent)}"
            )
        notes = (*source.notes, *notes_on(source))
        name = item.text("metadata", "name")
        pace = next((one.pace for one in wanted if one.pace), ())
        nodes = (*self.for_nodes, *source.for_nodes)
        labels = tuple(self.for_labels)
        return Reading(kind, name, wanted, notes, for_nodes=nodes, for_labels=labels, pace=pace)


def _dra_stack(driver: Stack) -> tuple[Wanted, ...]:
    """What is left for a node where nothing but a driver is set up."""
    validator = Wanted("validator", {"containers": "none", "handler": "", "cdi": False})
    return (Wanted("preflight"), *(driver or ()), validator)


def _stack(source: Source, driver: Stack) -> Iterator[Wanted]:
    """The whole stack of a ClusterPolicy; without ``driver`` the driver is managed elsewhere."""
    root = source.spec.get("hostPaths", "rootFS")
    if root is not None and root.value not in ("", "/"):
        source.notes.append(
            f"{source.place(root)}: not carried out: hostPaths.rootFS: gpustate works on the node "
            "itself, whose root is /"
        )
    yield Wanted("preflight")
    if driver is not None:
        yield from driver
    elif source.enabled("driver", otherwise=True):
        pass  # left to an NVIDIADriver that is not beside the file, of which there is a note already
    else:
        section = source.spec.get("driver") or source.spec
        source.notes.append(
            f"{source.place(section)}: driver.enabled is false: the driver is managed elsewhere and "
            "stays as it is"
        )
        source.not_used("driver.enabled is false", *_OF_DRIVER, but=_SWITCHES)
    runtime = tuple(wanted_runtime(source))
    yield from runtime
    yield from wanted_links(source)
    yield from wanted_operands(source)
    yield from wanted_metrics(source)
    yield wanted_validator(source, runtime)
