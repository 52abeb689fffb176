"""``gpustate node dcgm``: the files it gives out, what nodes make of a counters file, one line for whatever is wrong."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from commandline import Cli

from gpustate.cli import dcgm
from gpustate.formats.dcgm import shipped
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.testing import FakeNode

ANSWER = (Path(__file__).parents[2] / "data/dcgm/exporter-h100-mig.prom").read_text("utf-8")
GPU = Gpu(
    0,
    "GPU-7f4a1c52-0b6e-4d3f-9c1a-2e5d8b90a101",
    "0000:1b:00.0",
    0,
    "NVIDIA H100 80GB HBM3",
    device_id="2330",
    compute_capability="9.0",
    ecc=True,
    remap_failed=False,
    fabric_state="completed",
)
NVML = NvmlFacts(source="nvml", driver_loaded=True, driver_version="580.65.06", gpus=(GPU,))
URL = "http://localhost:9400/metrics"


def look(nvml: NvmlFacts, answer: tuple[int, str] | None) -> dict[str, object]:
    node = FakeNode(answers={"GpuFacts": nvml}, shell={URL: answer} if answer else {})
    return dcgm._check_node(node, shipped.counters(), "c.csv", URL if answer else None)


@pytest.fixture
def exporter() -> Iterator[str]:
    """The address of something that answers as an exporter does."""

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            if found:
                self.wfile.write(ANSWER.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_is_given_out_is_whole(gpustate: Cli, project: Path) -> None:
    assert yaml.safe_load(gpustate("node", "dcgm", "rules").out)["groups"]
    assert json.loads(gpustate("node", "dcgm", "dashboard").out)["uid"] == "gpustate-dcgm"
    done = gpustate("node", "dcgm", "counters", "--out", "own.csv")
    assert (done.status, done.out) == (0, "")
    done = gpustate("node", "dcgm", "check", "own.csv")
    assert (done.status, done.out) == (0, "own.csv: 26 fields, no errors\n")
    assert (project / "own.csv").read_text("utf-8") == shipped.counters_file()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "contains no field"),
        (b"\0\0", "is a binary file"),
        (b"\xff", "is not UTF-8"),
        (b"\xef\xbb\xbfDCGM_FI_DEV_GPU_TEMP, gauge, x\n", "bad.csv:1: begins with a byte order"),
        (b"DCGM_FI_DEV_GPU_TMP, gauge, x\n", "bad.csv:1: DCGM_FI_DEV_GPU_TMP is not a DCGM field"),
        (b"\n" + b"a" * 100000 + b"\n", "bad.csv:2: has 1 columns"),
    ],
)
def test_a_bad_counters_file_is_one_line(
    gpustate: Cli, project: Path, content: bytes, said: str
) -> None:
    (project / "bad.csv").write_bytes(content)
    done = gpustate("node", "dcgm", "check", "bad.csv")
    assert done.status == 1
    assert said in done.err
    assert done.err.count("\n") == 1
    assert len(done.err) < 400


def test_an_exporter_is_asked_only_on_nodes(gpustate: Cli) -> None:
    done = gpustate("node", "dcgm", "check", "--scrape", URL)
    assert done.status == 1
    assert "name an inventory with -i" in done.err


def test_a_node_whose_exporter_has_everything_is_told_so() -> None:
    found = look(NVML, (0, ANSWER))
    assert found["missing"] == []
    assert found["cannot_report"] == []
    assert "error" not in found


def test_a_node_is_told_what_its_exporter_lacks_and_what_its_gpu_cannot_report() -> None:
    off = replace(NVML, gpus=(replace(GPU, ecc=False),))
    found = look(off, (0, ANSWER.replace("DCGM_FI_DEV_POWER_USAGE{", "other{")))
    assert [str(line).partition(":")[0] for line in _list(found["missing"])] == [
        "DCGM_FI_DEV_POWER_USAGE"
    ]
    assert all("ECC is off" in str(line) for line in _list(found["cannot_report"]))
    assert len(_list(found["cannot_report"])) == 2


def test_an_exporter_that_does_not_answer_or_talks_nonsense_proves_nothing() -> None:
    assert "does not answer" in str(look(NVML, (7, ""))["no_answer"])
    assert f"{URL}:1: " in str(look(NVML, (0, "<html>"))["no_answer"])


def test_every_bad_line_of_a_counters_file_is_told(gpustate: Cli, project: Path) -> None:
    (project / "bad.csv").write_text(
        "DCGM_FI_DEV_GPU_TMP, gauge, x\nDCGM_FI_DEV_GPU_TEMP, gauge\n"
        "DCGM_FI_DEV_GPU_TEMP, gauge, a\nDCGM_FI_DEV_GPU_TEMP, gauge, b\n"
    )
    done = gpustate("node", "dcgm", "check", "bad.csv")
    assert done.status == 1
    assert [line.split(" ")[1] for line in done.err.splitlines()] == [
        *("bad.csv:1:", "bad.csv:2:", "bad.csv:4:")
    ]
    done = gpustate("node", "dcgm", "check", "bad.csv", "-o", "json")
    assert (done.status, done.err) == (1, "")
    data = json.loads(done.out)
    assert [one["place"] for one in data["wrong"]] == ["bad.csv:1", "bad.csv:2"]
    assert [one["place"] for one in data["warnings"]] == ["bad.csv:4"]


@pytest.mark.parametrize(
    "url", ["ftp://x; rm -rf /", "localhost:9400", "http://", "http://[/m", ""]
)
def test_what_no_exporter_is_asked_by_is_refused(gpustate: Cli, url: str) -> None:
    done = gpustate("node", "dcgm", "check", "-i", "a,b", "--scrape", url)
    assert done.status == 1
    assert "is not the URL of an exporter" in done.err
    assert done.err.count("\n") == 1


def test_a_node_without_a_driver_is_an_error() -> None:
    nothing = NvmlFacts(error=9, error_text="driver not loaded")
    assert look(nothing, None) == {"error": "NVML: driver not loaded"}


@pytest.mark.parametrize("without_curl", [False, True])
def test_the_fragment_that_asks_an_exporter_works(exporter: str, without_curl: bool) -> None:
    def query(url: str) -> subprocess.CompletedProcess[str]:
        text = dcgm._scrape(url)
        if without_curl:
            text = text.replace("command -v curl", "command -v no-such-program")
        return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)

    assert query(f"{exporter}/metrics").stdout == ANSWER
    assert query(f"{exporter}/other").returncode != 0
    assert query(f"{exporter}/metrics'; echo x; '").returncode != 0


def test_a_node_that_cannot_be_asked_ends_in_an_error(gpustate: Cli, project: Path) -> None:
    (project / "hosts.yml").write_text(
        "all: {hosts: {here: {ansible_connection: local, gpustate_state_folder: "
        f"{project}/state}}}}}}\n"
    )
    done = gpustate("node", "dcgm", "check", "-i", "hosts.yml", "-o", "json")
    data = json.loads(done.out)
    assert data["format"] == "gpustate.dcgm-check/1"
    assert [node["name"] for node in data["nodes"]] == ["here"]
    if "error" in data["nodes"][0]:  # no driver here
        assert done.status == 1


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return list(value)


MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  %s: |\n    # a\n    %s\n"


def test_a_counters_file_in_a_config_map_is_checked_with_its_lines(
    gpustate: Cli, project: Path
) -> None:
    (project / "map.yaml").write_text(MAP % ("dcgm-metrics.csv", "DCGM_FI_DEV_GPU_TEMP, gauge, x"))
    done = gpustate("node", "dcgm", "check", "map.yaml")
    assert (done.status, done.out, done.err) == (0, "map.yaml: 1 fields, no errors\n", "")
    (project / "map.yaml").write_text(MAP % ("dcgm-metrics.csv", "DCGM_FI_DEV_GPU_TMP, gauge, x"))
    done = gpustate("node", "dcgm", "check", "map.yaml")
    assert done.status == 1
    assert "map.yaml:7: DCGM_FI_DEV_GPU_TMP is not a" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MAP % ("x", "y"), "map.yaml:1: the ConfigMap 'm' contains no counters file; wanted a"),
        ("version: v1\nmig-configs:\n  a: []\n", "map.yaml: is YAML, wanted a counters file"),
        ('{"kind": "Secret", "apiVersion": "v1"}', "the Secret '' contains no counters file"),
    ],
)
def test_yaml_in_place_of_a_counters_file_is_one_line(
    gpustate: Cli, project: Path, text: str, said: str
) -> None:
    (project / "map.yaml").write_text(text)
    done = gpustate("node", "dcgm", "check", "map.yaml")
    assert done.status == 1
    assert said in done.err
    assert done.err.count("\n") == 1


def test_lint_names_the_verb_for_a_counters_file(gpustate: Cli, project: Path) -> None:
    for text in ("DCGM_FI_DEV_GPU_TEMP, gauge, x: y\n", "# a\n\nDCGM_FI_DEV_GPU_TEMP, gauge, x\n"):
        (project / "my.csv").write_text(text)
        done = gpustate("lint", "my.csv")
        assert done.status == 1
        assert "is a counters file of dcgm-exporter, not a policy" in done.err
        assert "gpustate node dcgm check my.csv" in done.err
