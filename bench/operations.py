"""A policy of 20 operations of pyinfra that hold on every node, to be compared with what pyinfra's own runner costs.

All nodes share their files: what counts is planning on the controller, and that one exec is enough.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import workload


def _operations(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    def at(name: str) -> str:
        return str(folder / name)

    text = {"$text": "static\n"}
    return [
        *(("apt.packages", {"packages": list(pair)}) for pair in workload.PACKAGES),
        *(("files.file", {"path": at(name), "mode": "644"}) for name in ("a", "b", "lines")),
        *(("files.directory", {"path": at(name)}) for name in ("", "sub")),
        ("files.link", {"path": at("link"), "target": at("a")}),
        *(("files.line", {"path": at("lines"), "line": f"key{i} = {i}"}) for i in range(3)),
        ("files.block", {"path": at("lines"), "content": "block", "marker": "# {mark}"}),
        *(
            ("files.put", {"src": text, "dest": at(name), "mode": "644"})
            for name in ("a", "b", "c")
        ),
        ("files.template", {"src": at("template.j2"), "dest": at("page"), "greeting": "hello"}),
        ("server.group", {"group": "root"}),
    ]


def write(work: Path) -> Path:
    """Make the files that nodes share, and write the policy."""
    folder = work / "operations"
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    lines = "".join(f"key{i} = {i}\n" for i in range(3))
    contents = {
        **dict.fromkeys(("a", "b", "c"), "static\n"),
        "lines": f"{lines}# BEGIN\nblock\n# END\n",
        "template.j2": "{{ greeting }}\n",
        "page": "hello\n",
    }
    for name, text in contents.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to(folder / "a")
    states = {
        f"pyinfra-n{number}": {"operation": name, "arguments": arguments}
        for number, (name, arguments) in enumerate(_operations(folder))
    }
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"format": "gpustate.policy/1", "states": states}))
    return policy
