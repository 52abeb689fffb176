"""Four packages in lockstep, and single keys of a file that is not ours."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from goingback import rolled_back
from policyconflicts import conflict
from pydantic import ValidationError

from gpustate import Disruption, NodeFacts, ops
from gpustate.core import file_queries, queries
from gpustate.formats.toolkit_config import CONFIG_PATH
from gpustate.probes import required_programs
from gpustate.states.container_toolkit import LOW_LEVEL, PACKAGES, ContainerToolkitInstalled
from gpustate.testing import FakeNode, converge

ORIGIN = "https://example.com stable/deb"
SHIPPED = '#accept-nvidia-visible-devices-as-volume-mounts = false\n\n[nvidia-container-cli]\n#root = "/run/nvidia/driver"\nload-kmods = true\n'

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"container-toolkit": "config.toml with comments, versions, holds"}


class Node(FakeNode):
    """A node whose package writes the file, and where originals can be looked for."""

    def __init__(
        self,
        *,
        installed: str | Mapping[str, str] = "",
        offered: Sequence[str] = ("1.18.1-1", "1.17.8-1"),
        config: str | None = None,
    ) -> None:
        packages = (
            dict.fromkeys(PACKAGES, installed) if isinstance(installed, str) else dict(installed)
        )
        super().__init__(
            packages={name: version for name, version in packages.items() if version},
            candidates={name: [(version, ORIGIN) for version in offered] for name in PACKAGES},
            files={} if config is None else {CONFIG_PATH: config},
            shell={"docker-runc": (0, "")},
            runs={"readable by all users": lambda node: node.modes.clear()},
        )

    def _answer(self, query: queries.Query[Any]) -> Any:
        if isinstance(query, file_queries.FileStats) and "/originals/" in query.patterns[0]:
            there = file_queries.FileStat("file", 0o600, 0, 0, 9)
            return {query.patterns[0]: there} if CONFIG_PATH in self.originals else {}
        return super()._answer(query)

    def carry_out(self, step: Any) -> None:
        super().carry_out(step)
        if isinstance(step, ops.AptInstall):
            self.files.setdefault(CONFIG_PATH, SHIPPED)


def test_a_fresh_node_gets_the_newest_version_that_all_four_have() -> None:
    node = Node()
    node.offered["libnvidia-container1"] = node.offered["libnvidia-container1"][1:]
    before, after = converge(ContainerToolkitInstalled(), node)
    assert before.disruption is Disruption.NONE
    assert not after
    assert node.installed == dict.fromkeys(PACKAGES, "1.17.8-1")
    assert node.held == set(PACKAGES)
    assert len([step for step in node.done if isinstance(step, ops.AptInstall)]) == 1


@pytest.mark.parametrize(
    ("said", "more", "warned"),
    [
        ("containerd\n", "", True),
        ("", "", False),
        ("containerd\n", '[nvidia-container-runtime]\nruntimes = ["runc", "crun"]\n', True),
        ("containerd\n", '[nvidia-container-runtime]\nruntimes = ["/opt/runc"]\n', False),
    ],
)
def test_a_node_without_runc_is_warned_of(said: str, more: str, warned: bool) -> None:
    node = Node(installed="1.17.8-1", config=SHIPPED + more)
    node.held = set(PACKAGES)
    node.shells["docker-runc"] = (0, said)
    state = ContainerToolkitInstalled()
    plan = state.plan(state.probe(node))
    assert not plan
    assert any("containerd is installed without runc" in one for one in plan.warnings) == warned


def test_what_the_toolkit_may_call_is_looked_for(tmp_path: Path) -> None:
    def said(*programs: str) -> str:
        for name in programs:
            (tmp_path / name).symlink_to("/bin/true")
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", LOW_LEVEL],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert said() == ""
    assert said("crio") == "crio"
    assert said("crun") == ""


def test_without_a_version_an_installed_set_stays_as_it_is() -> None:
    node = Node(installed="1.17.8-1", config=SHIPPED)
    node.held = set(PACKAGES)
    state = ContainerToolkitInstalled()
    assert not state.plan(state.probe(node))


def test_a_named_version_may_be_a_downgrade() -> None:
    node = Node(installed="1.18.1-1", config=SHIPPED)
    _, after = converge(ContainerToolkitInstalled(version="1.17.8"), node)
    assert not after
    assert set(node.installed.values()) == {"1.17.8-1"}


def test_a_program_that_is_gone_comes_from_its_package_at_the_same_version() -> None:
    node = Node(installed="1.17.8-1", config=SHIPPED)
    node.held = set(PACKAGES)
    damaged = ["nvidia-container-toolkit-base: /usr/bin/nvidia-ctk has mode 0"]
    node.answers["PackageFiles"] = lambda _: tuple(damaged)
    state = ContainerToolkitInstalled()
    plan = state.plan(state.probe(node))
    assert plan.fields == {"damaged"}
    (step,) = state.apply(state.probe(node), plan)
    assert isinstance(step, ops.AptInstall)
    assert step.packages == (("nvidia-container-toolkit-base", "1.17.8-1"),)
    assert step.reinstall
    upgrade = ContainerToolkitInstalled(version="1.18.1")
    steps = list(upgrade.apply(upgrade.probe(node), upgrade.plan(upgrade.probe(node))))
    assert [step.reinstall for step in steps if isinstance(step, ops.AptInstall)] == [False]


def test_a_released_hold_is_put_back_without_installing() -> None:
    node = Node(installed="1.17.8-1", config=SHIPPED)
    plan, after = converge(ContainerToolkitInstalled(), node)
    assert plan.fields == {"held"}
    assert not after
    assert [type(step) for step in node.done] == [ops.AptHold]


def test_hold_false_releases_the_packages() -> None:
    node = Node(installed="1.17.8-1", config=SHIPPED)
    node.held = set(PACKAGES)
    _, after = converge(ContainerToolkitInstalled(hold=False), node)
    assert not after
    assert node.held == set()


@pytest.mark.parametrize(
    ("state", "offered", "said"),
    [
        (
            ContainerToolkitInstalled(version="9.9.9"),
            ("1.18.1-1", "1.17.8-1"),
            "version 9.9.9; there is 1.18.1-1, 1.17.8-1; name",
        ),
        (ContainerToolkitInstalled(), (), "add the state toolkit-repository to the policy"),
    ],
)
def test_a_version_nobody_offers_is_refused(
    state: ContainerToolkitInstalled, offered: Sequence[str], said: str
) -> None:
    assert said in (state.plan(state.probe(Node(offered=offered))).refusal or "")


def test_no_repository_is_needed_for_what_is_installed() -> None:
    state = ContainerToolkitInstalled(version="1.17.8")
    assert state.plan(state.probe(Node(installed="1.17.8-1", offered=()))).refusal is None


def test_keys_are_set_and_every_other_byte_stays() -> None:
    mine = "# mine\n" + SHIPPED + "\n[site]\nx   =  1 # odd\n"
    node = Node(installed="1.17.8-1", config=mine)
    state = ContainerToolkitInstalled(config={"nvidia-container-cli.load-kmods": False})
    plan, after = converge(state, node)
    assert "config_text" in plan.fields
    assert not after
    assert node.files[CONFIG_PATH] == mine.replace("load-kmods = true", "load-kmods = false")


@pytest.mark.parametrize(
    "line",
    [
        'root = "/run/nvidia/driver"',
        'path = "/usr/local/nvidia/toolkit/nvidia-container-cli"',
        'ldconfig = "@/run/nvidia/driver/sbin/ldconfig"',
    ],
)
def test_what_the_operator_left_behind_is_unset(line: str) -> None:
    node = Node(installed="1.17.8-1", config=f"[nvidia-container-cli]\n{line}\nload-kmods = true\n")
    _, after = converge(ContainerToolkitInstalled(), node)
    assert not after
    assert node.files[CONFIG_PATH] == f"[nvidia-container-cli]\n#{line}\nload-kmods = true\n"


def test_a_root_that_the_policy_asks_for_stays() -> None:
    text = '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n'
    node = Node(installed="1.17.8-1", config=text)
    list(
        converge(
            ContainerToolkitInstalled(config={"nvidia-container-cli.root": "/run/nvidia/driver"}),
            node,
        )
    )
    assert node.files[CONFIG_PATH] == text


def test_a_file_that_is_no_toml_is_refused_with_its_place() -> None:
    state = ContainerToolkitInstalled()
    observed = state.probe(Node(installed="1.17.8-1", config="a = [\n"))
    assert CONFIG_PATH in (state.refuse(observed) or "")
    assert "config_text" not in state.plan(observed).fields


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"nvidia-container-runtime.moode": "cdi"}, "did you mean nvidia-container-runtime.mode"),
        ({"nvidia-container-runtime.mode": "turbo"}, "one of auto, legacy, cdi"),
        ({"disable-require": "yes"}, "wanted true or false"),
        ({"nvidia-container-runtime.runtimes": "runc"}, "wanted a list of strings"),
    ],
)
def test_a_key_the_toolkit_would_ignore_is_an_error_at_once(
    config: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        ContainerToolkitInstalled(config=config)


def test_lists_may_be_given_as_tuples() -> None:
    key = "nvidia-container-runtime.runtimes"
    node = Node(config=SHIPPED, installed="1.17.8-1")
    _, after = converge(ContainerToolkitInstalled(config={key: ("crun", "runc")}), node)
    assert not after
    assert 'runtimes = ["crun", "runc"]' in node.files[CONFIG_PATH]


def test_a_kill_between_purging_and_restoring_leaves_a_plan_to_restore() -> None:
    node = Node()
    list(converge(ContainerToolkitInstalled(), node))
    absent = ContainerToolkitInstalled(ensure="absent")
    observed = absent.probe(node)
    node.carry_out(next(absent.apply(observed, absent.plan(observed))))
    assert absent.plan(absent.probe(node)).fields == {"kept"}


def test_the_common_keys_have_parameters_of_their_own() -> None:
    node = Node(installed="1.17.8-1", config=SHIPPED)
    state = ContainerToolkitInstalled(mode="cdi", accept_volume_mounts=True)
    _, after = converge(state, node)
    assert not after
    assert 'mode = "cdi"' in node.files[CONFIG_PATH]
    assert (
        "\naccept-nvidia-visible-devices-as-volume-mounts = true\n"
        in "\n" + node.files[CONFIG_PATH]
    )


def test_a_key_said_twice_is_an_error() -> None:
    with pytest.raises(ValidationError, match=r"runtime\.mode is set twice"):
        ContainerToolkitInstalled(mode="cdi", config={"nvidia-container-runtime.mode": "auto"})


def test_it_stays_while_a_file_of_gpustate_names_its_programs() -> None:
    class Configured(Node):
        def _answer(self, query: queries.Query[Any]) -> Any:
            if isinstance(query, required_programs.ReferringFilesQuery):
                return (
                    CONFIG_PATH,
                    "/etc/systemd/system/gpustate-cdi.service",
                    "/etc/docker/daemon.json",
                    "/srv/x",
                )
            return super()._answer(query)

    node = Configured(installed="1.18.1-1", config=SHIPPED)
    gone = ContainerToolkitInstalled(ensure="absent")
    policy = {gone.name: gone}
    reasons = [c.reason for c in gone.conflicts(policy, NodeFacts(), gone.probe(node))]
    assert [r.partition(":")[0] for r in reasons] == [
        "/etc/systemd/system/gpustate-cdi.service still names programs of container-toolkit",
        "/etc/docker/daemon.json still names programs of container-toolkit",
    ]
    assert ["remove cdi together" in reasons[0], "remove docker together" in reasons[1]] == [
        True
    ] * 2
    there = ContainerToolkitInstalled()
    assert conflict(there, {there.name: there}, observed=there.probe(node)) is None


NVIDIA = "/usr/bin/nvidia-container-runtime"
CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'
#: As ``nvidia-ctk runtime configure --set-as-default`` leaves them.
DEFAULTS = {
    "/etc/containerd/config.toml": f"""version = 2
