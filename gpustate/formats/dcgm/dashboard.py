"""A Grafana dashboard of GPU nodes, made from a table of panels.

Sources:
    Grafana documentation, "Dashboard JSON model"; schema version 39 is read by Grafana 10.4 and newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpustate.documents import Json

#: Label matchers for the selection at the top of the page.
_CHOSEN = 'instance=~"$instance",gpu=~"$gpu"'
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel with one query.

    Args:
        title: what it shows.
        query: PromQL; ``@`` stands for the chosen nodes and GPUs.
        legend: of a line.
        unit: Grafana's name of the unit.
        kind: ``timeseries`` or ``stat``.
    """

    title: str
    query: str
    legend: str = "{{instance}} GPU {{gpu}}"
    unit: str = "short"
    kind: str = "timeseries"

    @property
    def expression(self) -> str:
        """The query with Grafana's variables."""
        return self.query.replace("@", _CHOSEN)


#: Rows of the page.
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "At a glance",
        (
            Panel(
                "GPUs that report", "count(DCGM_FI_DEV_GPU_TEMP{@})", "GPUs", "short", kind="stat"
            ),
            Panel(
                "Power of all GPUs", "sum(DCGM_FI_DEV_POWER_USAGE{@})", "power", "watt", kind="stat"
            ),
            Panel(
                "GPUs to reset or replace",
                "count(DCGM_FI_DEV_ROW_REMAP_FAILURE{@} == 1 or DCGM_FI_DEV_ROW_REMAP_PENDING{@} == 1)"
                " or vector(0)",
                "GPUs",
                "short",
                kind="stat",
            ),
        ),
    ),
    (
        "Use",
        (
            Panel("GPU busy", "DCGM_FI_PROF_GR_ENGINE_ACTIVE{@}", unit="percentunit"),
            Panel("Tensor cores busy", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{@}", unit="percentunit"),
            Panel("Memory busy", "DCGM_FI_PROF_DRAM_ACTIVE{@}", unit="percentunit"),
            Panel("Memory in use", "DCGM_FI_DEV_FB_USED{@}", unit="mbytes"),
            Panel("Power", "DCGM_FI_DEV_POWER_USAGE{@}", unit="watt"),
            Panel("SM clock", "DCGM_FI_DEV_SM_CLOCK{@} * 1e6", unit="hertz"),
        ),
    ),
    (
        "Temperature and throttling",
        (
            Panel("Temperature", "DCGM_FI_DEV_GPU_TEMP{@}", unit="celsius"),
            Panel("Memory temperature", "DCGM_FI_DEV_MEMORY_TEMP{@}", unit="celsius"),
            Panel(
                "Throttle reasons",
                'DCGM_EXP_CLOCK_EVENTS_COUNT{@,clock_event!="gpu_idle"}',
                "{{instance}} GPU {{gpu}} {{clock_event}}",
            ),
        ),
    ),
    (
        "Errors",
        (
            Panel(
                "Xids of the last window",
                "DCGM_EXP_XID_ERRORS_COUNT{@}",
                "{{instance}} GPU {{gpu}} Xid {{xid}}",
            ),
            Panel(
                "Corrected memory errors per hour", "increase(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{@}[1h])"
            ),
            Panel(
                "Uncorrectable memory errors per hour",
                "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{@}[1h])",
            ),
            Panel(
                "Rows remapped after uncorrectable errors",
                "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{@}",
            ),
            Panel("PCIe replays per hour", "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{@}[1h])"),
            Panel("Fabric (3: complete, 4: failed)", "DCGM_FI_DEV_FABRIC_MANAGER_STATUS{@}"),
        ),
    ),
)


def dashboard() -> Json:
    """The dashboard, for Grafana's import or a provisioning folder."""
    return {
        "title": "GPU nodes (DCGM)",
        "uid": "gpustate-dcgm",
        "tags": ["gpustate", "nvidia"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_choices())},
        "annotations": {"list": []},
        "panels": list(_placed()),
    }


def _choices() -> Iterator[Json]:
    yield {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}
    narrowed = {"instance": "", "gpu": '{instance=~"$instance"}'}
    for name, within in narrowed.items():
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values(DCGM_FI_DEV_GPU_TEMP{within}, {name})",
            "refresh": 2,
            "sort": 3,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _placed() -> Iterator[Json]:
    number, y = 1, 0
    for title, row in ROWS:
        place = {"x": 0, "y": y, "w": _ACROSS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        number, y = number + 1, y + 1
        for at, panel in enumerate(row):
            x = at * _WIDTH % _ACROSS
            if at and not x:
                y += _HEIGHT
            yield _panel(panel, number, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT})
            number += 1
        y += _HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": panel.expression,
                "legendFormat": panel.legend,
            }
        ],
    }
