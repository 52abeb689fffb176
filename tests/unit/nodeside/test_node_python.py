"""What runs on nodes runs there: nothing but the standard library, as Python 3.9 has it."""

from __future__ import annotations

import ast
import sys

import pytest

from gpustate.core.queries import ShippedFile
from gpustate.probes.gpu_facts import NVML_FACTS
from gpustate.states.cdi import leave_out
from gpustate.states.validator import PROGRAM

FILES = sorted({*PROGRAM, *leave_out.MODULES})
SHIPPED = [ShippedFile(file, package, file) for package, file in FILES if file.endswith(".py")]
OURS = {
    f"{package}.{file.removesuffix('.py')}".removesuffix(".__init__") for package, file in FILES
}


def test_the_probe_and_the_validator_ship_the_same_nvml_program() -> None:
    assert NVML_FACTS.digest in {file.digest for file in SHIPPED}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_is_python_3_9(file: ShippedFile) -> None:
    ast.parse(file.load(), feature_version=(3, 9))
    for node in ast.walk(ast.parse(file.load())):
        # dataclass(slots=...) and zip(strict=...) came with 3.10.
        if isinstance(node, ast.Call):
            assert not {keyword.arg for keyword in node.keywords} & {"slots", "strict", "kw_only"}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_imports_only_what_a_node_has(file: ShippedFile) -> None:
    for node in ast.walk(ast.parse(file.load())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            whole = {f"{module}.{alias.name}" for alias in node.names}
            names = sorted(whole) if whole <= OURS else [module]
        for name in names:
            assert name in OURS or name.partition(".")[0] in sys.stdlib_module_names, name