[{CRI}]
default_runtime_name = "nvidia"
[{CRI}.runtimes.nvidia.options]
BinaryName = "{NVIDIA}"
""",
    "/etc/docker/daemon.json": json.dumps(
        {"default-runtime": "nvidia", "runtimes": {"nvidia": {"args": [], "path": NVIDIA}}}
    ),
    "/etc/crio/crio.conf.d/99-nvidia.conf": f"""[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "{NVIDIA}"
""",
}


@pytest.mark.parametrize("path", DEFAULTS)
def test_it_stays_while_a_foreign_default_runtime_is_one_of_its_programs(path: str) -> None:
    def reasons(text: str) -> list[str]:
        node = Node(installed="1.18.1-1", config=SHIPPED)
        node.files[path] = text
        gone = ContainerToolkitInstalled(ensure="absent")
        found = gone.conflicts({gone.name: gone}, NodeFacts(), gone.probe(node))
        return [conflict.reason for conflict in found]

    text = DEFAULTS[path]
    key = re.search(r"default[a-z_-]+", text)
    assert key is not None
    assert [r.partition(",")[0] for r in reasons(text)] == [f"{path}: {key[0]} = nvidia"]
    assert reasons(text.replace(NVIDIA, "/usr/bin/runc")) == []
    assert reasons(text.replace('"nvidia"', '"runc"', 1)) == []
    assert reasons("[") == []


@pytest.mark.parametrize("config", [None, "# mine\n" + SHIPPED])
def test_a_rollback_restores_the_bytes_and_versions(config: str | None) -> None:
    old = ContainerToolkitInstalled(version="1.17.8")
    rolled_back(Node(config=config), None, ContainerToolkitInstalled(mode="cdi"))
    rolled_back(Node(config=config), old, ContainerToolkitInstalled(version="1.18.1", mode="cdi"))
    rolled_back(Node(config=config), old, ContainerToolkitInstalled(ensure="absent"))
    # What the policy leaves open is what was there.
    node = Node(config=config or SHIPPED, installed="1.17.8-1")
    rolled_back(node, ContainerToolkitInstalled(), ContainerToolkitInstalled(version="1.18.1"))


@pytest.mark.parametrize(
    ("config", "parameters", "docker", "warning"),
    [
        ("[nvidia-container-cli]\nno-cgroups = true\n", {}, True, "no-cgroups = true"),
        ("[nvidia-container-cli]\nno-cgroups = true\n", {}, False, ""),
        ("", {"mode": "cdi"}, True, "mode = cdi: NVIDIA's hook refuses docker run --gpus"),
        ("", {"mode": "jit-cdi"}, True, "mode = jit-cdi"),
        ("", {"mode": "cdi"}, False, ""),
        ("", {"mode": "legacy"}, True, ""),
    ],
)
def test_settings_that_break_docker_gpus_are_warned_of(
    config: str, parameters: dict[str, Any], docker: bool, warning: str
) -> None:
    state, node = ContainerToolkitInstalled(**parameters), Node(config=config)
    observed = replace(state.probe(node), docker=docker)
    assert warning in " ".join(state.plan(observed).warnings)
    assert bool(warning) == bool(state.plan(observed).warnings)
