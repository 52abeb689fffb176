"""Finding states: bundled, installed, the user's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpustate.errors import GpustateError, GraphError, PolicyError
from gpustate.registry import Registry

STATE = """
from dataclasses import dataclass
from typing import ClassVar
from gpustate import State

@dataclass(frozen=True, slots=True)
class Observed:
    text: str | None

class {cls}(State[Observed]):
    name: ClassVar[str] = "{name}"
    def probe(self, node): return Observed(node.read_text("/etc/x"))
    def desired(self, seen): return Observed("x")
    def apply(self, seen, plan): yield from ()
"""


def write_state(file: Path, name: str, cls: str = "Limits") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STATE.format(name=name, cls=cls))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path; what is imported from it is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0].startswith(("own_", "fake_")):
            del sys.modules[name]


def bundle(folder: Path, **states: str) -> Registry:
    """A registry over a package of its own with one module a state."""
    package = f"fake_{folder.name.replace('-', '_')}"
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("")
    for module, name in states.items():
        write_state(folder / package / f"{module}.py", name)
    return Registry(package)


def install(folder: Path, name: str, value: str, distribution: str = "acme-gpu") -> None:
    """A distribution with one entry point, as pip would leave it."""
    info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[gpustate.states]\n{name} = {value}\n")


def test_a_new_file_in_the_package_is_a_new_state(folder: Path) -> None:
    registry = bundle(folder, nouveau="nouveau", repository="driver-repository")
    assert list(registry.states()) == ["driver-repository", "nouveau"]


def test_a_state_merely_imported_by_a_module_is_not_found_twice(folder: Path) -> None:
    registry = bundle(folder, nouveau="nouveau")
    (folder / registry.package / "other.py").write_text(
        f"from {registry.package}.nouveau import Limits\n"
    )
    assert list(registry.states()) == ["nouveau"]


def test_asking_for_one_state_imports_no_other(folder: Path) -> None:
    registry = bundle(folder, nouveau="nouveau")
    (folder / registry.package / "broken.py").write_text("raise RuntimeError('imported')\n")
    assert registry.get("nouveau").name == "nouveau"


def test_an_unknown_name_comes_with_near_ones(folder: Path) -> None:
    registry = bundle(folder, nouveau="nouveau", cdi="cdi")
    with pytest.raises(GraphError, match="no state 'noveau'; did you mean nouveau"):
        registry.get("noveau")
    with pytest.raises(GraphError, match="states: cdi, nouveau"):
        registry.get("xyz")


def test_two_bundled_states_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(GraphError, match=r"'cdi' has two owners: .*one.Limits and .*two.Limits"):
        bundle(folder, one="cdi", two="cdi").states()


def test_an_installed_package_brings_its_state(folder: Path) -> None:
    write_state(folder / "own_acme.py", "acme-limits")
    install(folder, "acme-limits", "own_acme:Limits")
    assert set(bundle(folder, cdi="cdi").states()) == {"acme-limits", "cdi"}


@pytest.mark.parametrize(
    ("state", "point", "value", "said"),
    [
        ("limits", "limits", "own_acme:Limits", "'limits' carries no prefix"),
        ("acme-limits", "acme-other", "own_acme:Limits", "leads to a state called 'acme-limits'"),
        ("acme-limits", "acme-limits", "own_acme:Observed", "not a subclass of gpustate.State"),
        ("acme-limits", "acme-limits", "own_gone:Limits", "acme-gpu 1.2: .*No module named"),
    ],
)
def test_an_installed_state_that_cannot_be_is_named_with_its_package(
    folder: Path, state: str, point: str, value: str, said: str
) -> None:
    write_state(folder / "own_acme.py", state)
    install(folder, point, value)
    with pytest.raises(GraphError, match=said):
        bundle(folder, cdi="cdi").states()


def test_an_installed_package_cannot_take_a_bundled_name(folder: Path) -> None:
    write_state(folder / "own_acme.py", "driver-repository")
    install(folder, "driver-repository", "own_acme:Limits")
    with pytest.raises(GraphError, match=r"two owners: .* and package acme-gpu 1.2"):
        bundle(folder, repository="driver-repository").states()


def test_a_project_file_above_the_policy_brings_states_of_its_folder(folder: Path) -> None:
    project = folder / "project"
    write_state(project / "own_lab" / "limits.py", "acme-limits")
    (project / "gpustate.toml").write_text('states = ["own_lab.limits:Limits"]\n')
    (project / "policies" / "deep").mkdir(parents=True)
    registry = bundle(folder, cdi="cdi")
    assert registry.use_project(project / "policies" / "deep") == project / "gpustate.toml"
    assert registry.get("acme-limits").name == "acme-limits"
    assert registry.use_project(project) == project / "gpustate.toml"


def test_no_project_file_is_no_error(folder: Path) -> None:
    assert bundle(folder, cdi="cdi").use_project(folder) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("states = [", "is not TOML"),
        ("stats = []", "unknown key 'stats'"),
        ('states = "own_lab:Limits"', "must be a list"),
        ("states = [1]", "1 is not 'module:Class'"),
        ('states = ["own_lab.Limits"]', "is not 'module:Class'"),
        ('states = ["own_lab:Limit"]', "did you mean 'Limits'"),
        ('states = ["own_nothing:Limits"]', "cannot be imported: ModuleNotFoundError"),
        ('states = ["own_bad:Limits"]', "cannot be imported: ZeroDivisionError"),
        ('states = ["own_lab:Observed"]', "not a subclass of gpustate.State"),
        ('states = ["own_lab:Limits", "own_lab:Limits"]', "is named twice"),
        ('states = ["own_plain:Limits"]', "carries no prefix"),
    ],
)
def test_a_wrong_project_file_is_one_error_with_its_place(
    folder: Path, text: str, said: str
) -> None:
    write_state(folder / "own_lab.py", "acme-limits")
    write_state(folder / "own_plain.py", "limits")
    (folder / "own_bad.py").write_text("1 / 0\n")
    (folder / "gpustate.toml").write_text(text)
    with pytest.raises(GpustateError, match=said) as caught:
        bundle(folder, cdi="cdi").use_project(folder)
    assert str(caught.value).startswith(str(folder / "gpustate.toml"))
    assert "\n" not in str(caught.value)


def test_the_bundled_states_have_one_owner_each_and_a_module_that_get_finds() -> None:
    for name, cls in Registry().states().items():
        assert Registry().get(name) is cls


def test_a_policy_of_one_state_imports_neither_yaml_nor_an_ssh_library() -> None:
    code = (
        "import sys; from gpustate import registry; registry.get('nouveau'); "
        "print([m for m in ('yaml', 'paramiko', 'gevent', 'gpustate.states.preflight') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "start-up time: import only what is asked for"


def test_the_current_directory_counts_for_the_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpustate import registry

    (folder / "gpustate.toml").write_text('states = ["own_nothing:Limits"]')
    monkeypatch.chdir(folder)
    monkeypatch.setattr(registry, "_registry", None)
    with pytest.raises(PolicyError, match=r"gpustate\.toml: state 'own_nothing:Limits'"):
        registry.get("nouveau")
