"""A password planted in a policy, a vault and a command line is on a node where it belongs, and nowhere else.

Looked for with grep over the node's whole disk, in its journals, in everything gpustate printed and wrote here.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from commands import Ran, gpustate

from gpustate_lab import paths
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.sim.repository import KEY_PATH

pytestmark = [pytest.mark.node, pytest.mark.proof]

DATA = Path(__file__).parents[1] / "data"
VAULTED, ROTATED = "S3cr3t-vault-value", "S3cr3t-after-rotation"
AUTH = "/etc/apt/auth.conf.d/gpustate-driver-repository.conf"
POLICY = """
format: gpustate.policy/1
states:
  preflight: {}
  driver-repository:
    origin: mirror
    url: URL
    key: KEY
    username: fleet
    password: S3cr3t-placeholder
"""


class _Private(SimpleHTTPRequestHandler):
    """The lab's mirror, for who has one of the two passwords."""

    allowed = tuple(
        "Basic " + base64.b64encode(f"fleet:{word}".encode()).decode()
        for word in (VAULTED, ROTATED)
    )

    def do_GET(self) -> None:
        if self.headers.get("Authorization") in self.allowed:
            super().do_GET()
        else:
            self.send_error(401)

    def log_message(self, format: str, *args: object) -> None:
        """A test is quiet."""


@pytest.fixture
def mirror(lab: Lab) -> Iterator[str]:
    handler = partial(_Private, directory=str(paths.repository_dir()))
    with ThreadingHTTPServer((str(lab.network.gateway), 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{lab.network.gateway}:{server.server_port}"
        server.shutdown()
        thread.join()


def found_on(node: Node, *secrets: str) -> set[str]:
    """Files of the node's disk that hold one of them, plain or in base64, and ``journal`` for systemd's."""
    words = [
        word for one in secrets for word in (one, base64.b64encode(one.encode()).decode()[:-4])
    ]
    wanted = " ".join(f"-e '{word}'" for word in words)
    said = node.run(
        f"grep -rlIF --devices=skip {wanted} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null; "
        f"grep -rlaF --devices=skip {wanted} /var/lib/gpustate /var/log /tmp /run /etc 2>/dev/null; "
        f"journalctl --no-pager 2>/dev/null | grep -qF {wanted} && echo journal; :",
        check=False,
    )
    return set(said.stdout.split())


def test_a_password_is_in_the_file_it_is_for_and_in_nothing_else(
    lab: Lab, node12: Node, mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    key = paths.repository_dir() / KEY_PATH
    policy = tmp_path / "policy.yml"
    policy.write_text(POLICY.replace("URL", mirror).replace("KEY", str(key)))
    (tmp_path / "pw").write_text("correct horse\n")
    vault = json.dumps((DATA / "ansible-vault/value-1.1.txt").read_text())
    extra = tmp_path / "hosts.d"
    (extra / "host_vars").mkdir(parents=True)
    (extra / "hosts.yml").symlink_to(lab.inventory)
    # The lab's inventory names its own mirror for the node: this is the stronger word.
    variables = extra / "host_vars" / f"{node12.name}.yml"
    url = f"{mirror}/mirror/debian12"
    variables.write_text(
        f"gpustate: {{driver-repository: {{url: '{url}', password: !vault {vault}}}}}\n"
    )
    printed: list[str] = []

    def run(verb: str, *words: object, code: int = 0) -> Ran:
        target = ("-i", extra, "-l", node12.name, "--vault-password-file", tmp_path / "pw")
        ran = gpustate(verb, *words, *target, code=code)
        printed.extend((ran.out, ran.err))
        return ran

    run(
        "plan",
        policy,
        "--out",
        tmp_path / "plan.json",
        "--report",
        tmp_path / "plan.html",
        "--diff",
    )
    run("apply", tmp_path / "plan.json", "--yes", "--reason", "CHG-42", "--diff")
    assert found_on(node12, VAULTED) == {AUTH}
    assert node12.run(f"stat -c '%a %U' {AUTH}").stdout.split() == ["600", "root"]
    assert run("apply", policy, "--yes").summary["changed"] == "0"
    assert "CHG-42" in node12.run("cat /var/lib/gpustate/runs/*/info").stdout

    command = "\"{{ lookup('pipe', 'cat word') }}\""
    variables.write_text(
        f"gpustate: {{driver-repository: {{url: '{url}', password: {command}}}}}\n"
    )
    (tmp_path / "word").write_text(f"{ROTATED}\n")
    monkeypatch.chdir(tmp_path)
    assert run("apply", policy, "--yes").summary["changed"] == "1"
    assert found_on(node12, VAULTED, ROTATED) == {AUTH}
    (tmp_path / "word").write_text("S3cr3t-that-is-wrong\n")
    run("apply", policy, "--yes", code=1)
    assert found_on(node12, "S3cr3t-that-is-wrong") <= {AUTH}

    run("remove", policy, "--yes")
    assert found_on(node12, VAULTED, ROTATED, "S3cr3t-that-is-wrong", "S3cr3t-placeholder") == set()
    for file in (
        tmp_path / "plan.json",
        tmp_path / "plan.html",
        *(tmp_path / "state").rglob("*.json"),
    ):
        assert file.stat().st_mode & 0o777 == 0o600
        printed.append(file.read_text())
    assert not [text for text in printed if "S3cr3t" in text]
    assert os.listdir(tmp_path / "state/gpustate/runs")
