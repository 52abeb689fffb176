"""Extract the chart's values from files of Flux, Argo CD, Fleet, helmfile, kustomize, k3s and umbrella charts.

The chart and its release are read from the wrapper too. Values in other files are merged if these are next
to the wrapper; otherwise the file is refused with the command that renders it.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpustate.errors import PolicyError
from gpustate.formats.words import quote, quote_name
from gpustate.gpu_operator import history, umbrella
from gpustate.gpu_operator.chart_values import ChartValues
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.merging import EMPTY, assign, merge
from gpustate.gpu_operator.references import ReferenceResolver

_CHART = re.compile(r"(.*/)?(nvidia-)?gpu-operator(-v?[0-9][\w.+-]*)?(\.tgz)?")
_TEMPLATE = "{{"
_FLEET = ("helm",)
_AS_INSTALLED = "helm get values gpu-operator -n gpu-operator > values.yaml"


#: Results for a document that is not a wrapper, and for a wrapper of another chart.
NO_WRAPPER, OTHER_CHART = None, False
Found = ChartValues | bool | None


def unwrap(item: Item, resolver: ReferenceResolver) -> Found:
    """Return the values in a document, ``OTHER_CHART`` or ``NO_WRAPPER``.

    Raises:
        PolicyError: it has to be rendered first, with the command.
    """
    if not isinstance(item.value, dict):
        return NO_WRAPPER
    kind, group = item.text("kind"), item.text("apiVersion").partition("/")[0]
    reader = _KINDS.get((group, kind))
    if reader is not None:
        return reader(
            _Wrapper(item, resolver, f"the {kind} {quote_name(item.text('metadata', 'name'))}")
        )
    if kind or item.text("apiVersion"):
        return NO_WRAPPER
    for key, of_file in _FILES.items():
        found = item.get(*key)
        if found is not None and isinstance(found.value, dict if key == _FLEET else list):
            held = of_file(_Wrapper(item, resolver, _NAMES[key]))
            if held is not NO_WRAPPER:
                return held
    return umbrella.find_values(item, resolver)


@dataclass(slots=True)
class _Wrapper:
    """One document that may contain values."""

    item: Item
    resolver: ReferenceResolver
    title: str

    def place(self, item: Item | None = None) -> str:
        return f"{self.resolver.file}:{(item or self.item).line}"

    def refuse(self, why: str, command: str, item: Item | None = None) -> PolicyError:
        return PolicyError(
            f"{self.title} {why}", place=self.place(item), fix=f"render it first: {command}"
        )

    def ours(self, *names: Item | None) -> bool | None:
        """Whether one of the names is that of the Operator's chart; ``None`` without a name."""
        texts = [one.value for one in names if one is not None and isinstance(one.value, str)]
        if not texts:
            return None
        return any(_CHART.fullmatch(text.rstrip("/")) for text in texts)

    def held(self, values: Item, version: Item | None, ours: bool | None) -> Found:
        """The values with their wrapper, if they are the chart's."""
        if ours and not isinstance(values.value, dict):
            raise self.refuse(
                "has values with placeholders of another program",
                _AS_INSTALLED,
                values,
            )
        inner = umbrella.inner_values(values, self.resolver, named_chart=ours is not False)
        if inner is None and (ours is False or (ours is None and not umbrella.is_specific(values))):
            return OTHER_CHART
        notes: list[str] = []
        text = str(version.value) if version is not None and ours and inner is None else ""
        release = history.release_of_chart(text)
        if text and not release:
            notes.append(
                f"{self.place(version)}: warning: chart version {quote(text)} is not one supported release; "
                f"read for {history.newest()}; override it with --release"
            )
        return ChartValues(inner or values, self.title, release, tuple(notes))

    def text_of(self, item: Item, command: str) -> Item:
        """Values embedded as text in the document."""
        if _TEMPLATE in str(item.value):
            raise self.refuse("has a template in its values", command, item)
        return self.resolver.values(item)

    def files(self, entries: Sequence[Item], command: str, line: int) -> Item:
        """Merged values of files and mappings, the last taking precedence."""
        values = Item({}, line)
        for one in entries:
            found: Item | None = one
            if not isinstance(one.value, dict):
                found = self.resolver.file_values(str(one.value))
            if found is None:
                raise self.refuse(
                    f"uses the values file {quote(one.value)}, which was not found",
                    command,
                    one,
                )
            values = merge(values, found)
        return values


def _entries(item: Item | None) -> list[Item]:
    """The entries of a list; empty for other values."""
    return item.value if item is not None and isinstance(item.value, list) else []


