"""docker's state on nodes in memory, whose daemon rereads its file as the real one does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from goingback import rolled_back

from gpustate import Disruption, Plan, PolicyError, ProbeError, ops
from gpustate.core.policy import build
from gpustate.core.queries import Answer
from gpustate.ops.daemon_seen import unit_command
from gpustate.ops.daemons import RestartDaemon
from gpustate.states.docker import DockerRuntimeRegistered, query
from gpustate.states.docker.query import DockerQuery, Found
from gpustate.testing import FakeNode
from gpustate.testing.fake import converge

STEPLESS = {"docker": "docker is not on these nodes"}

PATH = "/etc/docker/daemon.json"
BINARY = "/usr/bin/nvidia-container-runtime"
SITE = '{\n  "features": {"buildkit": true},\n  "live-restore": true\n}\n'
NVIDIA = '{"runtimes": {"nvidia": {"path": "%s", "args": []}}}'

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"docker": "daemon.json"}


class Docker:
    """The daemon's memory: what it has read, and which keys the note names."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        self.runtimes: dict[str, str] = {}
        self.default = "runc"
        self.cdi = False
        self.ours: tuple[str, ...] = ()

    def found(self, node: FakeNode) -> Found:
        base = Found(
            program="/usr/sbin/dockerd",
            version="26.1.5",
            active="active",
            arguments=("/usr/sbin/dockerd", "-H", "fd://"),
            files=dict(node.files),
            ours=self.ours,
            originals=dict(node.originals),
            runtimes={"runc": "runc", **self.runtimes},
            default_runtime=self.default,
            cdi=self.cdi,
        )
        return replace(base, **self.facts)

    def read(self, node: FakeNode, verb: str) -> None:
        data = json.loads(node.files.get(PATH, "{}"))
        if "runtimes" in data or verb == "restart":
            self.runtimes = {k: v["path"] for k, v in data.get("runtimes", {}).items()}
        if "default-runtime" in data or verb == "restart":
            self.default = data.get("default-runtime", "runc")
        if verb == "restart":
            self.cdi = data.get("features", {}).get("cdi", False)


class Node(FakeNode):
    """A node with that daemon."""

    def __init__(self, files: Mapping[str, str] | None = None, **facts: Any) -> None:
        self.docker = Docker(**facts)
        labels = ("check that", "snapshot", "validate docker", "discard the snapshot of docker")
        super().__init__(
            files=files or {},
            answers={"DockerQuery": lambda node: self.docker.found(node)},
            runs={**dict.fromkeys(labels, lambda node: None)},
        )

    def carry_out(self, step: Any) -> None:
        if isinstance(step, ops.Run) and "keys" in step.what:
            rows = step.text.partition("'%s\\n' ")[2].partition(" >")[0]
            self.docker.ours = tuple(rows.split())
            return
        super().carry_out(step)
        if isinstance(step, RestartDaemon):
            self.docker.read(self, step.verb)


def plan_of(node: FakeNode, **parameters: Any) -> Any:
    state = DockerRuntimeRegistered(**parameters)
    observed = state.probe(node)
    assert state.refuse(observed) is None
    return state.plan(observed)


def test_docker_is_asked_between_writing_and_reloading_and_systemd_is_left_alone() -> None:
    node = Node({PATH: SITE})
    list(converge(DockerRuntimeRegistered(), node))
    assert [step.label for step in node.done] == [
        f"check that {BINARY} exists",
        "snapshot docker's running configuration",
        f"write {PATH}",
        "validate docker's new configuration",
        "reload docker.service",
    ]
    scripts = "\n".join(step.script() for step in node.done)
    assert "daemon-reload" not in scripts
    assert "systemctl restart" not in scripts
    done = subprocess.run(["sh", "-n"], input=scripts, text=True, capture_output=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("facts", "cost"),
    [
        ({"containers": 0}, Disruption.RESTART),
        ({"containers": 3}, Disruption.DRAIN),
        ({"containers": 3, "live_restore": True}, Disruption.RESTART),
        ({"cdi": True, "version": "28.3.0"}, Disruption.RELOAD),
    ],
)
def test_switching_cdi_costs_what_a_restart_costs(facts: dict[str, Any], cost: Disruption) -> None:
    plan = plan_of(Node({PATH: SITE}, **facts), enable_cdi=True)
    assert plan.disruption is cost
    assert any("set live-restore" in note for note in plan.notes) == (cost is Disruption.DRAIN)


