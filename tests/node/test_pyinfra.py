"""Operations of pyinfra on real nodes: gpustate's verdict is pyinfra's own, and one exec is enough.

pyinfra judges over a connection of its own, with its own facts, before and after. Real: systemd, sshd, dpkg,
users, cron, git. Simulated in the test of dnf: the distribution (Rocky 9 on a Debian root).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import gpustate
from pyinfrajudge import dry_run, pyinfra_host, told

from gpustate.core.inventory import Connection, InventoryNode
from gpustate.operations.steps import TEMPORARY
from gpustate.remote.session import Session
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytest.importorskip("pyinfra")
from labnodes import LabFactory

HOSTS = "10.0.0.9 store"
UNIT = "[Service]\nExecStart=/bin/sleep inf\n[Install]\nWantedBy=multi-user.target\n"
#: Name of the state, operation, arguments, and what else the state is given.
OPERATIONS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("packages", "apt.packages", {"packages": ["bash"]}, {}),
    ("no-packages", "apt.packages", {"packages": ["less"], "present": False}, {}),
    ("source", "apt.repo", {"src": "deb [trusted=yes] file:///srv/none ./", "filename": "none"}, {}),
    ("motd", "files.put", {"src": {"$text": "GPU node\n"}, "dest": "/etc/motd", "mode": "640"}, {}),
    ("page", "files.template", {"src": "{folder}/page.j2", "dest": "/srv/page", "who": "ops"}, {}),
    ("hosts", "files.line", {"path": "/etc/hosts", "line": HOSTS}, {}),
    ("block", "files.block", {"path": "/etc/hosts", "content": "10.0.0.8 b", "marker": "# {mark}"}, {"after": ["pyinfra-hosts"]}),
    ("folder", "files.directory", {"path": "/srv/a/b", "mode": "750", "user": "daemon"}, {}),
    ("file", "files.file", {"path": "/srv/empty", "mode": "600"}, {}),
    ("link", "files.link", {"path": "/srv/link", "target": "/etc/motd"}, {}),
    ("replaced", "files.replace", {"path": "/etc/issue", "text": "Debian", "replace": "Node"}, {}),
    ("unit", "files.put", {"src": {"$text": UNIT}, "dest": "/etc/systemd/system/idle.service", "mode": "644"}, {}),
    ("service", "systemd.service", {"service": "idle", "running": True, "enabled": True}, {"known_after": ["pyinfra-unit"]}),
    ("group", "server.group", {"group": "gpu", "gid": 990}, {}),
    ("user", "server.user", {"user": "ops", "group": "gpu", "shell": "/bin/bash", "uid": 1990}, {"needs": ["pyinfra-group"], "known_after": ["pyinfra-group"]}),
    ("keys", "server.user_authorized_keys", {"user": "root", "public_keys": ["ssh-ed25519 AAAAC3 test"]}, {}),
    ("git", "git.config", {"key": "user.name", "value": "ops"}, {}),
    ("timer", "server.crontab", {"command": "/bin/true", "cron_name": "t", "minute": 5}, {}),
    ("hostname-file", "files.file", {"path": "/etc/hostname"}, {}),
    ("mounted", "server.mount", {"path": "/proc"}, {}),
    ("marker", "server.shell", {"commands": ["touch /srv/marker"]}, {"unless": "test -e /srv/marker"}),
    ("sysctl-file", "files.put", {"src": {"$text": "vm.swappiness = 10\n"}, "dest": "/etc/sysctl.d/90-x.conf", "mode": "644"}, {}),
]  # fmt: skip


def session_of(node: Node, folder: Path) -> Session:
    key = next(w for w in node.ssh_args() if Path(w).is_file() and "known" not in w)
    host_key = node.run("cat /etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[:2]
    known = folder / "known_hosts"
    known.write_text(f"{node.address} {' '.join(host_key)}\n")
    connection = Connection(
        host=node.address, user="root", key_file=key, known_hosts_file=str(known)
    )
    return Session(InventoryNode("node", connection=connection))


def filled(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: filled(one, folder) for key, one in value.items()}
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


def verdicts(node: Node, folder: Path, has: set[str]) -> dict[str, list[str] | str]:
    """What pyinfra itself would run for each operation, or why it cannot say."""
    session = session_of(node, folder)
    session.connect()
    try:
        assert session._client is not None
        host = pyinfra_host(node.name, session._client)
        host.state.config.TEMP_DIR = TEMPORARY
        found: dict[str, list[str] | str] = {}
        for name, operation, arguments, _ in OPERATIONS:
            if name in has:
                given = filled(arguments, folder)
                found[f"pyinfra-{name}"] = dry_run(host.state, host, operation, given)
        return found
    finally:
        session.close()


def write_policy(folder: Path, only: set[str]) -> Path:
    states = {
        f"pyinfra-{name}": {"operation": operation, "arguments": filled(arguments, folder), **more}
        for name, operation, arguments, more in OPERATIONS
        if name in only
    }
    file = folder / "policy.json"
    file.write_text(json.dumps({"format": "gpustate.policy/1", "states": states}))
    return file


def planned(row: dict[str, Any]) -> dict[str, list[str]]:
    return {
        state["state"]: [told(change["after"]) for change in state.get("changes", ())]
        for state in row["states"]
        if state["outcome"] != "known after"
    }


def usable(node: Node) -> set[str]:
    """Operations whose programs this node has."""
    needs = {"timer": "crontab", "git": "git"}
    found = {name for name, *_ in OPERATIONS}
    return {
        name
        for name in found
        if name not in needs or node.run(f"command -v {needs[name]} || :").stdout.strip()
    }


def test_twenty_operations_are_judged_as_by_pyinfra_before_and_after(
    lab: Lab, node12: Node, tmp_path: Path
) -> None:
    (tmp_path / "page.j2").write_text("for {{ who }}\n")
    has = usable(node12)
    assert len(has) >= 20
    policy = write_policy(tmp_path, has)
    words = ("-i", lab.inventory, "-l", "gpu1", "-o", "json")
    judged = verdicts(node12, tmp_path, has)
    (row,) = gpustate("plan", policy, *words, code=0).document["nodes"]
    ours = planned(row)
    assert {name: judged[name] for name in ours} == ours
    assert sum(1 for commands in ours.values() if commands) >= 12
    assert row["connections"] == 1

    done = gpustate("apply", policy, *words, "--yes", code=0)
    outcomes = {s["state"]: s["outcome"] for s in done.document["nodes"][0]["states"]}
    assert set(outcomes.values()) <= {"changed", "unchanged"}, outcomes

    again = gpustate("apply", policy, *words, "--yes", code=0).document["nodes"][0]
    assert {s["outcome"] for s in again["states"]} == {"unchanged"}, again["states"]
    assert (again["connections"], again["execs"]) == (1, 1)
    left = verdicts(node12, tmp_path, has - {"marker"})
    assert {name: commands for name, commands in left.items() if commands} == {}
    assert node12.run("systemctl is-active idle").stdout.strip() == "active"
    assert node12.run("stat -c %a:%U /etc/motd /srv/a/b").stdout.split() == [
        "640:root",
        "750:daemon",
    ]
    assert node12.run("id -gn ops").stdout.strip() == "gpu"
    assert node12.run(f"ls -d {TEMPORARY} 2>/dev/null || :").stdout == ""


def test_packages_of_dnf(lab_factory: LabFactory, tmp_path: Path) -> None:
    import rpmnodes
    from rpmworld import Rpm

    repository = rpmnodes.repository(tmp_path / "rpm")
    repository.fill([rpmnodes.BASE, Rpm("acme-tools", "1.0-1")], tmp_path / "build")
    lab = lab_factory(LabSpec(nodes=1, images=("debian12-rpm",), gpus=("none",)))
    node = lab.nodes[0]
    rpmnodes.become(node, "rocky", repository)
    rpmnodes.copy(node, repository)
    node.run(
        "printf '[acme]\\nname=acme\\nbaseurl=file:///srv/nvidia\\ngpgcheck=0\\n' >/etc/yum.repos.d/acme.repo"
    )
    policy = tmp_path / "policy.yml"
    policy.write_text(
        "format: gpustate.policy/1\nstates:\n"
        "  pyinfra-tools: {operation: dnf.packages, arguments: {packages: [acme-tools]}}\n"
    )
    inventory = rpmnodes.inventory(lab, tmp_path)
    gpustate("apply", policy, "-i", inventory, "--yes", code=0)
    assert "acme-tools" in rpmnodes.versions(node)
    again = gpustate("apply", policy, "-i", inventory, "--yes", "-o", "json", code=0)
    assert again.summary["changed"] == "0"
    assert again.document["nodes"][0]["execs"] == 1


def test_the_root_of_an_image_is_a_node_of_an_inventory(lab: Lab, tmp_path: Path) -> None:
    """Files are put into it, services are left to its first boot, and nothing stays mounted."""
    from gpustate_lab import host

    root, upper, work = (tmp_path / name for name in ("root", "upper", "work"))
    for folder in (root, upper, work):
        folder.mkdir()
    host.mount_overlay(root, lab.node("gpu1").layers, upper, work)
    try:
        policy = tmp_path / "policy.yml"
        policy.write_text(
            "format: gpustate.policy/1\nstates:\n"
            "  pyinfra-page: {operation: files.put, arguments: {src: {$text: x}, dest: /srv/page}}\n"
            "  pyinfra-ssh: {operation: systemd.service, arguments: {service: ssh, enabled: true}}\n"
        )
        source = f"@chroot{root}"
        gpustate("apply", policy, "-i", source, "--yes", code=0)
        assert (root / "srv/page").read_text() == "x"
        assert "systemctl" in (root / "var/lib/gpustate/firstboot/steps.json").read_text()
        again = gpustate("apply", policy, "-i", source, "--yes", "-o", "json", code=0)
        (row,) = again.document["nodes"]
        assert row["execs"] == 1
        outcomes = {state["state"]: state["outcome"] for state in row["states"]}
        assert outcomes["pyinfra-page"] == "unchanged"
        assert outcomes["pyinfra-ssh"] == "at first boot"
        assert outcomes["first-boot"] == "unchanged"
        assert Path("/proc/mounts").read_text().count(str(root)) == 1
    finally:
        host.unmount_all(root)
