"""Secrets of a policy and of an inventory, seen from the command line: in nothing that is printed or written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpustate.api import load_policy
from gpustate.api.saved import policy_of, read_json
from gpustate.cli.main import cli
from gpustate.errors import PolicyError
from gpustate.formats import masking
from gpustate.plan.document import read_plan

DATA = Path(__file__).parents[2] / "data"
URL_PASSWORD, VAULTED, NAMED = "S3cr3t-in-url", "S3cr3t-vault-value", "S3cr3t-by-name"
SECRETS = (URL_PASSWORD, VAULTED, NAMED)
KEY = str(DATA / "openpgp/one.asc")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUSTATE_INVENTORY", raising=False)
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE", raising=False)
    (tmp_path / "policy.yml").write_text(
        "format: gpustate.policy/1\nstates:\n  driver-repository:\n    origin: mirror\n"
        f"    url: https://ops:{URL_PASSWORD}@mirror.example/x\n    key: {KEY}\n"
    )
    vault = json.dumps((DATA / "ansible-vault/value-1.1.txt").read_text())
    (tmp_path / "hosts.yml").write_text(
        "all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}, vars: {"
        f"my_vaulted: !vault {vault}, repo_password: {NAMED}, other: {NAMED}, ansible_become_password: {NAMED},"
        " gpustate: {driver-repository: {password: '{{ my_vaulted }}'}}}}\n"
    )
    (tmp_path / "pw").write_text("correct horse\n")
    return tmp_path


def run(*words: str) -> Result:
    options = ("-i", "hosts.yml", "--vault-password-file", "pw")
    return CliRunner().invoke(cli, [*words, *options])


def check(*texts: str) -> None:
    for text in texts:
        assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("output", ["text", "json", "html", "markdown"])
def test_a_plan_has_no_secret_in_any_form_and_its_files_are_their_owner_s(
    place: Path, output: str
) -> None:
    files = [place / f"r.{end}" for end in ("html", "md", "json", "txt")]
    reports = [word for file in files for word in ("--report", str(file))]
    result = run("plan", "policy.yml", "-o", output, "--out", "plan.json", *reports)
    assert "unreachable" in result.output
    written = [*files, place / "plan.json"]
    check(result.output, *(file.read_text() for file in written))
    assert {file.stat().st_mode & 0o777 for file in written} == {0o600}
    assert "https://mirror.example/x" in (place / "plan.json").read_text()


def test_resolve_shows_where_a_secret_comes_from_and_not_what_it_is(place: Path) -> None:
    for words in ((), ("--all",), ("-o", "json"), ("--why", "driver-repository.password")):
        result = run("policy", "resolve", "gpu1", "policy.yml", *words)
        assert result.exit_code == 0, result.exception
        check(result.output)
        assert '"(secret)"' in result.output
        assert "hosts.yml:1" in result.output


def test_a_saved_plan_takes_its_secrets_from_the_policy_again(place: Path) -> None:
    run("plan", "policy.yml", "--out", "plan.json")
    masking.forget_all()
    saved = read_plan(read_json("plan.json"), place="plan.json")
    made: Any = policy_of(saved, load_policy, "plan.json")
    (state,) = (state for state in made.states if state.name == "driver-repository")
    assert (state.username, state.password) == ("ops", URL_PASSWORD)
    (place / "policy.yml").rename("elsewhere.yml")
    with pytest.raises(PolicyError) as caught:
        policy_of(saved, load_policy, "plan.json")
    said = str(caught.value)
    assert "saved plans contain no secrets" in said
    assert "driver-repository.parameters.password cannot be read from policy.yml" in said


def test_messages_and_a_policy_in_another_shape_have_none(place: Path) -> None:
    (place / "bad.yml").write_text(
        f"format: gpustate.policy/1\nstates:\n  driver:\n    version: https://ops:{URL_PASSWORD}@mirror.example/x\n"
    )
    for words in (("plan", "bad.yml"), ("policy", "resolve", "gpu1", "bad.yml")):
        result = run(*words)
        assert result.exception is not None
        check(result.output, masking.mask(str(result.exception)))
    for shape in ("yaml", "python"):
        result = CliRunner().invoke(cli, ["policy", "convert", "policy.yml", "--to", shape])
        check(result.output)
        assert "driver-repository.password: secrets are not written" in result.output
        assert masking.MASK not in result.output


@pytest.mark.parametrize("shape", ["yaml", "python"])
def test_a_converted_policy_leaves_a_secret_out_and_can_be_applied(place: Path, shape: str) -> None:
    out = {"yaml": "out.yml", "python": "out.py"}[shape]
    result = CliRunner().invoke(
        cli, ["policy", "convert", "policy.yml", "--to", shape, "--out", out]
    )
    assert result.exit_code == 0, result.output
    assert masking.MASK not in (place / out).read_text()
    check((place / out).read_text(), result.output)
    states = {state.name: state for state in load_policy(out).states}
    assert getattr(states["driver-repository"], "password", "") is None


def test_the_mask_of_a_secret_is_not_a_value(place: Path) -> None:
    policy = (place / "policy.yml").read_text()
    (place / "masked.yml").write_text(f"{policy}    username: ops\n    password: (secret)\n")
    result = run("policy", "resolve", "gpu1", "masked.yml")
    assert "masked.yml:8: " in str(result.exception)
    assert "driver-repository: password: contains (secret)" in str(result.exception)
    hosts = (place / "hosts.yml").read_text().replace("{{ my_vaulted }}", "(secret)")
    (place / "hosts.yml").write_text(hosts)
    result = run("policy", "resolve", "gpu1", "policy.yml")
    assert "driver-repository: password: contains (secret)" in str(result.exception)
    assert "hosts.yml:1" in str(result.exception)
    result = CliRunner().invoke(
        cli,
        ["policy", "resolve", "gpu1", "policy.yml", "--set", "driver-repository.password=(secret)"],
    )
    assert "contains (secret)" in str(result.exception)