def _with_parameters(values: Item, parameters: Item | None) -> Item:
    """Set entries of name and value in values, like ``--set`` and ``--set-string``."""
    for one in _entries(parameters):
        forced = one.get("forceString")
        typed = forced is None or forced.value is not True
        values = assign(values, one.text("name"), _text(one.get("value")), one.line, typed=typed)
    return values


def _text(item: Item | None) -> str:
    """A scalar as on a command line."""
    if item is None or item.value is None:
        return ""
    return str(item.value).lower() if isinstance(item.value, bool) else str(item.value)


def _helm_release(wrapper: _Wrapper) -> Found:
    item = wrapper.item
    spec = item.get("spec") or EMPTY
    ours = wrapper.ours(spec.get("chart", "spec", "chart"), spec.get("chartRef", "name"))
    own = spec.get("values") or Item({}, item.line)
    if ours is False and umbrella.inner_values(own, wrapper.resolver, named_chart=False) is None:
        return OTHER_CHART
    lower = Item({}, item.line)
    notes: list[str] = []
    used: list[tuple[str, str]] = []
    for one in _entries(spec.get("valuesFrom")):
        found = _values_from(wrapper, one)
        if isinstance(found, str):
            notes.append(found)
        else:
            lower = merge(lower, found)
            used.append((one.text("kind"), one.text("name")))
    held = wrapper.held(merge(lower, own), spec.get("chart", "spec", "version"), ours)
    if isinstance(held, ChartValues):
        return replace(held, notes=(*notes, *held.notes), used=tuple(used))
    return held


def _values_from(wrapper: _Wrapper, one: Item) -> Item | str:
    """The values of one entry of ``valuesFrom``, or the note that it is optional and missing."""
    kind, name = one.text("kind"), one.text("name")
    key, target = one.text("valuesKey") or "values.yaml", one.text("targetPath")
    namespace = wrapper.item.text("metadata", "namespace")
    entry = wrapper.resolver.entry(kind, name, key, namespace)
    if entry is None:
        optional = one.get("optional")
        what = f"valuesFrom names the {kind} {quote(name)}, which was not found"
        if wrapper.resolver.elsewhere:
            what += (
                f" in namespace {quote(namespace)}, the only one that Flux reads; there is one of another "
                f"namespace at {wrapper.resolver.elsewhere[0]}"
            )
        if optional is not None and optional.value is True:
            return f"{wrapper.place(one)}: warning: {what}; it is optional"
        raise PolicyError(
            f"{wrapper.title}: {what}",
            place=wrapper.place(one),
            fix=f"save it: kubectl get {kind.lower()} {name} -n {namespace or 'default'} -o yaml > "
            f"{wrapper.resolver.folder}/{name}.yaml",
        )
    if target:
        return assign(Item({}, one.line), target, entry.text.strip(), one.line, typed=True)
    return wrapper.resolver.values_of(entry)


def _application(wrapper: _Wrapper) -> Found:
    spec = wrapper.item.get("spec") or EMPTY
    if wrapper.item.text("kind") == "ApplicationSet":
        spec = spec.get("template", "spec") or EMPTY
    sources = [*_entries(spec.get("sources")), *filter(None, (spec.get("source"),))]
    command = f"argocd app manifests {wrapper.item.text('metadata', 'name')} > rendered.yaml"
    for source in sources:
        helm = source.get("helm") or EMPTY
        ours = wrapper.ours(source.get("chart"))
        inline = helm.get("valuesObject") or EMPTY
        inside = umbrella.inner_values(inline, wrapper.resolver, named_chart=False) is not None
        if not ours and not inside:
            continue
        values = wrapper.files(_entries(helm.get("valueFiles")), command, source.line)
        text = helm.get("values")
        if text is not None:
            values = merge(values, wrapper.text_of(text, command))
        values = _with_parameters(merge(values, inline), helm.get("parameters"))
        return wrapper.held(values, source.get("targetRevision"), ours)
    return OTHER_CHART


def _helm_chart(wrapper: _Wrapper) -> Found:
    """k3s: a HelmChart, or the HelmChartConfig that extends the one of the same name."""
    item = wrapper.item
    spec = item.get("spec") or EMPTY
    names = [spec.get("chart")]
    if item.text("kind") == "HelmChartConfig":
        names = [item.get("metadata", "name")]
    ours = wrapper.ours(*names)
    if not ours:
        return OTHER_CHART
    text = spec.get("valuesContent")
    values = wrapper.text_of(text, _AS_INSTALLED) if text is not None else Item({}, item.line)
    lower = spec.get("set")
    low = Item({}, item.line)
    for path, one in (
        lower.value.items() if lower is not None and isinstance(lower.value, dict) else ()
    ):
        low = assign(low, path, _text(one), one.line, typed=True)
    return wrapper.held(merge(values, low), spec.get("version"), ours)


