"""Programs are built once from pinned modules, or taken from a folder of ready ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import programs

NAMES = sorted(path.parent.name for path in programs.MODULES.glob("*/go.mod"))

#: Answers as the go command does, and writes a file for each package that it "builds".
STUB = r"""#!/bin/sh
echo "$@" >>"@LOG@"
case " $* " in
*" version "*) echo "go version go@VERSION@ linux/amd64" ;;
*" mod download "*) printf '{"Dir": "%s"}' "@SOURCE@" ;;
*" list "*) printf 'fmt\nos\nexample\n' ;;
*" build "*)
  while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
  echo fmt >&2; echo os >&2
  [ ! -e "@FAIL@" ] || { echo 'x.go:1: undefined: y' >&2; exit 1; }
  for p in server kwok; do printf 'program' >"$out$p"; chmod 755 "$out$p"; done ;;
esac
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a ``go`` of our own, first on the PATH; caches below ``tmp_path``."""
    folder = tmp_path / "stub"
    folder.mkdir()
    write_go(folder, "1.26.8")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("GPUSTATE_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUSTATE_LAB_DIR", str(tmp_path / "labs"))
    monkeypatch.delenv(programs.READY_VARIABLE, raising=False)
    return folder


def write_go(folder: Path, version: str) -> None:
    text = STUB.replace("@VERSION@", version).replace("@LOG@", str(folder / "calls"))
    text = text.replace("@SOURCE@", str(folder / "source"))
    go = folder / "go"
    go.write_text(text.replace("@FAIL@", str(folder / "fail")))
    go.chmod(0o755)


def builds(folder: Path) -> int:
    calls = folder / "calls"
    return calls.read_text().count(" build ") if calls.exists() else 0


@pytest.mark.parametrize("name", NAMES)
def test_a_module_pins_its_version_and_every_sum(name: str) -> None:
    module = programs.module(name)
    assert module.version.partition("-")[0].count(".") == 2
    assert module.programs
    sums = (module.folder / "go.sum").read_text().splitlines()
    assert all(len(line.split()) == 3 and " h1:" in line for line in sums)
    assert "-trimpath" in module.arguments()


@pytest.mark.parametrize("name", [name for name in NAMES if name[-1].isdigit()])
def test_a_modules_name_ends_in_the_version_it_pins(name: str) -> None:
    assert programs.module(name).version.startswith(name.rpartition("-")[2])


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("kubernetes")])
def test_staging_modules_are_replaced_by_the_release_that_fits(name: str) -> None:
    text = (programs.MODULES / name / "go.mod").read_text()
    staging = "v0." + programs.module(name).version.partition(".")[2]
    replaced = [line.split()[-1] for line in text.splitlines() if " => " in line]
    assert len(replaced) > 25
    assert set(replaced) == {staging}


@pytest.mark.parametrize("name", ["kwok", "nfd", "device-plugin", "dra-driver"])
def test_a_clusters_programs_name_the_same_libraries_which_are_then_compiled_once(
    name: str,
) -> None:
    libraries = (
        *("k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/kube-openapi"),
        *("google.golang.org/protobuf", "google.golang.org/grpc", "golang.org/x/net"),
    )
    cluster, mine = pinned("kubernetes-1.36"), pinned(name)
    assert {library: mine[library] for library in libraries if library in mine} == {
        library: cluster[library] for library in libraries if library in mine
    }


def pinned(name: str) -> dict[str, str]:
    """What a module is built with: versions by path, after replacements."""
    lines = (programs.MODULES / name / "go.mod").read_text().splitlines()
    words = [re.sub("^(require|replace) ", "", line).split() for line in lines]
    required = {line[0]: line[1] for line in words if len(line) > 1 and line[1].startswith("v")}
    replaced = {line[0]: line[3] for line in words if "=>" in line}
    return required | replaced


def test_an_unknown_module_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(LabError, match=r"no pinned module 'kubernetes-9\.9'"):
        programs.provide("kubernetes-9.9", print)


def test_programs_are_built_once_with_progress(stub: Path) -> None:
    lines: list[str] = []
    first = programs.provide("etcd", lines.append)
    assert first["etcd"].read_text() == "program"
    assert lines[0] == "etcd: building etcd 3.6.8"
    assert lines[-1].startswith("etcd: built in")
    assert programs.provide("etcd", lines.append) == first
    assert builds(stub) == 1


def test_another_toolchain_is_another_build(stub: Path) -> None:
    first = programs.provide("kwok", print)
    write_go(stub, "1.27.0")
    assert programs.provide("kwok", print) != first
    assert builds(stub) == 2
    assert not first["kwok"].exists()


def test_a_build_that_fails_leaves_nothing_and_names_its_log(stub: Path, tmp_path: Path) -> None:
    (stub / "fail").touch()
    with pytest.raises(LabError, match=r"kwok: go build failed: .*undefined: y") as caught:
        programs.provide("kwok", print)
    assert caught.value.fix == f"read {tmp_path}/cache/kwok.log"
    assert "undefined: y" in (tmp_path / "cache/kwok.log").read_text()
    assert list((tmp_path / "cache/programs").iterdir()) == []


def test_ready_programs_are_taken_as_they_are(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()
    (ready / "etcd").write_text("#!/bin/sh\n")
    (ready / "etcd").chmod(0o755)
    monkeypatch.setenv(programs.READY_VARIABLE, str(ready))
    assert programs.provide("etcd", print) == {"etcd": ready / "etcd"}
    assert builds(stub) == 0
    assert programs.provide("kwok", print)["kwok"].parent != ready
    for text in ("a note", "", "#!\n", "#!/nowhere/sh\n"):
        (ready / "etcd").write_text(text)
        with pytest.raises(LabError, match="ready/etcd: not executable on this machine"):
            programs.provide("etcd", print)
    monkeypatch.setenv(programs.READY_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(LabError, match="KUBEBUILDER_ASSETS: not a directory"):
        programs.provide("etcd", print)


def test_without_go_and_without_pip_the_error_names_the_ways_out(
    stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_go(stub, "1.26.7")
    monkeypatch.setattr(programs, "GO_FOLDERS", ())
    monkeypatch.setattr(programs, "_pip", lambda: None)
    assert (programs.missing() or "").startswith("neither Go 1.26.8 or newer on the PATH, nor pip")
    with pytest.raises(LabError, match=r"no Go 1\.26\.8 or newer, and no pip") as caught:
        programs.provide("etcd", print)
    assert "KUBEBUILDER_ASSETS" in (caught.value.fix or "")


def test_data_files_are_copied_from_the_modules_sources_once(stub: Path) -> None:
    source = stub / "source" / "stages"
    source.mkdir(parents=True)
    for name in ("b.yaml", "a.yaml", "c.txt"):
        (source / name).write_text(name)
    found = programs.data_files("kwok", ["stages/*.yaml"], print)
    assert [(file.name, file.read_text()) for file in found] == [
        ("a.yaml", "a.yaml"),
        ("b.yaml", "b.yaml"),
    ]
    calls = (stub / "calls").read_text()
    assert "mod download -json sigs.k8s.io/kwok" in calls
    (stub / "go").unlink()  # not needed any more
    assert programs.data_files("kwok", ["stages/*.yaml"], print) == found
    write_go(stub, "1.26.8")
    with pytest.raises(LabError, match=r"kwok has no file that matches none/\*"):
        programs.data_files("kwok", ["none/*"], print)


def test_replaced_programs_are_distinguished_even_in_a_folder_of_one_name(tmp_path: Path) -> None:
    program = tmp_path / "containerd"
    program.write_text("one")
    first = programs.identity([program])
    assert programs.identity([program]) == first
    program.write_text("another")
    assert programs.identity([program]) != first


def test_programs_of_two_folders_have_none_in_common(tmp_path: Path) -> None:
    assert programs.common_folder("kwok", [tmp_path / "a", tmp_path / "b"]) == tmp_path
    with pytest.raises(LabError, match="only some programs of kwok are prebuilt"):
        programs.common_folder("kwok", [tmp_path / "a", tmp_path / "other" / "b"])
