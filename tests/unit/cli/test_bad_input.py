"""Whatever a user gives: one line with the place and the next move, and nothing is written.

The nodes named here are never reached: every mistake is found before the first connection.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from commandline import Cli, Done

STATES = '''
"""States of our own, over files."""

from dataclasses import dataclass
from typing import ClassVar

from gpustate import State, diff, ops


@dataclass(frozen=True, slots=True)
class Seen:
    text: str | None


class AcmeFile(State[Seen]):
    """A file holds a text."""

    name: ClassVar[str] = "acme-file"
    path: str = "/proc/nowhere"
    text: str = "x"

    def probe(self, node):
        return Seen(node.read_text(self.path))

    def desired(self, seen):
        return Seen(None if self.absent else self.text)

    def apply(self, seen, plan):
        yield ops.PutText(self.path, self.text)


class AcmeHen(AcmeFile):
    """Comes first."""

    name: ClassVar[str] = "acme-hen"
    needs: ClassVar[tuple[str, ...]] = ("acme-egg",)


class AcmeEgg(AcmeFile):
    """Comes first."""

    name: ClassVar[str] = "acme-egg"
    after: ClassVar[tuple[str, ...]] = ("acme-hen",)


class AcmeLost(AcmeFile):
    """Needs what there is not."""

    name: ClassVar[str] = "acme-lost"
    needs: ClassVar[tuple[str, ...]] = ("nouveu",)
'''
IMPORT = "from acme import AcmeEgg, AcmeFile, AcmeHen, AcmeLost\nfrom gpustate import Policy\n"
OPERATOR = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: blue}\nspec:\n"
FILES = {
    "acme.py": STATES,
    "gpustate.toml": 'states = ["acme:AcmeFile", "acme:AcmeHen", "acme:AcmeEgg", "acme:AcmeLost"]\n',
    "good.py": IMPORT + "policy = Policy(AcmeFile(path='/proc/nowhere/gpustate'))\n",
    "cycle.py": IMPORT + "policy = Policy(AcmeHen(), AcmeEgg(), AcmeFile())\n",
    "lost.py": IMPORT + "policy = Policy(AcmeLost())\n",
    "unknown.py": IMPORT + "policy = Policy(\n    AcmeFile(pth='/x'),\n)\n",
    "wrongtype.py": IMPORT + "policy = Policy(\n    AcmeFile(path=7),\n)\n",
    "twice.py": IMPORT + "policy = Policy(AcmeFile(), AcmeFile())\n",
    "only.py": IMPORT + "policy = Policy(AcmeFile(only='group(x)'))\n",
    "nothing.py": "policies = 1\n",
    "raises.py": IMPORT + "1 / 0\n",
    "syntax.py": "policy = Policy(\n",
    "empty.py": "\n",
    "key.yaml": OPERATOR + "  driver:\n    enabeld: true\n",
    "value.yaml": OPERATOR + "  driver:\n    enabled: perhaps\n",
    "broken.yaml": OPERATOR + "  driver: {enabled: true\n",
    "kind.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
    "hosts.ini": "[gpu]\nlocalhost ansible_connection=local\n",
    "override.yml": dedent("""
        all:
          hosts: {gpu1: {}}
          vars:
            gpustate: {acme-file: {pth: /x}}
    """),
    "hosts.yml": "all:\n  hosts:\n    gpu1:\n",
    "broken.yml": "all:\n  hosts: [\n",
    "port.ini": "gpu1 ansible_port=ssh\n",
    "damaged.json": '{"format": "gpustate.plan/1", "id": "x", "nodes": [',
    "deep.json": '{"format": "gpustate.plan/1", "x": ' + "[" * 100_000,
    "later.json": '{"format": "gpustate.plan/9", "nodes": []}',
    "result.json": '{"format": "gpustate.result/1", "nodes": []}',
}
ON = ("-i", "gpu1,")

# What is given, the start of the line, and what else is in it.
CASES: list[tuple[tuple[str, ...], str, tuple[str, ...]]] = [
    (("plaan",), "no verb 'plaan'; did you mean 'plan'; see: gpustate --help", ()),
    (("zzz",), "no verb 'zzz'; verbs: plan, apply", ("; see: gpustate --help",)),
    (
        ("node", "mig", "shwo"),
        "node mig: no verb 'shwo'; did you mean 'show'; see: gpustate node mig --help",
        (),
    ),
    (
        ("policy", "matrix", "zzz"),
        "policy matrix: no verb 'zzz'; verbs: ",
        ("; see: gpustate policy matrix --help",),
    ),
    (("plan",), "plan: Missing argument 'POLICY'; see: gpustate plan --help", ()),
    (("--nope",), "No such option", ("--nope", "see: gpustate --help")),
    (("plan", "good.py", "--nope"), "plan: No such option", ("gpustate plan --help",)),
    (("plan", "good.py"), "no inventory; give one with -i", ()),
    (("plan", "", *ON), "no policy; give a Python file", ()),
    (("plan", "absent.py", *ON), "absent.py: no such file", ()),
    (("plan", "nouveu", *ON), "'nouveu' is neither a file nor a state", ("mean nouveau",)),
    (("plan", ".", *ON), ".: is a directory, wanted a file", ("name the policy file",)),
    (("plan", "/dev/zero", *ON), "/dev/zero: is neither a file nor a link to one", ()),
    (("plan", "empty.py", *ON), "empty.py: defines no 'policy'", ()),
    (("plan", "nothing.py", *ON), "nothing.py: defines no 'policy'; end it with", ()),
    (("plan", "raises.py", *ON), "raises.py:3: ZeroDivisionError: division by zero", ()),
    (("plan", "syntax.py", *ON), "syntax.py:1: is not Python: '(' was never closed", ()),
    (("plan", "unknown.py", *ON), "unknown.py:4: acme-file: no parameter 'pth'", ("mean 'path'",)),
    (("plan", "wrongtype.py", *ON), "wrongtype.py:4: acme-file: path: wanted text", ("7",)),
    (("plan", "twice.py", *ON), "twice.py:3: state 'acme-file' is defined twice; keep one", ()),
    (("plan", "only.py", *ON), "only.py:3: condition 'group(x)': 'x' is not a value", ()),
    (("plan", "cycle.py", *ON), "dependency cycle: acme-egg", ("remove one",)),
    (("policy", "graph", "cycle.py"), "dependency cycle: acme-egg", ("acme-hen needs acme-egg",)),
    (("plan", "lost.py", *ON), "state 'acme-lost': needs 'nouveu'", ("did you mean 'nouveau'",)),
    (
        ("policy", "convert", "key.yaml", "--to", "yaml", "--strict"),
        "key.yaml:6: unknown key 'driver.enabeld'",
        ("driver.enabled",),
    ),
    (("plan", "value.yaml", *ON), "value.yaml:6: ", ("driver.enabled", "perhaps")),
    (("plan", "broken.yaml", *ON), "broken.yaml:6: is not YAML", ()),
    (("plan", "kind.yaml", *ON), "kind.yaml", ("Pod",)),
    (("plan", "noise", *ON), "noise: is larger than 5 MiB", ("check that",)),
    (("plan", "noise.py", *ON), "noise.py: is larger than 5 MiB", ("check that",)),
    (("plan", "small-noise", *ON), "small-noise: is a binary file", ()),
    (("plan", "good.py", "-i", "noise"), "noise: is a binary file", ()),
    (("plan", "good.py", "-i", "letters.yml"), "letters.yml", ()),
    (("plan", "good.py", "-i", "absent.ini"), "absent.ini: no such file", ("'absent.ini,'",)),
    (("plan", "good.py", "-i", "broken.yml"), "broken.yml:3: is not YAML", ()),
    (("plan", "good.py", "-i", "port.ini"), "port.ini:1", ("ssh",)),
    (("plan", "good.py", "-i", ","), "inventory list ','", ()),
    (("plan", "good.py", "-i", "override.yml"), "override.yml", ("'pth'", "mean 'path'")),
    (("plan", "good.py", *ON, "-l", "a["), "--limit: 'a[' has an unmatched bracket", ()),
    (("plan", "good.py", *ON, "-l", "~["), "--limit: '~[' is not a valid pattern", ()),
    (
        ("plan", "good.py", *ON, "--set", "drain.timeout_s=5m"),
        "--set drain.timeout_s=5m: drain.timeout_s: is '5m', wanted seconds, 0 for no limit",
        (),
    ),
    (
        ("plan", "good.py", *ON, "-f", "many"),
        "plan: Invalid value for '-f' / '--forks': 'many' is not a whole number",
        (),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--set", "rollout.canary=x*"),
        "rollout.canary: 'x*' matches no node",
        (),
    ),
    (("plan", "good.py", *ON, "-l", "!gpu2"), "--limit: 'gpu2' is neither", ()),
    (("plan", "good.py", *ON, "-l", "gpu2"), "--limit: 'gpu2' is neither", ()),
    (("plan", "good.py", *ON, "-l", "!all"), "--limit: '!all' matches none", ("name other nodes",)),
    (
        ("plan", "good.py", *ON, "--private-key", "no-key"),
        "no-key: cannot read the private key",
        (),
    ),
    (("plan", "good.py", *ON, "--private-key", "."), ".: cannot read the private key", ()),
    (
        ("plan", "good.py", *ON, "--kubeconfig", "no-cluster"),
        "no-cluster: cannot read the kubeconfig",
        ("--kubeconfig",),
    ),
    (
        ("plan", "good.py", *ON, "--vault-password-file", "no-vault"),
        "no-vault: cannot read the vault password file",
        ("--vault-password-file",),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--max-failures", "0"),
        "apply: Invalid value for '--max-failures'",
        (),
    ),
    (
        ("plan", "good.py", *ON, "-f", "0"),
        "plan: Invalid value for '-f' / '--forks': 0 is too small; at least 1; see: ",
        (),
    ),
    (("plan", "good.py", *ON, "-f", "99999"), "plan: Invalid", ("too large; at most 10000",)),
    (("plan", "good.py", *ON, "-f", "x"), "plan: Invalid", ("'x' is not a whole number",)),
    (
        ("validate", "good.py", *ON, "--timeout", "nan"),
        "validate: Invalid",
        ("nan is too small; at least 1",),
    ),
    (
        ("plan", "good.py", *ON, "--canary", "1"),
        "plan: No such option '--canary'; use: --set rollout.canary=VALUE; see: ",
        (),
    ),
    (
        ("apply", "good.py", "--dry-run"),
        "apply: No such option '--dry-run'; use: gpustate plan",
        (),
    ),
    (
        ("apply", "good.py", "--set-string", "a=1"),
        "apply: No such option '--set-string'; use: --set 'PATH=\"VALUE\"'; see: ",
        (),
    ),
    (
        ("node", "lock", "-m", "x", "h1", "h2"),
        "node lock: Got unexpected extra arguments (h1 h2); select nodes with -l h1,h2; see: ",
        (),
    ),
    (("node", "quarantine", *ON, "--gpu", "0", "--for", "8h"), "a quarantine needs --reason", ()),
    (("node", "quarantine", *ON, "--gpu", "0", "-m", "x"), "a quarantine needs --for 8h", ()),
    (
        ("plan", "good.py", *ON, "--set", "cluster={}"),
        "--set cluster={}: cluster: is a list, wanted a mapping; write: -p '{\"cluster\":{}}'",
        (),
    ),
    (("plan", "hosts.yml", *ON), "hosts.yml:1: looks like an inventory; a policy has", ("-i INV",)),
    (("plan", "good.py", *ON, "--out", "no/x"), "no/x: no is not a directory", ("--out",)),
    (("plan", "good.py", *ON, "-o", "xml"), "plan: Invalid value for '-o'", ("json",)),
    (("apply", "good.py", *ON), "stdin is not a terminal", ("--yes",)),
    (("apply", "good.py"), "no inventory; give one with -i", ()),
    (("apply", "absent.py", *ON), "absent.py: no such file", ()),
    (("apply", "good.py", "-i", "--yes"), "-i has no value: --yes follows it", ("node1",)),
    (("apply", "good.py", *ON, "--yes", "--serial", "0"), "--serial: '0' is not a batch size", ()),
    (("apply", "good.py", *ON, "--yes", "--serial", "120%"), "--serial: '120%' is not a batch", ()),
    (
        ("apply", "good.py", *ON, "--yes", "--serial", "1,x"),
        "--serial: 'x' is not a batch size",
        (),
    ),
    (("apply", "good.py", *ON, "--yes", "--serial", ""), "--serial is empty", ("omit it",)),
    (
        ("apply", "good.py", *ON, "--yes", "--max-unavailable", " "),
        "--max-unavailable is empty",
        (),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--set", "rollout.window="),
        "--set rollout.window=: rollout.window: is '', wanted times such as",
        (),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--set", "rollout.window=;"),
        "rollout.window: no maintenance window in ';'",
        (),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--set", "rollout.canary="),
        "--set rollout.canary=: rollout.canary: is '', wanted a number or pattern",
        (),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--set", "rollout.soak="),
        "--set rollout.soak=: rollout.soak: is '', wanted a time such as 30m",
        (),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--set", "rollout.spread="),
        "--set rollout.spread=: rollout.spread: is '', wanted the name of",
        (),
    ),
    (("apply", "good.py", *ON, "--yes", "-l", ""), "--limit is empty", ()),
    (("upgrade", "good.py", *ON, "--yes", "--driver", ""), "--driver is empty", ()),
    (
        ("upgrade", "good.py", *ON, "--driver", "latest"),
        "--driver latest keeps",
        ("a branch (580)",),
    ),
    (
        ("apply", "good.py", *ON, "--yes", "--max-disruption", "some"),
        "apply: Invalid value for '--max-disruption': 'some' is not a disruption level",
        (),
    ),
    (("apply", "cycle.py", *ON, "--yes"), "dependency cycle", ()),
    (("apply", "damaged.json", *ON, "--yes"), "damaged.json: cannot be read as a plan", ()),
    (("apply", "deep.json", *ON, "--yes"), "deep.json: cannot be read as a plan", ()),
    (("apply", "later.json", *ON, "--yes"), "later.json: unsupported format 'gpustate.plan/9'", ()),
    (("apply", "result.json", *ON, "--yes"), "result.json: is a gpustate result", ()),
    (("plan", "damaged.json", *ON), "damaged.json: cannot be read as a plan", ("make a new plan",)),
    (("validate", "good.py", *ON), "good.py has no validator; add the state validator", ()),
    (("explain", "gpu2", *ON), "'gpu2' is neither a node nor a group", ()),
    (("node", "lock", *ON), "node lock: Missing option '--reason'", ()),
    (
        ("node", "lock", *ON, "-m", "x", "--for", "3y"),
        "--for: invalid duration '3y'; write 30m",
        (),
    ),
    (("rollout", "resume"), "there is no run to resume", ()),
    (
        ("apply", "good.py", *ON, "--yes", "--ignore-scheduler", "--set", "drain.force=false"),
        "--set drain has no effect with --ignore-scheduler",
        ("leave out one of them",),
    ),
    (
        ("node", "support-bundle", *ON, "x.zip"),
        "x.zip: not the name of a .tar.gz file",
        ("x.tar.gz",),
    ),
    (("rollout", "resume", "x"), "no run 'x' on this machine", ("gpustate rollout resume --list",)),
    (("policy", "graph"), "no policy; name one", ()),
    (
        ("help", "completion", "ksh"),
        "help completion: Invalid value for",
        ("'bash', 'zsh', 'fish'",),
    ),
]


def noise(size: int) -> bytes:
    return random.Random(7).randbytes(size)


@pytest.fixture(scope="module")
def big_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ten megabytes of noise, once for all tests."""
    folder = tmp_path_factory.mktemp("noise")
    binary, letters = noise(10_000_000), noise(5_000_000).hex().encode()
    made = {
        "noise": binary,
        "noise.py": binary,
        "letters.yml": letters,
        "small-noise": binary[:9999],
    }
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in made}


