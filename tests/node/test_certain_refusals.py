"""What facts of a fresh node already decide is refused in the plan, and an apply leaves the node untouched: real apt
and keys on Debian 12 and 13; GPUs and repositories are simulated.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml
from changedstate import PATH, write_policy
from commands import gpustate

from gpustate.compat.facts import FACTS
from gpustate_lab.api import Lab
from gpustate_lab.node import Node

POLICY = """
format: gpustate.policy/1
states:
  preflight:
  nouveau:
  driver-repository:
  driver: {branch: 580}
  toolkit-repository:
  container-toolkit:
"""
KEYS = Path(__file__).parents[1] / "data/openpgp"
EXPIRED = "E2A898F43881B9B32502E7474B4FEFB310C3A467 expired on 2024-05-01"
CASES = {
    "expired key": ("driver-repository", {"key": str(KEYS / "expired.asc")}, EXPIRED),
    "other key": ("driver-repository", {"key": str(KEYS / "one.asc")}, "NO_PUBKEY|Missing key"),
    "nothing listens": (
        "driver-repository",
        {"url": "http://127.0.0.1:9/"},
        r"connect \(111: Connection refused\)",
    ),
    "no such profile": (
        "mig",
        {"config": "all-1g.5gb"},
        r"GPU 0 \(H100 80GB HBM3\): .*1g.5gb is not a profile",
    ),
}


pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("image", ["debian12", "debian13"], scope="module"),
]


def test_what_facts_decide_is_refused_before_the_first_change(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    before = node.run("find /etc /var/lib/apt -type f | sort | xargs cksum").stdout
    for case, (state, parameters, reason) in CASES.items():
        data = yaml.safe_load(home.inventory.read_text())
        host = data["all"]["children"]["gpu"]["hosts"][node.name]
        own = data["all"]["children"][node.image]["vars"]["gpustate"].get(state, {})
        host["gpustate"] = {state: {**own, **parameters}}
        inventory, policy = tmp_path / "inventory.yml", tmp_path / "policy.yaml"
        inventory.write_text(yaml.safe_dump(data))
        policy.write_text(POLICY + ("  mig:\n" if state == "mig" else ""))
        for verb, *words in (("plan",), ("apply", "--yes")):
            target = ("-i", inventory, "-l", node.name, "-o", "json")
            ran = gpustate(verb, policy, *target, *words, code=5)
            row = ran.node(node.name)
            assert row["status"] == "refused", case
            assert row["reason"].startswith(f"{state}: "), row["reason"]
            assert re.search(reason, row["reason"]), row["reason"]
            assert not row.get("proceeds")
    assert node.run("find /etc /var/lib/apt -type f | sort | xargs cksum").stdout == before


def test_a_component_that_gpus_can_do_without_blocks_only_what_depends_on_it(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{POLICY}  dcgm:\n  dcgm-exporter: {{version: 9.9.9}}\n")
    target = ("-i", home.inventory, "-l", node.name, "-o", "json")
    plan = gpustate("plan", policy, *target, code=5).node(node.name)
    row = gpustate("apply", policy, *target, "--yes", code=5).node(node.name)
    assert plan["proceeds"]
    reason = (
        "dcgm-exporter: no repository offers datacenter-gpu-manager-exporter 9.9.9; there is 4."
    )
    outcomes = {state["state"]: state["outcome"] for state in row["states"]}
    for document in (plan, row):
        assert document["reason"].startswith(reason)
    assert outcomes["dcgm-exporter"] == "refused"
    assert {outcomes[name] for name in ("driver", "dcgm", "container-toolkit")} == {"changed"}
    assert node.run("nvidia-smi -L").stdout.count("GPU ") == 8


def test_foreign_pins_are_named_with_their_file(home: Lab, node: Node, tmp_path: Path) -> None:
    """By apt 2.6 and 3.0, of a node that has none of the packages yet: of a dependency, of one of the set, of components."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{POLICY}  dcgm:\n")
    target = ("-i", home.inventory, "-l", node.name, "-o", "json")

    def plan(file: str, *pin: str, code: int) -> tuple[str, str]:
        path = node.root / "etc/apt/preferences.d" / file
        path.write_text("Package: {}\nPin: version {}\nPin-Priority: {}\n".format(*pin))
        row = gpustate("plan", policy, *target, code=code).node(node.name)
        path.unlink()
        notes = (n for part in (row, *row["states"]) for n in part.get("notes", ()))
        return row.get("reason", ""), "\n".join(notes)

    dependency, module = "libnvidia-nvvm704", "nvidia-kernel-open-dkms"
    reason, _ = plan("00site", dependency, "*", "-1", code=5)
    file = "/etc/apt/preferences.d/00site"
    forbidden = f"{dependency} 580.178.04-1, which a pin in {file} forbids; remove that pin"
    assert reason == f"driver: apt cannot install driver 580.178.04: it depends on {forbidden}"
    for name in (dependency, module):
        _, notes = plan("zzsite", name, "*", "-1", code=0)
        pin = f"pins in /etc/apt/preferences.d/zzsite forbid {name} 580.178.04-1"
        assert f"{pin}; pins in files that apt reads before override them" in notes
    reason, _ = plan("00site", module, "570.*", "1001", code=5)
    assert f"open modules, and a pin in {file} forbids it; remove that pin" in reason
    _, notes = plan("00site", module, "580.65.06*", "1001", code=0)
    assert "will install driver 580.65.06 with open" in notes
    assert f"pins in {file} keep apt from driver 580.178.04" in notes
    reason, _ = plan("00site", "libnvidia-container1", "*", "-1", code=5)
    assert f"apart from what pins in {file} forbid (libnvidia-container1 1.20.1-1" in reason
    reason, _ = plan("00site", "datacenter-gpu-manager-4-core", "*", "-1", code=5)
    assert f"apart from what pins in {file} forbid (datacenter-gpu-manager-4-core 1:" in reason


