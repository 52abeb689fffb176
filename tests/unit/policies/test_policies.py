"""Loading policies: Python files, names of states, and everything that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate import policies, registry
from gpustate.core.policy import parameters
from gpustate.errors import GpustateError, PolicyError
from gpustate.policies import Kind

GOOD = """\
from gpustate import Policy, where
from gpustate.states.nouveau import NouveauBlacklisted

policy = Policy(NouveauBlacklisted(only=where.group("gpu")))
"""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_registry", None)
    monkeypatch.chdir(tmp_path)


def write(folder: Path, text: str, name: str = "site.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_python_file_is_a_policy_named_after_it(tmp_path: Path) -> None:
    policy = policies.load(write(tmp_path, GOOD))
    assert (policy.name, [s.name for s in policy.states]) == ("site", ["nouveau"])


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n"])
def test_an_empty_file_is_said_to_be_the_chart_s_defaults(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text, "site.yaml")
    assert policies.load(file).notes[0] == (
        f"{file} is empty: the defaults of the GPU Operator's chart apply"
    )


def test_a_policy_s_own_name_wins(tmp_path: Path) -> None:
    text = GOOD.replace('"))', '"), reboot_timeout_s=60), name="blue"').replace(
        '"gpu"), r', '"gpu"), r'
    )
    policy = policies.load(write(tmp_path, text))
    assert policy.name == "blue"
    assert parameters(policy.states[0])["reboot_timeout_s"] == 60


def test_python_without_its_ending_is_recognised(tmp_path: Path) -> None:
    assert policies.kind(write(tmp_path, GOOD, "site")) is Kind.PYTHON


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "from gpustate import Policy\npolicy = Policy(\n",
            2,
            "is not Python: '\\(' was never closed",
        ),
        ("import gpustate\n\npolicy = Policy()\n", 3, "NameError: name 'Policy' is not defined"),
        (GOOD.replace('"gpu"', "gpu"), 4, "NameError: name 'gpu'"),
        (GOOD.replace("only", "onyl"), 4, "nouveau: no parameter 'onyl'; did you mean 'only'"),
        (
            GOOD.replace("only=", "reboot_timeout_s='9', only="),
            4,
            "reboot_timeout_s: wanted a whole number",
        ),
        (GOOD.replace('where.group("gpu")', '"groop(1)"'), 4, "has no meaning at 'groop'"),
        (
            GOOD + "policy = Policy(*policy.states, *policy.states)\n",
            5,
            "'nouveau' is defined twice",
        ),
        (GOOD + "policy = Policy(NouveauBlacklisted)\n", 5, "is not a state; call the state class"),
        (
            "import own_missing\n",
            1,
            "No module named 'own_missing'; put a gpustate.toml next to your own modules",
        ),
        ("x = 1\n1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('a\\nb')\n\nf()\n", 2, "ValueError: a b"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("def f(): f()\nf()\n", 1, "RecursionError"),
    ],
)
def test_an_error_in_a_python_policy_names_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(PolicyError, match=said) as caught:
        policies.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "defines no 'policy'; end it with: policy = Policy"),
        (GOOD.replace("policy =", "mine ="), "defines no 'policy'; rename 'mine'"),
        (GOOD + "policy = [policy]\n", "'policy' is a list, wanted a gpustate.Policy"),
    ],
)
def test_a_python_file_without_a_policy_says_how_to_make_one(
    tmp_path: Path, text: str, said: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(PolicyError, match=said) as caught:
        policies.load(path)
    assert caught.value.place == path


def test_two_policy_files_share_no_names(tmp_path: Path) -> None:
    policies.load(write(tmp_path, GOOD + "leaked = 1\n"))
    with pytest.raises(PolicyError, match="'leaked' is not defined"):
        policies.load(write(tmp_path, "policy = leaked\n", "two.py"))


def test_the_name_of_a_state_is_a_policy_of_one() -> None:
    policy = policies.load("nouveau")
    assert (policies.kind("nouveau"), policy.name) == (Kind.STATE, "nouveau")
    assert [s.name for s in policy.states] == ["nouveau"]


def test_a_word_that_is_neither_comes_with_near_names() -> None:
    with pytest.raises(
        PolicyError, match="'noveau' is neither a file nor a state; did you mean nouveau"
    ):
        policies.load("noveau")


def test_a_file_called_like_nothing_else_is_a_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "site")
    assert policies.load("site").name == "site"


def test_a_saved_plan_is_recognised_and_not_loaded(tmp_path: Path) -> None:
    path = write(tmp_path, '{\n  "format": "gpustate.plan/1",\n  "nodes": []\n}\n', "p.json")
    assert policies.kind(path) is Kind.PLAN
    with pytest.raises(PolicyError, match=r"is a saved plan, .* use: gpustate apply"):
        policies.load(path)


def test_another_document_of_ours_is_no_policy(tmp_path: Path) -> None:
    path = write(tmp_path, '{"format": "gpustate.facts/1"}', "f.json")
    with pytest.raises(PolicyError, match="is a gpustate facts, wanted a policy"):
        policies.kind(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [1\nb: 2\n", ":2: is not YAML: .*that begins in line 1"),
        (b"a:\n\tb: 1\n", ":2: is not YAML: a tab.*replace it with spaces"),
        (b"- 1\n- 2\n", ":1: is a list, not a policy"),
        (b"hello\n", ":1: is a string, not a policy"),
        (b"kind: Pod\napiVersion: v1\n", "contains no policy, only Pod"),
        (b'kind: "\\n"\napiVersion: v1\n', r"contains no policy, only '\\n'"),
        (
            b"kind: ClusterPolicy\napiVersion: nvidia.com/v2\n",
            "'nvidia.com/v2' is unsupported, wanted nvid",
        ),
        (
            b"kind: ClusterPolcy\napiVersion: nvidia.com/v1\n",
            "unknown kind 'ClusterPolcy'.*did you mean Cl",
        ),
        (b"kind: ClusterPolicy\n", "is unsupported, wanted nvidia.com/v1"),
        (b"kind: ClusterPolicy\napiVersion: nvidia.com/v1\n", "ClusterPolicy has no spec"),
        (b"kind: GPUCluster\napiVersion: nvidia.com/v1alpha1\n", "the GPUCluster has no spec"),
        (b"hosts: all\n", "is not a policy: it begins with 'hosts'"),
        (b"a: \x01\n", "is not YAML: a control character"),
        (b"\x7fELF\x00\x01", "is a binary file"),
        (b"driver: \xff\n", ":1: is not UTF-8"),
        (b"a: &x [*x]\n", "is inside its own value"),
        (
            b"driver:\n  enabled: true\n  enabled: false\n",
            ":3: the key 'enabled' is a duplicate of line 2",
        ),
        (b"a: !python/name:os.system x\n", "tag '!?python/name:os.system' is not supported"),
        (b"[" * 50_000, "nested deeper than"),
        (os.urandom(16) * (640 * 1024), "is larger than 5 MiB"),
        (b"x" * 3_000_000, "is a string, not a policy"),
    ],
)
def test_what_is_no_policy_is_one_error(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyError, match=said) as caught:
        policies.load(str(path))
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 500


def test_an_alias_bomb_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(PolicyError, match="expand to more than 500000 values"):
        policies.load(write(tmp_path, "\n".join(lines), "bomb.yaml"))


def test_what_is_no_file_is_one_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for name, said in (
        ("", "is a directory, wanted a file"),
        ("gone.yaml", "no such file"),
        ("pipe.yaml", "is neither a file nor a link"),
        ("a\0b.yaml", "cannot be read"),
    ):
        with pytest.raises(PolicyError, match=said):
            policies.load(f"{tmp_path}/{name}")


def test_what_a_shell_hands_over_as_a_pipe_can_be_read() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        file.write("driver: {enabled: false}\ntoolkit: {enabled: false}\n")
    try:
        policy = policies.load(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    names = [state.name for state in policy.states]
    assert names == ["preflight", "dev-char", "gpu-labels", "validator"]


def test_states_of_the_user_s_own_are_found_above_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_site").mkdir()
    (tmp_path / "own_site" / "limits.py").write_text(
        "from typing import ClassVar\n"
        "from gpustate.states.nouveau import NouveauBlacklisted\n"
        "class Limits(NouveauBlacklisted):\n    name: ClassVar[str] = 'own-limits'\n"
    )
    (tmp_path / "gpustate.toml").write_text('states = ["own_site.limits:Limits"]\n')
    (tmp_path / "policies").mkdir()
    text = "from gpustate import Policy\nfrom own_site.limits import Limits\npolicy = Policy(Limits())\n"
    policy = policies.load(write(tmp_path / "policies", text))
    assert [s.name for s in policy.states] == ["own-limits"]
    assert policies.load("own-limits").states[0] == policy.states[0]


def test_every_error_is_a_gpustate_error_with_exit_code_1(tmp_path: Path) -> None:
    with pytest.raises(GpustateError) as caught:
        policies.load(str(tmp_path / "gone.yaml"))
    assert caught.value.exit_code == 1
