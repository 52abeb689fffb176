"""The workload as an idiomatic pyinfra deploy."""

import os
from pathlib import Path
from typing import Any

from pyinfra.context import host
from pyinfra.facts.server import Command
from pyinfra.operations import apt, files

from bench import workload

_WORK = Path(os.environ["BENCH_WORK"])
_OWNED: dict[str, Any] = {"user": "root", "group": "root", "mode": "644"}
_ROOT = host.data.root

for group in workload.PACKAGES:
    apt.packages(name=f"packages {group}", packages=list(group))
for path in (*workload.STATIC, *workload.REPOSITORIES):
    source = str(workload.uploaded(_WORK, path))
    files.put(name=path, src=source, dest=f"{_ROOT}/{path}", **_OWNED)
for path, (name_, count) in workload.TEMPLATED.items():
    source = str(_WORK / "sources/template.j2")
    dest = f"{_ROOT}/{path}"
    files.template(name=path, src=source, dest=dest, count=count, name_=name_, **_OWNED)
for path, lines in workload.LINES.items():
    for line in lines:
        files.line(name=line, path=f"{_ROOT}/{path}", line=line)
for unit in workload.UNITS:
    files.link(
        name=f"enable {unit}",
        path=f"{_ROOT}/{workload.WANTS}/{unit}.service",
        target=f"{_ROOT}/lib/{unit}.service",
    )
for command in workload.LOOKS:
    host.get_fact(Command, command)