@pytest.fixture(autouse=True)
def files(project: Path, big_files: dict[str, Path]) -> None:
    for name, text in FILES.items():
        (project / name).write_text(text, encoding="utf-8")
    for name, path in big_files.items():
        (project / name).symlink_to(path)


def tree(*folders: Path) -> dict[str, Any]:
    """Everything in some folders: kind, mode, time and content."""
    found: dict[str, Any] = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            status = path.lstat()
            plain = path.is_file() and not path.is_symlink()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if plain else ""
            found[str(path)] = (status.st_mode, status.st_mtime_ns, content)
    return found


def one_line(done: Done, status: int = 1) -> str:
    """The one line that a mistake costs."""
    assert done.status == status, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.err.endswith("\n")
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("gpustate: ")
    return lines[0].removeprefix("gpustate: ")


@pytest.mark.parametrize(("words", "start", "parts"), CASES)
def test_a_mistake_costs_one_line_and_writes_nothing(
    words: tuple[str, ...],
    start: str,
    parts: tuple[str, ...],
    gpustate: Cli,
    project: Path,
    home: Path,
) -> None:
    before = tree(project, home)
    line = one_line(gpustate(*words))
    assert line.startswith(start)
    for part in parts:
        assert part in line
    assert tree(project, home) == before


def saved_plan(gpustate: Cli, project: Path) -> dict[str, Any]:
    """A plan of a file of this machine, with all of gpustate's own things in the project."""
    (project / "here.ini").write_text(
        f"localhost ansible_connection=local gpustate_state_folder={project}/state\n"
    )
    (project / "here.py").write_text(
        IMPORT + f"policy = Policy(AcmeFile(path='{project}/target', text='new'))\n"
    )
    done = gpustate("plan", "here.py", "-i", "here.ini", "--out", "p.json")
    assert done.status == 0, done
    data: dict[str, Any] = json.loads((project / "p.json").read_text())
    return data


