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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from gpustate.errors import PolicyError
from gpustate.formats.words import quote, quote_name
from gpustate.gpu_operator import tables, umbrella
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.merging import EMPTY, assign, merge
from gpustate.gpu_operator.references import ReferenceResolver
from gpustate.gpu_operator.umbrella import ChartValues

_CHART = re.compile(r"(.*/)?(nvidia-)?gpu-operator(-v?[0-9][\w.+-]*)?(\.tgz)?")
_TEMPLATE = "{{"
_AS_INSTALLED = "helm get values gpu-operator -n gpu-operator > values.yaml"


#: Results for a document that is not a wrapper, and for a wrapper of another chart.
NO_WRAPPER, OTHER_CHART = None, False
Unwrapped = ChartValues | bool | None


@dataclass(frozen=True, slots=True)
class _Form:
    """The rows of one kind of file in ``data/wrappers.txt``, which explains them."""

    rows: tables.Rows

    def text(self, name: str) -> str:
        """The value of a row; empty without one."""
        return next((row[1] for row in self.rows if row[0] == name), "")

    def pairs(self, name: str) -> dict[str, str]:
        """The paths of all rows of a name, each with what is said of it."""
        return {row[1]: row[2] for row in self.rows if row[0] == name}


@cache
def _forms() -> Mapping[str, _Form]:
    """The forms by group and kind, or by type and key of a file without a kind."""
    sections = tables.sections("wrappers.txt")
    forms: dict[str, _Form] = {}
    for names, rows in sections.items():
        inherited = sections.get(_Form(rows).text("like"), ())
        forms.update(dict.fromkeys(names.split(), _Form((*rows, *inherited))))
    return forms


