"""The workload as an Ansible play (JSON is YAML), with pipelining and ControlPersist."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import workload

_ROOT = "{{ root }}"


def tasks(work: Path) -> Iterator[dict[str, Any]]:
    """One task a resource."""
    own = {"owner": "root", "group": "root", "mode": "0644"}
    for group in workload.PACKAGES:
        yield {"name": f"{group}", "ansible.builtin.apt": {"name": [*group], "state": "present"}}
    for path in (*workload.STATIC, *workload.REPOSITORIES):
        source = str(workload.uploaded(work, path))
        yield {
            "name": path,
            "ansible.builtin.copy": {"src": source, "dest": f"{_ROOT}/{path}", **own},
        }
    for path, (name, count) in workload.TEMPLATED.items():
        source = str(work / "sources/template.j2")
        yield {
            "name": path,
            "ansible.builtin.template": {"src": source, "dest": f"{_ROOT}/{path}", **own},
            "vars": {"name_": name, "count": count},
        }
    for path, lines in workload.LINES.items():
        for line in lines:
            asked = {"path": f"{_ROOT}/{path}", "line": line}
            yield {"name": line, "ansible.builtin.lineinfile": asked}
    for unit in workload.UNITS:
        link = {
            "state": "link",
            "src": f"{_ROOT}/lib/{unit}.service",
            "dest": f"{_ROOT}/{workload.WANTS}/{unit}.service",
        }
        yield {"name": f"enable {unit}", "ansible.builtin.file": link}
    for command in workload.LOOKS:
        yield {"name": command, "ansible.builtin.shell": command, "changed_when": False}


def write(work: Path, hosts: list[str], port: int) -> None:
    """Write inventory, settings and play."""
    folder = work / "ansible"
    folder.mkdir(exist_ok=True)
    lines = [f"{host} root={workload.root(work, host)}" for host in hosts]
    lines += [
        "[all:vars]",
        "ansible_user=root",
        "ansible_python_interpreter=/usr/bin/python3",
        f"ansible_port={port}",
        f"ansible_ssh_private_key_file={work}/bed/user",
    ]
    (folder / "inventory.ini").write_text("\n".join(lines) + "\n")
    # No `strategy:` in the play: the environment names it.
    play = [{"hosts": "all", "gather_facts": False, "tasks": list(tasks(work))}]
    (folder / "play.yml").write_text(json.dumps(play, indent=1))
    (folder / "ansible.cfg").write_text(
        "[defaults]\nforks = 50\ntimeout = 120\nhost_key_checking = True\nretry_files_enabled = False\n"
        f"local_tmp = {folder}/tmp\nremote_tmp = {folder}/rtmp\nstdout_callback = minimal\n"
        "[ssh_connection]\npipelining = True\n"
        f"control_path_dir = {folder}/cp\n"
        "ssh_args = -o ControlMaster=auto -o ControlPersist=60s "
        f"-o UserKnownHostsFile={work}/bed/known_hosts\n"
    )
