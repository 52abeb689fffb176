"""Many nodes over real SSH. One booted lab node lends its sshd to all of them, each with an address,
a state folder and files of its own; what goes wrong on some of them goes wrong for real.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from commands import gpustate

from gpustate_lab.node import Node

COUNT = 20
DEAD, HANGING, WRONG_KEY, FULL = "n03", "n07", "n11", "n15"

POLICY = """
from filestates import LightFirst, LightSecond
from gpustate import Policy
policy = Policy(LightFirst(path="/set/per/node"), LightSecond(path="/set/per/node"))
"""


class Light:
    """Nodes that share one machine."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self.folder = folder
        base, _, last = node.address.rpartition(".")
        self.addresses = {f"n{i:02}": f"{base}.{100 + i}" for i in range(1, COUNT + 1)}
        self.policy = folder / "policy.py"
        self.policy.write_text(POLICY)
        (folder / "gpustate.toml").write_text(
            'states = ["filestates:LightFirst", "filestates:LightSecond"]\n'
        )
        self.inventory = folder / "inventory.yml"
        self.known_hosts = folder / "known_hosts"
        del last

    def write(self, *, faults: bool) -> None:
        """Write inventory and known hosts."""
        lab_keys = self.node.run("cat /etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[:2]
        lines = []
        for name, address in self.addresses.items():
            lines.append(f"{address} {lab_keys[0]} {lab_keys[1]}")
            if name == HANGING:
                lines.append(f"[{address}]:2222 {lab_keys[0]} {lab_keys[1]}")
        if faults:
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "other")],
                check=True,
            )
            wrong = (self.folder / "other.pub").read_text().split()[:2]
            lines = [line for line in lines if not line.startswith(self.addresses[WRONG_KEY] + " ")]
            lines.append(f"{self.addresses[WRONG_KEY]} {wrong[0]} {wrong[1]}")
        self.known_hosts.write_text("\n".join(lines) + "\n")
        key = next(
            word for word in self.node.ssh_args() if Path(word).is_file() and "known" not in word
        )
        rows = ["all:", "  vars:", "    ansible_user: root", f"    ansible_ssh_private_key_file: {key}",
                f"    ansible_ssh_common_args: -o UserKnownHostsFile={self.known_hosts} -o ConnectTimeout=4",
                "  hosts:"]  # fmt: skip
        for name, address in self.addresses.items():
            rows += [f"    {name}:", f"      ansible_host: {address}", f"      gpustate_state_folder: /srv/{name}/state",
                     "      gpustate:", f"        light-first: {{path: /srv/{name}/first, text: one}}",
                     f"        light-second: {{path: /srv/{name}/second, text: two}}"]  # fmt: skip
            if faults and name == HANGING:
                rows.insert(-3, "      ansible_port: 2222")
        self.inventory.write_text("\n".join(rows) + "\n")

    def accepted(self) -> int:
        """Connections that sshd let in so far."""
        return int(
            self.node.run("journalctl -u ssh -o cat | grep -c 'Accepted publickey' || :").stdout
        )

    def channels(self) -> int:
        """Commands that sshd started so far."""
        return int(
            self.node.run(
                "journalctl -u ssh -o cat | grep -c 'Starting session: command' || :"
            ).stdout
        )