def test_a_plan_whose_words_were_altered_is_refused_before_any_node(
    gpustate: Cli, project: Path, home: Path
) -> None:
    data = saved_plan(gpustate, project)
    data["policy"]["states"][0]["parameters"]["text"] = "other"
    (project / "p.json").write_text(json.dumps(data))
    before = tree(project, home)
    line = one_line(gpustate("apply", "p.json", "-i", "here.ini", "--yes"))
    assert (
        line
        == "p.json: the plan was altered after it was made; make a new plan: gpustate plan POLICY --out FILE"
    )
    assert tree(project, home) == before


def test_a_plan_for_other_nodes_is_refused(gpustate: Cli, project: Path) -> None:
    saved_plan(gpustate, project)
    line = one_line(gpustate("apply", "p.json", *ON, "--yes"))
    assert line.startswith("p.json: none of the plan's nodes are in the inventory; use")


def test_a_node_that_has_moved_since_the_plan_is_refused_and_left_alone(
    gpustate: Cli, project: Path
) -> None:
    saved_plan(gpustate, project)
    (project / "target").write_text("by hand")
    done = gpustate("apply", "p.json", "-i", "here.ini", "--yes")
    assert done.status == 5
    assert "localhost has changed since" in done.out
    assert "(acme-file); plan again" in done.out
    assert "Traceback" not in done.err
    assert (project / "target").read_text() == "by hand"
    assert not (project / "state").exists()


