from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab.sim import deb, node_faults
from gpustate_lab.sim.driver_packages import DRIVERS, LIBRARY_DIRECTORY
from gpustate_lab.sim.node_faults import CONTAINERD, LIBRARY_MISMATCH

INSTALLED, OTHER = "580.65.06", "580.178.04"


@pytest.fixture(params=["debian", "ubuntu"])
def packages(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A repository of NVIDIA's: on Debian with a package for each library, on Ubuntu with one for all."""
    folder = tmp_path / "packages" / request.param
    folder.mkdir(parents=True)
    contents: dict[str, dict[str, deb.Entry]] = {}
    for library, name in node_faults.LIBRARIES.items():
        package = name if request.param == "debian" else "libnvidia-compute-580"
        path = f"{LIBRARY_DIRECTORY}/{library}.so.{OTHER}"
        contents.setdefault(package, {})[path] = f"{OTHER}\n"
    for package, files in contents.items():
        deb.write(deb.Package(package, f"{OTHER}-1", "libraries", files), folder)
    return folder.parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / LIBRARY_DIRECTORY
    folder.mkdir(parents=True)
    for library in node_faults.LIBRARIES:
        (folder / f"{library}.so.{INSTALLED}").write_text(f"{INSTALLED}\n")
        (folder / f"{library}.so.1").symlink_to(f"{library}.so.{INSTALLED}")
        (folder / f"{library}.so").symlink_to(f"{library}.so.1")
    return tmp_path / "root"


def tree(root: Path) -> dict[str, str]:
    """Every file and link with what it holds."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def libraries(root: Path) -> set[str]:
    """The version of each library as a program gets it."""
    return {
        (root / LIBRARY_DIRECTORY / f"{library}.so.1").read_text().strip()
        for library in node_faults.LIBRARIES
    }


def test_on_the_libraries_are_the_other_versions_and_off_the_tree_is_as_it_was(
    root: Path, packages: Path
) -> None:
    before = tree(root)
    for _ in range(2):
        assert not node_faults.switch(root, LIBRARY_MISMATCH, True, packages)
        assert libraries(root) == {OTHER}
    for _ in range(2):
        assert not node_faults.switch(root, LIBRARY_MISMATCH, False, packages)
        assert tree(root) == before


def test_links_that_somebody_repaired_or_removed_are_left_alone(root: Path, packages: Path) -> None:
    node_faults.switch(root, LIBRARY_MISMATCH, True, packages)
    for path in (root / LIBRARY_DIRECTORY).glob("libcuda*"):
        path.unlink()
    link = root / LIBRARY_DIRECTORY / "libnvidia-ml.so.1"
    link.unlink()
    link.symlink_to(f"libnvidia-ml.so.{INSTALLED}")
    node_faults.switch(root, LIBRARY_MISMATCH, False, packages)
    assert link.read_text() == f"{INSTALLED}\n"
    assert not any("libcuda" in name or OTHER in name for name in tree(root))


def test_a_driver_that_was_removed_while_its_library_was_another_leaves_no_loose_link(
    root: Path, packages: Path
) -> None:
    node_faults.switch(root, LIBRARY_MISMATCH, True, packages)
    for library in node_faults.LIBRARIES:
        (root / LIBRARY_DIRECTORY / f"{library}.so.{INSTALLED}").unlink()
        (root / LIBRARY_DIRECTORY / f"{library}.so").unlink()
    node_faults.switch(root, LIBRARY_MISMATCH, False, packages)
    assert tree(root) == {}


def test_what_is_missing_for_another_library_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no driver is installed .libnvidia-ml\.so\.1 is missing"):
        node_faults.switch(tmp_path, LIBRARY_MISMATCH, True, tmp_path)
    before = tree(root)
    with pytest.raises(LabError, match="no package of the other driver version has libnvidia-ml"):
        node_faults.switch(root, LIBRARY_MISMATCH, True, tmp_path)
    assert tree(root) == before


@pytest.mark.parametrize("version", [*DRIVERS, "535.309.01"])
def test_another_version_is_one_that_the_lab_has_and_of_the_branch_if_there_is_one(
    version: str,
) -> None:
    other = node_faults.other_version(version)
    assert other in DRIVERS
    assert other != version
    assert version[:3] != "580" or other[:3] == "580"


def test_the_drop_in_of_containerd_comes_and_goes_and_says_when_units_changed(root: Path) -> None:
    before = tree(root)
    assert not node_faults.switch(root, CONTAINERD, False, root)
    assert node_faults.switch(root, CONTAINERD, True, root)
    assert "Simulated" in (root / node_faults.DROP_IN).read_text()
    assert node_faults.switch(root, CONTAINERD, False, root)
    assert tree(root) == before
    assert not (root / node_faults.DROP_IN).parent.exists()


def test_a_fault_of_the_simulator_is_no_file_of_the_node(root: Path) -> None:
    before = tree(root)
    assert not node_faults.switch(root, "cuda-802", True, root)
    assert tree(root) == before


def test_nouveau_needs_a_kernel_that_has_it(tmp_path: Path) -> None:
    """Ubuntu has it in linux-modules-extra, which cloud images and the lab's do not have."""
    folder = tmp_path / "usr/lib/modules/6.8.0-106-generic/kernel/drivers/gpu/drm/nouveau"
    with pytest.raises(
        LabError, match=r"no kernel of the node has nouveau\.ko.*linux-modules-extra"
    ):
        node_faults.switch(tmp_path, "nouveau-stuck", True, tmp_path)
    assert not node_faults.switch(tmp_path, "nouveau-stuck", False, tmp_path)
    folder.mkdir(parents=True)
    (folder / "nouveau.ko").touch()
    assert not node_faults.switch(tmp_path, "nouveau-stuck", True, tmp_path)
