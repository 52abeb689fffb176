"""Pictures of the documentation: ``make pictures``.

Terminal pictures are SVG of the bytes that a command writes to a terminal on lab nodes; the report is photographed in
Chromium. Diagrams are drawn by Graphviz, the rows of the house from the import contract in pyproject.toml. Needs root
and what the tests need.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import termios
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

TOP = Path(__file__).parents[2]
PICTURES = TOP / "docs" / "pictures"
GPUSTATE = Path(sys.executable).with_name("gpustate")
LAB = "pictures"
COLUMNS, LINES = 96, 60
#: rich's own format loads a font from the network.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for path in sorted((TOP / "docs" / "diagrams").glob("*.dot")):
        diagram(path.stem, path.read_text())
    diagram("rows", rows())
    with lab_nodes() as (folder, _):
        draw_fleet(folder)
    with lab_nodes("--kubernetes", "--pods") as (folder, entry):
        draw_cluster(folder, entry)


@contextmanager
def lab_nodes(*options: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Two lab nodes: the folder that commands run in, with the inventory in it, and the lab's entry in its list."""
    lab("up", "--name", LAB, "--nodes", "2", "--gpus", "8xH100", *options)
    try:
        entry = json.loads(lab("list", "--name", LAB, "-o", "json"))["labs"][0]
        with tempfile.TemporaryDirectory() as name:
            shutil.copy(entry["inventory"], Path(name, "inventory.yml"))
            yield Path(name), entry
    finally:
        lab("down", "--name", LAB)


def draw_fleet(folder: Path) -> None:
    """Draw the pictures of nodes; ``folder`` has the inventory."""
    (folder / "policy.yaml").write_text("preset: kubernetes-node\ndriver: {branch: 580}\n")
    plan = "gpustate plan policy.yaml -i inventory.yml"
    printed = run(folder, plan)
    terminal("plan", plan, printed)
    terminal("plan-short", plan, printed, head=9, tail=2)
    run(folder, f"{plan} --report plan.html")
    report(folder / "plan.html")
    apply = "gpustate apply policy.yaml -i inventory.yml --yes"
    terminal("apply", apply, run(folder, apply), head=2, tail=3)
    drift = "gpustate drift policy.yaml -i inventory.yml"
    terminal("drift", drift, run(folder, drift))
    lab("fault", "--name", LAB, "gpu2", "library-mismatch", "on")
    explain = "gpustate explain gpu2 -i inventory.yml"
    terminal("explain", explain, run(folder, explain))


def draw_cluster(folder: Path, entry: Mapping[str, Any]) -> None:
    """Draw the pictures of a cluster; ``entry`` is that of its lab."""
    (folder / "policy.yaml").write_text(
        "preset: kubernetes-node\ndriver: {branch: 580}\ncluster: {}\n"
    )
    plan = "gpustate plan policy.yaml -i inventory.yml --cluster-objects --set cluster.install_nfd=true"
    terminal("cluster-plan", plan, run(folder, plan), head=6, tail=24)
    run(folder, plan.replace("plan", "apply", 1) + " --yes")
    columns = r"NODE:.metadata.name,GPUS:.status.allocatable.nvidia\.com/gpu"
    nodes = f"kubectl get nodes -o custom-columns='{columns}'"
    kubectl = [f"{entry['programs']}/kubectl", "--kubeconfig", str(entry["kubeconfig"])]
    shown = subprocess.run([*kubectl, *shlex.split(nodes)[1:]], stdout=subprocess.PIPE, check=True)
    terminal("cluster-nodes", nodes, shown.stdout)
    overrides = {
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "busybox:lab",
                    "resources": {"limits": {"nvidia.com/gpu": 9}},
                }
            ]
        }
    }
    subprocess.run(
        [
            *kubectl,
            "run",
            "train-0",
            "--image",
            "busybox:lab",
            f"--overrides={json.dumps(overrides)}",
        ],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    explain = "gpustate explain --pod default/train-0 -i inventory.yml"
    terminal("explain-pod", explain, run(folder, explain))


def lab(*words: str) -> str:
    """Run a verb of the lab; return what it prints."""
    done = subprocess.run([GPUSTATE, "lab", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def run(folder: Path, command: str) -> bytes:
    """What a command prints on a terminal; its progress on standard error is not in a picture."""
    words = [str(GPUSTATE), *shlex.split(command)[1:]]
    mine, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, COLUMNS))
    with subprocess.Popen(
        words, cwd=folder, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    ):
        os.close(theirs)
        printed = b""
        while chunk := _read(mine):
            printed += chunk
    os.close(mine)
    return printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the command ended
        return b""


def diagram(name: str, text: str) -> None:
    """Draw a diagram from Graphviz's language."""
    words = ["dot", "-Tsvg", "-o", str(PICTURES / f"{name}.svg")]
    subprocess.run(words, input=text, text=True, check=True)


def rows() -> str:
    """The rows of packages, each of which imports only from those below it."""
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(row for row in contracts["contracts"] if row["type"] == "layers")["layers"]
    cells = "".join(
        f'<tr><td bgcolor="{"#f3f4f6" if number % 2 else "#e5e7eb"}">{re.sub("[|:] ", "  ", row)}</td></tr>'
        for number, row in enumerate(layers)
    )
    table = f'<table border="0" cellborder="0" cellspacing="2" cellpadding="5">{cells}</table>'
    return f'digraph rows {{ bgcolor=transparent; rows [shape=plain, fontname="sans-serif", fontsize=11, label=<{table}>]; }}'


def terminal(name: str, command: str, printed: bytes, *, head: int = 0, tail: int = 0) -> None:
    """Draw a command with what it printed.

    Args:
        name: of the picture.
        command: as typed.
        printed: by it.
        head: lines at the beginning that are shown, with ``tail`` of the end; 0: all.
    """
    lines = printed.decode().replace("\r\n", "\n").rstrip("\n").split("\n")
    if head:
        lines = [*lines[:head], "...", *lines[-tail:]]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi("\n".join(lines)))
    svg = console.export_svg(title="", theme=MONOKAI, code_format=SVG, unique_id=name)
    (PICTURES / f"{name}.svg").write_text(svg)


def report(page: Path) -> None:
    """Photograph the HTML report."""
    picture = PICTURES / "report.png"
    subprocess.run(
        [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--window-size=1100,820", f"--screenshot={picture}", page.as_uri()),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
