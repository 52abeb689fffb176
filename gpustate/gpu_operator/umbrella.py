"""Values of a chart with the Operator's chart as a dependency, below its name or an alias.

Source:
    Helm documentation, "Subcharts and Global Values"; Chart.yaml (``dependencies``, ``alias``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.gpu_operator import history
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.keys import sections
from gpustate.gpu_operator.nearest import top_level
from gpustate.gpu_operator.references import ReferenceResolver

_NAME = "gpu-operator"
#: Sections that other charts have too.
GENERIC = frozenset(
    {
        *("nfd", "global", "operator", "nameOverride", "fullnameOverride", "platform", "psp"),
        *("node-feature-discovery", "extraObjects", "hostPaths", "daemonsets", "psa"),
    }
)
#: A mapping with this many of the chart's sections is taken for its values.
_ENOUGH = 2


@dataclass(frozen=True, slots=True)
class ChartValues:
    """Values of the chart, and the release and objects that their wrapper names.

    Args:
        values: of the chart.
        wrapper: what contains them, for messages: ``the HelmRelease gpu-operator``.
        release: of the Operator, as tagged; empty if the wrapper does not set it.
        notes: each with its place.
        used: kind and name of the objects whose values were merged.
    """

    values: Item
    wrapper: str
    release: str = ""
    notes: tuple[str, ...] = ()
    used: tuple[tuple[str, str], ...] = ()


def telling() -> frozenset[str]:
    """Sections that only this chart has."""
    return sections() - GENERIC


def is_specific(values: Item) -> bool:
    """Whether any key is specific to this chart."""
    return isinstance(values.value, dict) and bool(telling() & set(values.value))


def foreign(values: Item, file: str, *, least: int = 1) -> PolicyError | None:
    """The error for values with hardly any key of the chart, which would result in nothing but defaults.

    Args:
        values: without a wrapper.
        file: their path.
        least: the minimum number of unknown keys for an error.
    """
    if not isinstance(values.value, dict):
        return None
    strange = [key for key in values.value if key not in sections() and not key.startswith("x-")]
    known_count = len(values.value) - len(strange)
    if len(strange) < least or (len(strange) <= known_count and is_specific(values)):
        return None
    return PolicyError(
        f"is not a values file of the Operator's chart, which has no key {quote(strange[0])}"
        f"{top_level(strange[0], sections())} and only {known_count} of its {len(values.value)} keys",
        place=f"{file}:{values.value[strange[0]].line}",
        fix="wanted a ClusterPolicy, an NVIDIADriver, a GPUCluster or the GPU Operator's Helm values",
    )


def find_values(item: Item, resolver: ReferenceResolver) -> ChartValues | None:
    """The values in those of an umbrella chart; ``None`` if the document is not of one.

    Raises:
        PolicyError: there are several.
    """
    dependency = next(_dependencies(resolver, _NAME), None)
    version = None if dependency is None else dependency.get("version")
    release, notes = release_of(version, str(resolver.directory / "Chart.yaml"))
    chart = resolver.chart
    if chart is not None and chart.text("name") == _NAME and not release:
        if next(_dependencies(resolver, "node-feature-discovery"), None) is None:
            raise PolicyError(
                f"contains values of another chart named {_NAME}: its Chart.yaml has no dependency node-feature-discovery",
                place=resolver.file,
                fix="name the ClusterPolicy that it results in: helm template . > policy.yaml",
            )
        release = history.release_of_chart(chart.text("appVersion") or chart.text("version"))
        if release and is_specific(item):
            return ChartValues(item, "the chart's own values", release)
    values = inner_values(item, resolver, named_chart=False)
    if values is None:
        return None
    key = next(key for key, value in item.value.items() if value.line == values.line)
    return ChartValues(
        values, f"the umbrella chart's values, at {key}", release, () if release else notes
    )


def release_of(version: Item | None, file: str) -> tuple[str, tuple[str, ...]]:
    """The release that a chart's version in a file is, or none and a warning."""
    if version is None or not version.value:
        return "", ()
    release = history.release_of_chart(str(version.value))
    warning = (
        f"{file}:{version.line}: warning: chart version {quote(version.value)} is not one supported release; read "
        f"for {history.newest()}; override it with --release"
    )
    return release, () if release else (warning,)


def inner_values(values: Item, resolver: ReferenceResolver, *, named_chart: bool) -> Item | None:
    """The values of the Operator's chart inside others; ``None`` if there are none.

    Raises:
        PolicyError: there are several.
    """
    if not isinstance(values.value, dict):
        return None
    mappings = {
        key: child.value for key, child in values.value.items() if isinstance(child.value, dict)
    }
    keys = [entry.text("alias") or _NAME for entry in _dependencies(resolver, _NAME)]
    if sections() & set(mappings.get(_NAME, ())):
        keys.append(_NAME)
    candidates = [key for key in dict.fromkeys(keys) if key in mappings]
    if not candidates and not named_chart and not is_specific(values):
        candidates = [key for key, below in mappings.items() if len(_telling(below)) >= _ENOUGH]
    if len(candidates) > 1:
        raise PolicyError(
            f"contains values of the chart at {', '.join(map(quote, candidates))}, wanted one",
            place=f"{resolver.file}:{values.value[candidates[1]].line}",
            fix=f"extract one: yq '.\"{candidates[0]}\"' {resolver.name} > values.yaml",
        )
    if not candidates:
        return None
    # The condition of a dependency, which Helm removes before passing values to the chart.
    chart_values = values.value[candidates[0]]
    settings = {key: value for key, value in chart_values.value.items() if key != "enabled"}
    return Item(settings, chart_values.line)


def _telling(values: Mapping[str, Item]) -> frozenset[str]:
    """Sections that only this chart has."""
    return frozenset(key for key in telling() & set(values) if isinstance(values[key].value, dict))


def _dependencies(resolver: ReferenceResolver, name: str) -> Iterator[Item]:
    """The dependencies with a name of the chart in the folder."""
    listed = resolver.chart and resolver.chart.get("dependencies")
    entries = listed.value if listed is not None and isinstance(listed.value, list) else ()
    return (entry for entry in entries if entry.text("name") == name)