@pytest.fixture
def light(node12: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    one = Light(node12, tmp_path)
    device = node12.run("ip -o -4 addr show scope global").stdout.split()[1]
    for address in one.addresses.values():
        if address != one.addresses[DEAD]:
            node12.run(f"ip addr replace {address}/24 dev {device}")
    node12.run(
        "printf 'LogLevel VERBOSE\\nMaxStartups 200\\nUseDNS no\\n' >/etc/ssh/sshd_config.d/00-test.conf && systemctl restart ssh"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    one.write(faults=False)
    return one


def test_four_nodes_in_trouble_are_named_and_the_other_sixteen_are_done(light: Light) -> None:
    light.write(faults=True)
    node = light.node
    node.run(f"mkdir -p /srv/{FULL}/state && mount -t tmpfs -o size=64k none /srv/{FULL}/state")
    hang = "import socket,time; s=socket.create_server(('%s',2222)); c=[]\nwhile 1: c.append(s.accept())"
    node.run(f'systemd-run -q --unit=hang python3 -c "{hang % light.addresses[HANGING]}"')
    ran = gpustate("apply", light.policy, "-i", light.inventory, "--yes", "-o", "json")
    rows = {row["name"]: row for row in ran.document["nodes"]}
    good = [row for row in rows.values() if row["status"] == "ok"]
    assert len(good) == 16
    assert all(state["outcome"] == "changed" for row in good for state in row["states"])
    for name in (DEAD, HANGING, WRONG_KEY):
        assert rows[name]["status"] == "unreachable"
    assert "check that the node is up" in rows[DEAD]["reason"]
    assert "no SSH banner or key exchange within 4 s" in rows[HANGING]["reason"]
    assert "host key" in rows[WRONG_KEY]["reason"]
    assert "ssh-keygen" in rows[WRONG_KEY]["reason"]
    assert rows[FULL]["status"] == "failed"
    assert "is full" in rows[FULL]["reason"]
    assert "make room" in rows[FULL]["reason"]
    assert ran.code == 1
    assert node.run(f"ls /srv/{FULL}").stdout.split() == ["state"]
    without_full = gpustate(
        "apply", light.policy, "-i", light.inventory, "-l", f"all:!{FULL}", "--yes"
    )
    assert without_full.code == 4
    assert without_full.summary["unchanged"] == "16"
    assert without_full.summary["unreachable"] == "3"


def test_a_converged_node_costs_one_connection_and_one_channel_for_every_verb(light: Light) -> None:
    some = ("-i", light.inventory, "-l", "n01:n02")
    cold = light.accepted(), light.channels()
    gpustate("plan", light.policy, *some, code=0)
    assert (light.accepted() - cold[0], light.channels() - cold[1]) == (2, 2)
    before = light.accepted(), light.channels()
    ran = gpustate("apply", light.policy, *some, "--yes", code=0)
    assert ran.summary["changed"] == "2"
    # A probe on a connection of its own for the waves; then program and look again, for each of two stages.
    assert (light.accepted() - before[0], light.channels() - before[1]) == (2 * 2, 2 * 5)
    for verb in (("drift",), ("plan",), ("apply", "--yes")):
        before = light.accepted(), light.channels()
        ran = gpustate(verb[0], light.policy, *some, *verb[1:], code=0)
        assert ran.summary["changed"] == "0"
        assert (light.accepted() - before[0], light.channels() - before[1]) == (2, 2)
    assert "subsystem" not in light.node.run("journalctl -u ssh -o cat").stdout


def test_one_stage_of_drift_costs_three_channels(light: Light) -> None:
    some = ("-i", light.inventory, "-l", "n01")
    gpustate("apply", light.policy, *some, "--yes", code=0)
    light.node.run("rm /srv/n01/second")
    before = light.accepted(), light.channels()
    assert gpustate("apply", light.policy, *some, "--yes", code=0).summary["changed"] == "1"
    assert (light.accepted() - before[0], light.channels() - before[1]) == (1, 3)


def test_the_first_contact_ships_the_nvml_binding_within_the_same_channel(light: Light) -> None:
    some = ("-i", light.inventory, "-l", "n05")
    for _ in ("cold", "warm"):
        before = light.accepted(), light.channels()
        gpustate("facts", *some, code=0)
        assert (light.accepted() - before[0], light.channels() - before[1]) == (1, 1)
        shipped = light.node.run("ls /srv/n05/state/lib/*/pynvml.py").stdout.split()
        assert len(shipped) == 1


def test_the_second_apply_touches_no_file_outside_the_state_folder(light: Light) -> None:
    some = ("-i", light.inventory, "-l", "n01:n02")
    listing = "find /etc /usr /boot /opt /srv /var/lib -xdev -not -path '/srv/*/state/*' -newer /run/mark -type f; cat /srv/n01/first"
    gpustate("apply", light.policy, *some, "--yes", code=0)
    light.node.run("sleep 0.1; touch /run/mark; sleep 0.1")
    gpustate("apply", light.policy, *some, "--yes", code=0)
    assert light.node.run(listing).stdout == "one"


def test_sudo_works_without_a_password_with_one_and_says_so_when_it_is_wrong(light: Light) -> None:
    text = light.inventory.read_text()
    node = ("-i", light.inventory, "-l", "n09")
    light.inventory.write_text(
        text.replace("ansible_user: root", "ansible_user: op\n    ansible_become: true")
    )
    assert gpustate("apply", light.policy, *node, "--yes", code=0).summary["changed"] == "1"
    assert light.node.run("stat -c %U /srv/n09/first").stdout.strip() == "root"
    with_password = (
        "ansible_user: oppw\n    ansible_become: true\n    ansible_become_password: gpustate-lab"
    )
    light.inventory.write_text(text.replace("ansible_user: root", with_password))
    light.node.run("rm /srv/n09/second")
    assert gpustate("apply", light.policy, *node, "--yes", code=0).summary["changed"] == "1"
    assert "gpustate-lab" not in light.node.run("journalctl -o cat _COMM=sudo").stdout
    light.inventory.write_text(text.replace("ansible_user: root", with_password + "-wrong"))
    wrong = gpustate("plan", light.policy, *node, "-o", "json")
    assert "sudo rejected the become password" in wrong.node("n09")["reason"]
    none = text.replace("ansible_user: root", "ansible_user: oppw\n    ansible_become: true")
    light.inventory.write_text(none)
    asked = gpustate("plan", light.policy, *node, "-o", "json")
    assert "--ask-become-pass" in asked.node("n09")["reason"]


def test_a_jump_host_is_gone_through_with_its_host_key_checked(light: Light) -> None:
    text = light.inventory.read_text()
    jump = light.addresses["n01"]
    light.inventory.write_text(text.replace("ConnectTimeout=4", f"ConnectTimeout=4 -J root@{jump}"))
    node = ("-i", light.inventory, "-l", "n10")
    assert gpustate("apply", light.policy, *node, "--yes", code=0).summary["changed"] == "1"
    keys = [
        line
        for line in light.known_hosts.read_text().splitlines()
        if not line.startswith(f"{jump} ")
    ]
    light.known_hosts.write_text("\n".join(keys) + "\n")
    refused = gpustate("plan", light.policy, *node, "-o", "json")
    assert refused.code == 4
    assert "jump host" in refused.node("n10")["reason"]
    assert "host key" in refused.node("n10")["reason"]


def test_a_lock_is_taken_shown_refused_and_broken(light: Light) -> None:
    some = ("-i", light.inventory, "-l", "n12")
    gpustate("node", "lock", *some, "--reason", "burn-in test", "--for", "1h", code=0)
    refused = gpustate("apply", light.policy, *some, "--yes", "-o", "json", code=8)
    assert "burn-in test" in refused.node("n12")["reason"]
    assert gpustate("plan", light.policy, *some).code == 0
    gpustate("node", "lock", *some, "--reason", "again", code=8)
    gpustate("node", "unlock", *some, code=0)
    gpustate("apply", light.policy, *some, "--yes", code=0)


def test_batches_stop_after_one_that_did_not_end_well(light: Light) -> None:
    light.write(faults=True)
    ran = gpustate(
        "apply",
        light.policy,
        "-i",
        light.inventory,
        "-l",
        "n01:n02:n03:n04",
        "--yes",
        "--serial",
        "1,2",
    )
    assert ran.code == 6 or ran.code == 4
    assert "Not begun: n04" in ran.out or ran.summary["nodes"] == "4"


def test_a_saved_plan_is_applied_and_refused_once_a_node_has_moved(
    light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = ("-i", light.inventory, "-l", "n16:n17")
    plan = tmp_path / "saved.json"
    gpustate("plan", light.policy, *some, "--out", plan, code=0)
    light.node.run("mkdir -p /srv/n17 && echo somebody >/srv/n17/first")
    monkeypatch.chdir(light.folder)
    ran = gpustate("apply", plan, "-i", light.inventory, "--yes", "-o", "json", code=5)
    assert ran.node("n16")["status"] == "ok"
    assert "n17 has changed since" in ran.node("n17")["reason"]
    assert "(light-first); plan again" in ran.node("n17")["reason"]
    assert light.node.run("cat /srv/n17/first").stdout == "somebody\n"