def test_nvswitches_without_fabric_manager_are_refused_in_the_plan(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{POLICY}  fabric-manager: false\n")
    target = ("-i", home.inventory, "-l", node.name, "-o", "json")
    for verb, *words in (("plan",), ("apply", "--yes")):
        row = gpustate(verb, policy, *target, *words, code=5).node(node.name)
        assert "blocked by compatibility rule fabric-manager-missing" in row["reason"]
        assert "add the state fabric-manager" in row["reason"]


def write_rules(folder: Path) -> None:
    """One rule for each value of a fact that a plan may know; its id is the value."""
    lines = [
        "format: gpustate.compat/1",
        "theme: facts",
        'sources: {here: {address: "https://example.org", retrieved: "2026-11-29"}}',
        "rules:",
    ]
    other = {"version": "1.2.3", "number": "7"}
    given = [fact for fact in FACTS.values() if fact.where != "given by hand"]
    for name, fact in ((fact.name, fact) for fact in given):
        word = f'"{other.get(fact.kind, fact.words[-1] if fact.words else "word")}"'
        if fact.kind == "flag":
            tests = {"yes": ("true", "true", "false"), "no": ("false", "false", "true")}
        else:
            tests = {"there": ("{present: true}", word, "none")}
            tests["absent"] = ("{absent: true}", "none", word)
        if "none" in fact.words:  # a value of its own
            tests = {"there": (word, word, "none")}
        if name == "driver":
            tests["exact"] = ('{range: ">=580.1"}', '"580.65.06"', "none")
        for value, (test, positive, negative) in tests.items():
            one = f"{name.replace('_', '-')}-{value}"
            lines.append(
                f"  - {{id: {one}, when: {{{name}: {test}}}, verdict: inform, because: It is so., fix: go on, source: here, "
                f"tests: {{positive: {{{name}: {positive}}}, negative: {{{name}: {negative}}}}}}}"
            )
    text = "\n".join(lines) + "\n"
    folder.mkdir()
    (folder / "facts.yaml").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  facts.yaml\n")


def test_a_plan_knows_what_it_has_chosen_and_what_is_not_there(
    home: Lab, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rules(tmp_path / "rules")
    monkeypatch.setenv("GPUSTATE_COMPAT", str(tmp_path / "rules"))
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{POLICY}  containerd:\n  cdi:\n  mig: {{config: all-1g.10gb}}\n")
    target = ("-i", home.inventory, "-l", node.name, "-o", "json")
    notes = gpustate("plan", policy, *target, code=0).node(node.name)["notes"]
    known = {note.split(": ")[1] for note in notes if note.startswith("matrix: ")}
    chosen = {"driver-exact", "module-type-there", "module-source-there", "mig-yes", "cdi-yes"}
    there = {"gpu-there", "fabric-there", "containerd-there", "os-there", "machine-there"}
    absent = {"crio-absent", "docker-absent", "nscq-absent", "nvsdm-absent", "imex-absent"}
    said = {"nvidia-ctk-configures-no", "cdmm-no", "secure-boot-no", "nouveau-loaded-no"}
    assert chosen | there | absent | said <= known, known
    assert "fabric-manager-absent" not in known, "the policy brings it"


def test_a_reboot_waits_for_no_scheduler_and_asks_processes_with_a_gpu_open(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    policy = write_policy(tmp_path, "word", reboots=True)
    target = ("-i", home.inventory, "-l", node.name, "-o", "json", "--reason", "INC 7")
    # systemd-run returns once sh runs, not once it has the file open.
    node.run(
        "touch /dev/nvidia0; systemd-run --unit train sh -c 'exec 3</dev/nvidia0; touch /run/open; exec sleep 1000'; "
        "until [ -e /run/open ]; do sleep 0.1; done"
    )
    reason = r"GPUs are in use by pid \d+ \(sleep, user root, unit train.service\); stop .*in_use: reboot"
    for verb, *words in (("plan",), ("apply", "--yes")):
        options = target[:-2] if verb == "plan" else target
        row = gpustate(verb, policy, *options, *words, code=5).node(node.name)
        assert re.search(reason, row["reason"]), row["reason"]
    assert node.run(f"test -e {PATH}", check=False).returncode
    node.run("systemctl stop train")
    row = gpustate("apply", policy, *target, "--yes", code=0).node(node.name)
    assert (row["status"], row["reboots"]) == ("ok", 1)
    log = node.run("journalctl -b -1 -t gpustate -o cat").stdout
    assert re.search(
        r"^gpustate run \S+ of \S+@\S+ reboots this node: boot with the word \(INC 7\)$", log, re.M
    )
