"""A new key of the Operator is a row of the table: it is accepted, rendered and shown.

The keys are invented. Each goes straight into a field of an object or of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpustate import policies
from gpustate.cli.main import cli
from gpustate.gpu_operator import keys, tables
from gpustate.gpu_operator.lint import lint
from gpustate.gpu_operator.objects import images
from gpustate.manifests.build import build
from gpustate.manifests.cluster_part import settings_of

_EXPORTER = "daemonset/nvidia-dcgm-exporter"
ROWS = f"""
[clusterpolicy]
dcgmExporter.dnsPolicy | objects | the DaemonSet nvidia-dcgm-exporter | type=string choices=Default,ClusterFirst to={_EXPORTER}:spec.template.spec.dnsPolicy
dcgmExporter.tty | objects | the DaemonSet nvidia-dcgm-exporter | type=boolean to={_EXPORTER}:spec.template.spec.containers[nvidia-dcgm-exporter].tty
cdi.hookPath | objects | where the toolkit's hook is | type=string to=cdi_hook
"""
FILES = {
    "clusterpolicy": """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec:
  dcgmExporter:
    dnsPolicy: Default
    tty: true
  cdi: {hookPath: /opt/hook}
""",
    "helm": "dcgmExporter:\n  dnsPolicy: Default\n  tty: true\ncdi: {hookPath: /opt/hook}\n",
}


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table with these rows."""
    text = tables.text("keys.txt") + ROWS
    cached = (tables.sections, keys.rows, keys.fields, keys.targets, keys.records)

    def forget() -> None:
        for one in cached:
            one.cache_clear()

    monkeypatch.setattr(tables, "text", lambda name: text)
    forget()
    yield
    monkeypatch.undo()
    forget()


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "operator.yaml"
    path.write_text(FILES[request.param])
    return str(path)


def findings(file: str) -> list[str]:
    report = lint(Path(file).read_text(), file)
    return [one.path for one in report.findings if one.rule == "unknown-key"]


def test_a_key_without_a_row_is_unknown(file: str) -> None:
    assert findings(file) == ["dcgmExporter.dnsPolicy", "dcgmExporter.tty", "cdi.hookPath"]


def test_a_row_is_enough_for_lint(added: None, file: str) -> None:
    report = lint(Path(file).read_text(), file)
    assert [one for one in report.findings if one.level == "error"] == []
    uses = {use.path: (use.line, use.detail) for use in report.uses}
    line = 1 + next(
        n for n, text in enumerate(Path(file).read_text().splitlines()) if "dns" in text
    )
    assert uses["dcgmExporter.dnsPolicy"] == (line, "the DaemonSet nvidia-dcgm-exporter")


def test_a_value_of_another_type_is_refused(added: None, file: str) -> None:
    Path(file).write_text(Path(file).read_text().replace("tty: true", "tty: 7"))
    report = lint(Path(file).read_text(), file)
    assert [(one.rule, one.path) for one in report.findings if one.level == "error"] == [
        ("wrong-type", "dcgmExporter.tty")
    ]


def test_a_row_is_enough_for_the_object(added: None, file: str) -> None:
    objects = build(settings_of(policies.load(file)), images())
    (exporter,) = (
        one
        for one in objects
        if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "nvidia-dcgm-exporter")
    )
    pod = exporter["spec"]["template"]["spec"]
    assert pod["dnsPolicy"] == "Default"
    assert [one.get("tty") for one in pod["containers"]] == [True]
    assert "/opt/hook" in json.dumps(objects)


def test_resolve_shows_it(added: None, file: str) -> None:
    done = CliRunner().invoke(cli, ["policy", "resolve", file])
    assert done.exit_code == 0, done.output
    assert "dnsPolicy" in done.output
    assert 'cluster.cdi_hook  "/opt/hook"' in done.output
