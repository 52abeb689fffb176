"""The simulated packages and repositories, looked at with dpkg-deb and gpg."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import programs
from gpustate_lab.sim import deb, driver_packages, node_packages, repository
from gpustate_lab.sim.deb import Link, Package, Program
from gpustate_lab.sim.native import Builder
from gpustate_lab.sim.repository import Repository
from gpustate_lab.spec import TOOLKITS

KERNEL = "6.1.0-9-test"
TOOLS = ("gcc", "dpkg-deb", "gpg", "gpgv")

#: Ubuntu's archive has a test of its own.
DEBIAN = ("debian12", "debian13")


@dataclass(frozen=True)
class Stanza:
    """One entry of a Packages file."""

    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")


def stanzas(path: Path) -> list[Stanza]:
    entries = path.read_text().strip().split("\n\n")
    return [Stanza(dict(re.findall(r"^(\S+): (.*)$", entry, re.MULTILINE))) for entry in entries]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"packages are built with {', '.join(missing)}, which is not installed")
    if programs.missing() is not None:
        pytest.skip(f"NVIDIA's container toolkit cannot be built: {programs.missing()}")
    dest = tmp_path_factory.mktemp("repository") / "root"
    repository.build_toolkits(dest, TOOLKITS, print)
    return repository.build(dest, suites=DEBIAN, kernel=KERNEL)


def test_a_package_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    package = Package(
        name="one",
        version="1:2.0-1",
        summary="a package",
        files={"usr/bin/tool": Program("#!/bin/sh\n"), "etc/one.conf": "x\n", "usr/l": Link("bin")},
        depends=("two (= 1)",),
        scripts={"postinst": "#!/bin/sh\n"},
    )
    first = deb.write(package, tmp_path).read_bytes()
    assert deb.write(package, tmp_path).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["one_1%3a2.0-1_amd64.deb"]
    listed = subprocess.run(
        ["dpkg-deb", "-c", tmp_path / package.file_name], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"-rwxr-xr-x root/root .* ./usr/bin/tool", listed)
    assert "./usr/l -> bin" in listed


def test_the_distribution_has_another_origin_and_its_own_names(built: Repository) -> None:
    directory = built.root / built.path("debian", "debian12")
    known = {one["Package"]: one for one in stanzas(directory / "Packages")}
    assert "nvidia-open-kernel-dkms" in known
    assert "nvidia-kernel-open-dkms" not in known
    assert known["libcuda1"]["Version"] == "535.309.01-0+deb12u1"
    assert known["nvidia-persistenced"]["Version"] == "535.171.04-1~deb12u1"
    assert known["nvidia-open-kernel-dkms"]["Version"].startswith("535.261.03")
    origins = {
        kind: re.findall(
            r"^Origin: (.*)$",
            (built.root / built.path(kind, "debian12") / "Release").read_text(),
            re.MULTILINE,
        )
        for kind in ("cuda", "mirror", "debian")
    }
    assert origins == {"cuda": ["NVIDIA"], "mirror": ["example-mirror"], "debian": ["Debian"]}


def test_the_signature_fits_the_key_that_nodes_get(built: Repository, tmp_path: Path) -> None:
    keyring = tmp_path / "key.gpg"
    subprocess.run(
        ["gpg", "--batch", "--homedir", tmp_path, "--dearmor", "-o", keyring, built.key],
        check=True,
        capture_output=True,
    )
    for kind in ("cuda", "lab"):
        signed = built.root / built.path(kind, "debian12") / "InRelease"
        subprocess.run(["gpgv", "--keyring", keyring, signed], check=True, capture_output=True)
    assert not [
        path
        for path in built.root.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]


def test_lists_of_a_node_name_the_key_they_bring(built: Repository) -> None:
    files = built.sources("debian13", "http://10.0.0.1:80/", include=("cuda", "lab"))
    assert files.pop(repository.NODE_KEY) == built.key.read_text()
    assert sorted(files.values()) == [
        f"deb [signed-by={repository.NODE_KEY}] http://10.0.0.1:80/cuda/repos/debian13/x86_64/ /\n",
        f"deb [signed-by={repository.NODE_KEY}] http://10.0.0.1:80/lab/debian13/ /\n",
    ]
    with pytest.raises(LabError, match="no cuda repository for 'debian11'"):
        built.sources("debian11", "http://10.0.0.1")


def test_what_is_built_is_built_once_and_again_for_another_kernel(built: Repository) -> None:
    def stamps() -> list[tuple[str, int]]:
        folder = built.root / repository.STAMPS
        return sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())

    before = stamps()
    assert [name for name, _ in before] == ["debian12.json", "debian13.json", "toolkits.json"]
    assert repository.build(built.root, suites=DEBIAN, kernel=KERNEL) == built
    repository.build_toolkits(built.root, (), print)
    assert stamps() == before
    assert built.kernels == (KERNEL, node_packages.OLDER_KERNEL)


def test_the_image_gets_headers_for_the_running_kernel_only(built: Repository) -> None:
    known = {
        one["Package"] for one in stanzas(built.root / built.path("lab", "debian12") / "Packages")
    }
    assert set(built.image_packages("debian12")) < known
    assert known - set(built.image_packages("debian12")) == {"linux-headers-5.10.0-28-lab"}


def test_a_kernel_release_with_capitals_still_makes_a_package_name() -> None:
    assert node_packages.image_package("6.6.87_WSL2") == "linux-image-6.6.87-wsl2"


def test_a_kernel_release_that_is_a_path_is_refused(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is not a kernel release"):
        node_packages.kernel_packages("../6.1", builder, tmp_path)


def test_pinning_a_branch_leaves_the_versions_of_the_branch(built: Repository) -> None:
    pins = {
        package.name: package for package in driver_packages.pinning(list(built.driver_versions))
    }
    text = pins["nvidia-driver-pinning-580"].files["etc/apt/preferences.d/nvidia-driver-pinning"]
    assert "Pin: version 580.*\n" in str(text)
    text = pins["nvidia-driver-pinning-580.65.06"].files[
        "etc/apt/preferences.d/nvidia-driver-pinning"
    ]
    assert "Pin: version 580.65.06-*\n" in str(text)


def test_a_missing_compiler_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match=r"gcc is missing, .*; apt install gcc"):
        Builder(tmp_path / "native")