def _proxy(wrapper: _Wrapper) -> Found:
    spec = wrapper.item.get("spec") or EMPTY
    ours = wrapper.ours(spec.get("chartName"))
    if not ours:
        return OTHER_CHART
    text = spec.get("valuesTemplate")
    values = Item({}, wrapper.item.line)
    if text is not None:
        values = wrapper.text_of(text, _AS_INSTALLED)
    return wrapper.held(values, spec.get("version"), ours)


def _fleet(wrapper: _Wrapper) -> Found:
    helm = wrapper.item.get("helm") or EMPTY
    ours = wrapper.ours(helm.get("chart"))
    values = helm.get("values") or Item({}, helm.line)
    if not ours and umbrella.inner_values(values, wrapper.resolver, named_chart=False) is None:
        return OTHER_CHART if helm.get("chart") is not None else NO_WRAPPER
    command = "fleet apply -o - NAME DIR > rendered.yaml"
    lower = wrapper.files(_entries(helm.get("valuesFiles")), command, helm.line)
    if helm.get("valuesFrom") is not None:
        raise wrapper.refuse("uses values from the cluster (helm.valuesFrom)", command, helm)
    held = wrapper.held(merge(lower, values), helm.get("version"), ours)
    customised = wrapper.item.get("targetCustomizations")
    if isinstance(held, ChartValues) and customised is not None:
        note = (
            f"{wrapper.place(customised)}: warning: targetCustomizations are ignored: they apply to "
            "single clusters"
        )
        return replace(held, notes=(*held.notes, note))
    return held


def _helmfile(wrapper: _Wrapper) -> Found:
    releases = wrapper.item.get("releases")
    if releases is None or not isinstance(releases.value, list):
        return NO_WRAPPER
    command = f"helmfile -f {wrapper.resolver.name} template > rendered.yaml"
    for release in releases.value:
        ours = wrapper.ours(release.get("chart"))
        if not ours:
            continue
        values = wrapper.files(_entries(release.get("values")), command, release.line)
        values = _with_parameters(values, release.get("set"))
        return wrapper.held(values, release.get("version"), ours)
    return OTHER_CHART


def _kustomization(wrapper: _Wrapper) -> Found:
    item = wrapper.item
    command = f"kubectl kustomize --enable-helm {wrapper.resolver.directory} > rendered.yaml"
    for chart in _entries(item.get("helmCharts")):
        ours = wrapper.ours(chart.get("name"))
        if not ours:
            continue
        if any(item.get(key) is not None for key in _PATCHES):
            raise wrapper.refuse("patches the rendered chart", command)
        names = [one for one in (chart.get("valuesFile"),) if one is not None]
        names += _entries(chart.get("additionalValuesFiles"))
        values = wrapper.files(names, command, chart.line)
        inline = chart.get("valuesInline")
        if inline is not None:
            values = merge(values, inline)
        return wrapper.held(values, chart.get("version"), ours)
    raise wrapper.refuse("refers to other files and contains no policy itself", command)


_PATCHES = ("patches", "patchesStrategicMerge", "patchesJson6902")
_KINDS: dict[tuple[str, str], Callable[[_Wrapper], Found]] = {
    ("helm.toolkit.fluxcd.io", "HelmRelease"): _helm_release,
    ("argoproj.io", "Application"): _application,
    ("argoproj.io", "ApplicationSet"): _application,
    ("helm.cattle.io", "HelmChart"): _helm_chart,
    ("helm.cattle.io", "HelmChartConfig"): _helm_chart,
    ("addons.cluster.x-k8s.io", "HelmChartProxy"): _proxy,
    ("kustomize.config.k8s.io", "Kustomization"): _kustomization,
    ("kustomize.config.k8s.io", "Component"): _kustomization,
}
#: Files without a kind, by their specific keys.
_FILES: dict[tuple[str, ...], Callable[[_Wrapper], Found]] = {
    ("helmCharts",): _kustomization,
    ("patches",): _kustomization,
    ("patchesStrategicMerge",): _kustomization,
    ("resources",): _kustomization,
    ("releases",): _helmfile,
    _FLEET: _fleet,
}
_NAMES: dict[tuple[str, ...], str] = {
    **dict.fromkeys(
        (("helmCharts",), ("patches",), ("patchesStrategicMerge",), ("resources",)),
        "the kustomization",
    ),
    ("releases",): "the helmfile",
    ("helm",): "the fleet.yaml",
}