def unwrap(item: Item, resolver: ReferenceResolver) -> Unwrapped:
    """Return the values in a document, ``OTHER_CHART`` or ``NO_WRAPPER``.

    Raises:
        PolicyError: it has to be rendered first, with the command.
    """
    if not isinstance(item.value, dict):
        return NO_WRAPPER
    kind, group = item.text("kind"), item.text("apiVersion").partition("/")[0]
    if kind or group:
        form = _forms().get(f"{group}/{kind}")
        title = f"the {kind} {quote_name(item.text('metadata', 'name'))}"
        return _Wrapper(item, resolver, form, title).find() if form is not None else NO_WRAPPER
    for name, form in _forms().items():
        kind, _, key = name.rpartition(":")
        if kind and key in item.value and type(item.value[key].value).__name__ == kind:
            values = _Wrapper(item, resolver, form, form.text("title")).find()
            if values is not NO_WRAPPER:
                return values
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

    def find(self) -> Unwrapped:
        """The values of the first release of the Operator's chart."""
        named = False
        for release in self._releases():
            is_ours = self._is_operator_chart(release)
            named = named or is_ours is not None
            if not is_ours and not self._is_inside(release, named=is_ours is False):
                continue
            for path, why in self.form.pairs("refused").items():
                refused = _at(self.item, path)
                if refused is not None:
                    raise self._refuse(why, refused)
            for path, why in self.form.pairs("ignored").items():
                ignored = _at(self.item, path)
                if ignored is not None:
                    self.notes.append(f"{self._place(ignored)}: warning: {path} are ignored: {why}")
            values = Item({}, release.line)
            for path, how in self.form.pairs("values").items():
                layer = _at(release, path)
                if layer is not None:
                    values = self._merged(values, how, layer)
            return self._checked(values, _at(release, self.form.text("version")), is_ours)
        if self.form.text("otherwise"):
            raise self._refuse(self.form.text("otherwise"), self.item)
        return NO_WRAPPER if self.form.text("title") and not named else OTHER_CHART

    def _releases(self) -> Iterator[Item]:
        base = _at(self.item, self.form.text("base")) or EMPTY
        paths = self.form.text("releases").split()
        for path in paths:
            listed = _at(base, path)
            yield from _entries(listed) or ([listed] if listed is not None else [])
        if not paths:
            yield base

    def _is_operator_chart(self, release: Item) -> bool | None:
        """Whether a release is of the Operator's chart; ``None`` if it names none."""
        names = (release.text(*path.split(".")) for path in self.form.text("chart").split())
        texts = [name for name in names if name]
        return any(_CHART.fullmatch(text.rstrip("/")) for text in texts) if texts else None

    def _is_inside(self, release: Item, *, named: bool) -> bool:
        """Whether a release without the Operator's chart has values of it."""
        path = next(
            (path for path, how in self.form.pairs("values").items() if how == "mapping"), None
        )
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
            for entry in _entries(layer) or [layer]:
                values = merge(values, self._of_file(entry))
        elif how == "objects":
            for entry in _entries(layer):
                values = merge(values, self._of_object(entry))
        elif how == "parameters":  # like --set
            for entry in _entries(layer):
                forced = entry.get("forceString")
                typed = forced is None or forced.value is not True
                name, text = entry.text("name"), _text(entry.get("value"))
                values = assign(values, name, text, entry.line, typed=typed)
        elif isinstance(layer.value, dict):
            for path, entry in layer.value.items():
                values = assign(values, path, _text(entry), entry.line, typed=True)
        return values

    def _of_file(self, entry: Item) -> Item:
        """The values of an entry that names a file or is a mapping."""
        if isinstance(entry.value, dict):
            return entry
        values = self.resolver.file_values(str(entry.value)) if entry.value else EMPTY
        if values is None:
            raise self._refuse(
                f"uses the values file {quote(entry.value)}, which was not found", entry
            )
        return values

    def _of_object(self, ref: Item) -> Item:
        """The values of one entry of Flux's ``valuesFrom``; none, with a note, if it is optional and missing."""
        kind, name = ref.text("kind"), ref.text("name")
        key, target = ref.text("valuesKey") or "values.yaml", ref.text("targetPath")
        namespace = self.item.text("metadata", "namespace")
        entry = self.resolver.entry(kind, name, key, namespace)
        if entry is None:
            optional = ref.get("optional")
            problem = f"valuesFrom names the {kind} {quote(name)}, which was not found"
            if self.resolver.elsewhere:
                problem += (
                    f" in namespace {quote(namespace)}, the only one that Flux reads; there is one of another "
                    f"namespace at {self.resolver.elsewhere[0]}"
                )
            if optional is not None and optional.value is True:
                self.notes.append(f"{self._place(ref)}: warning: {problem}; it is optional")
                return EMPTY
            raise PolicyError(
                f"{self.title}: {problem}",
                place=self._place(ref),
                fix=f"save it: kubectl get {kind.lower()} {name} -n {namespace or 'default'} -o yaml > "
                f"{self.resolver.folder}/{name}.yaml",
            )
        self.used.append((kind, name))
        if target:
            return assign(Item({}, ref.line), target, entry.text.strip(), ref.line, typed=True)
        return self.resolver.values_of(entry)

    def _checked(self, values: Item, version: Item | None, is_ours: bool | None) -> Unwrapped:
        """The values with their wrapper, if they are the chart's."""
        if is_ours and not isinstance(values.value, dict):
            why = "has values with placeholders of another program"
            raise self._refuse(why, values, _AS_INSTALLED)
        inner = umbrella.inner_values(values, self.resolver, named_chart=is_ours is not False)
        if inner is None and not is_ours and (is_ours is False or not umbrella.is_specific(values)):
            return OTHER_CHART
        named = version if is_ours and inner is None else None
        release, notes = umbrella.release_of(named, self.resolver.file)
        notes = (*self.notes, *notes)
        return ChartValues(inner or values, self.title, release, notes, (*self.used,))

    def _place(self, item: Item) -> str:
        return f"{self.resolver.file}:{item.line}"

    def _refuse(self, why: str, item: Item, command: str = "") -> PolicyError:
        filled = (command or self.form.text("command") or _AS_INSTALLED).format(
            name=self.item.text("metadata", "name"),
            file=self.resolver.name,
            directory=self.resolver.directory,
        )
        return PolicyError(
            f"{self.title} {why}", place=self._place(item), fix=f"render it first: {filled}"
        )
