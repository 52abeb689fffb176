"""NVML asked by the program that runs on nodes, through the real nvidia-ml-py and a stub library."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvmljson import to_json
from stublibraries import VERSION

from gpustate.core.queries import Answer
from gpustate.formats import nvml_report
from gpustate.probes.gpu_facts import NVML_FACTS, PYNVML, GpuFacts

from .conftest import StubNode


def query(
    node: StubNode, tmp_path: Path, pynvml: bytes | None = None, timeout_s: float = 10
) -> Any:
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "nvml_facts.py").write_bytes(NVML_FACTS.load())
    (folder / "pynvml.py").write_bytes(PYNVML.load() if pynvml is None else pynvml)
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-B",
            str(folder / "nvml_facts.py"),
            str(folder / "pynvml.py"),
            str(timeout_s),
        ],
        env=node.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return nvml_report.from_json(json.loads(done.stdout))


def test_every_gpu_is_described(stub_node: Callable[..., StubNode], tmp_path: Path) -> None:
    node = stub_node("8xH100")
    facts = query(node, tmp_path)
    assert facts.works
    assert (facts.driver_version, facts.cuda_version) == (VERSION, "13.0")
    assert [gpu.uuid for gpu in facts.gpus] == node.uuids
    first = facts.gpus[0]
    assert first.pci == node.gpus[0]["pci_address"]
    assert first.architecture == "hopper"
    assert first.compute_capability == "9.0"
    assert first.memory_mib == node.gpus[0]["memory_mib"]
    assert first.mig_current is False
    assert first.fabric_state == "in progress"  # no fabric manager runs here


@pytest.mark.parametrize(
    ("gpus", "faults", "mode", "ready"),
    [
        ("2xT4", (), "", None),
        ("8xH100", (), "off", None),
        ("1xH100", ("confidential-on",), "on", True),
        ("1xH100", ("confidential-on", "confidential-waiting"), "on", False),
        ("1xB200", ("confidential-devtools",), "devtools", True),
        ("8xH100", ("confidential-ppcie",), "ppcie", True),
    ],
)
def test_the_mode_of_confidential_computing_is_that_of_the_gpus(
    stub_node: Callable[..., StubNode],
    tmp_path: Path,
    gpus: str,
    faults: tuple[str, ...],
    mode: str,
    ready: bool | None,
) -> None:
    node = stub_node(gpus, *faults)
    facts = query(node, tmp_path)
    assert (facts.confidential, facts.confidential_ready) == (mode, ready)
    assert nvml_report.from_json(to_json(facts)) == facts
    older = PYNVML.load().replace(b"def nvmlSystemGetConfComputeSettings", b"def _unknown")
    (tmp_path / "older").mkdir()
    facts = query(node, tmp_path / "older", older)
    assert facts.confidential == {"ppcie": "off"}.get(mode, mode)


def test_the_fragment_that_is_sent_asks_nvml_and_compiles_nothing_twice(
    stub_node: Callable[..., StubNode], tmp_path: Path
) -> None:
    node = stub_node("2xL40S")
    for file in GpuFacts().ships:
        path = tmp_path / "lib" / file.digest / file.name
        path.parent.mkdir()
        path.write_bytes(file.load())
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.touch()
    roots = {"PROC": str(tmp_path / "proc"), "SHIPPED": str(tmp_path / "lib")}
    for _ in range(2):
        done = subprocess.run(
            ["sh", "-c", GpuFacts().script()],
            env=node.environment | roots,
            capture_output=True,
            check=True,
        )
        assert not done.stderr
        facts = GpuFacts().parse(Answer(0, done.stdout))
        assert [gpu.uuid for gpu in facts.gpus] == node.uuids
    assert len(list(tmp_path.glob("lib/*/__pycache__/*.pyc"))) == len(GpuFacts().ships)


def test_a_gpu_off_the_bus_costs_only_itself(
    stub_node: Callable[..., StubNode], tmp_path: Path
) -> None:
    facts = query(stub_node("4xH100", "gpu-off-bus:2"), tmp_path)
    assert facts.error is None
    assert not facts.works
    assert [gpu.error for gpu in facts.gpus] == [None, None, 15, None]


def test_a_library_of_another_version_is_error_18(
    stub_node: Callable[..., StubNode], tmp_path: Path
) -> None:
    facts = query(stub_node(loaded="570.86.15"), tmp_path)
    assert facts.error == 18
    assert facts.gpus == ()


def test_a_missing_library_is_error_12(stub_node: Callable[..., StubNode], tmp_path: Path) -> None:
    node = stub_node()
    (tmp_path / "lib/libnvidia-ml.so.1").unlink()
    assert query(node, tmp_path).error == nvml_report.LIBRARY_NOT_FOUND


HANGING = b"""
import time
class NVMLError(Exception):
    value = 999
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: time.sleep(60)
    return index
def nvmlDeviceGetUUID(handle): return "GPU-%d" % handle
"""


def test_a_gpu_that_hangs_is_named_and_what_answered_before_is_kept(
    stub_node: Callable[..., StubNode], tmp_path: Path
) -> None:
    began = time.monotonic()
    facts = query(stub_node(), tmp_path, HANGING, timeout_s=0.5)
    assert time.monotonic() - began < 10
    assert facts.error == nvml_report.TIMEOUT
    assert facts.error_text == "NVML did not answer within 0.5 s in a query of GPU 1"
    assert [(gpu.index, gpu.uuid, gpu.error) for gpu in facts.gpus] == [
        (0, "GPU-0", None),
        (1, "", nvml_report.TIMEOUT),
    ]


def test_a_library_that_crashes_is_an_error_and_no_traceback(
    stub_node: Callable[..., StubNode], tmp_path: Path
) -> None:
    crash = b"import os\nclass NVMLError(Exception): value = 1\ndef nvmlInit(): os.abort()\n"
    facts = query(stub_node(), tmp_path, crash)
    assert (facts.error, facts.error_text) == (999, "NVML crashed")


def test_a_damaged_binding_is_removed_so_that_it_is_sent_again(tmp_path: Path) -> None:
    whole = b"import no_such_module\n#"
    for content, damaged in ((whole, False), (b"import no_such_module\n", True)):
        folder = tmp_path / hashlib.sha256(whole).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        binding = folder / "pynvml.py"
        binding.write_bytes(content)
        program = tmp_path / "nvml_facts.py"
        program.write_bytes(NVML_FACTS.load())
        words = [sys.executable, "-I", "-S", "-B", str(program), str(binding), "10"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert report["error"] == 999
        assert binding.exists() != damaged
        assert ("was damaged and is removed" in report["error_text"]) == damaged, report


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("nonsense", "nonsense"),
        ("XY:1B:00.0", "xy:1b:00.0"),
    ],
)
def test_a_pci_address_gets_the_form_of_sysfs(nvml: str, sysfs: str) -> None:
    assert nvml_report.sysfs_address(nvml) == sysfs


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"gpus": 3}', '{"gpus": [{"colour": 1}]}', "{"]
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NVML report"):
        nvml_report.parse(text)
