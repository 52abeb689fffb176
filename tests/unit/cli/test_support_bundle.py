"""``gpustate node support-bundle`` has what a bug report needs, and no secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import jsonschema
import pytest
from commandline import Cli

import gpustate as package
from gpustate.engine import records

NAMED, PRINTED, LISTED, KEY = (
    *("S3cr3t-by-its-name", "S3cr3t-in-an-output", "S3cr3t-in-an-added-file", "S3cr3t-in-a-key"),
)
SECRETS = (NAMED, PRINTED, LISTED, KEY)
POLICY = f"""
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpustate import Node, Plan, Policy, State, Step, diff, ops


@dataclass(frozen=True, slots=True)
class Observed:
    text: str | None


class Greeting(State[Observed]):
    name: ClassVar[str] = "acme-greeting"

    path: str = "/proc/nowhere"
    password: str | None = None

    def probe(self, node: Node) -> Observed:
        return Observed(node.own_text(self.path))

    def desired(self, seen: Observed) -> Observed:
        return Observed("hello\\n")

    def plan(self, seen: Observed) -> Plan:
        return diff(seen, self.desired(seen))

    def apply(self, seen: Observed, plan: Plan) -> Iterator[Step]:
        yield ops.Run("echo 'registry token={PRINTED} refused' >&2; exit 3", "log in")


policy = Policy(Greeting(password="{NAMED}"))
"""


@pytest.fixture
def site(project: Path) -> Path:
    (project / "policy.py").write_text(POLICY)
    (project / "hosts.yml").write_text(
        "all:\n  hosts:\n    gpu1:\n      ansible_connection: local\n"
        f"      gpustate_state_folder: {project}/state\n"
        f"      gpustate: {{acme-greeting: {{path: {project}/greeting}}}}\n"
        "    away: {ansible_host: 127.0.0.1, ansible_port: 1}\n"
    )
    (project / "extra.log").write_text(
        f'password = "{LISTED}"\n-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n'
    )
    return project


def contents(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("gpustate-support/")] = file.read().decode()
    return found


def test_a_bundle_has_the_run_and_every_node_and_no_secret(gpustate: Cli, site: Path) -> None:
    gpustate("apply", "policy.py", "-i", "hosts.yml", "--yes")
    done = gpustate("node", "support-bundle", "-i", "hosts.yml", "--add", "extra.log", "b.tar.gz")
    assert done.status == 4, done.err
    assert (site / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    files = contents(site / "b.tar.gz")
    record = json.loads(files["run/record.json"])
    output = next(text for path, text in files.items() if path.endswith("/output.txt"))
    assert "registry token=(secret) refused" in output
    assert any(path.startswith(f"nodes/gpu1/run/{record['run']}") for path in files)
    assert json.loads(files["policy.json"])["gpu1"]["states"] == ["acme-greeting"]
    assert [one["event"] for one in json.loads(files["run/audit.json"])] == ["started", "ended"]
    assert json.loads(files["versions.json"])["libraries"]["paramiko"]
    assert {"nodes/gpu1/facts.json", "nodes/gpu1/explain.json", "nodes/gpu1/system.txt"} <= set(
        files
    )
    index = json.loads(files["index.json"])
    schema = Path(package.__file__).parent / "reporting/schema/support-bundle.json"
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(index)
    assert {one["path"] for one in index["files"]} == set(files) - {"index.json"}
    missing = {one["path"]: one["reason"] for one in index["missing"]}
    assert "Connection refused" in missing["nodes/away"]
    assert missing["nodes/gpu1/nvidia-smi.txt"] == "its program is not installed"
    for text in (*files.values(), done.out, done.err):
        for secret in SECRETS:
            assert secret not in text


def test_the_newest_run_of_the_nodes_is_taken(gpustate: Cli, site: Path) -> None:
    gpustate("apply", "policy.py", "-i", "hosts.yml", "--yes", "-l", "gpu1")
    gpustate("apply", "policy.py", "-i", "hosts.yml", "--yes", "-l", "away")
    gpustate("node", "support-bundle", "-i", "hosts.yml", "-l", "gpu1", "b.tar.gz")
    record = json.loads(contents(site / "b.tar.gz")["run/record.json"])
    assert record["options"]["limit"] == "gpu1"


def test_without_a_run_the_rest_is_collected(gpustate: Cli, site: Path) -> None:
    done = gpustate("node", "support-bundle", "-i", "hosts.yml", "-l", "gpu1", "b.tar.gz")
    assert done.status == 0, done.err
    assert "missing: run: no run of these nodes is recorded on this machine" in done.err
    done = gpustate("node", "support-bundle", "-i", "hosts.yml", "--run", "nobody", "b.tar.gz")
    assert (done.status, "no run 'nobody'" in done.err) == (1, True)
    done = gpustate("node", "support-bundle", "-i", "hosts.yml", "no/b.tar.gz")
    assert (done.status, "is not a directory" in done.err) == (1, True)


def test_a_rollback_has_no_policy_and_its_run_is_not_taken_for_one(
    gpustate: Cli, site: Path
) -> None:
    gpustate("apply", "policy.py", "-i", "hosts.yml", "-l", "gpu1", "--yes")
    done = gpustate("rollback", "-i", "hosts.yml", "-l", "gpu1", "--yes")
    assert done.status == 0, done
    assert "  rollback -i hosts.yml -l gpu1" in gpustate("rollout", "history").out
    run = json.loads(gpustate("rollout", "history", "-o", "json").out)["runs"][-1]["run"]
    done = gpustate(
        "node", "support-bundle", "-i", "hosts.yml", "-l", "gpu1", "--run", run, "b.tar.gz"
    )
    assert "missing: policy.json: a rollback has no policy of its own" in done.err


def test_a_killed_run_of_other_nodes_is_not_taken(
    gpustate: Cli, site: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    gpustate("apply", "policy.py", "-i", "hosts.yml", "--yes", "-l", "gpu1")
    about = {"person": "ann", "born": "", "created": ""}
    killed = records.begin("29990101-000000-aaaaaa", "apply", "p", {}, nodes=["away"], **about)
    assert killed is not None
    gpustate("node", "support-bundle", "-i", "hosts.yml", "-l", "gpu1", "b.tar.gz")
    record = json.loads(contents(site / "b.tar.gz")["run/record.json"])
    assert record["options"]["limit"] == "gpu1"
    gpustate("node", "support-bundle", "-i", "hosts.yml", "-l", "away", "b.tar.gz")
    assert json.loads(contents(site / "b.tar.gz")["run/record.json"])["run"] == killed.stem
