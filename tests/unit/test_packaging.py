"""Wheel and source distribution: they build, from each other too, and work far from the checkout.

No registry is asked: the build backend is the one of this environment, and so are the dependencies of
the environment that gpustate is installed into.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
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


def tracked(*folders: str, top: Path = TOP) -> set[str]:
    """Files of a package, by the names that they have where it is installed."""
    done = subprocess.run(["git", "ls-files", *folders], cwd=top, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    names = {name for name in done.stdout.splitlines() if (top / name).is_file()}
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
    names, files = set(content(wheel)), tracked("gpustate", "states")
    assert (names - files, files - names) == (set(), set())
    assert {"gpustate/py.typed", "gpustate/states/driver/__init__.py"} <= names


def test_the_wheel_has_no_simulator(wheel: Path) -> None:
    names = content(wheel)
    assert [name for name in names if re.search(r"(^|/|_)(lab|sim)(/|\.py$)", name)] == []
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            if name.endswith(".py"):
                assert not re.search(
                    rb"^\s*(from|import) gpustate_lab", archive.read(name), re.M
                ), name


@pytest.fixture(scope="module")
def lab_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    build(TOP / "lab", folder)
    return folder / f"gpustate_lab-{__version__}-py3-none-any.whl"


def test_the_labs_wheel_has_every_file_of_the_lab_and_no_other(lab_wheel: Path) -> None:
    names, files = set(content(lab_wheel)), tracked("gpustate_lab", top=TOP / "lab")
    assert (names - files, files - names) == (set(), set())


def test_the_lab_is_for_this_release_and_names_what_it_imports(lab_wheel: Path) -> None:
    with zipfile.ZipFile(lab_wheel) as archive:
        metadata = message_from_bytes(
            archive.read(f"gpustate_lab-{__version__}.dist-info/METADATA")
        )
    needs = metadata.get_all("Requires-Dist", [])
    assert f"gpustate=={__version__}" in needs
    named = {re.split(r"[<>=]", need)[0] for need in needs}
    imported = {
        word
        for path in (TOP / "lab/gpustate_lab").rglob("*.py")
        if "payload" not in path.parts
        for word in re.findall(r"^ *(?:from|import) (\w+)", path.read_text("utf-8"), re.M)
    }
    imports = {"pyyaml": "yaml"}
    for package in ("click", "cryptography", "gpustate", "jinja2", "paramiko", "pyyaml", "tomlkit"):
        assert (imports.get(package, package) in imported) == (package in named), package


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
    assert f"{top}/docs/operate.md" in names


def test_the_version_is_in_one_place(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"gpustate-{__version__}.dist-info/METADATA"))
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    bounds = dict(re.findall(r"(\w+)>=([\d.]+)", " ".join(metadata.get_all("Requires-Dist") or ())))
    assert (bounds["jinja2"], bounds["cryptography"]) == ("3.1.6", "44.0.1"), (
        "earlier ones have known holes"
    )
    assert 'version = "' not in (TOP / "pyproject.toml").read_text("utf-8").partition("[tool.")[0]


def environment(folder: Path, *wheels: Path) -> Path:
    """Make an environment of some wheels and of this one's other packages; its folder of programs."""
    venv.create(folder, with_pip=False)
    program = folder / "bin/python"
    python(
        *("-m", "pip", "--python", program, "install", "--quiet", "--no-deps", "--no-index"),
        *wheels,
        cwd=folder,
    )
    libraries = next(folder.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        ours = entry.name.lower().lstrip("_").startswith(("gpustate", "editable"))
        if not ours and entry.suffix != ".pth" and not (libraries / entry.name).exists():
            (libraries / entry.name).symlink_to(entry)
    assert not (libraries / "states").exists()
    return program.parent


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without the lab."""
    return environment(tmp_path_factory.mktemp("environment"), wheel)


def test_it_is_not_the_checkout_that_runs(installed: Path, tmp_path: Path) -> None:
    output = python(
        "-c",
        "import gpustate; print(gpustate.__file__)",
        cwd=tmp_path,
        program=installed / "python",
    )
    assert output.startswith(str(installed.parent))


def test_the_installed_program_says_its_version_and_its_verbs(
    installed: Path, tmp_path: Path
) -> None:
    program = installed / "gpustate"
    assert python("--version", cwd=tmp_path, program=program) == f"gpustate {__version__}\n"
    assert "  plan " in python("--help", cwd=tmp_path, program=program)


def test_without_the_lab_its_verb_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "gpustate", "lab", "list"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pipx inject gpustate ./lab" in done.stderr


def test_the_labs_wheel_brings_the_verb(wheel: Path, lab_wheel: Path, tmp_path: Path) -> None:
    program = environment(tmp_path / "environment", wheel, lab_wheel) / "gpustate"
    output = python("lab", "up", "--help", cwd=tmp_path, program=program)
    assert "--gpus" in output


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
    output = python(
        "-c",
        "from gpustate import api; print(api.plan('nouveau', 'inventory.yml').summary)",
        cwd=tmp_path,
        program=installed / "python",
    )
    assert output.startswith("nodes=1 ")
