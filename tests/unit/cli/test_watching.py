"""What a run tells those who watch it: events, webhook, reports, audit log."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commandline import Cli, Done

import gpustate as package

SCHEMAS = {
    str(data["title"]): data
    for path in Path(package.__file__).parent.rglob("schema/*.json")
    for data in (json.loads(path.read_text("utf-8")),)
}
TOKEN = "T0ken-in-the-path"
SECRET = "S3cr3t-of-the-inventory"
POLICY = """
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
    fails: bool = False

    def probe(self, node: Node) -> Observed:
        return Observed(node.own_text(self.path))

    def desired(self, seen: Observed) -> Observed:
        return Observed("hello\\n")

    def plan(self, seen: Observed) -> Plan:
        return diff(seen, self.desired(seen))

    def apply(self, seen: Observed, plan: Plan) -> Iterator[Step]:
        if self.fails:
            yield ops.Run("echo S3cr3t-of-the-inventory | is bad >&2; exit 3", "the script")
        yield ops.PutText(self.path, "hello\\n")


policy = Policy(Greeting())
"""


class _Receiver(ThreadingHTTPServer):
    bodies: list[dict[str, Any]]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    server = _Receiver(("127.0.0.1", 0), _Handler)
    server.bodies = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def site(project: Path, receiver: _Receiver) -> Path:
    """Two nodes that are this machine; the second one fails in ``bad.yml``."""
    (project / "policy.py").write_text(POLICY)
    url = f"http://127.0.0.1:{receiver.server_address[1]}/{TOKEN}"
    for name, fails in (("good.yml", "false"), ("bad.yml", "true")):
        lines = [f"all: {{vars: {{gpustate_webhook: '{url}', my_password: {SECRET}}}, hosts: {{"]
        for node, bad in (("gpu1", "false"), ("gpu2", fails)):
            state = f"{{path: {project}/{node}-greeting, fails: {bad}}}"
            lines += [
                f"  {node}: {{ansible_connection: local, gpustate_state_folder: {project}/{node}-state,"
                f" gpustate: {{acme-greeting: {state}}}}},"
            ]
        (project / name).write_text("\n".join([*lines, "}}"]) + "\n")
    return project


def events(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for one in found:
        check(one)
    return found


def check(data: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMAS[data["format"]]).validate(data)


def refused(done: Done, words: str) -> None:
    assert done.status == 1
    assert words in done.err


def test_events_on_standard_output_are_alone_there(
    gpustate: Cli, site: Path, receiver: _Receiver
) -> None:
    words = ("apply", "policy.py", "-i", "good.yml", "--yes", "--reason", "CHG-7")
    done = gpustate(*words, "--serial", "1", "--events", "-")
    assert done.status == 0, done.err
    found = events(done.out)
    assert [found[0]["kind"], found[-1]["kind"]] == ["run-started", "run-ended"]
    about = found[0]["about"]
    assert (about["reason"], about["waves"], about["nodes"]) == ("CHG-7", [1, 1], 2)
    assert about["command"][:3] == ["gpustate", "apply", "policy.py"]
    assert found[-1]["outcome"]["changed"] == ["gpu[1-2]"]
    assert {one["run"] for one in found} == {found[0]["run"]}
    waves = [one["text"] for one in found if one["kind"] == "wave"]
    assert waves == ["wave 1 of 2: 1 node", "wave 2 of 2: 1 node"]
    kinds = [one["kind"] for one in found if one["node"] == "gpu1"]
    assert kinds[0] == "connecting"
    assert kinds[-1] == "finished"
    assert "nodes=2 ok=2 changed=2" in done.err
    (posted,) = receiver.bodies
    check(posted)
    assert posted["outcome"] == found[-1]["outcome"]


def test_a_failure_is_told_to_all_and_shows_no_secret(
    gpustate: Cli, site: Path, receiver: _Receiver, home: Path
) -> None:
    words = ("apply", "policy.py", "-i", "bad.yml", "--yes", "--events", "events.jsonl")
    files = [f"r.{end}" for end in ("md", "html", "json", "txt")]
    done = gpustate(*words, *(word for file in files for word in ("--report", file)))
    assert done.status == 1
    outcome = events((site / "events.jsonl").read_text())[-1]["outcome"]
    (failed,) = outcome["failed"]
    assert (failed["node"], failed["status"]) == ("gpu2", "failed")
    assert failed["reason"]
    assert receiver.bodies[0]["outcome"]["exit_code"] == 1
    history = gpustate("rollout", "history")
    assert "exit 1" in history.out
    shown = json.loads(gpustate("rollout", "history", "-o", "json").out)
    check(shown)
    assert shown["runs"][0]["outcome"]["failed"] == [failed]
    assert "gpu2: failed" in gpustate("rollout", "history", "--run", shown["runs"][0]["run"]).out
    refused(gpustate("rollout", "history", "--run", "nobody"), "no run 'nobody' in the audit log")
    written = [(site / file) for file in (*files, "events.jsonl")]
    log = home / ".local/state/gpustate/audit.jsonl"
    texts = [path.read_text() for path in (*written, log)]
    texts += [done.out, done.err, history.out, json.dumps(receiver.bodies)]
    for text in texts:
        assert SECRET not in text
        assert TOKEN not in text
    assert {path.stat().st_mode & 0o777 for path in (*written, log)} == {0o600}
    markdown, html = (site / "r.md").read_text(), (site / "r.html").read_text()
    retry = "gpustate apply policy.py -i bad.yml --yes -l gpu2"
    for report in (markdown, html):
        assert retry in report
        assert "Not finished" in report
        assert "1 changed, 0 unchanged, 1 not finished" in report
    assert markdown.startswith("# Result of apply: policy.py\n")
    assert "default-src 'none'" in html


def test_a_webhook_that_fails_changes_no_exit_code(gpustate: Cli, site: Path) -> None:
    words = ("apply", "policy.py", "-i", "good.yml", "--yes")
    done = gpustate(*words, GPUSTATE_WEBHOOK=f"http://127.0.0.1:1/{TOKEN}")
    assert done.status == 0
    assert "warning: webhook of 127.0.0.1: Connection refused" in done.err
    assert TOKEN not in done.out + done.err
    refused(gpustate(*words, GPUSTATE_WEBHOOK="nowhere"), "GPUSTATE_WEBHOOK: not a URL")


def test_only_runs_that_may_change_nodes_are_posted_and_audited(
    gpustate: Cli, site: Path, receiver: _Receiver, home: Path
) -> None:
    assert gpustate("plan", "policy.py", "-i", "good.yml", "--events", "p").status == 0
    assert gpustate("drift", "policy.py", "-i", "good.yml", "--events", "d").status == 2
    for name, verb in (("p", "plan"), ("d", "drift")):
        assert events((site / name).read_text())[0]["about"]["verb"] == verb
    assert not receiver.bodies
    assert "no run in" in gpustate("rollout", "history").out
    url = f"http://127.0.0.1:{receiver.server_address[1]}/{TOKEN}"
    gpustate("drift", "policy.py", "-i", "good.yml", GPUSTATE_WEBHOOK=url)
    assert receiver.bodies[0]["about"]["verb"] == "drift"


def test_a_run_that_fails_as_a_whole_has_an_end(gpustate: Cli, site: Path) -> None:
    done = gpustate("validate", "policy.py", "-i", "good.yml", "--events", "-", "-o", "json")
    refused(done, "has no validator")
    done = gpustate("plan", "policy.py", "-i", "good.yml", "--events", "-", "-o", "json")
    refused(done, "--events - and -o json both write to standard output")
    assert done.out == ""


def test_a_saved_plan_is_named_with_its_digest(gpustate: Cli, site: Path) -> None:
    away = "all: {hosts: {gpu3: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n"
    (site / "away.yml").write_text(away)
    gpustate("plan", "nouveau", "-i", "away.yml", "--out", "plan.json")
    done = gpustate("apply", "plan.json", "-i", "away.yml", "--yes", "--events", "e")
    assert done.status == 4, done.err
    about = events((site / "e").read_text())[0]["about"]
    data = (site / "plan.json").read_bytes()
    assert about["plan"] == json.loads(data)["id"]
    assert about["digest"] == hashlib.sha256(data).hexdigest()


def test_a_killed_run_is_shown_as_such_and_can_be_resumed(
    gpustate: Cli, site: Path, home: Path
) -> None:
    gpustate("apply", "policy.py", "-i", "good.yml", "--yes", "--reason", "CHG-8")
    log = home / ".local/state/gpustate/audit.jsonl"
    first, _ = log.read_text().splitlines()
    log.write_text(first + "\n")
    run = json.loads(first)["run"]
    record = home / f".local/state/gpustate/runs/{run}.json"
    record.write_text(record.read_text().replace('"ended": true', '"ended": false'))
    shown = gpustate("rollout", "history").out
    assert "reason: CHG-8" in shown
    assert f"killed; continue it with: gpustate rollout resume {run}" in shown
    done = gpustate("rollout", "resume", "--yes", "--events", "events")
    assert done.status == 0, done.err
    assert events((site / "events").read_text())[-1]["outcome"]["exit_code"] == 0
    assert "continue it" not in gpustate("rollout", "history").out
    assert [
        one["state"] for one in json.loads(gpustate("rollout", "history", "-o", "json").out)["runs"]
    ] == ["killed", "ended"]
