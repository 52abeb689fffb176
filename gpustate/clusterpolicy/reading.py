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

from gpustate.clusterpolicy import documents, nodelabels, shape
from gpustate.clusterpolicy.asked import ForNode, Source, Wanted, notes_on
from gpustate.clusterpolicy.blocks import Leaves
from gpustate.clusterpolicy.check import Checker
from gpustate.clusterpolicy.companions import Companion, Shelf, found_beside
from gpustate.clusterpolicy.documents import Item
from gpustate.clusterpolicy.driver import wanted_driver
from gpustate.clusterpolicy.gpucluster import GPU_CLUSTER
from gpustate.clusterpolicy.helm import HELM, chart_notes, check_chart, deploys_dra, is_null
from gpustate.clusterpolicy.leaves import CLUSTER_POLICY, NVIDIA_DRIVER
from gpustate.clusterpolicy.machines import with_machines
from gpustate.clusterpolicy.metrics import wanted_metrics
from gpustate.clusterpolicy.operands import wanted_operands
from gpustate.clusterpolicy.runtime import wanted_links, wanted_runtime, wanted_validator
from gpustate.errors import PolicyError
from gpustate.text.words import named, shown

_VALUES = ("helm", "umbrella", "helmrelease")
#: On when nothing is said, and nothing of a node, or without a state yet.
_ON_BY_DEFAULT = ("devicePlugin", "dcgm", "dcgmExporter")
_OF_DRIVER = ("driver.", "gds.", "gdrcopy.")
#: What an object may have at its top.
_HEAD = ("apiVersion", "kind", "metadata", "spec", "status")
_SWITCHES = ("driver.enabled", "driver.useNvidiaDriverCRD")
#: Labels that every node with a GPU has; a selector of these selects all.
_EVERY_NODE = {"nvidia.com/gpu.present": "true", "kubernetes.io/os": "linux"}


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
        pace: what a batch of nodes must not exceed.
    """

    kind: str
    name: str
    wanted: tuple[Wanted, ...]
    notes: tuple[str, ...]
    companions: tuple[tuple[str, Companion], ...] = ()
    for_nodes: tuple[ForNode, ...] = ()
    pace: tuple[str, ...] = ()


def read(text: str, file: str, *, strict: bool = True) -> Reading:
    """Read the text of an Operator file.

    Args:
        text: all of it.
        file: its path, for places, and for the folder of ConfigMaps beside it.
        strict: unknown keys are errors; otherwise they become notes.

    Raises:
        PolicyError: it is none of the known kinds, or something in it is wrong.
    """
    reader = _Reader(file, strict, sort(text, file))
    reading = reader.read()
    return replace(
        reading, notes=(*reading.notes, *reader.beside()), companions=tuple(reader.companions)
    )


def sort(text: str, file: str) -> dict[str, list[Item]]:
    """The documents of a file by kind.

    Raises:
        PolicyError: there are none, or one of them only looks like one of the Operator's.
    """
    by_kind: dict[str, list[Item]] = {}
    found = documents.read(text, file)
    if not found:
        raise PolicyError("is empty, wanted a policy", place=file)
    for item in found:
        kind = shape.kind(item, file)
        by_kind.setdefault("helm" if kind in _VALUES else kind, []).append(
            shape.values(item, kind) if kind in _VALUES else item
        )
    return by_kind


@dataclass(slots=True)
class _Reader:
    """Reads the documents of one file, sorted by kind."""

    file: str
    strict: bool
    by_kind: dict[str, list[Item]]
    shelf: Shelf = field(init=False)
    companions: list[tuple[str, Companion]] = field(default_factory=list[tuple[str, Companion]])
    stray: list[str] = field(default_factory=list[str])

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
            return self._nvidia_driver_alone()
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
        driver: Wanted | None = None
        if source.enabled("driver", otherwise=True):
            section = source.spec.get("driver") or source.spec
            if crd is not None and crd.value:
                driver = self._nvidia_driver(source, crd)
                source.not_used("the NVIDIADriver says it", *_OF_DRIVER, but=_SWITCHES)
            else:
                driver = wanted_driver(source, section, "driver.")
        if drivers and (crd is None or not crd.value):
            source.notes.append(
                f"{self.file}:{drivers[0].line}: an NVIDIADriver, which driver.useNvidiaDriverCRD "
                "does not ask for"
            )
        wanted = with_machines(source, lambda: _stack(source, driver))
        return self._reading("clusterpolicy", item, source, wanted, _ON_BY_DEFAULT)

    def _gpu_cluster(self, item: Item) -> Reading:
        source = self._source(self._spec(item), GPU_CLUSTER, "gpucluster")
        driver = None
        if "nvidiadriver" in self.by_kind:
            driver = self._nvidia_driver(source, item)
        else:
            source.notes.append(
                f"{source.place(item)}: no NVIDIADriver in this file: the driver is somebody else's "
                "and stays as it is"
            )
        wanted = (*_dra_stack(driver), *wanted_metrics(source))
        return self._reading("gpucluster", item, source, wanted, ())

    def _helm(self, item: Item) -> Reading:
        source = self._source(item, HELM, "helm")
        left_to_crd = check_chart(source)
        driver = None
        if left_to_crd is not None:
            driver = self._nvidia_driver(source, left_to_crd)
            source.not_used("the NVIDIADriver says it", *_OF_DRIVER, but=_SWITCHES)
        elif source.enabled("driver", otherwise=True):
            section = source.spec.get("driver") or source.spec
            driver = wanted_driver(source, section, "driver.")
        source.notes.extend(chart_notes(source))
        if deploys_dra(source):
            source.not_used(
                "a GPUCluster has none of it", "toolkit.", "cdi.", "operator.runtimeClass"
            )
            wanted = (*_dra_stack(driver), *wanted_metrics(source))
            return self._reading("helm", item, source, wanted, ())
        wanted = with_machines(source, lambda: _stack(source, driver))
        # dcgm is off in the chart, as long as nobody takes that away with null.
        on = tuple(n for n in _ON_BY_DEFAULT if n != "dcgm" or is_null(item, "dcgm.enabled"))
        return self._reading("helm", item, source, wanted, on)

    def _nvidia_driver_alone(self) -> Reading:
        item = self._one_driver(None)
        source = self._source(self._spec(item), NVIDIA_DRIVER, "nvidiadriver")
        driver = self._driver_of(source)
        return self._reading("nvidiadriver", item, source, _dra_stack(driver), ())

    def _nvidia_driver(self, policy: Source, crd: Item) -> Wanted:
        """The driver of the NVIDIADriver that ``crd`` asks for; its notes go to the policy's."""
        item = self._one_driver(policy.place(crd))
        source = self._source(self._spec(item), NVIDIA_DRIVER, "nvidiadriver")
        driver = self._driver_of(source)
        policy.notes.extend((*source.notes, *notes_on(source)))
        return driver

    def _one_driver(self, place: str | None) -> Item:
        drivers = self.by_kind.get("nvidiadriver", [])
        if not drivers:
            raise PolicyError(
                "the driver is left to an NVIDIADriver, and there is none in this file",
                place=place,
                fix="add it to the file as a document of its own, after a line '---'",
            )
        if len(drivers) > 1:
            raise PolicyError(
                f"a second NVIDIADriver, the first is in line {drivers[0].line}; which nodes each "
                "is for depends on labels, which an inventory does not have",
                place=f"{self.file}:{drivers[1].line}",
                fix="make a file of each and choose the nodes with --limit",
            )
        return drivers[0]

    def _driver_of(self, source: Source) -> Wanted:
        spec = source.spec
        driver_type = spec.get("driverType")
        if driver_type is not None and driver_type.value != "gpu":
            raise PolicyError(
                f"driverType {driver_type.value!r} has no state yet, wanted 'gpu'",
                place=source.place(driver_type),
            )
        selector = spec.get("nodeSelector")
        affinity = spec.get("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        narrow = selector is not None and set(documents.plain(selector).items()) - set(
            _EVERY_NODE.items()
        )
        if narrow or affinity is not None:
            chosen = selector if narrow else affinity
            raise PolicyError(
                f"{'nodeSelector' if narrow else 'nodeAffinity'} chooses nodes by labels, which an "
                "inventory does not have; all its nodes would get this driver",
                place=source.place(chosen or spec),
                fix="take it away and choose the nodes with --limit",
            )
        return wanted_driver(source, spec, "")

    def _spec(self, item: Item) -> Item:
        for key, child in item.value.items() if isinstance(item.value, dict) else ():
            if key not in _HEAD:
                self._stray(key, child)
        spec = item.get("spec")
        if spec is None:
            raise PolicyError(
                f"the {item.text('kind')} has no spec", place=f"{self.file}:{item.line}"
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
        if self.strict:
            raise error
        self.stray.append(f"{error.place}: {error.message}; {error.fix}")

    def _source(self, spec: Item, leaves: Leaves, kind: str) -> Source:
        checker = Checker(self.file, leaves, kind, self.strict)
        settings = checker.settings(spec)
        self.companions.extend(found_beside(self.shelf, spec, kind))
        return Source(self.file, spec, settings, self.shelf, kind, checker.notes)

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
        return Reading(kind, name, wanted, notes, for_nodes=tuple(source.for_nodes), pace=pace)


def _driver_stack(driver: Wanted) -> Iterator[Wanted]:
    yield Wanted("nouveau")
    yield Wanted("driver-repository")
    yield driver
    yield from driver.beside
    yield Wanted("persistenced")
    yield Wanted("nvlsm")
    yield Wanted("fabric-manager")  # the driver container starts it too, where there are NVSwitches


def _dra_stack(driver: Wanted | None) -> tuple[Wanted, ...]:
    """What is left for a node where nothing but a driver is set up."""
    validator = Wanted("validator", {"containers": "none", "handler": "", "cdi": False})
    return (Wanted("preflight"), *(_driver_stack(driver) if driver is not None else ()), validator)


def _stack(source: Source, driver: Wanted | None) -> Iterator[Wanted]:
    """The whole stack of a ClusterPolicy; without ``driver`` the driver is somebody else's."""
    root = source.spec.get("hostPaths", "rootFS")
    if root is not None and root.value not in ("", "/"):
        source.notes.append(
            f"{source.place(root)}: not carried out: hostPaths.rootFS: gpustate works on the node "
            "itself, whose root is /"
        )
    yield Wanted("preflight")
    if driver is not None:
        yield from _driver_stack(driver)
    else:
        section = source.spec.get("driver") or source.spec
        source.notes.append(
            f"{source.place(section)}: driver.enabled is false: the driver is somebody else's and "
            "stays as it is"
        )
        source.not_used("driver.enabled is false", *_OF_DRIVER, but=_SWITCHES)
    runtime = tuple(wanted_runtime(source))
    yield from runtime
    yield from wanted_links(source)
    yield from wanted_operands(source)
    yield from wanted_metrics(source)
    yield wanted_validator(source, runtime)
