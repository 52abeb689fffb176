"""What a machine computes itself at its first boot, with gpustate's own modules: the step that does it.

The modules travel in the step. They need nothing but the standard library of a Python that knows what they are
written in, so the image is queried for one while it is baked.
"""

from __future__ import annotations

import ast
import base64
import gzip
import io
import shlex
import tarfile
from collections.abc import Mapping
from functools import cache
from importlib import util
from pathlib import Path

from gpustate import shell
from gpustate.core.node import Node
from gpustate.errors import ProbeError
from gpustate.ops.steps import Run, RunLive

#: The oldest Python that runs the modules.
OLDEST = (3, 10)
_ABLE = f"import ctypes, json, sys, tarfile, zlib; sys.exit(sys.version_info < {OLDEST})"
_CHECK = f'p=$(command -v python3) && "$p" -I -S -c {shlex.quote(_ABLE)} 2>/dev/null'

#: What runs on the machine; every module of gpustate that it imports travels with it.
_PROGRAM = "gpustate.nodeside.first_boot"


def has_python(node: Node) -> bool:
    """Whether an image has a Python that can compute at its first boot."""
    return node.shell(f"{_CHECK} && echo able; :").stdout.strip() == "able"


@cache
def _bundle() -> str:
    """The modules, as the text of a compressed archive; equal modules give equal text."""
    texts = {"pynvml.py": _source("pynvml")[1]}
    for module in (
        _PROGRAM,
        *(f"gpustate.nodeside.{name}" for name in ("nvml_facts", "nvml_health")),
    ):
        _add(module, texts)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for place, text in sorted(texts.items()):
            entry = tarfile.TarInfo(place)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text))
    return base64.encodebytes(gzip.compress(packed.getvalue(), mtime=0)).decode("ascii")


def _source(module: str) -> tuple[str, bytes]:
    """A module's place below its top folder, and its text."""
    spec = util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ProbeError(f"the Python module {module} is not installed here")
    place = module.replace(".", "/") + (
        "/__init__.py" if spec.submodule_search_locations else ".py"
    )
    return place, Path(spec.origin).read_bytes()


def _add(module: str, texts: dict[str, bytes]) -> None:
    """Add a module and all of gpustate's that it imports; packages around them without what they import themselves."""
    place, text = _source(module)
    if place in texts:
        return
    texts[place] = text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("gpustate."):
            package = node.module or ""
            names = [f"{package}.{alias.name}" for alias in node.names]
            inside = [name for name in names if _is_package(package) and util.find_spec(name)]
            for name in inside if len(inside) == len(names) else [package, *inside]:
                _add(name, texts)
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name("shell"), attr="load"),
                args=[ast.Constant(value=str(name)), ast.Constant(value=str(package))],
            ):
                file = f"{package.replace('.', '/')}/{name}.sh"
                texts[file] = shell.load(name, package).encode("utf-8")
            case _:
                pass


def _is_package(name: str) -> bool:
    spec = util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def compute_files(content: str, options: str, writes: Mapping[str, str], label: str) -> Run:
    """Compute the text of files on the machine, and write them.

    Args:
        content: ``labels`` or ``slurm``: a function of :mod:`gpustate.nodeside.first_boot`.
        options: of that function, as JSON.
        writes: path of each file to the sh that takes its text from standard input; a file that is not to be
            written has none.
        label: of the step.
    """
    # Functions of the library have variables of the same names.
    folder = '"$R/modules"'
    program = '"$R/modules/gpustate/nodeside/first_boot.py"'
    lines = [
        f"{_CHECK} || fail 'python3 {OLDEST[0]}.{OLDEST[1]} or later is missing: gpustate apply settles this'",
        f"rm -rf {folder}; mkdir {folder}",
        f"base64 -d >\"$R/modules/bundle\" <<'END'\n{_bundle()}END",
        '"$p" -I -S -c "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])" '
        f'"$R/modules/bundle" {folder} || fail "$R: no room"',
        f'o=$("$p" -I -S -B {program} {content} {shlex.quote(options)} "$R/modules/out" 2>&1) || fail "$o"',
        '[ -z "$o" ] || echo "$o"',
    ]
    for number, (path, write) in enumerate(writes.items()):
        text = f'"$R/modules/out/{number}"'
        lines.append(f"# {path}\nif [ -e {text} ]; then {write} <{text}; fi")
    lines.append(f"rm -rf {folder}")
    return RunLive("\n".join(lines), label, timeout=300)