def test_a_daemon_that_has_not_read_its_file_is_told_to() -> None:
    node = Node({PATH: NVIDIA % BINARY})
    plan = plan_of(node)
    assert plan.fields == {"read"}
    assert plan.disruption is Disruption.RELOAD
    list(converge(DockerRuntimeRegistered(), node))
    assert node.docker.runtimes == {"nvidia": BINARY}
    assert not any(isinstance(step, ops.PutText) for step in node.done)


def test_dockers_snap_is_refused_by_name_unless_another_docker_is_there() -> None:
    assert DockerQuery("docker.service").parse(Answer(0, b"snap=1\nconfig=/c.json\n")).snap
    state = DockerRuntimeRegistered()
    snap = state.probe(Node(program="", active="", snap=True))
    assert "docker is a snap here" in (state.refuse(snap) or "")
    assert state.plan(snap) == Plan()
    assert state.refuse(state.probe(Node({PATH: SITE}, snap=True))) is None
    assert DockerRuntimeRegistered(ensure="absent").refuse(snap) is None


@pytest.mark.parametrize("name", ["SNAP", "SNAP_PROGRAM"])
def test_dockers_snap_is_known_by_its_folder_or_its_program(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("SNAP", "SNAP_PROGRAM"):
        monkeypatch.setattr(query, place, str(tmp_path / place))

    def prints() -> str:
        script = f"G={tmp_path}\n{DockerQuery('docker.service').script()}"
        done = subprocess.run(["sh", "-c", script], text=True, capture_output=True, timeout=60)
        return done.stdout

    assert "snap=1" not in prints()
    (tmp_path / name).mkdir()
    assert "snap=1" in prints()


@pytest.mark.parametrize(
    ("units", "containerd", "missed"),
    [
        ({"containerd.service": "active", "docker.socket": "inactive"}, False, True),
        ({"containerd.service": "active", "docker.socket": "inactive"}, True, False),
        ({"docker.socket": "active"}, False, False),
        ({"crio.service": "active"}, False, False),
    ],
)
def test_a_disabled_daemon_is_started_unless_its_socket_or_another_runtime_works(
    units: dict[str, str], containerd: bool, missed: bool
) -> None:
    facts = {"active": "inactive", "enabled": "disabled", "containerd": containerd}
    node = Node({PATH: NVIDIA % BINARY}, runtimes={}, **facts)
    node.unit_states = {"docker.service": "inactive", **units}
    state = DockerRuntimeRegistered()
    observed = state.probe(node)
    plan = state.plan(observed)
    assert plan.fields == ({"running"} if missed else set())
    steps = [step.label for step in state.apply(observed, plan)]
    assert steps == (["enable docker.service", "start docker.service"] if missed else [])


def test_a_service_that_systemd_does_not_know_is_refused_where_the_policy_names_it() -> None:
    node = Node({PATH: SITE}, active="", enabled="not-found")
    state = DockerRuntimeRegistered(unit="dockr.service")
    assert state.refuse(state.probe(node)) == (
        "unit dockr.service not found; set the parameter unit to the service that runs "
        "/usr/sbin/dockerd"
    )
    assert plan_of(node), "a daemon that somebody starts by hand has no docker.service"


@pytest.mark.parametrize(
    ("text", "facts", "reason"),
    [
        ("{", {}, "not valid JSON"),
        ("[]", {}, "wanted an object"),
        ('{"a": "\ufffd"}', {}, "is not UTF-8"),
        (SITE, {"config_path": "$CONF"}, "an absolute path"),
        (SITE, {"arguments": ("dockerd", "--add-runtime", "x=/y")}, "--add-runtime"),
    ],
)
def test_what_cannot_be_edited_safely_is_refused_in_one_line(
    text: str, facts: dict[str, Any], reason: str
) -> None:
    state = DockerRuntimeRegistered()
    observed = state.probe(Node({PATH: text}, **facts))
    refused = state.refuse(observed)
    assert refused is not None
    assert reason in refused
    assert "\n" not in refused
    assert state.verify(observed), "a look that cannot be judged is not a success"


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"starting_s": 75, "active": "activating"}, "docker.service has been starting for 75 s"),
        ({"mute": True}, "docker.service is active, and docker info did not answer within 10 s"),
    ],
)
def test_a_daemon_that_gives_no_answer_is_refused(facts: dict[str, Any], says: str) -> None:
    node = Node({PATH: SITE}, **facts)
    for state in (DockerRuntimeRegistered(), DockerRuntimeRegistered(ensure="absent")):
        assert says in (state.refuse(state.probe(node)) or "")
    theirs = DockerRuntimeRegistered(restart="none")
    assert theirs.refuse(theirs.probe(node)) is None
    starting = Node({PATH: SITE}, mute=True, active="activating")
    assert DockerRuntimeRegistered().refuse(DockerRuntimeRegistered().probe(starting)) is None


