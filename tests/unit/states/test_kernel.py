"""Which kernel a node boots: held, or one release with its module, booted only when that is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpustate import Disruption, NodeFacts, PolicyError
from gpustate.core.policy import build
from gpustate.ops import Reboot, Run
from gpustate.probes.kernels import Kernel
from gpustate.states.kernel import HELD_PATH, PIN_PATH, KernelPinned
from gpustate.testing import FakeNode, check_contract, converge

STEPLESS = {"kernel": "no meta package brings kernels there"}

# Two kernels of bookworm, and the names of its meta packages and menu entries.
OLD, NEW = "6.1.0-28-amd64", "6.1.0-31-amd64"
DRIVER = "580.65.06"


def pin(release: str) -> str:
    return f'GRUB_DEFAULT="gnulinux-advanced-1-2>gnulinux-{release}-advanced-1-2"\n'


class World(FakeNode):
    """A node with one kernel, a driver for it, and a repository with another."""

    kernels: dict[str, Kernel]

    def __init__(
        self, *, offered: bool = True, menu: str = "menu\n", driver: str | None = DRIVER
    ) -> None:
        names = (f"linux-image-{NEW}", f"linux-headers-{NEW}") if offered else ()
        super().__init__(
            facts=NodeFacts(os_id="debian", package_manager="apt", kernel=OLD, systemd=True),
            packages={
                f"linux-image-{OLD}": "1",
                "linux-image-amd64": "1",
                "linux-headers-amd64": "1",
            },
            candidates=dict.fromkeys(names, (("1", "500"),)),
            shell={"update-grub": (0, menu)},
            answers={"Kernels": lambda _: tuple(self.kernels.values())},
            runs={
                f"set {OLD} as GRUB's default kernel": lambda _: self.files.update(
                    {PIN_PATH: pin(OLD)}
                ),
                f"set {NEW} as GRUB's default kernel": lambda _: self.boots(NEW),
                "install linux-image": lambda _: None,
                "build the nvidia module": lambda _: self.build(NEW),
                "regenerate the GRUB menu": lambda _: None,
            },
        )
        module: dict[str, Any] = {"nvidia_version": driver}
        self.kernels = {
            OLD: Kernel(OLD, "/boot/x", running=True, bootable=True, boots_next=True, **module)
        }

    def boots(self, release: str) -> None:
        self.files[PIN_PATH] = pin(release)
        self.kernels = {k: replace(v, boots_next=k == release) for k, v in self.kernels.items()}

    def build(self, release: str) -> None:
        self.kernels[release] = Kernel(release, "/boot/y", bootable=True, nvidia_version=DRIVER)

    def carry_out(self, step: Any) -> None:
        super().carry_out(step)
        if step.label.startswith("install linux-image"):
            self.installed |= {f"linux-image-{NEW}": "1", f"linux-headers-{NEW}": "1"}
            self.kernels.setdefault(NEW, Kernel(NEW, "/boot/y", bootable=True))
        if isinstance(step, Reboot):
            (chosen,) = (k for k, v in self.kernels.items() if v.boots_next)
            self.kernels = {k: replace(v, running=k == chosen) for k, v in self.kernels.items()}
            self.node_facts = replace(self.node_facts, kernel=chosen)


def test_hold_keeps_what_brings_kernels_and_leaves_the_kernels_themselves() -> None:
    node = World()
    first, second = converge(KernelPinned(), node)
    assert first.disruption is Disruption.NONE
    assert not second
    assert node.held == {"linux-image-amd64", "linux-headers-amd64"}


def test_only_what_this_state_has_held_is_let_go() -> None:
    node = World()
    node.held = {"linux-image-amd64"}
    *_, last = converge(KernelPinned(), node)
    assert not last
    assert node.files[HELD_PATH] == "linux-headers-amd64\n"
    *_, last = converge(KernelPinned(policy="follow"), node)
    assert not last
    assert node.held == {"linux-image-amd64"}
    assert HELD_PATH not in node.files


def test_without_a_driver_nothing_has_to_be_built() -> None:
    node = World(driver=None)
    *_, last = converge(KernelPinned(policy=NEW), node)
    assert not last
    assert not [step for step in node.done if "build" in step.label]


@pytest.mark.parametrize(
    ("world", "says"),
    [
        ({"offered": False}, f"no repository offers linux-image-{NEW}"),
        ({"menu": ""}, "no GRUB menu"),
    ],
)
def test_what_cannot_be_had_or_kept_from_booting_is_refused(
    world: dict[str, Any], says: str
) -> None:
    state, node = KernelPinned(policy=NEW), World(**world)
    assert says in (state.refuse(state.probe(node)) or "")


@pytest.mark.parametrize(
    "policy", ["", "newest", "6", "6.1; reboot", "../6.1", 6.1, None, ["hold"]]
)
def test_a_wrong_policy_is_an_error_of_the_text(policy: object) -> None:
    with pytest.raises(PolicyError):
        build(KernelPinned, {"policy": policy})


@pytest.mark.parametrize("policy", ["follow", "hold", NEW])
def test_it_keeps_the_contract_of_every_state(policy: str) -> None:
    check_contract(KernelPinned(policy=policy), World())


def test_a_list_that_others_may_read_or_write_is_written_again() -> None:
    node = World()
    state = KernelPinned(policy="hold")
    list(converge(state, node))
    assert node.modes[HELD_PATH] == 0o600
    node.modes[HELD_PATH] = 0o666
    first, last = converge(state, node)
    assert (first.fields, first.disruption) == ({"record"}, Disruption.NONE)
    assert not last
    assert node.modes[HELD_PATH] == 0o600


def test_metapackages_of_ubuntus_newer_kernels_are_held_and_those_of_one_kernel_are_not() -> None:
    node = World()
    metas = {
        "linux-generic-hwe-24.04",
        "linux-image-generic-hwe-24.04",
        "linux-image-nvidia-64k-hwe-24.04",
        "linux-image-azure-fde-lts-24.04",
        "linux-image-aws",
        "linux-modules-nvidia-580-server-open-generic-hwe-24.04",
    }
    node.installed = {
        **dict.fromkeys(metas, "1"),
        "linux-image-6.8.0-106-generic": "1",
        "linux-modules-nvidia-580-server-open-6.8.0-106-generic": "1",
    }
    *_, last = converge(KernelPinned(), node)
    assert not last
    assert node.held == metas


def test_a_kernel_comes_with_its_signed_modules_where_the_running_one_has_some() -> None:
    node = World()
    stem = "linux-modules-nvidia-580-server-open"
    node.installed[f"{stem}-{OLD}"] = "1"
    state = KernelPinned(policy=NEW)
    observed = state.probe(node)
    assert observed.signed == f"{stem}-{NEW}"
    assert f"no repository offers linux-image-{NEW}" in (state.refuse(observed) or "")
    observed = replace(observed, offered=True)
    assert state.refuse(observed) is None
    (step,) = (
        one
        for one in state.apply(observed, state.plan(observed))
        if one.label.startswith("install linux-image")
    )
    assert isinstance(step, Run)
    assert f"MODULES={stem}-{NEW}\nVERSION={DRIVER}\n" in step.text
    assert (
        f'apt_swap linux-image-{NEW} linux-headers-{NEW} "{stem}-{NEW}=$signed_version"'
        in step.text
    )
    assert f"apt-mark hold {stem}-{NEW}" in step.text
