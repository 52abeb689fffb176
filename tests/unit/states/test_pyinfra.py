"""Operations of pyinfra as states: in policies, planned, carried out by the real sh, verified."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from filestates import here, request
from pyinfra.api.deploy import deploy
from pyinfra.api.hiddenvalue import HiddenValue
from pyinfra.operations import apt, files, server, systemd
from pyinfrajudge import answered

from gpustate import Disruption, Policy, PolicyError, ops, registry
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.policy import build, parameters, resolve
from gpustate.core.queries import Answer, Query
from gpustate.core.state import AnyState
from gpustate.engine import fleet, journal, verdicts
from gpustate.engine.probing import probe_states
from gpustate.errors import GraphError
from gpustate.formats import masking
from gpustate.operations.steps import TEMPORARY
from gpustate.plan import make
from gpustate.policies import document, python, writing
from gpustate.remote.session import read_entry
from gpustate.states.pyinfra import Operation, OperationApplied
from gpustate.testing import FakeNode, check_contract


class Machine:
    """This machine, looked at through a batch and changed by node programs in a folder."""

    def __init__(self, root: Path, answers: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.answers = dict(answers or {})
        self.execs = 0
        self.runs = 0

    def _answer(self, queries: Sequence[Query[Any]]) -> list[Answer]:
        self.execs += 1
        return answered(queries, self.answers)

    def observations(
        self, *states: AnyState, vars: Mapping[str, object] | None = None
    ) -> make.Observations:
        node = InventoryNode("node", vars=dict(vars or {}))
        return probe_states(node, states, self._answer)[0]

    def observed(self, state: AnyState, vars: Mapping[str, object] | None = None) -> Any:
        return self.observations(state, vars=vars).observed[state.name]

    def plan(self, *states: AnyState) -> dict[str, StateResult]:
        return make.make(states, self.observations(*states))

    def commands(self, state: AnyState) -> list[str]:
        result = self.plan(state)[state.name]
        assert result.outcome in (Outcome.PENDING, Outcome.UNCHANGED), result.reason
        return [change.after for change in result.plan.changes]

    def apply(self, state: AnyState) -> StateResult:
        """Plan, run the steps as a node program does, and judge by a fresh look."""
        observations = self.observations(state)
        planned = make.make([state], observations)[state.name]
        self.runs += 1
        run = self.root / "state/runs" / f"r{self.runs}"
        run.mkdir(parents=True)
        steps = tuple(state.apply(observations.observed[state.name], planned.plan))
        program = ops.compile_program((ops.Block(state.name, (), steps),))
        (run / "library").write_text(ops.LIBRARY)
        for name, text in program.files.items():
            (run / name).write_text(text.replace(TEMPORARY, f"{self.root}/temporary"))
        head = (
            f"G={self.root}/state; RUN=r{self.runs}; R=$G/runs/$RUN; LOCK=x; PROC=/proc; SYS=/sys\n"
        )
        head += "export G RUN R LOCK PROC SYS\n. $R/library\n"
        subprocess.run(["sh", "-c", head + program.text], check=True, timeout=60)
        record = journal.Record()
        for line in (run / "journal").read_text().splitlines():
            record.take(read_entry(line), program)
        return verdicts.after_steps(state, planned, record, self.observations(state))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- in a policy ---------------------------------------------------------------------------


def test_several_operations_stand_in_one_policy_each_with_its_own_name() -> None:
    policy = Policy(
        Operation(apt.packages, packages=["curl"]),
        Operation(apt.packages, packages=["jq"], name="jq", after=["driver"]),
    )
    assert [state.name for state in policy.states] == ["pyinfra-apt-packages", "pyinfra-jq"]
    assert policy.states[1].after == ("driver",)
    assert registry.find("pyinfra-jq") is type(policy.states[1])


def test_a_policy_in_yaml_names_the_operation_by_its_dotted_name() -> None:
    policy = document.make(
        document.read(
            "format: gpustate.policy/1\nstates:\n  pyinfra-curl:\n    operation: apt.packages\n"
            "    arguments: {packages: [curl]}\n    needs: [driver]\n  driver: {}\n"
            "groups:\n  lab:\n    pyinfra-curl: {arguments: {present: false}}\n",
            "policy.yml",
        )
    )
    state = policy.states[0]
    assert isinstance(state, OperationApplied)
    assert state.needs == ("driver",)
    own = resolve(policy, InventoryNode("n", groups=("lab",))).states[0]
    assert parameters(own)["arguments"] == {"packages": ["curl"], "present": False}


@pytest.mark.parametrize(
    ("parameters_", "said"),
    [
        ({"needs": ["pyinfra-jp"]}, "needs 'pyinfra-jp', which the policy does not have"),
        ({"known_after": ["pyinfra-jp"]}, "known after 'pyinfra-jp', which the policy does not"),
    ],
)
def test_an_operation_that_is_needed_and_not_in_the_policy_is_refused(
    parameters_: dict[str, Any], said: str
) -> None:
    policy = Policy(
        Operation(apt.packages, packages=["jq"], name="jq"),
        Operation(apt.packages, packages=["curl"], name="curl", **parameters_),
    )
    with pytest.raises(GraphError, match=said) as caught:
        fleet.ordered(policy.states, registry.names())
    assert "did you mean 'pyinfra-jq'" in str(caught.value)


def test_an_operation_may_need_a_state_that_the_policy_does_not_have() -> None:
    """As every state may: it holds by other means there, or the policy is part of a larger one."""
    states = Policy(
        Operation(apt.packages, packages=["a"], name="a", needs=["driver"], after=["pyinfra-b"])
    ).states
    assert [one.name for one in fleet.ordered(states, registry.names())] == ["pyinfra-a"]


@pytest.mark.parametrize("write", ["yaml", "python"])
def test_a_policy_is_written_and_read_again(write: str) -> None:
    policy = Policy(
        Operation(files.put, src=StringIO("hello\n"), dest="/etc/motd", known_after=["driver"]),
        Operation("server.shell", commands=["true"], unless="test -e /x", disruption="restart"),
    )
    if write == "yaml":
        again = document.make(document.read(writing.as_yaml(policy), "policy.yml"))
    else:
        again = python.run(writing.as_python(policy), "policy.py")
    assert again.states == policy.states


@pytest.mark.parametrize(
    ("operation", "arguments", "said"),
    [
        ("apt.package", {}, "did you mean apt.packages"),
        ("nothing.here", {}, "no module 'nothing'"),
        ("os.system", {"command": "true"}, "os has no operation 'system'"),
        ("packages", {}, "not a dotted name"),
        ("apt.packages", {"package": "curl"}, "unexpected keyword argument 'package'"),
        (
            "apt.packages",
            {"packages": ["curl"], "_parallel": 3},
            "_parallel is not supported; use --serial",
        ),
        ("apt.packages", {"packages": ["curl"], "_sudo_password": "x"}, "commands run as root"),
        ("apt.packages", {"packages": ["curl"], "name": "Install"}, "the state has a name"),
        ("apt.packages", {"packages": ["curl"], "_retry_until": "x"}, "has no functions"),
    ],
)
def test_an_invalid_operation_is_refused_before_a_node_is_reached(
    operation: str, arguments: dict[str, Any], said: str
) -> None:
    cls = registry.get("pyinfra-x")
    with pytest.raises(PolicyError, match=said):
        build(cls, {"operation": operation, "arguments": arguments})


def test_functions_are_refused_in_arguments() -> None:
    with pytest.raises(PolicyError, match="_if: function is not supported in a policy"):
        Operation(apt.packages, packages=["curl"], _if=lambda: True)
    with pytest.raises(PolicyError, match="is neither an operation nor a deploy"):
        Operation(print, name="x")


def test_a_deploy_of_the_policy_s_own_file_has_to_move_to_a_module() -> None:
    @deploy("Local")
    def local() -> None: ...

    with pytest.raises(PolicyError, match="define it at the top level of a module"):
        Operation(local)


@pytest.mark.parametrize("name", ["Install curl", "a_b", "-x"])
def test_a_name_is_lower_case_with_dashes(name: str) -> None:
    with pytest.raises(PolicyError, match="in lower case with dashes"):
        Operation(apt.packages, packages=["curl"], name=name)


def test_before_and_after_that_are_true_or_false_are_the_operation_s_own() -> None:
    state = Operation(files.block, path="/x", content="a", line="b", before=True, after=["driver"])
    assert state.after == ("driver",)
    assert state.arguments["before"] is True


def test_it_keeps_the_contract_of_states() -> None:
    stat = "user=root group=root mode=drwxr-xr-x atime=1 mtime=1 ctime=1 size=9 '/etc/x'\n"
    for answer in ("", stat):
        state = Operation(files.directory, path="/etc/x", mode="700")
        check_contract(state, FakeNode(shell={"test -e /etc/x": (0, answer)}))


# --- on a node -----------------------------------------------------------------------------


def test_files_are_made_as_the_operation_says_and_hold_afterwards(
    machine: Machine, tmp_path: Path
) -> None:
    state = Operation(
        files.put, src=StringIO("hello\n"), dest=f"{tmp_path}/deep/motd", mode="640", name="motd"
    )
    assert machine.apply(state).outcome is Outcome.CHANGED
    assert (tmp_path / "deep/motd").read_text() == "hello\n"
    assert (tmp_path / "deep/motd").stat().st_mode & 0o777 == 0o640
    assert machine.commands(state) == []


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (files.line, {"path": "{root}/hosts", "line": "10.0.0.2 b"}),
        (files.line, {"path": "{root}/hosts", "line": "10.0.0.1.*", "replace": "10.0.0.3 c"}),
        (files.replace, {"path": "{root}/hosts", "text": "one", "replace": "two"}),
        (files.block, {"path": "{root}/hosts", "content": "x", "marker": "# {mark}"}),
        (files.directory, {"path": "{root}/a/b", "mode": "700"}),
        (files.link, {"path": "{root}/link", "target": "{root}/hosts"}),
        (files.file, {"path": "{root}/hosts", "present": "no"}),
        (files.file, {"path": "{root}/new", "mode": "600"}),
        (files.template, {"src": "{root}/t.j2", "dest": "{root}/t", "who": "me"}),
    ],
)
def test_what_was_planned_is_done_and_then_pyinfra_wants_nothing_more(
    operation: Any, arguments: dict[str, str], machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("10.0.0.1 one\n")
    (tmp_path / "t.j2").write_text("for {{ who }}\n")
    given: dict[str, Any] = {
        key: value.replace("{root}", str(tmp_path)) for key, value in arguments.items()
    }
    if "present" in given:
        given["present"] = given["present"] == "yes"
    state = Operation(operation, name="x", **given)
    assert machine.apply(state).outcome is Outcome.CHANGED
    assert machine.commands(state) == []


def test_a_plan_changes_nothing(machine: Machine, tmp_path: Path) -> None:
    state = Operation(files.put, src=StringIO("hello\n"), dest=f"{tmp_path}/motd")
    assert len(machine.commands(state)) == 1
    assert list(tmp_path.iterdir()) == []


def test_unless_says_when_there_is_nothing_to_do(machine: Machine, tmp_path: Path) -> None:
    state = Operation(
        server.shell, commands=[f"echo x >>{tmp_path}/done"], unless=f"test -e {tmp_path}/done"
    )
    assert machine.apply(state).outcome is Outcome.CHANGED
    assert machine.commands(state) == []


def test_unless_that_sh_does_not_accept_is_not_an_answer(machine: Machine) -> None:
    state = Operation(server.shell, commands=["true"], unless="if [")
    assert machine.commands(state) == ["true"]


def test_an_operation_that_does_not_look_is_done_each_time_and_says_so(
    machine: Machine, tmp_path: Path
) -> None:
    state = Operation(server.shell, commands=[f"echo x >>{tmp_path}/log"])
    planned = machine.plan(state)[state.name]
    assert "runs on every apply; `unless` says when not" in planned.plan.notes[0]
    for _ in range(2):
        assert machine.apply(state).outcome is Outcome.CHANGED
    assert (tmp_path / "log").read_text() == "x\nx\n"


def test_a_command_that_comes_again_fails_the_state(machine: Machine) -> None:
    machine.answers = {"SubState": "Id=x.service\nSubState=dead\n"}
    state = Operation(systemd.service, service="x")
    planned = machine.plan(state)[state.name]
    again = verdicts.after_steps(state, planned, journal.Record(), machine.observations(state))
    assert again.outcome is Outcome.FAILED
    assert "still differs after its steps: command-1" in again.reason


def test_what_acts_on_every_apply_wants_a_condition(machine: Machine) -> None:
    with pytest.raises(PolicyError, match="restarted acts on every apply"):
        Operation(systemd.service, service="x", restarted=True)
    machine.answers = {"SubState": "Id=x.service\nSubState=running\n"}
    state = Operation(systemd.service, service="x", restarted=True, unless="false")
    assert machine.plan(state)[state.name].plan.disruption is Disruption.RESTART


def test_what_it_costs_can_be_said(machine: Machine) -> None:
    state = Operation(server.shell, commands=["true"], disruption=Disruption.DRAIN)
    assert machine.plan(state)[state.name].plan.disruption is Disruption.DRAIN
    assert state.worst is Disruption.DRAIN


def test_a_failed_command_fails_the_state_with_what_it_printed(machine: Machine) -> None:
    state = Operation(server.shell, commands=["echo no such thing >&2; exit 3"])
    result = machine.apply(state)
    assert result.outcome is Outcome.FAILED
    assert "ended with 3: no such thing" in result.reason


def test_a_deploy_runs_its_operations_and_what_depends_on_their_change(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("")
    state = Operation("pyinfradeploys.web", folder=str(tmp_path))
    assert machine.apply(state).outcome is Outcome.CHANGED
    assert (tmp_path / "log").read_text() == "reloaded\n"
    assert machine.commands(state) == []
    assert machine.apply(state).outcome is Outcome.CHANGED  # nothing to do
    assert (tmp_path / "log").read_text() == "reloaded\n"


def test_what_is_left_of_a_deploy_is_planned_again(machine: Machine, tmp_path: Path) -> None:
    # The second operation looks at what the first one makes.
    state = Operation("pyinfradeploys.chained", folder=str(tmp_path))
    assert machine.apply(state).outcome is Outcome.PENDING
    assert machine.apply(state).outcome is Outcome.CHANGED


def test_a_deploy_that_builds_on_itself_takes_a_stage_for_each_part(tmp_path: Path) -> None:
    state = Operation("pyinfradeploys.chained", folder=str(tmp_path))
    (node,) = fleet.run(request(here(tmp_path / "state"), state)).nodes
    assert [one.outcome for one in node.states] == [Outcome.CHANGED], node.reason
    assert (tmp_path / "second").exists()
    # Probe, then twice a program and a probe.
    assert node.execs == 5
    (again,) = fleet.run(request(here(tmp_path / "state"), state)).nodes
    assert ([one.outcome for one in again.states], again.execs) == ([Outcome.UNCHANGED], 1)


def test_variables_of_the_inventory_are_host_data(machine: Machine, tmp_path: Path) -> None:
    state = Operation("pyinfradeploys.from_data")
    observed = machine.observed(state, {"folder": str(tmp_path), "_sudo": True, "ssh_user": "x"})
    assert observed.shown == (f"mkdir -p {tmp_path}/made",)


# --- arguments common to all ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"_sudo": True}, "sh -c true"),
        ({"_sudo": True, "_sudo_user": "root"}, "sh -c true"),
        ({"_sudo_user": "ops"}, "sudo -H -n -u ops sh -c true"),
        ({"_su_user": "ops"}, "su ops -c 'sh -c true'"),
        ({"_env": {"A": "b c"}}, "sh -c 'export '\"'\"'A=b c'\"'\"' && true'"),
        ({"_chdir": "/opt"}, "sh -c 'cd /opt && true'"),
        ({"_shell_executable": "bash"}, "bash -c true"),
    ],
)
def test_arguments_that_every_operation_has(
    arguments: dict[str, Any], wanted: str, machine: Machine
) -> None:
    state = Operation(server.shell, commands=["true"], **arguments)
    observed = machine.observed(state)
    (step,) = state.apply(observed, state.plan(observed))
    assert wanted in step.script().splitlines()


def test_exit_codes_that_are_a_success(machine: Machine) -> None:
    good = Operation(server.shell, commands=["exit 3"], _success_exit_codes=[0, 3])
    assert machine.apply(good).outcome is Outcome.CHANGED
    ignored = Operation(server.shell, commands=["exit 3"], _ignore_errors=True)
    assert machine.apply(ignored).outcome is Outcome.CHANGED


def test_standard_input(machine: Machine, tmp_path: Path) -> None:
    state = Operation(server.shell, commands=[f"cat >{tmp_path}/x"], _stdin=["a", "b c"])
    assert machine.apply(state).outcome is Outcome.CHANGED
    assert (tmp_path / "x").read_text() == "a\nb c\n"


def test_a_timeout_is_that_of_the_step(machine: Machine) -> None:
    state = Operation(server.shell, commands=["true"], _timeout=7)
    observed = machine.observed(state)
    (step,) = state.apply(observed, state.plan(observed))
    assert step.timeout_s == 7


# --- what cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "arguments", "said"),
    [
        ("files.get", {"src": "/etc/hostname", "dest": "/nowhere/x"}, "copy it yourself: scp"),
        ("files.rsync", {"src": "/a", "dest": "/b"}, "no rsync|rsync"),
        ("python.call", {"function": "x"}, "runs the Python function"),
        ("server.reboot", {}, "runs the Python function"),
    ],
)
def test_commands_that_need_this_machine_are_refused(
    operation: str, arguments: dict[str, Any], said: str, machine: Machine
) -> None:
    state = build(registry.get("pyinfra-x"), {"operation": operation, "arguments": arguments})
    result = machine.plan(state)[state.name]
    assert result.outcome in (Outcome.REFUSED, Outcome.FAILED)
    assert said.partition("|")[2] in result.reason


def test_what_is_absent_is_left_alone_and_says_so(machine: Machine, tmp_path: Path) -> None:
    made = Operation(files.directory, path=str(tmp_path))
    state = build(type(made), {**parameters(made), "ensure": "absent"})
    result = machine.plan(state)[state.name]
    assert result.outcome is Outcome.UNCHANGED
    assert "nothing is removed" in result.plan.warnings[0]


def test_a_fact_that_cannot_be_read_names_the_command_and_its_error(machine: Machine) -> None:
    state = Operation("git.worktree", worktree=f"{machine.root}/w", repo=f"{machine.root}/none")
    result = machine.plan(state)[state.name]
    assert result.outcome is Outcome.FAILED or result.plan


# --- secrets -------------------------------------------------------------------------------


def test_a_secret_is_in_no_plan_and_no_label_and_its_step_is_not_kept(
    machine: Machine, tmp_path: Path
) -> None:
    state = Operation(
        server.shell,
        commands=[f"echo s3cr3t-'value' >{tmp_path}/x"],
        _env={"TOKEN": HiddenValue("hidden-token-1")},
        name="x",
    )
    other = Operation(
        server.user, user="bob", password=HiddenValue("$6$it's-a-hash"), ensure_home=False, name="y"
    )
    try:
        observations = machine.observations(state, other)
        results = make.make([state, other], observations)
        shown = repr(results)
        assert "hidden-token-1" not in shown
        assert "s-a-hash" not in shown
        for one in (state, other):
            observed: Any = observations.observed[one.name]
            steps = tuple(one.apply(observed, results[one.name].plan))
            assert steps[0].secret  # type: ignore[attr-defined]
            program = ops.compile_program((ops.Block(one.name, (), steps),))
            assert program.files["secrets"].startswith("1\n")
            assert not any("hash" in step.label or "token-1" in step.label for step in steps)
        assert parameters(state)["arguments"]["_env"] == {"TOKEN": {"$secret": "hidden-token-1"}}
    finally:
        masking.forget_all()


# --- what it costs -------------------------------------------------------------------------


def test_twenty_operations_that_hold_are_one_exec(machine: Machine, tmp_path: Path) -> None:
    machine.answers = {
        "dpkg -l": "ii  bash  5.2  amd64  shell\n",
        "SubState": "Id=cron.service\nSubState=running\n",
        "UnitFileState": "Id=cron.service\nUnitFileState=enabled\n",
        "sysctl ": "vm.swappiness = 10\n",
        "/proc/modules": "nf_conntrack 1 0 - Live 0x0\n",
    }
    kept: list[AnyState] = []
    for number in range(4):
        path = tmp_path / f"file-{number}"
        path.write_text(f"{number}\n")
        path.chmod(0o644)
        text = StringIO(f"{number}\n")
        kept += [
            Operation(files.put, src=text, dest=str(path), mode="644", name=f"put-{number}"),
            Operation(files.line, path=str(path), line=str(number), name=f"line-{number}"),
        ]
    kept += [
        Operation(apt.packages, packages=["bash"]),
        Operation(apt.packages, packages=["telnetd"], present=False, name="no-telnet"),
        Operation(systemd.service, service="cron", enabled=True),
        Operation(server.sysctl, key="vm.swappiness", value=10),
        Operation(server.modprobe, module="nf_conntrack"),
        Operation(server.group, group="root"),
        Operation(server.user, user="root"),
        Operation(files.directory, path=str(tmp_path)),
        Operation(files.file, path=f"{tmp_path}/file-0"),
        Operation(files.link, path=f"{tmp_path}/gone", present=False),
        Operation(files.replace, path=f"{tmp_path}/file-0", text="no", replace="yes"),
        Operation(server.shell, commands=["false"], unless="true"),
    ]
    assert len(kept) == 20
    results = machine.plan(*kept)
    reasons = {name: (r.outcome, r.reason, r.plan.changes) for name, r in results.items()}
    assert {r.outcome for r in results.values()} == {Outcome.UNCHANGED}, reasons
    assert machine.execs == 1


def test_pyinfra_is_not_loaded_without_an_operation_in_the_policy() -> None:
    code = (
        "import sys\nfrom gpustate import registry\nregistry.states(); registry.find('driver')\n"
        "import gpustate.states.pyinfra\nprint('pyinfra' in sys.modules, 'gevent' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
