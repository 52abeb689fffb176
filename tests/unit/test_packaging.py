"""Wheel and source distribution: they build, from each other too, and work far from the checkout.

No registry is asked: the build backend is the one of this environment, and so are the dependencies of
the environment that gpustate is installed into.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

from gpustate import __version__

TOP = Path(__file__).parents[2]


def python(*words: str | Path, cwd: Path, program: str | Path = sys.executable) -> str:
    """Run Python without any of the checkout's paths; its standard output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [program, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def build(source: Path, out: Path, *kinds: str) -> None:
    python("-m", "build", "--no-isolation", "--outdir", out, *kinds, source, cwd=out)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    build(TOP, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"gpustate-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def source(built: Path) -> Path:
    return built / f"gpustate-{__version__}.tar.gz"


def tracked() -> set[str]:
    """Files of the package, by the names that an installed gpustate has for them."""
    done = subprocess.run(
        ["git", "ls-files", "gpustate", "states"], cwd=TOP, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    names = {name for name in done.stdout.splitlines() if (TOP / name).is_file()}
    return {f"gpustate/{name}" if name.startswith("states/") else name for name in names}


def content(archive: Path) -> dict[str, int]:
    with zipfile.ZipFile(archive) as file:
        names = [info.filename for info in file.infolist()]
        assert len(names) == len(set(names))
        return {
            info.filename: info.CRC
            for info in file.infolist()
            if ".dist-info/" not in info.filename
        }


def test_the_wheel_has_every_file_of_the_package_once_and_no_other(wheel: Path) -> None:
    names = set(content(wheel))
    assert names - tracked() == set()
    assert tracked() - names == set()
    assert {"gpustate/py.typed", "gpustate/states/driver/__init__.py"} <= names


def test_a_wheel_of_the_checkout_is_the_one_of_the_source_distribution(
    wheel: Path, tmp_path: Path
) -> None:
    build(TOP, tmp_path, "--wheel")
    assert content(tmp_path / wheel.name) == content(wheel)


def test_the_source_distribution_has_each_state_once(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names))
    top = f"gpustate-{__version__}"
    assert f"{top}/states/driver/__init__.py" in names
    assert f"{top}/gpustate/states/driver/__init__.py" not in names
    assert f"{top}/docs/use.md" in names


def test_the_version_is_said_in_one_place(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"gpustate-{__version__}.dist-info/METADATA"))
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert 'version = "' not in (TOP / "pyproject.toml").read_text("utf-8").partition("[tool.")[0]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment that has the wheel, and this environment's packages behind it; its folder of programs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    program = folder / "bin/python"
    python(
        *("-m", "pip", "--python", program, "install", "--quiet", "--no-deps", "--no-index", wheel),
        cwd=folder,
    )
    libraries = next(folder.glob("lib/python*/site-packages"))
    # A plain path: an editable install of the checkout, which is in a .pth file there, does not count.
    (libraries / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield program.parent
    assert not (libraries / "states").exists()


def test_it_is_not_the_checkout_that_runs(installed: Path, tmp_path: Path) -> None:
    said = python(
        "-c",
        "import gpustate; print(gpustate.__file__)",
        cwd=tmp_path,
        program=installed / "python",
    )
    assert said.startswith(str(installed.parent))


def test_the_installed_program_says_its_version_and_its_verbs(
    installed: Path, tmp_path: Path
) -> None:
    program = installed / "gpustate"
    assert python("--version", cwd=tmp_path, program=program) == f"gpustate {__version__}\n"
    assert "  plan " in python("--help", cwd=tmp_path, program=program)


POLICY = """
from gpustate import presets

policy = presets.kubernetes_node(driver={"branch": 580})
"""
INVENTORY = """
all:
  hosts:
    here:
      ansible_connection: local
      gpustate_state_folder: {folder}/state
"""


def test_a_preset_is_planned_from_there(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.py").write_text(POLICY)
    (tmp_path / "inventory.yml").write_text(INVENTORY.format(folder=tmp_path))
    program = installed / "gpustate"
    done = subprocess.run(
        [program, "plan", "policy.py", "-i", "inventory.yml", "-o", "json"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    # This machine is hardly a GPU node: what counts is that every state was asked of it.
    assert done.returncode in (0, 5), done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    assert {"preflight", "driver", "containerd", "validator"} <= {
        s["state"] for s in node["states"]
    }


def test_the_api_plans_from_there(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "inventory.yml").write_text(INVENTORY.format(folder=tmp_path))
    said = python(
        "-c",
        "from gpustate import api; print(api.plan('nouveau', 'inventory.yml').summary)",
        cwd=tmp_path,
        program=installed / "python",
    )
    assert said.startswith("nodes=1 ")