@pytest.mark.parametrize(
    ("shown", "rows"),
    [
        ("ActiveState=active", ["active=active"]),
        ("ActiveState=activating\nSubState=auto-restart", ["active=failed"]),
        ("ActiveState=activating\nSubState=start\nNRestarts=2", ["active=failed"]),
        (
            "ActiveState=activating\nNRestarts=0\nInactiveExitTimestampMonotonic=4930000000",
            ["starting=70", "active=activating"],
        ),
        (
            "ActiveState=activating\nNRestarts=0\nInactiveExitTimestampMonotonic=4990000000",
            ["active=activating"],
        ),
        ("ActiveState=inactive\nNRestarts=5", ["active=inactive"]),
    ],
)
def test_a_service_that_starts_again_and_again_has_failed(
    shown: str, rows: list[str], tmp_path: Path
) -> None:
    (tmp_path / "uptime").write_text("5000.10 9000.20\n")
    text = unit_command("docker.service").replace("/proc/uptime", str(tmp_path / "uptime"))
    text = text.replace("/run/systemd/system", str(tmp_path))
    done = subprocess.run(
        ["sh", "-u"],
        input=text,
        env={"U_docker_service": shown, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == rows
    assert not done.stderr


@pytest.mark.parametrize(
    ("remembered", "linked", "row"),
    [
        ("disabled", True, "enabled=enabled"),
        ("enabled", False, "enabled=disabled"),
        ("enabled", True, "enabled=enabled"),
        ("masked", True, "enabled=masked"),
        ("static", False, "enabled=static"),
    ],
)
def test_whether_a_service_starts_at_boot_is_read_from_the_disk(
    remembered: str, linked: bool, row: str, tmp_path: Path
) -> None:
    links = tmp_path / "multi-user.target.wants"
    links.mkdir()
    if linked:
        (links / "docker.service").symlink_to("/lib/systemd/system/docker.service")
    text = unit_command("docker.service").replace("/run/systemd/system", str(tmp_path))
    done = subprocess.run(
        ["sh", "-eu"],
        input=text.replace("/etc/systemd/system", str(tmp_path)),
        env={"U_docker_service": f"UnitFileState={remembered}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert row in done.stdout.splitlines()


@pytest.mark.parametrize(
    "parameters",
    [
        {"handler": "Nvidia"},
        {"handler": "runc"},
        {"binary": "x"},
        {"unit": "docker"},
        {"restart": "signal"},
        {"enable_cdi": 1},
    ],
)
def test_parameters_that_make_no_sense_are_errors(parameters: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        build(DockerRuntimeRegistered, parameters)


def test_the_answer_of_a_node_is_read() -> None:
    out = (
        b"unit=1\nactive=active\narg=dockerd\narg=-H\nconfig=/c.json\nfile=2 /c.json\n{}\n"
        b"missing=/c.json\nours=runtimes.nvidia\nprogram=/d\nversion=26.1.5\n"
        b"info=runc true cgroupfs 2\nruntime=runc runc\nruntime=nvidia /n\ncdi=[]\n"
    )
    found = DockerQuery("docker.service").parse(Answer(0, out))
    assert found.runtimes == {"runc": "runc", "nvidia": "/n"}
    assert (found.live_restore, found.containers, found.cdi) == (True, 2, False)
    assert (found.text, found.original, found.ours) == ("{}", None, ("runtimes.nvidia",))
    assert not found.mute
    assert DockerQuery("docker.service").parse(Answer(0, b"unit=1\nmute=1\n")).mute
    with pytest.raises(ProbeError, match="truncated"):
        DockerQuery("docker.service").parse(Answer(0, b"file=400 /c.json\nabc\n"))


@pytest.mark.parametrize("files", [{}, {PATH: SITE}])
def test_a_rollback_restores_the_bytes(files: dict[str, str]) -> None:
    rolled_back(Node(files), None, DockerRuntimeRegistered())
    rolled_back(Node(files), DockerRuntimeRegistered(), DockerRuntimeRegistered(default=True))
    absent = DockerRuntimeRegistered(ensure="absent")
    rolled_back(Node(files), DockerRuntimeRegistered(default=True), absent)
