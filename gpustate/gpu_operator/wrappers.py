"""Extract the chart's values from files of Flux, Argo CD, Fleet, helmfile, kustomize, k3s and umbrella charts.

A table says where each kind of file has the chart, its release and its values. Values in other files are merged if
these are next to the wrapper; otherwise the file is refused with the command that renders it.

Surprising: a HelmRelease, an Application or a HelmChart of another chart is not a policy, whatever its
values are.

Sources:
    Flux documentation, HelmRelease v2 (valuesFrom, its order). Argo CD documentation, Helm (order of
    valueFiles, values, valuesObject, parameters). k3s-io/helm-controller: HelmChart v1. Rancher Fleet,
    fleet.yaml. helmfile documentation, releases. kubernetes-sigs/kustomize: api/types (HelmChart).
    kubernetes-sigs/cluster-api-addon-provider-helm: HelmChartProxy v1alpha1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpustate.errors import PolicyError
from gpustate.formats.words import quote, quote_name
from gpustate.gpu_operator import history, umbrella
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.merging import EMPTY, assign, merge
from gpustate.gpu_operator.references import ReferenceResolver
from gpustate.gpu_operator.umbrella import ChartValues

_CHART = re.compile(r"(.*/)?(nvidia-)?gpu-operator(-v?[0-9][\w.+-]*)?(\.tgz)?")
_TEMPLATE = "{{"
_AS_INSTALLED = "helm get values gpu-operator -n gpu-operator > values.yaml"


#: Results for a document that is not a wrapper, and for a wrapper of another chart.
NO_WRAPPER, OTHER_CHART = None, False
Found = ChartValues | bool | None


@dataclass(frozen=True, slots=True)
class _Form:
    """Where one kind of file has the values of charts. Paths have dots.

    Args:
        charts, version: paths of the chart's name and version in a release.
        layers: path of values in a release: how they are written; the last takes precedence.
        base: path of the whole document's part with the releases.
        releases: paths of lists of releases, or of one; none: ``base`` is the only one.
        title: of the file; empty for objects.
        command: that renders it.
        refused: path in the document: why it has to be rendered.
        ignored: path in the document: why it is not read.
        otherwise: why it has to be rendered if it has no release of the chart.
    """

    charts: tuple[str, ...]
    version: str
    layers: dict[str, str]
    base: str = ""
    releases: tuple[str, ...] = ()
    title: str = ""
    command: str = _AS_INSTALLED
    refused: dict[str, str] = field(default_factory=dict[str, str])
    ignored: dict[str, str] = field(default_factory=dict[str, str])
    otherwise: str = ""


_APPLICATION = _Form(
    ("chart",),
    "targetRevision",
    {
        "helm.valueFiles": "files",
        "helm.values": "text",
        "helm.valuesObject": "mapping",
        "helm.parameters": "parameters",
    },
    base="spec",
    releases=("sources", "source"),
    command="argocd app manifests {name} > rendered.yaml",
)
_KUSTOMIZATION = _Form(
    ("name",),
    "version",
    {"valuesFile": "files", "additionalValuesFiles": "files", "valuesInline": "mapping"},
    releases=("helmCharts",),
    title="the kustomization",
    command="kubectl kustomize --enable-helm {directory} > rendered.yaml",
    refused=dict.fromkeys(
        ("patches", "patchesStrategicMerge", "patchesJson6902"), "patches the rendered chart"
    ),
    otherwise="refers to other files and contains no policy itself",
)
_KINDS: dict[tuple[str, str], _Form] = {
    ("helm.toolkit.fluxcd.io", "HelmRelease"): _Form(
        ("chart.spec.chart", "chartRef.name"),
        "chart.spec.version",
        {"valuesFrom": "objects", "values": "mapping"},
        base="spec",
    ),
    ("argoproj.io", "Application"): _APPLICATION,
    ("argoproj.io", "ApplicationSet"): replace(_APPLICATION, base="spec.template.spec"),
    ("helm.cattle.io", "HelmChart"): _Form(
        ("chart",), "version", {"valuesContent": "text", "set": "set"}, base="spec"
    ),
    # Extends the HelmChart of the same name.
    ("helm.cattle.io", "HelmChartConfig"): _Form(
        ("metadata.name",), "spec.version", {"spec.valuesContent": "text", "spec.set": "set"}
    ),
    ("addons.cluster.x-k8s.io", "HelmChartProxy"): _Form(
        ("chartName",), "version", {"valuesTemplate": "text"}, base="spec"
    ),
    ("kustomize.config.k8s.io", "Kustomization"): _KUSTOMIZATION,
    ("kustomize.config.k8s.io", "Component"): _KUSTOMIZATION,
}
#: Files without a kind, by a key, and the type of its value.
_FILES: dict[str, tuple[type, _Form]] = {
    **dict.fromkeys(
        ("helmCharts", "patches", "patchesStrategicMerge", "resources"), (list, _KUSTOMIZATION)
    ),
    "releases": (
        list,
        _Form(
            ("chart",),
            "version",
            {"values": "files", "set": "parameters"},
            releases=("releases",),
            title="the helmfile",
            command="helmfile -f {file} template > rendered.yaml",
        ),
    ),
    "helm": (
        dict,
        _Form(
            ("chart",),
            "version",
            {"valuesFiles": "files", "values": "mapping"},
            base="helm",
            title="the fleet.yaml",
            command="fleet apply -o - NAME DIR > rendered.yaml",
            refused={"helm.valuesFrom": "uses values from the cluster (helm.valuesFrom)"},
            ignored={"targetCustomizations": "they apply to single clusters"},
        ),
    ),
}


def unwrap(item: Item, resolver: ReferenceResolver) -> Found:
    """Return the values in a document, ``OTHER_CHART`` or ``NO_WRAPPER``.

    Raises:
        PolicyError: it has to be rendered first, with the command.
    """
    if not isinstance(item.value, dict):
        return NO_WRAPPER
    kind, group = item.text("kind"), item.text("apiVersion").partition("/")[0]
    if kind or group:
        form = _KINDS.get((group, kind))
        title = f"the {kind} {quote_name(item.text('metadata', 'name'))}"
        return _Wrapper(item, resolver, form, title).find() if form is not None else NO_WRAPPER
    for key, (type_, form) in _FILES.items():
        if key in item.value and isinstance(item.value[key].value, type_):
            found = _Wrapper(item, resolver, form, form.title).find()
            if found is not NO_WRAPPER:
                return found
    return umbrella.find_values(item, resolver)


def _at(item: Item, path: str) -> Item | None:
    return item.get(*path.split(".")) if path else item


def _entries(item: Item | None) -> list[Item]:
    """The entries of a list; empty for other values."""
    return item.value if item is not None and isinstance(item.value, list) else []


def _text(item: Item | None) -> str:
    """A scalar as on a command line."""
    if item is None or item.value is None:
        return ""
    return str(item.value).lower() if isinstance(item.value, bool) else str(item.value)


@dataclass(slots=True)
class _Wrapper:
    """One document that may contain values."""

    item: Item
    resolver: ReferenceResolver
    form: _Form
    title: str
    notes: list[str] = field(default_factory=list[str])
    used: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def find(self) -> Found:
        """The values of the first release of the Operator's chart."""
        named = False
        for release in self._releases():
            ours = self._ours(release)
            named = named or ours is not None
            if not ours and not self._is_inside(release, named=ours is False):
                continue
            for path, why in self.form.refused.items():
                refused = _at(self.item, path)
                if refused is not None:
                    raise self._refuse(why, refused)
            for path, why in self.form.ignored.items():
                ignored = _at(self.item, path)
                if ignored is not None:
                    self.notes.append(f"{self._place(ignored)}: warning: {path} are ignored: {why}")
            values = Item({}, release.line)
            for path, how in self.form.layers.items():
                layer = _at(release, path)
                if layer is not None:
                    values = self._merged(values, how, layer)
            return self._checked(values, _at(release, self.form.version), ours)
        if self.form.otherwise:
            raise self._refuse(self.form.otherwise, self.item)
        return NO_WRAPPER if self.form.title and not named else OTHER_CHART

    def _releases(self) -> Iterator[Item]:
        base = _at(self.item, self.form.base) or EMPTY
        for path in self.form.releases:
            listed = _at(base, path)
            yield from _entries(listed) or ([listed] if listed is not None else [])
        if not self.form.releases:
            yield base

    def _ours(self, release: Item) -> bool | None:
        """Whether a release is of the Operator's chart; ``None`` if it names none."""
        names = [one.value for path in self.form.charts if (one := _at(release, path)) is not None]
        texts = [name for name in names if isinstance(name, str)]
        return any(_CHART.fullmatch(text.rstrip("/")) for text in texts) if texts else None

    def _is_inside(self, release: Item, *, named: bool) -> bool:
        """Whether a release without the Operator's chart has values of it."""
        path = next((path for path, how in self.form.layers.items() if how == "mapping"), None)
        values = (_at(release, path) if path else None) or EMPTY
        if umbrella.inner_values(values, self.resolver, named_chart=False) is not None:
            return True
        return not named and umbrella.is_specific(values)

    def _merged(self, values: Item, how: str, layer: Item) -> Item:
        """Values with one more layer."""
        if how == "mapping":
            return merge(values, layer)
        if how == "text":
            if _TEMPLATE in str(layer.value):
                raise self._refuse("has a template in its values", layer)
            return merge(values, self.resolver.values(layer))
        if how == "files":
            for one in _entries(layer) or [layer]:
                values = merge(values, self._of_file(one))
        elif how == "objects":
            for one in _entries(layer):
                values = merge(values, self._of_object(one))
        elif how == "parameters":  # like --set and --set-string
            for one in _entries(layer):
                forced = one.get("forceString")
                typed = forced is None or forced.value is not True
                name, text = one.text("name"), _text(one.get("value"))
                values = assign(values, name, text, one.line, typed=typed)
        elif isinstance(layer.value, dict):
            for path, one in layer.value.items():
                values = assign(values, path, _text(one), one.line, typed=True)
        return values

    def _of_file(self, entry: Item) -> Item:
        """The values of an entry that names a file or is a mapping."""
        if isinstance(entry.value, dict):
            return entry
        found = self.resolver.file_values(str(entry.value)) if entry.value else EMPTY
        if found is None:
            raise self._refuse(
                f"uses the values file {quote(entry.value)}, which was not found", entry
            )
        return found

    def _of_object(self, one: Item) -> Item:
        """The values of one entry of Flux's ``valuesFrom``; none, with a note, if it is optional and missing."""
        kind, name = one.text("kind"), one.text("name")
        key, target = one.text("valuesKey") or "values.yaml", one.text("targetPath")
        namespace = self.item.text("metadata", "namespace")
        entry = self.resolver.entry(kind, name, key, namespace)
        if entry is None:
            optional = one.get("optional")
            what = f"valuesFrom names the {kind} {quote(name)}, which was not found"
            if self.resolver.elsewhere:
                what += (
                    f" in namespace {quote(namespace)}, the only one that Flux reads; there is one of another "
                    f"namespace at {self.resolver.elsewhere[0]}"
                )
            if optional is not None and optional.value is True:
                self.notes.append(f"{self._place(one)}: warning: {what}; it is optional")
                return EMPTY
            raise PolicyError(
                f"{self.title}: {what}",
                place=self._place(one),
                fix=f"save it: kubectl get {kind.lower()} {name} -n {namespace or 'default'} -o yaml > "
                f"{self.resolver.folder}/{name}.yaml",
            )
        self.used.append((kind, name))
        if target:
            return assign(Item({}, one.line), target, entry.text.strip(), one.line, typed=True)
        return self.resolver.values_of(entry)

    def _checked(self, values: Item, version: Item | None, ours: bool | None) -> Found:
        """The values with their wrapper, if they are the chart's."""
        if ours and not isinstance(values.value, dict):
            why = "has values with placeholders of another program"
            raise self._refuse(why, values, _AS_INSTALLED)
        inner = umbrella.inner_values(values, self.resolver, named_chart=ours is not False)
        if inner is None and not ours and (ours is False or not umbrella.is_specific(values)):
            return OTHER_CHART
        text = str(version.value) if version is not None and ours and inner is None else ""
        release = history.release_of_chart(text)
        if text and not release:
            self.notes.append(
                f"{self._place(version or self.item)}: warning: chart version {quote(text)} is not one supported "
                f"release; read for {history.newest()}; override it with --release"
            )
        return ChartValues(inner or values, self.title, release, (*self.notes,), (*self.used,))

    def _place(self, item: Item) -> str:
        return f"{self.resolver.file}:{item.line}"

    def _refuse(self, why: str, item: Item, command: str = "") -> PolicyError:
        filled = (command or self.form.command).format(
            name=self.item.text("metadata", "name"),
            file=self.resolver.name,
            directory=self.resolver.directory,
        )
        return PolicyError(
            f"{self.title} {why}", place=self._place(item), fix=f"render it first: {filled}"
        )
