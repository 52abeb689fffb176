"""containerd's state on nodes in memory, with dumps of real containerd binaries."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from goingback import rolled_back

from gpustate import Disruption, PolicyError, ProbeError, ops
from gpustate.core.encode import plain
from gpustate.core.outcome import NodeResult, Outcome, StateResult
from gpustate.core.policy import build
from gpustate.core.queries import Answer
from gpustate.errors import RefusedError
from gpustate.formats.containerd import Files, Handler, dump_arguments, plan_edit, plan_removal
from gpustate.ops.daemons import RestartDaemon
from gpustate.probes.cri_status import CriHandler, CriStatus
from gpustate.states.containerd import ContainerdHandlerRegistered
from gpustate.states.containerd.query import ContainerdQuery, Found
from gpustate.states.containerd.scripts import functions
from gpustate.testing import FakeNode, check_contract
from gpustate.testing.fake import converge

DATA = Path(__file__).parents[2] / "data" / "containerd"
ROOT = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
BINARY = "/usr/bin/nvidia-container-runtime"
DEBIAN = (DATA / "inputs" / "debian" / "config.toml").read_text()
OLD_TABLE = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
NEW_TABLE = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n"

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"containerd": "files with comments, of containerd 1 and 2"}


def dump_of(version: str) -> str:
    return (DATA / "dumps" / version / "debian.toml").read_text()


def found(node: FakeNode, version: str, facts: Mapping[str, Any]) -> Found:
    """What the node would say: its dump follows its files."""
    text = dump_of(version)
    files = "".join(text for path, text in node.files.items() if path in (ROOT, DROP_IN))
    if "runtimes.nvidia" in files:
        text += (
            OLD_TABLE if version.startswith("1.") else NEW_TABLE
        ) + f'BinaryName = "{BINARY}"\n'
    if "enable_cdi = true" in files:
        text = text.replace("enable_cdi = false", "enable_cdi = true")
    restarted = [isinstance(step, ops.RestartUnit) for step in node.done]
    wrote = [isinstance(step, ops.PutText | ops.RestoreOriginal) for step in node.done]
    owed = any(wrote) and True not in restarted[wrote.index(True) :]
    known = {
        "program": "/usr/bin/containerd",
        "version": version,
        "active": "active",
        "dump": text,
        "restart_pending": owed,
    }
    texts = {path: text for path, text in node.files.items() if path.startswith("/etc/containerd/")}
    return Found(files=texts, originals=dict(node.originals), **{**known, **facts})


def node_with(
    version: str = "1.7.24", files: Mapping[str, str] | None = None, **facts: Any
) -> FakeNode:
    labels = ("check that", "snapshot", "validate containerd", "discard the snapshot of")
    return FakeNode(
        files={ROOT: DEBIAN} if files is None else files,
        units={"containerd.service": "active"},
        answers={"ContainerdQuery": lambda node: found(node, version, facts)},
        runs=dict.fromkeys(labels, lambda node: None),
    )


def plan_of(node: FakeNode, **parameters: Any) -> Any:
    state = ContainerdHandlerRegistered(**parameters)
    observed = state.probe(node)
    assert state.refuse(observed) is None
    return state.plan(observed)


def test_what_was_before_is_forgotten_with_files_that_have_become_others() -> None:
    node = node_with("1.7.24")
    list(converge(ContainerdHandlerRegistered(), node))
    node.files = {ROOT: f"# mine\n{DEBIAN}"}
    node.done.clear()
    gone, rest = converge(ContainerdHandlerRegistered(ensure="absent"), node)
    assert (gone.fields, bool(rest)) == ({"kept"}, False)
    assert node.files == {ROOT: f"# mine\n{DEBIAN}"}
    assert node.originals == {}


def test_without_what_was_before_a_removal_leaves_nothing_kept_either() -> None:
    node = node_with("1.7.24")
    list(converge(ContainerdHandlerRegistered(), node))
    node.originals.clear()
    node.done.clear()
    _, rest = converge(ContainerdHandlerRegistered(ensure="absent"), node)
    assert not rest
    assert node.originals == {}
    assert "nvidia" not in node.files[ROOT]


@pytest.mark.parametrize("version", ["1.7.24", "2.1.9"])
def test_the_contract_holds_before_and_after(version: str) -> None:
    node = node_with(version)
    check_contract(ContainerdHandlerRegistered(), node)
    list(converge(ContainerdHandlerRegistered(), node))
    check_contract(ContainerdHandlerRegistered(), node)


@pytest.mark.parametrize("version", ["1.7.24", "2.1.9"])
def test_a_handler_that_somebody_renamed_is_replaced_and_no_foreign_one(version: str) -> None:
    node = node_with(version)
    list(converge(ContainerdHandlerRegistered(), node))
    path = DROP_IN if DROP_IN in node.files else ROOT
    node.files[path] = node.files[path].replace("runtimes.nvidia", "runtimes.other")
    node.files[ROOT] += '[plugins.x.containerd.runtimes.foreign]\nruntime_type = "x"\n'
    node.done.clear()
    observed = ContainerdHandlerRegistered().probe(node)
    script = ContainerdHandlerRegistered().daemon(observed).functions + "others"
    old = dump_of(version)

    def others(dump: str) -> str:
        return subprocess.run(
            ["sh", "-ec", script], input=dump, text=True, capture_output=True, check=True
        ).stdout

    table = OLD_TABLE if version.startswith("1.") else NEW_TABLE
    binary = f'BinaryName = "{BINARY}"\n'
    assert others(old + table.replace("nvidia", "other") + binary) == others(old)
    assert others(old + table.replace("nvidia", "foreign") + binary) != others(old)
    plan, rest = converge(ContainerdHandlerRegistered(), node)
    assert "files" in plan.fields
    assert not rest
    assert "runtimes.other" not in "".join(node.files.values())
    assert "runtimes.foreign" in node.files[ROOT]


@pytest.mark.parametrize("version", ["1.7.24", "2.1.9"])
def test_a_comment_asks_for_nothing_and_stays_when_the_handler_goes(version: str) -> None:
    node = node_with(version)
    list(converge(ContainerdHandlerRegistered(), node))
    for path in [path for path in (ROOT, DROP_IN) if path in node.files]:
        node.files[path] += "# mine\n"
    assert not ContainerdHandlerRegistered().plan(ContainerdHandlerRegistered().probe(node))
    assert ContainerdHandlerRegistered().refuse(ContainerdHandlerRegistered().probe(node)) is None
    list(converge(ContainerdHandlerRegistered(ensure="absent"), node))
    assert "# mine" in node.files[ROOT]


def test_the_binary_is_asked_between_writing_and_restarting() -> None:
    node = node_with("2.1.9")
    list(converge(ContainerdHandlerRegistered(), node))
    assert [step.label for step in node.done] == [
        f"check that {BINARY} exists",
        "snapshot containerd's running configuration",
        f"write {DROP_IN}",
        f"write {ROOT}",
        "validate containerd's new configuration",
        "restart containerd.service",
    ]
    restart = node.done[-1]
    assert isinstance(restart, RestartDaemon)
    assert set(restart.roll_back) == {ROOT, DROP_IN}
    assert not any(isinstance(step, ops.DaemonReload) for step in node.done)
    scripts = "\n".join(step.script() for step in node.done)
    assert "daemon-reload" not in scripts
    done = subprocess.run(["sh", "-n"], input=scripts, text=True, capture_output=True)
    assert done.stderr == ""


def test_a_node_without_containerd_has_nothing_to_do() -> None:
    plan = plan_of(node_with(files={}, program="", active=""))
    assert not plan
    assert "not installed" in plan.notes[0]


@pytest.mark.parametrize(
    ("facts", "parameters"), [({"active": "inactive"}, {}), ({}, {"restart": "none"})]
)
def test_a_service_that_does_not_run_or_is_not_ours_is_not_started(
    facts: dict[str, Any], parameters: dict[str, Any]
) -> None:
    node = node_with(**facts)
    plan = plan_of(node, **parameters)
    assert plan.disruption is Disruption.NONE
    assert "is not restarted" in plan.notes[-1]
    list(converge(ContainerdHandlerRegistered(**parameters), node))
    assert not any(isinstance(step, ops.RestartUnit) for step in node.done)


@pytest.mark.parametrize(
    ("active", "enabled", "missed"),
    [
        ("inactive", "enabled", True),
        ("failed", "enabled-runtime", True),
        ("", "masked", True),
        ("inactive", "disabled", True),
        ("failed", "disabled", True),
        ("active", "enabled", False),
        ("activating", "enabled", False),
    ],
)
def test_a_service_that_is_meant_to_run_is_started(active: str, enabled: str, missed: bool) -> None:
    facts: dict[str, Any] = {"active": active, "enabled": enabled}
    done = node_with()
    list(converge(ContainerdHandlerRegistered(), done))
    plan = plan_of(node_with(files=done.files, restart_pending=False, **facts))
    assert plan.fields == ({"running"} if missed else set())
    assert plan.disruption is Disruption.NONE
    left = ContainerdHandlerRegistered(restart="none"), ContainerdHandlerRegistered(ensure="absent")
    for state in left:
        node = node_with(**facts)
        assert "running" not in state.plan(state.probe(node)).fields
    assert not plan_of(node_with(files={}, program="", **facts))


def stopped_node(files: Mapping[str, str], units: Mapping[str, str], **facts: Any) -> FakeNode:
    node = node_with(
        files=files, restart_pending=False, active="inactive", enabled="disabled", **facts
    )
    node.unit_states = {"containerd.service": "inactive", **units}
    return node


@pytest.mark.parametrize(
    ("units", "enabled", "served", "missed"),
    [
        ({}, (), False, True),
        ({"crio.service": "active"}, (), True, False),
        ({"k3s.service": "inactive"}, ("k3s.service",), True, False),
        ({"docker.socket": "active", "docker.service": "inactive"}, (), False, False),
        ({"docker.socket": "active", "docker.service": "active"}, (), True, True),
        ({"docker.socket": "inactive"}, (), False, True),
        ({"crio.service": "inactive"}, (), False, False),
        ({"crio.service": "inactive"}, (), True, True),
    ],
)
def test_a_disabled_service_is_enabled_and_started_unless_another_runtime_works(
    units: dict[str, str], enabled: tuple[str, ...], served: bool, missed: bool
) -> None:
    done = node_with()
    list(converge(ContainerdHandlerRegistered(), done))
    node = stopped_node(done.files, units, served=served)
    node.enabled = set(enabled)
    state = ContainerdHandlerRegistered()
    observed = state.probe(node)
    plan = state.plan(observed)
    assert plan.fields == ({"running"} if missed else set())
    if missed:
        assert plan.disruption is Disruption.NONE
        reason = "gpustate has configured it" if served else "no other runtime is enabled"
        assert f"is disabled, and {reason}" in plan.changes[0].why
        steps = [step.label for step in state.apply(observed, plan)]
        assert steps == ["enable containerd.service", "start containerd.service"]
    for left in (
        ContainerdHandlerRegistered(restart="none"),
        ContainerdHandlerRegistered(ensure="absent"),
    ):
        assert "running" not in left.plan(left.probe(node)).fields


def test_a_disabled_containerd_that_serves_no_pods_by_its_packages_default_is_left_alone() -> None:
    text = 'disabled_plugins = ["cri"]\n'
    dump = f"disabled_plugins = ['io.containerd.grpc.v1.cri']\n{dump_of('1.7.24')}"
    node = stopped_node({ROOT: text}, {}, dump=dump.replace("disabled_plugins = []", ""))
    assert not plan_of(node)


@pytest.mark.parametrize(("kubelet", "value"), [("systemd", "true"), ("cgroupfs", "false")])
def test_another_cgroup_driver_than_the_kubelets_is_refused_before_a_restart(
    kubelet: str, value: str
) -> None:
    state, word = ContainerdHandlerRegistered(), f"SystemdCgroup = {value}"
    other = word.replace(value, "false" if value == "true" else "true")

    def refused(setting: str, version: str = "1.7.24") -> str | None:
        dump = dump_of(version).replace("SystemdCgroup = false", setting)
        node = node_with(version, dump=dump, kubelet_cgroup=f"{kubelet}|/var/lib/kubelet/c.yaml")
        return state.refuse(state.probe(node))

    said = refused(other) or ""
    assert f"kubelet (/var/lib/kubelet/c.yaml): {kubelet}, containerd's runc: " in said
    table = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]'
    assert f"set {word} in {table} of {ROOT}, then: systemctl restart containerd.service" in said
    assert refused(word) is None
    assert refused(other, "2.1.9") is None, "the kubelet takes its word"


def test_a_stopped_service_is_started_first_and_one_that_failed_by_its_restart() -> None:
    state = ContainerdHandlerRegistered()
    kinds: dict[str, list[type]] = {}
    for active in ("inactive", "failed"):
        node = node_with(active=active, enabled="enabled")
        observed = state.probe(node)
        kinds[active] = [type(step) for step in state.apply(observed, state.plan(observed))]
    assert kinds["inactive"][0] is ops.StartUnit
    assert ops.StartUnit not in kinds["failed"]
    assert kinds["inactive"][1:] == kinds["failed"]
    assert kinds["failed"][-1] is RestartDaemon


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        ({"newer": (), "restart_pending": False}, set()),
        ({"newer": (), "restart_pending": True}, {"read"}),
        ({"newer": (ROOT,), "restart_pending": False}, {"read"}),
        ({"newer": (ROOT,), "restart_pending": False, "served": True}, set()),
        ({"newer": ("/etc/containerd/conf.d/mine.toml",), "restart_pending": False}, set()),
        ({"restart_pending": True, "active": "inactive"}, set()),
    ],
)
def test_a_restart_is_due_while_the_service_has_not_read_the_handler(
    facts: dict[str, Any], fields: set[str]
) -> None:
    node = node_with()
    list(converge(ContainerdHandlerRegistered(), node))
    ours = node_with(files=node.files, **facts)
    plan = plan_of(ours)
    assert plan.fields == fields
    if fields:
        steps = list(
            ContainerdHandlerRegistered().apply(ContainerdHandlerRegistered().probe(ours), plan)
        )
        assert isinstance(steps[-1], RestartDaemon)
        assert not any(isinstance(step, ops.PutText) for step in steps)


@pytest.mark.parametrize(
    ("files", "facts", "parameters", "reason"),
    [
        ({ROOT: "version = \n"}, {}, {}, "not valid TOML"),
        ({ROOT: DEBIAN + "# \ufffd\n"}, {}, {}, "is not UTF-8"),
        ({ROOT: 'imports = "x"\n'}, {}, {}, "imports is not a list"),
        ({ROOT: 'imports = ["/etc/$(reboot)"]\n'}, {}, {}, "cannot follow the import"),
        (None, {"dump": "version = 2\n"}, {}, "no CRI plugin"),
        (None, {"dump": "", "error": "containerd: no such plugin"}, {}, "no such plugin; fix"),
        (None, {}, {"config_path": "/etc/other.toml"}, "remove config_path from the policy"),
        (None, {"started_with": "$CONF"}, {}, "an absolute path"),
        (
            {ROOT: DEBIAN.replace("version = 2", "")},
            {"version": "2.1.9"},
            {},
            "write version = 2 at its top",
        ),
    ],
)
def test_what_cannot_be_edited_safely_is_refused_in_one_line(
    files: dict[str, str] | None, facts: dict[str, Any], parameters: dict[str, Any], reason: str
) -> None:
    state = ContainerdHandlerRegistered(**parameters)
    observed = state.probe(node_with(files=files, **facts))
    refused = state.refuse(observed)
    assert refused is not None
    assert reason in refused
    assert "\n" not in refused
    assert state.verify(observed), "a look that cannot be judged is not a success"


def test_a_damaged_file_is_told_with_the_place_of_its_kept_bytes() -> None:
    node = node_with(files={ROOT: "version = \n"})
    state = ContainerdHandlerRegistered()
    assert "kept" not in (state.refuse(state.probe(node)) or "")
    node.originals[ROOT] = DEBIAN
    name = hashlib.sha256(ROOT.encode()).hexdigest()[:24]
    refused = state.refuse(state.probe(node)) or ""
    assert refused.endswith(f"the original is kept in /var/lib/gpustate/originals/{name})")
    node.originals[ROOT] = None
    assert f"{ROOT} did not exist before gpustate" in (state.refuse(state.probe(node)) or "")


def test_files_that_containerd_does_not_follow_are_no_success() -> None:
    node = node_with()
    list(converge(ContainerdHandlerRegistered(), node))
    observed = ContainerdHandlerRegistered().probe(
        node_with(files=node.files, dump=dump_of("1.7.24"))
    )
    assert observed.lacks[0] == "runtime nvidia is not defined"
    assert "containerd reports: runtime nvidia is not defined" in (
        ContainerdHandlerRegistered().refuse(observed) or ""
    )
    assert ContainerdHandlerRegistered().verify(observed).fields == {"lacks"}


def test_imports_elsewhere_are_read_in_load_order() -> None:
    root = 'imports = ["/opt/one/*.toml", "conf.d/*.toml", "/opt/two.toml"]\n' + DEBIAN
    files = {
        ROOT: root,
        "/etc/containerd/conf.d/50-x.toml": "version = 2\n",
        "/opt/one/a.toml": "version = 2\n",
        "/opt/two.toml": "version = 2\n",
        "/opt/one/not.conf": "",
    }
    node = node_with(files=files)
    state = ContainerdHandlerRegistered()
    observed = state.probe(node)
    assert list(observed.files) == [ROOT, *list(files)[1:4]]
    loaded = state._files(observed.files, ROOT)
    assert list(loaded.imported) == [
        "/opt/one/a.toml",
        "/etc/containerd/conf.d/50-x.toml",
        "/opt/two.toml",
    ]


def test_with_an_import_newer_than_the_root_the_root_alone_is_asked() -> None:
    newer = {
        f"/etc/containerd/{path.relative_to(DATA / 'inputs' / 'newer-drop-in')}": path.read_text()
        for path in (DATA / "inputs" / "newer-drop-in").rglob("*.toml")
    }
    node = node_with(files=newer, dump="", error="containerd: drop-in config version 3 higher")
    node.shells["| base64 -d | timeout"] = (0, dump_of("1.7.24"))
    state = ContainerdHandlerRegistered()
    observed = state.probe(node)
    assert observed.found.trapped
    assert state.refuse(observed) is None
    assert any("version 3" in note for note in state.plan(observed).notes)


def test_passwords_are_shown_in_no_plan() -> None:
    registry = '[plugins."io.containerd.grpc.v1.cri".registry'
    secret = f'{registry}.configs."r".auth]\n  password = "pw-1"\n{registry}.headers]\n  X-Any = ["pw-2"]\n'
    node = node_with(files={ROOT: DEBIAN + secret})
    state = ContainerdHandlerRegistered()
    observed = state.probe(node)
    result = NodeResult(
        "gpu1",
        states=[
            StateResult(
                state.name, Outcome.PENDING, state.plan(observed), evidence="X-Auth-Key: pw-3"
            )
        ],
        observed={state.name: plain(observed)},
    )
    assert "pw-2" in str(result)
    result.mask()
    assert "pw-" not in str(result)
    assert str(result).count("X-Any = [(secret)]") > 2, "before, after and what was observed"


@pytest.mark.parametrize(
    "parameters",
    [
        {"handler": "Nvidia"},
        {"handler": 'a"b'},
        {"binary": "nvidia-container-runtime"},
        {"config_path": "etc/containerd/config.toml"},
        {"unit": "containerd"},
        {"restart": "signal"},
    ],
)
def test_parameters_that_make_no_sense_are_errors(parameters: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        build(ContainerdHandlerRegistered, parameters)


def test_the_answer_of_a_node_is_read() -> None:
    query = ContainerdQuery("containerd.service")
    out = (
        b"unit=1\nactive=active\nroot=/c.toml\nowed=1\nfile=4 /c.toml\na\r\n\xff\n"
        b"newer=/c.toml\noriginal=2 /c.toml\nb\n\nmissing=/d.toml\nprogram=/p\nversion=1.7.24\n"
        b"dump=5 \nx = 1\n"
    )
    assert query.parse(Answer(0, out)) == Found(
        program="/p",
        version="1.7.24",
        active="active",
        started_with="/c.toml",
        files={"/c.toml": "a\r\n\ufffd"},
        originals={"/d.toml": None, "/c.toml": "b\n"},
        newer=("/c.toml",),
        restart_pending=True,
        dump="x = 1",
    )
    with pytest.raises(ProbeError, match="truncated"):
        query.parse(Answer(0, b"file=400 /c.toml\nabc\n"))


def in_sh(function: str, text: str, **more: Any) -> tuple[int, str]:
    """Run one of the functions that steps have, on a dump."""
    ours: dict[str, Any] = {"handler": "nvidia", "binary": BINARY, "own_default": False, **more}
    script = functions("/nowhere/containerd", "1.7.24", ROOT, "/s", **ours) + function
    done = subprocess.run(["sh", "-ec", script], input=text, text=True, capture_output=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(("version", "table"), [("1.7.24", OLD_TABLE), ("2.1.9", NEW_TABLE)])
def test_the_node_tells_what_is_ours_in_a_dump_from_what_is_not(version: str, table: str) -> None:
    old = dump_of(version)
    new = old + table + f'BinaryName = "{BINARY}"\n'
    assert in_sh("serves", old)[0] == 1
    assert in_sh("serves", new)[0] == 0
    assert in_sh("serves", new, binary="/opt/other")[0] == 1
    assert in_sh("others", new) == in_sh("others", old)
    cdi = new.replace("enable_cdi = false", "enable_cdi = true")
    assert in_sh("others", cdi) == in_sh("others", old)
    assert in_sh("others", new + 'empty = ""\nnone = []\n') == in_sh("others", old)
    quote = '"' if version.startswith("1.") else "'"
    default = f"default_runtime_name = {quote}runc"
    assert default in new
    moved = new.replace(default, default.replace("runc", "nvidia"))
    assert in_sh("others", moved) != in_sh("others", old)
    assert in_sh("others", moved, own_default=True) == in_sh("others", old, own_default=True)
    size = "max_container_log_line_size = 16384"
    assert size in new
    assert in_sh("others", new.replace(size, size + "0")) != in_sh("others", old)


@pytest.mark.parametrize("version", ["1.6.20", "1.7.24~ds1", "2.0.5", "2.1.9", "2.3.4"])
@pytest.mark.parametrize("exists", [False, True])
def test_the_node_asks_for_a_dump_as_the_formats_say(
    version: str, exists: bool, tmp_path: Path
) -> None:
    root = tmp_path / "config.toml"
    if exists:
        root.touch()
    asks = tmp_path / "containerd"
    asks.write_text('#!/bin/sh\necho "$@"\n')
    asks.chmod(0o755)
    ours: dict[str, Any] = {"handler": "nvidia", "binary": BINARY, "own_default": False}
    script = functions(str(asks), version, str(root), "/s", **ours) + "dump"
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == dump_arguments(str(root), "" if exists else None, version)


SOCKET = "/run/containerd/containerd.sock"
DEAD = CriStatus(SOCKET, "unserved", "`mirrors` cannot be set when `config_path` is provided")


@pytest.mark.parametrize("version", ["1.7.24", "2.1.9"])
def test_a_containerd_that_serves_no_pods_is_refused_in_its_own_words(version: str) -> None:
    state = ContainerdHandlerRegistered()
    done = node_with(version)
    list(converge(state, done))
    for files in (None, done.files):
        reason = state.refuse(state.probe(node_with(version, files=files, cri=DEAD)))
        assert reason is not None
        assert "no pod can start: `mirrors` cannot be set" in reason
    silent = CriStatus(SOCKET, "silent", "timeout")
    observed = state.probe(node_with(version, files=done.files, cri=silent))
    assert "does not answer: timeout" in (state.refuse(observed) or "")
    # Asked at another socket than it has: nothing is known.
    elsewhere = replace(DEAD, socket="/run/other.sock")
    assert state.refuse(state.probe(node_with(version, cri=elsewhere))) is None


def test_a_dead_containerd_whose_files_were_repaired_since_is_restarted() -> None:
    state = ContainerdHandlerRegistered()
    done = node_with()
    list(converge(state, done))
    observed = state.probe(node_with(files=done.files, cri=DEAD, newer=(ROOT,), served=True))
    assert state.refuse(observed) is None
    assert state.plan(observed).fields == {"read"}


def test_a_process_without_the_handler_of_its_files_is_restarted() -> None:
    state = ContainerdHandlerRegistered()
    done = node_with()
    list(converge(state, done))
    for names, fields in ((("nvidia", "runc"), set[str]()), (("runc",), {"read"})):
        cri = CriStatus(SOCKET, "ok", handlers=tuple(CriHandler(name) for name in names))
        node = node_with(files=done.files, cri=cri, served=True)
        assert state.plan(state.probe(node)).fields == fields


@pytest.mark.parametrize("version", ["1.6.20", "1.7.24", "2.1.9", "2.3.4"])
def test_dockers_containerd_without_cri_has_nothing_to_do_and_says_why(version: str) -> None:
    text = 'disabled_plugins = ["cri"]\n'
    full = "cri" if version.startswith("1.") else "io.containerd.grpc.v1.cri"
    # containerd 1.x prints no CRI plugin then, containerd 2 does.
    dump = "" if version.startswith("1.") else dump_of(version).replace("disabled_plugins = []", "")
    node = node_with(
        version, files={ROOT: text}, dump=f"disabled_plugins = ['{full}']\n{dump}", cri=DEAD
    )
    state = ContainerdHandlerRegistered()
    observed = state.probe(node)
    assert state.refuse(observed) is None
    plan = state.plan(observed)
    assert not plan
    assert any(f"disabled_plugins lists {full}" in note for note in plan.notes)


def test_a_removal_that_would_leave_no_default_runtime_is_refused() -> None:
    kata = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'
    text = f"version = 2\n{kata}"
    dump = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n'
    files = Files(text)
    edit = plan_edit(files, Handler(), containerd_version="1.7.24", dump_text=dump + kata)
    there = Files(edit.files[ROOT])
    with pytest.raises(RefusedError, match="CRI plugin would not load"):
        plan_removal(there, Handler(), containerd_version="1.7.24")
    assert plan_removal(there, Handler()).files == {ROOT: text}


def test_the_answer_of_the_process_is_read_with_the_rest() -> None:
    out = (
        b"unit=1\nactive=active\nroot=/etc/containerd/config.toml\n"
        b"cri_socket=/run/containerd/containerd.sock\ncri=ok|containerd|v1.7.24||runc\n"
        b"cri_handler=nvidia|io.containerd.runc.v2|/usr/bin/nvidia-container-runtime|1\n"
    )
    cri = ContainerdQuery("containerd.service").parse(Answer(0, out)).cri
    assert cri is not None
    assert (cri.outcome, cri.version, cri.handlers[0].driver) == ("ok", "v1.7.24", "systemd")


@pytest.mark.parametrize("version", ["1.6.20", "1.7.24", "2.0.5", "2.3.4"])
def test_a_rollback_restores_the_bytes(version: str) -> None:
    rolled_back(node_with(version), None, ContainerdHandlerRegistered())
    absent = ContainerdHandlerRegistered(ensure="absent")
    rolled_back(node_with(version), ContainerdHandlerRegistered(enable_cdi=True), absent)