def test_a_saved_plan_is_applied_as_it_stands(gpustate: Cli, project: Path) -> None:
    saved_plan(gpustate, project)
    done = gpustate("apply", "p.json", "-i", "here.ini", "--yes")
    assert done.status == 0, done
    assert (project / "target").read_text() == "new"
    assert done.out.splitlines()[-1].startswith("nodes=1 ok=1 changed=1 unchanged=0 ")


def test_a_key_that_is_none_fails_its_nodes_with_one_line_each(
    gpustate: Cli, project: Path
) -> None:
    (project / "key").write_text("garbage\n")
    done = gpustate("plan", "good.py", "-i", "127.0.0.1,", "--private-key", "key")
    assert done.status == 1
    assert "key: not a private key of OpenSSH or in PEM format; name a private key: " in done.out
    assert "Traceback" not in done.out + done.err


def test_the_program_itself_ends_with_one_line_too(project: Path, home: Path) -> None:
    program = Path(sys.executable).with_name("gpustate")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    before = tree(project, home)
    for words in (["plan", "cycle.py", "-i", "gpu1,"], ["plan", "noise", "-i", "gpu1,"]):
        done = subprocess.run(
            [program, *words], cwd=project, env=environment, capture_output=True, text=True
        )
        one_line(Done(done.returncode, done.stdout, done.stderr))
    assert tree(project, home) == before
