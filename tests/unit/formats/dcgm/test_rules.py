"""Alert rules and the dashboard: accepted by promtool, each rule with a case in which it fires and one in which not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promtool
import yaml

from gpustate.formats import dcgm
from gpustate.formats.dcgm import shipped
from gpustate.formats.dcgm.dashboard import ROWS, dashboard

TOP = Path(__file__).parents[4]
RULES_PATH = TOP / "gpustate/formats/dcgm/rules.yaml"
RECORDED = TOP / "tests/data/dcgm/exporter-h100-mig.prom"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(shipped.rules())["groups"]
    for rule in group["rules"]
}
METRIC = re.compile(r"\bDCGM_\w+")
GPU = {"gpu": "3", "hostname": "gpu1", "instance": "gpu1:9400", "UUID": "GPU-1"}

#: Xids by action: NVIDIA's catalogue as gpud v0.13 has it, and NVIDIA's Xid guide.
RESET = (46, 62, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)
APPLICATION = (13, 31, 69, 94)
IGNORED = (43, 63, 92, 121, 160)

PANELS = [panel for _, row in ROWS for panel in row]


def series(metric: str, values: str, **more: str) -> dict[str, str]:
    labels = ",".join(f'{name}="{value}"' for name, value in {**GPU, **more}.items())
    return {"series": f"{metric}{{{labels}}}", "values": values}


def up(values: str) -> dict[str, str]:
    return {"series": 'up{job="dcgm-exporter",instance="gpu1:9400"}', "values": values}


def xid(number: int) -> dict[str, str]:
    return series("DCGM_EXP_XID_ERRORS_COUNT", "0x4 1x60", xid=str(number))


def clock(event: str) -> dict[str, str]:
    return series("DCGM_EXP_CLOCK_EVENTS_COUNT", "1x70", clock_event=event)


TEMP, FABRIC = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FABRIC_MANAGER_STATUS"
ECC, ROWS = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"

#: Alert: what happens in an hour, what else happens that it must not fire for.
CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "DcgmExporterDown": ([up("1x50 0x20")], [up("1x56 0x20")]),
    "DcgmExporterMissing": ([], [up("0x70")]),
    "GpuVanished": ([series(TEMP, "40x40 _x30")], [series(TEMP, "40x70"), up("0x70")]),
    "GpuXidReboot": ([xid(79)], [xid(74)]),
    "GpuXidReplace": ([xid(64)], [xid(63)]),
    "GpuXidReset": ([xid(119)], [xid(94)]),
    "GpuXidLink": ([xid(74)], [xid(13)]),
    "GpuXidHost": ([xid(78)], [xid(79)]),
    "GpuXidApplication": ([xid(31)], [xid(43), xid(63)]),
    "GpuXidUnknown": ([xid(199)], [xid(number) for number in (*RESET, *IGNORED, *APPLICATION)]),
    "GpuRowRemapFailure": (
        [series("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x30 1x40")],
        [series("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x70")],
    ),
    "GpuRowRemapPending": (
        [series("DCGM_FI_DEV_ROW_REMAP_PENDING", "0x30 1x40")],
        [series("DCGM_FI_DEV_ROW_REMAP_PENDING", "0x57 1x40")],
    ),
    "GpuUncorrectableEcc": ([series(ECC, "0x30 2x40")], [series(ECC, "7x70")]),
    "GpuUncorrectableRemappedRows": ([series(ROWS, "1x30 2x40")], [series(ROWS, "2x70")]),
    "GpuHot": ([series(TEMP, "60x30 91x40")], [series(TEMP, "60x30 91x2 60x40 87x70")]),
    "GpuThermalSlowdown": ([clock("hw_thermal")], [clock("power_cap"), clock("gpu_idle")]),
    "GpuPowerBrake": ([clock("hw_power_brake")], [clock("power_cap"), clock("sw_thermal")]),
    "GpuFabricFailed": ([series(FABRIC, "3x30 4x40")], [series(FABRIC, "3x70")]),
    "GpuFabricNotReady": (
        [series(FABRIC, "1x20 2x50")],
        [series(FABRIC, "2x5 3x70"), series(FABRIC, "0x70", gpu="4")],
    ),
}


def fired(alert: str, given: list[dict[str, str]]) -> list[dict[str, Any]]:
    """What promtool shall see of an alert that fires for the one series given."""
    found = re.findall(r'(\w+)="([^"]*)"', given[0]["series"]) if given else [("job", "")]
    labels = {name: value for name, value in found if value}
    value = given[0]["values"].split()[-1].partition("x")[0] if given else "1"

    def filled(text: str) -> str:
        text = re.sub(r"{{ \$labels\.(\w+) }}", lambda one: labels.get(one[1], ""), text)
        return text.replace("{{ $value }}", value)

    rule = RULES[alert]
    told = {name: filled(text) for name, text in rule["annotations"].items()}
    return [{"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": told}]


def unit_tests(cases: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]]) -> list[Any]:
    tests: list[Any] = []
    for alert, (firing, quiet) in cases.items():
        for given, wanted in ((firing, fired(alert, firing)), (quiet, [])):
            case = {"eval_time": "1h", "alertname": alert, "exp_alerts": wanted}
            tests.append({"interval": "1m", "input_series": given, "alert_rule_test": [case]})
    return tests


def test_every_rule_has_a_firing_and_a_quiet_case() -> None:
    assert set(CASES) == set(RULES)
    assert len(RULES) == 19
    for firing, quiet in CASES.values():
        assert firing != quiet


@promtool.needed
def test_promtool_accepts_the_rules() -> None:
    done = promtool.run("check", "rules", RULES_PATH)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


@promtool.needed
def test_every_rule_fires_for_its_failure_and_is_quiet_without_it(tmp_path: Path) -> None:
    done = promtool.unit_test(RULES_PATH, unit_tests(CASES), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool.needed
def test_a_rule_that_did_not_fire_would_be_seen(tmp_path: Path) -> None:
    """Each rule with a condition that never holds: promtool has to miss every one of them."""
    data = yaml.safe_load(shipped.rules())
    for group in data["groups"]:
        for rule in group["rules"]:
            rule["expr"] = f"({rule['expr']}) and vector(1) > 2"
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps(data), "utf-8")
    done = promtool.unit_test(path, unit_tests(CASES), tmp_path, every="30m")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert {alert for alert in RULES if f"alertname: {alert}," in said} == set(RULES)


def test_every_rule_says_how_bad_it_is_and_what_to_do() -> None:
    for alert, rule in RULES.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), alert
        assert set(rule["annotations"]) == {"summary", "action"}, alert


def xids(alert: str) -> set[int]:
    found = re.search(r'xid(?:=~|!~)"([\d|]+)"', RULES[alert]["expr"])
    assert found is not None
    return {int(number) for number in found[1].split("|")}


def test_an_xid_has_one_rule_or_is_ignored_and_any_other_is_unknown() -> None:
    by_action = [
        xids(name) for name in RULES if name.startswith("GpuXid") and name != "GpuXidUnknown"
    ]
    known = set[int]().union(*by_action)
    assert len(known) == sum(map(len, by_action)), "an Xid is in two rules"
    assert set(RESET) < xids("GpuXidReset")
    assert set(APPLICATION) < xids("GpuXidApplication")
    assert not known & {*IGNORED, 93}
    assert xids("GpuXidUnknown") == known | {*IGNORED, 93}


def test_no_rule_looks_at_the_last_xid() -> None:
    assert all("DCGM_FI_DEV_XID_ERRORS" not in rule["expr"] for rule in RULES.values())


def test_every_metric_of_rules_and_panels_is_in_the_counters_file() -> None:
    asked = {one.field.name for one in shipped.counters() if one.type != "label"}
    used = {name for rule in RULES.values() for name in METRIC.findall(rule["expr"])}
    shown = {name for panel in PANELS for name in METRIC.findall(panel.expression)}
    assert len(used) >= 8
    assert len(shown) >= 15
    assert used | shown <= asked


def expressions() -> dict[str, str]:
    """Queries of the panels, for every node and GPU."""
    made = json.loads(json.dumps(dashboard()))["panels"]
    found = {p["title"]: p["targets"][0]["expr"] for p in made if p["type"] != "row"}
    assert len(found) == len(PANELS) >= 15
    return {title: re.sub(r"\$(instance|gpu)", ".*", expr) for title, expr in found.items()}


@promtool.needed
def test_promtool_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = expressions()
    done = promtool.check_queries(queries, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout
    assert promtool.check_queries({**queries, "broken": "sum("}, tmp_path).returncode != 0


@promtool.needed
def test_every_panel_shows_something_of_an_exporters_answer(tmp_path: Path) -> None:
    samples = dcgm.parse(RECORDED.read_text("utf-8"), "recorded")
    given: list[dict[str, str]] = []
    for sample in samples:
        told = {**sample.labels, "instance": "gpu1:9400"}
        labels = ",".join(f'{name}="{value}"' for name, value in told.items())
        given.append({"series": f"{sample.name}{{{labels}}}", "values": f"{sample.value:g}x14"})
    queries = [f"count({query}) > bool 0" for query in expressions().values()]
    one = [{"labels": "{}", "value": 1}]
    cases = [{"expr": query, "eval_time": "65m", "exp_samples": one} for query in queries]
    tests = [{"interval": "5m", "input_series": given, "promql_expr_test": cases}]
    done = promtool.unit_test(None, tests, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    cases.append({"expr": "count(DCGM_FI_DEV_NOT_THERE)", "eval_time": "65m", "exp_samples": one})
    assert promtool.unit_test(None, tests, tmp_path).returncode != 0


def test_panels_do_not_cover_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
