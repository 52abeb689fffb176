"""One true CDI specification, written at every boot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpustate import Disruption, NodeFacts, ops
from gpustate.core.file_queries import FileStat
from gpustate.errors import RefusedError
from gpustate.formats import quarantine, systemd
from gpustate.states.cdi import CdiSpecificationCurrent, leave_out
from gpustate.states.cdi.reading import (
    ENV_PATH,
    OUR_UNIT,
    OUR_UNIT_PATH,
    SPEC_FOLDER,
    SPEC_PATH,
    TOOLKIT_UNITS,
    access,
)
from gpustate.testing import FakeNode, converge

VERSION = "580.65.06"
PROC_VERSION = (
    f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build\n"
)


def spec(version: str = VERSION, name: str = "0", hook: str = "/usr/bin/nvidia-cdi-hook") -> str:
    edits = "  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n"
    every = f"- name: all\n{edits}" if name == "0" else ""
    return (
        "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"
        f'devices:\n- name: "{name}"\n{edits}{every}'
        f"containerEdits:\n  hooks:\n  - hookName: createContainer\n    path: {hook}\n"
        f"  mounts:\n  - hostPath: /usr/lib/libcuda.so.{version}\n    containerPath: /x\n"
    )


class Node(FakeNode):
    """A node of one GPU whose nvidia-ctk writes the specification of the loaded driver."""

    def __init__(
        self,
        *,
        toolkit_units: Mapping[str, str] | None = None,
        specs: Mapping[str, str] | None = None,
        version: str = VERSION,
        systemd: bool = True,
        ctk: bool = True,
        odd: str = "",
        rows: tuple[str, ...] = (),
        env: str | None = None,
    ) -> None:
        files = {} if env is None else {ENV_PATH: env}
        if version:
            files["/proc/driver/nvidia/version"] = PROC_VERSION.replace(VERSION, version)
        super().__init__(
            files={**files, **(specs or {})},
            facts=NodeFacts(os_id="debian", os_version="12", systemd=systemd),
            shell={"nvidia-ctk ] && echo ctk": lambda node: (0, self.answer())},
            runs={
                "with nvidia-ctk": lambda node: node.files.update({SPEC_PATH: spec(self.version)}),
                "readable by all users": lambda node: node.modes.clear(),
                f"start {TOOLKIT_UNITS[1]} again": lambda node: node.unit_states.update(
                    {TOOLKIT_UNITS[1]: "active"}
                ),
            },
        )
        self.version, self.ctk, self.odd, self.rows = version, ctk, odd, rows
        self.toolkit_units = dict(toolkit_units or {})

    def _unit(self, name: str) -> systemd.Unit:
        state = "enabled" if name in self.enabled else self.toolkit_units.get(name, "disabled")
        return replace(super()._unit(name), unit_file_state=state)

    def answer(self) -> str:
        units = dict(self.toolkit_units)
        if OUR_UNIT_PATH in self.files:
            units[OUR_UNIT] = "disabled"
        rows = [f"unit={unit}" for unit in units] + list(self.rows)
        rows += ["ctk=1"] if self.ctk else []
        rows += [f"odd={self.odd}"] if self.odd else []
        rows += ["gpu=0 GPU-a", "node=/dev/nvidia0 c3 0"] if self.version else []
        for path, text in sorted(self.files.items()):
            if "/cdi/" in path:
                rows.append(f"spec={path} {len(text.encode())}\n{text}")
        return "\n".join(rows) + "\n"


def old_toolkit() -> Node:
    return Node()


def new_toolkit(**more: Any) -> Node:
    return Node(toolkit_units=dict.fromkeys(TOOLKIT_UNITS, "disabled"), **more)


def test_a_gpu_whose_device_node_is_gone_is_not_left_out_of_the_specification() -> None:
    node = new_toolkit()
    rows = node.shells["nvidia-ctk ] && echo ctk"]
    assert callable(rows)
    state = CdiSpecificationCurrent()
    assert state.refuse(state.probe(node)) is None
    node.shells["nvidia-ctk ] && echo ctk"] = lambda fake: (0, f"gpu=1 GPU-b\n{rows(fake)[1]}")
    assert "/dev/nvidia1 is missing" in str(state.refuse(state.probe(node)))
    node.shells["nvidia-ctk ] && echo ctk"] = lambda fake: (
        0,
        f"gpu=1 GPU-????????\n{rows(fake)[1]}",
    )
    assert state.refuse(state.probe(node)) is None  # nobody has opened it yet


def test_an_old_toolkit_gets_our_unit_and_a_new_one_its_own() -> None:
    old, new = old_toolkit(), new_toolkit()
    list(converge(CdiSpecificationCurrent(), old))
    list(converge(CdiSpecificationCurrent(), new))
    assert old.enabled == {OUR_UNIT}
    assert f"--output={SPEC_PATH}" in old.files[OUR_UNIT_PATH]
    assert new.enabled == set(TOOLKIT_UNITS)
    assert OUR_UNIT_PATH not in new.files


def test_a_watching_unit_that_systemd_has_stopped_is_drift_and_started_again() -> None:
    service, path = TOOLKIT_UNITS
    node = new_toolkit()
    list(converge(CdiSpecificationCurrent(), node))
    node.unit_states[path] = "failed"
    state = CdiSpecificationCurrent()
    (step,) = state.apply(state.probe(node), state.plan(state.probe(node)))
    assert isinstance(step, ops.Run)
    assert f"systemctl stop {service}\nsystemctl reset-failed {service} {path}" in step.script()
    plan, after = converge(state, node)
    assert plan.fields == {"failed"}
    assert plan.disruption is Disruption.NONE
    assert not after
    node.unit_states[path] = "failed"
    removed, gone = converge(CdiSpecificationCurrent(ensure="absent"), node)
    assert "failed" not in removed.fields
    assert not gone


def test_our_unit_leaves_when_the_toolkit_brings_its_own() -> None:
    node = old_toolkit()
    list(converge(CdiSpecificationCurrent(), node))
    node.toolkit_units.update(dict.fromkeys(TOOLKIT_UNITS, "enabled"))
    plan, after = converge(CdiSpecificationCurrent(), node)
    assert plan.fields == {"refresh", "unit_text"}
    assert not after
    assert node.enabled == set()
    assert OUR_UNIT_PATH not in node.files


def test_a_specification_that_users_cannot_read_is_made_readable() -> None:
    node = new_toolkit()
    list(converge(CdiSpecificationCurrent(), node))
    node.modes[SPEC_PATH] = 0o600
    plan, after = converge(CdiSpecificationCurrent(), node)
    assert plan.fields == {"access"}
    assert plan.changes[0].before == [f"{SPEC_PATH}: owner 0:0, mode 0600"]
    assert not after


def test_a_folder_that_users_cannot_enter_is_named() -> None:
    stats = {SPEC_FOLDER: FileStat("dir", 0o700, 0, 0, 40)}
    assert access(stats) == (f"{SPEC_FOLDER}: mode 0700",)
    assert access({SPEC_FOLDER: FileStat("dir", 0o755, 0, 0, 40)}) == ()


def test_a_torn_specification_is_written_again() -> None:
    node = new_toolkit(specs={SPEC_PATH: spec()[:30]})
    plan, after = converge(CdiSpecificationCurrent(), node)
    assert "stale" in plan.fields
    assert not after


def test_a_generated_copy_of_the_same_devices_is_removed() -> None:
    copy = "/etc/cdi/nvidia.yaml"
    node = new_toolkit(specs={copy: spec("550.1"), SPEC_PATH: spec()})
    plan, after = converge(CdiSpecificationCurrent(), node)
    assert "leftovers" in plan.fields
    assert not after
    assert copy not in node.files


def test_a_generated_copy_of_other_devices_stays() -> None:
    copy = "/etc/cdi/other.yaml"
    node = new_toolkit(specs={copy: spec(name="somewhere"), SPEC_PATH: spec()})
    list(converge(CdiSpecificationCurrent(), node))
    assert copy in node.files


def test_somebodys_own_file_of_the_same_devices_is_refused_and_stays() -> None:
    mine = "/etc/cdi/mine.yaml"
    node = new_toolkit(specs={mine: spec(hook="/opt/hook"), SPEC_PATH: spec()})
    state = CdiSpecificationCurrent()
    assert mine in (state.refuse(state.probe(node)) or "")


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (new_toolkit(ctk=False), "nvidia-ctk is not installed"),
        (new_toolkit(version=""), "no GPU to describe"),
        (Node(toolkit_units={TOOLKIT_UNITS[0]: "masked"}), "systemctl unmask"),
        (
            new_toolkit(env="NVIDIA_DRIVER_ROOT=/run/nvidia/driver\n"),
            "NVIDIA_DRIVER_ROOT=/run/nvidia",
        ),
        (new_toolkit(env='NVIDIA_CTK_CDI_OUTPUT_FILE_PATH="/etc/cdi/x.yaml"\n'), "/etc/cdi/x.yaml"),
        (new_toolkit(env="NVIDIA_CTK_DRIVER_ROOT=/run/nvidia/driver\n"), "CTK_DRIVER_ROOT=/run"),
        (new_toolkit(env="NVIDIA_CTK_CDI_GENERATE_CLASS=card\n"), "GENERATE_CLASS=card"),
        (new_toolkit(env="NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS=0,1\n"), "DEVICE_IDS=0,1"),
    ],
)
def test_what_cannot_come_right_is_refused(node: Node, said: str) -> None:
    state = CdiSpecificationCurrent()
    assert said in (state.refuse(state.probe(node)) or "")


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        ("libcuda1:amd64: /usr/lib/{0}", "apply the state driver with this one"),
        ("libcuda1:i386, libcuda1:amd64: /lib/{0}", "of the package libcuda1 is missing"),
        ("libnvidia-container1: /usr/lib/{0}", "apply the state container-toolkit with this one"),
        ("nvidia-imex: /usr/lib/{0}", "written now would omit it; install nvidia-imex again"),
        ("bash: /usr/lib/{0}", ""),
        ("diversion by a from: /usr/lib/{0}", ""),
    ],
)
def test_while_files_of_packages_are_missing_no_specification_is_written_without_them(
    owner: str, said: str
) -> None:
    name = f"x86_64-linux-gnu/libcuda.so.{VERSION}"
    text = spec().replace("/usr/lib/libcuda", "/usr/lib/x86_64-linux-gnu/libcuda")
    rows = (f"missing=/usr/lib/{name}", f"owned={owner.format(name)}")
    state, node = CdiSpecificationCurrent(), new_toolkit(specs={SPEC_PATH: text}, rows=rows)
    assert said in (state.refuse(state.probe(node)) or "")
    assert bool(said) == bool(state.refuse(state.probe(node)))
    assert state.plan(state.probe(node)).fields >= {"stale"}
    gone = CdiSpecificationCurrent(ensure="absent")
    assert gone.refuse(gone.probe(node)) is None
    other = new_toolkit(specs={SPEC_PATH: spec(), "/etc/cdi/other.yaml": text}, rows=rows)
    assert not state.probe(other).lost, "another specification names it"
    torn = new_toolkit(specs={SPEC_PATH: "{"}, rows=rows)
    assert state.refuse(state.probe(torn)) is None


def test_a_specification_without_a_file_that_came_back_is_written_again() -> None:
    rows = (
        f"there=/usr/lib64/libcuda.so.{VERSION}",
        "there=/usr/bin/nvidia-smi",
        "there=/x/gsp.bin",
    )
    node = new_toolkit(specs={SPEC_PATH: spec()}, rows=rows)
    observed = CdiSpecificationCurrent().probe(node)
    assert observed.stale == ("it lacks /usr/bin/nvidia-smi, /x/gsp.bin of the driver",)
    node.rows = rows[:1]
    assert CdiSpecificationCurrent().probe(node).stale == ()


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (f"{SPEC_PATH}|{SPEC_PATH}|file|a folder", f"{SPEC_PATH} is a folder, and a file belongs"),
        (f"{SPEC_PATH}|/var/run/cdi|folder|a file", "/var/run/cdi is a file, and a folder belongs"),
    ],
)
def test_what_stands_where_the_specification_belongs_is_refused(odd: str, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        CdiSpecificationCurrent().probe(new_toolkit(odd=odd))
    gone = CdiSpecificationCurrent(ensure="absent")
    assert gone.refuse(gone.probe(new_toolkit(odd=odd))) is None


@pytest.mark.parametrize(
    "env",
    [
        "",
        "# x\n",
        "NVIDIA_DRIVER_ROOT=/\n",
        "NVIDIA_CTK_CDI_GENERATE_VENDOR=nvidia.com\n",
        f"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH='{SPEC_PATH}'\nA=b",
    ],
)
def test_settings_that_change_nothing_are_no_reason_to_refuse(env: str) -> None:
    state = CdiSpecificationCurrent()
    assert state.refuse(state.probe(new_toolkit(env=env))) is None


def test_what_the_first_boot_of_an_image_runs_is_shell() -> None:
    state = CdiSpecificationCurrent()
    for step in state.first_boot(state.probe(new_toolkit())):
        assert isinstance(step, ops.Run)
        subprocess.run(["sh", "-n", "-c", step.text], check=True)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("invalid CDI Spec: empty device edits", "apply a layout with the state mig"),
        ("failed to initialize NVML: driver/library version mismatch", "version mismatch"),
    ],
)
def test_gpus_in_mig_mode_without_mig_devices_are_named(
    tmp_path: Path, error: str, words: str
) -> None:
    program = tmp_path / "nvidia-ctk"
    program.write_text(f"#!/bin/sh\n[ $1 = system ] || {{ echo '{error}' >&2; exit 3; }}\n")
    program.chmod(0o755)
    (tmp_path / "nvidia-smi").symlink_to("/bin/true")
    state = CdiSpecificationCurrent()
    observed = state.probe(new_toolkit())
    steps = [s for s in state.apply(observed, state.plan(observed)) if isinstance(s, ops.Run)]
    (script,) = (step.text for step in steps if "cdi generate" in step.text)
    script = script.replace("/run/gpustate-cdi", f"{tmp_path}/c")
    functions = 'fail() { echo "$*" >&2; exit 1; }; folder() { :; }\n'
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-ec", functions + script], capture_output=True, text=True, env=path
    )
    assert done.returncode == (1 if "MIG" in done.stderr else 3)
    assert words in done.stderr


def test_an_image_gets_the_boot_time_refresh_and_no_specification() -> None:
    node = new_toolkit(systemd=False, version="")
    state = CdiSpecificationCurrent()
    assert state.refuse(state.probe(node)) is None
    plan, after = converge(state, node)
    assert plan.fields == {"refresh"}
    assert not after
    assert all(not step.now for step in node.done if isinstance(step, ops.EnableUnit))


def test_a_unit_that_was_not_asked_for_is_put_into_no_command() -> None:
    node = Node()
    rows = node.answer() + "unit=-H=x\nunit=other.service\n"
    for part in node.shells:
        node.shells[part] = (0, rows)
    assert CdiSpecificationCurrent().probe(node).refresh == ()


UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = UUID.replace("0001", "0002")


class Pair(Node):
    """A node of two GPUs, one of which can be in quarantine."""

    def __init__(self, *entries: quarantine.Entry, now: int = 10, python: bool = True) -> None:
        super().__init__(toolkit_units=dict.fromkeys(TOOLKIT_UNITS, "disabled"))
        self.entries, self.now, self.python = entries, now, python
        self.answers["ExcludedGpusQuery"] = lambda _: self.out
        self.runs |= {
            "with nvidia-ctk": lambda _: self.write(),
            f"remove {leave_out.FOLDER}": lambda _: self.forget_program(),
        }

    @property
    def out(self) -> quarantine.Quarantine:
        return quarantine.Quarantine(self.entries, self.now)

    def answer(self) -> str:
        rows = (
            super()
            .answer()
            .replace("gpu=0 GPU-a\n", f"gpu=0 {UUID} 0000:07:00.0\ngpu=1 {OTHER} 0000:0f:00.0\n")
        )
        return ("python=1\n" if self.python else "") + "proc=/proc\nnode=/dev/nvidia1 c3 1\n" + rows

    def forget_program(self) -> None:
        for path in leave_out.program():
            self.files.pop(path, None)

    def write(self) -> None:
        devices = [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{minor}"}]}}
            for minor, uuid in enumerate((UUID, OTHER))
            if not self.out.holds(uuid, "")
        ]
        library = f"/usr/lib/libcuda.so.{VERSION}"
        common = {"mounts": [{"hostPath": library, "containerPath": library}]}
        self.files.pop(SPEC_PATH, None)
        if devices:
            devices.append({**devices[0], "name": "all"})
            spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
            self.files[SPEC_PATH] = json.dumps({**spec, "containerEdits": common})


def entry(uuid: str = UUID, until: int = 20) -> quarantine.Entry:
    return quarantine.Entry(uuid, "", "RMA", until, 1, "me")


DROPIN = leave_out.dropin_path(TOOLKIT_UNITS[0])


def test_a_program_that_somebody_changed_is_put_right() -> None:
    node = Pair(entry())
    list(converge(CdiSpecificationCurrent(), node))
    node.files[next(iter(leave_out.program()))] += "# mine"
    plan, after = converge(CdiSpecificationCurrent(), node)
    assert plan.fields == {"program"}
    assert not after


def test_removal_takes_the_program_and_the_word_to_the_unit_along() -> None:
    node = Pair(entry())
    list(converge(CdiSpecificationCurrent(), node))
    *_, last = converge(CdiSpecificationCurrent(ensure="absent"), node)
    assert not last
    assert not {SPEC_PATH, DROPIN, *leave_out.program()} & set(node.files)


def test_there_is_no_specification_while_every_gpu_is_in_quarantine() -> None:
    node = Pair()
    list(converge(CdiSpecificationCurrent(), node))
    node.entries = (entry(), entry(OTHER))
    plan, after = converge(CdiSpecificationCurrent(), node)
    assert "present" in plan.fields
    assert not after
    assert SPEC_PATH not in node.files


def test_without_a_whole_python_the_node_is_left_alone_while_a_gpu_is_to_be_left_out() -> None:
    node, state = Pair(entry(), python=False), CdiSpecificationCurrent()
    assert "install python3" in (state.refuse(state.probe(node)) or "")
    node.now = 30
    assert state.refuse(state.probe(node)) is None
