"""The driver over a node in memory: what is planned, what it costs, what is refused, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest
from policyconflicts import conflict

from gpustate import Disruption, NodeFacts, PciGpu, PolicyError, ops
from gpustate.compat.collect import collect
from gpustate.core.encode import plain
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.policy import build, parameters
from gpustate.core.queries import Answer
from gpustate.core.state import AnyState
from gpustate.engine import gate
from gpustate.engine.before import RunBefore, StateBefore, way_back
from gpustate.formats import dpkg, driverset
from gpustate.formats.aptsources import Offer
from gpustate.ops.modsign import ENROLLED
from gpustate.ops.transaction import Transaction
from gpustate.probes.gpu_clients import GpuClientsQuery, GpuProcess
from gpustate.probes.kernels import Kernel
from gpustate.states.driver import DriverInstalled, files
from gpustate.states.driver.files import PATHS
from gpustate.states.driver.gpus import module_type
from gpustate.states.driver.observed import (
    Apt,
    AptQuery,
    Live,
    LiveMigQuery,
    Observed,
    SecureBoot,
    plain_value,
    shown_as,
)
from gpustate.states.fabric_manager import FabricManagerRunning
from gpustate.states.kernel import KernelPinned
from gpustate.testing import FakeNode, converge

OLD, NEW = "6.1.0-9-amd64", "6.1.0-18-amd64"
VERSIONS = ("595.91.07-1", "580.178.04-1", "580.65.06-1", "570.211.01-1")
NAMES = (
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "nvidia-kernel-dkms",
    "nvidia-persistenced",
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-open",
    "cuda-drivers",
)
LIBRARIES = ("libcuda1", "libnvidia-ml1")


def gpu(device: str = "2330", number: int = 0, driver: str | None = None) -> PciGpu:
    return PciGpu(f"0000:{number:02x}:00.0", device, "030200", driver)


class World(FakeNode):
    """A Debian node on which packages, modules and kernels hang together as on a real one."""

    def __init__(self, *gpus: PciGpu, versions: tuple[str, ...] = VERSIONS, **facts: Any) -> None:
        given = {
            "os_id": "debian",
            "package_manager": "apt",
            "kernel": NEW,
            "systemd": True,
            **facts,
        }
        self.relations = driverset.NO_RELATIONS
        super().__init__(
            facts=NodeFacts(pci=gpus, **given),
            answers={
                "Kernels": lambda _: tuple(self.kernels.values()),
                "AptQuery": lambda _: self.apt(),
                "TransactionQuery": Transaction(),
                "LiveMigQuery": lambda _: self.live(),
                "GpuClientsQuery": lambda _: self.holders,
                "ServicesQuery": lambda _: self.services,
                "BridgesQuery": lambda _: self.bridges,
            },
            runs={
                "download the driver's": lambda _: None,
                "record the services": lambda _: None,
                "install the driver's": lambda _: self.transaction(),
                "finish the interrupted": lambda _: self.broken.clear(),
                "hold the driver's": lambda _: self.held.update(self.installed),
                f"build the nvidia module for {NEW}": lambda _: self.build(NEW),
                f"build the nvidia module for {OLD}": lambda _: self.build(OLD),
                "reload the nvidia modules": lambda _: self.load(),
                "unload the nvidia": lambda _: self.unload(),
                "start the services": lambda _: None,
                "uninstall the driver of": lambda _: setattr(self, "more", Live()),
            },
        )
        self.kernels = {
            k: Kernel(
                k, image=f"/boot/vmlinuz-{k}", bootable=True, running=k == NEW, headers=k == NEW
            )
            for k in (OLD, NEW)
        }
        self.packages_offered: dict[str, tuple[str, ...]] = dict.fromkeys(NAMES, versions)
        self.packages_offered[f"linux-headers-{OLD}"] = ("1.0",)
        self.origin = "http://x  Packages"
        self.broken: set[str] = set()
        self.holders: tuple[GpuProcess, ...] = ()
        self.services: tuple[str, ...] = ()
        self.bridges = 0
        self.more = Live()
        self.running: str | None = None
        self.parameters: dict[str, str] = {}
        self.failing: set[str] = set()
        self.goal: DriverInstalled = DriverInstalled()

    def apt(self) -> Apt:
        return Apt(
            {
                name: dpkg.Package(
                    name,
                    version,
                    "amd64",
                    ("h" if name in self.held else "i") + ("F" if name in self.broken else "i"),
                )
                for name, version in self.installed.items()
            },
            {
                name: tuple(Offer(version, 500, (self.origin,)) for version in versions)
                for name, versions in self.packages_offered.items()
            },
            relations=self.relations,
        )

    def kind(self) -> str:
        return "open" if "nvidia-kernel-open-dkms" in self.installed else "proprietary"

    def live(self) -> Live:
        library = self.installed.get("libnvidia-ml1")
        return replace(
            self.more,
            loaded=self.running,
            library=dpkg.upstream_version(library) if library else None,
            build_errors=dict.fromkeys(self.failing, "x.c:1: error: no member"),
        )

    def transaction(self) -> None:
        wanted = self.goal.desired(self.goal.probe(self)).packages
        version = wanted["nvidia-driver-cuda"]
        self.installed = {**wanted, **dict.fromkeys(LIBRARIES, version)}
        self.broken.clear()
        for kernel in self.kernels:
            self.kernels[kernel] = replace(
                self.kernels[kernel], nvidia_version=None, nvidia_license=None
            )

    def build(self, kernel: str) -> None:
        if kernel in self.failing:
            return
        self.kernels[kernel] = replace(
            self.kernels[kernel],
            nvidia_version=dpkg.upstream_version(self.installed["nvidia-driver-cuda"]),
            nvidia_license="Dual MIT/GPL" if self.kind() == "open" else "NVIDIA",
        )

    def load(self) -> None:
        kernel = self.kernels[NEW]
        self.loaded |= {"nvidia", "nvidia_uvm", "nvidia_modeset"}
        self.running = f"{kernel.nvidia_version} {'open' if kernel.nvidia_open else 'proprietary'}"
        self.parameters = {"RmProfilingAdminOnly": "1", "DeviceFileMode": "438"}
        for line in (self.files.get(PATHS["options_text"]) or "").splitlines():
            if "NVreg_" in line:
                name, _, value = line.partition("NVreg_")[2].partition("=")
                if shown_as(name) in self.parameters:
                    self.parameters[shown_as(name)] = plain_value(value)
        self.files["/proc/driver/nvidia/params"] = "".join(
            f"{name}: {value}\n" for name, value in self.parameters.items()
        )

    def unload(self) -> None:
        self.loaded = set()
        self.running = None
        self.files.pop("/proc/driver/nvidia/params", None)

    def carry_out(self, step: Any) -> None:
        super().carry_out(step)
        match step:
            case ops.Run(text=text, joint=True):
                for kernel in re.findall(r"along apt_swap .*linux-headers-(\S+)", text):
                    self.kernels[kernel] = replace(self.kernels[kernel], headers=True)
            case ops.LoadModules():
                self.load()
            case ops.AptRemove():
                for kernel in self.kernels:
                    self.kernels[kernel] = replace(
                        self.kernels[kernel], nvidia_version=None, nvidia_license=None
                    )
            case _:
                pass

    def probe_of(self, state: DriverInstalled) -> Observed:
        return state.probe(self)

    def reach(self, state: DriverInstalled) -> tuple[Any, Any]:
        """One round of apply; the plan before and the plan after."""
        self.goal = state
        before, after = converge(state, self)
        return before, after


def labels(node: FakeNode) -> list[str]:
    return [step.label for step in node.done]


def cost(plan: Any, field: str) -> Disruption:
    return next(change.disruption for change in plan.changes if change.field == field)


def refusal(state: DriverInstalled, node: World) -> str:
    why = state.refuse(state.probe(node))
    assert why is not None
    return why


# --- install, upgrade, downgrade, switch -----------------------------------------------------


def test_nvswitches_without_a_fabric_manager_on_the_node_are_refused_by_the_plan() -> None:
    driver, manager = DriverInstalled(), FabricManagerRunning()
    observed = {"driver": driver.probe(World(gpu()))}
    later = {
        name: StateResult(name, Outcome.KNOWN_AFTER, known_after=("driver-repository",))
        for name in ("driver", "fabric-manager")
    }

    def reason(facts: NodeFacts, *states: AnyState) -> str:
        return str(gate.compatible(collect(facts, states, observed, later), {}).reason)

    switches = NodeFacts(pci=(gpu(), PciGpu("0000:07:00.0", "22a3", "068000", None)))
    assert "blocked by compatibility rule fabric-manager-missing" in reason(switches, driver)
    assert "add the state fabric-manager" in reason(switches, driver)
    assert reason(switches, driver, manager) == "None"
    assert reason(NodeFacts(pci=(gpu(),)), driver) == "None"


def test_all_is_downloaded_first_and_a_kernel_left_over_is_built_last() -> None:
    node = World(gpu())
    node.reach(DriverInstalled())
    done = labels(node)
    order = [
        "download the driver's 3 packages and their dependencies",
        "install the driver's 3 packages",
        "hold the driver's packages",
        f"build the nvidia module for {NEW}",
        "load nvidia, nvidia-uvm, nvidia-modeset",
        f"build the nvidia module for {OLD}",
    ]
    assert [label for label in done if not label.startswith("write")] == order


@pytest.mark.parametrize(
    ("state", "version"),
    [
        (DriverInstalled(), "595.91.07"),
        (DriverInstalled(branch=580), "580.178.04"),
        (DriverInstalled(branch=570), "570.211.01"),
        (DriverInstalled(version="580.65.06"), "580.65.06"),
    ],
)
def test_the_version_is_the_policys_or_the_newest_of_the_branch(
    state: DriverInstalled, version: str
) -> None:
    observed = state.probe(World(gpu()))
    assert state.desired(observed).library == version


SITE = "/etc/apt/preferences.d/00site"
PIN = f"a pin in {SITE} forbids it; remove that pin"


@pytest.mark.parametrize(
    ("priority", "wanted", "outcome"),
    [
        (1001, {"branch": 580}, "580.65.06"),
        (
            1001,
            {"branch": 570},
            f"apt offers driver 570.211.01, and {PIN}, or set one that it may install: branch 580",
        ),
        (1001, {"version": "580.178.04"}, f"apt offers driver 580.178.04, and {PIN}, or set one"),
        (701, {"branch": 580}, "580.65.06"),
        (900, {"version": "580.178.04"}, f"apt offers driver 580.178.04, and {PIN}, or set one"),
        # gpustate's own pin wins.
        (700, {"branch": 580}, "580.178.04"),
    ],
)
def test_a_pin_above_gpustates_own_decides_for_a_version(
    priority: int, wanted: dict[str, Any], outcome: str
) -> None:
    node = World(gpu())
    whole = node.apt()
    pinned = {
        name: tuple(
            replace(one, priority=priority) if one.version == "580.65.06-1" else one
            for one in offers
        )
        for name, offers in whole.offers.items()
    }
    pins = {SITE: {(name, "580.65.06-1"): priority for name in pinned}}
    node.answers["AptQuery"] = lambda _: replace(whole, offers=pinned, pins=pins)
    state = DriverInstalled(**wanted)
    observed = state.probe(node)
    noted = f"pins in {SITE} keep apt from driver 580.178.04" in state.plan(observed).notes
    assert noted == (priority > 700 and outcome == "580.65.06")
    found = state.desired(observed).library or state.refuse(observed) or ""
    assert found.startswith(outcome)


def test_a_pin_that_leaves_only_modules_of_the_other_type_is_named() -> None:
    node = World(gpu())
    whole = node.apt()
    forbidden = "nvidia-kernel-open-dkms", "580.178.04-1"
    offers = {
        name: tuple(
            replace(row, priority=-1) if (name, row.version) == forbidden else row for row in rows
        )
        for name, rows in whole.offers.items()
    }
    node.answers["AptQuery"] = lambda _: replace(whole, offers=offers, pins={SITE: {forbidden: -1}})
    why = refusal(DriverInstalled(version="580.178.04"), node)
    assert why.startswith(f"apt offers driver 580.178.04 with open modules, and {PIN}")
    assert "available with proprietary modules only" not in why


def test_a_pin_for_an_older_version_keeps_the_installed_one() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(version="580.178.04"))
    whole = node.apt()
    node.answers["AptQuery"] = lambda _: replace(
        whole,
        offers={
            name: tuple(
                replace(one, priority=900 if one.version == "580.65.06-1" else 500)
                for one in offers
            )
            for name, offers in whole.offers.items()
        },
    )
    state = DriverInstalled(branch=580)
    assert state.desired(state.probe(node)).library == "580.178.04"


@pytest.mark.parametrize(
    "then",
    [
        DriverInstalled(branch=595),
        DriverInstalled(branch=570),
        DriverInstalled(version="580.65.06", module_type="proprietary"),
    ],
    ids=["upgrade", "downgrade", "switch"],
)
def test_a_loaded_driver_is_replaced_at_the_cost_of_a_drain(then: DriverInstalled) -> None:
    node = World(gpu())
    node.reach(DriverInstalled(version="580.65.06"))
    before, after = node.reach(then)
    assert before.disruption is Disruption.DRAIN
    assert not after
    assert "reload the nvidia modules" in labels(node)
    kernels = set(node.installed) & {"nvidia-kernel-dkms", "nvidia-kernel-open-dkms"}
    assert len(kernels) == 1


def test_a_library_that_moved_alone_is_seen_beside_the_packages() -> None:
    node = World(gpu())
    state = DriverInstalled(version="580.65.06")
    node.reach(state)
    node.installed["libnvidia-ml1"] = "580.178.04-1"
    plan = state.plan(state.probe(node))
    assert plan.fields == {"packages", "library"}


def test_a_lost_hold_costs_nothing_and_is_put_back() -> None:
    node = World(gpu())
    state = DriverInstalled(version="580.65.06")
    node.reach(state)
    node.held.discard("libcuda1")
    before, after = node.reach(state)
    assert before.fields == {"held"}
    assert before.disruption is Disruption.NONE
    assert not after


def test_hold_false_leaves_the_marks_as_they_are() -> None:
    node = World(gpu())
    _, after = node.reach(DriverInstalled(hold=False))
    assert not after
    assert not node.held


def test_holds_on_packages_that_are_not_installed_are_named_and_end() -> None:
    rows = "libcuda1|amd64|580.178.04-1|ii \nnvidia-smi|||hn \nlibnvidia-ml1|||hn \n"
    apt = AptQuery(()).parse(Answer(0, f"{rows}=missing\n=offers\n=relations\n".encode()))
    assert (apt.absent_holds, list(apt.packages)) == (("nvidia-smi", "libnvidia-ml1"), ["libcuda1"])
    node = World(gpu())
    state = DriverInstalled(branch=580)
    observed = replace(state.probe(node), absent_holds=apt.absent_holds)
    plan = state.plan(observed)
    assert "holds on packages that are not installed end: nvidia-smi, libnvidia-ml1" in plan.notes
    fetch = next(s for s in state.apply(observed, plan) if s.label.startswith("download the"))
    assert "apt-mark unhold nvidia-smi libnvidia-ml1\n" in fetch.script()
    assert "back() { apt-mark hold nvidia-smi libnvidia-ml1; " in fetch.script()
    node.reach(state)
    observed = replace(state.probe(node), absent_holds=apt.absent_holds)
    assert not [note for note in state.plan(observed).notes if "not installed end" in note]


@pytest.mark.parametrize("hold", [True, False])
def test_foreign_holds_that_are_overridden_are_in_the_plan(hold: bool) -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570, hold=False))
    if hold:
        for path in PATHS.values():
            node.files.pop(path, None)
    node.installed["libnvidia-old1"] = node.installed["libcuda1"]
    node.held = {"libnvidia-old1", "libcuda1"}
    state = DriverInstalled(branch=580, hold=hold)
    plan = state.plan(state.probe(node))
    said = (
        "holds end with their packages: libnvidia-old1",
        "held packages change: libcuda1 570.211.01-1 -> 580.178.04-1",
    )
    assert said == tuple(note for note in plan.notes if "held" in note or "hold" in note)
    assert state.forecast(node, "").notes[1:] == said
    if not hold:
        (held,) = (one for one in plan.changes if one.field == "held")
        assert (held.before, held.after) == (["libcuda1", "libnvidia-old1"], ["libcuda1"])


def test_holds_of_gpustate_itself_are_not_mentioned() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    assert node.held
    for hold in (True, False):
        state = DriverInstalled(branch=580, hold=hold)
        assert not [note for note in state.plan(state.probe(node)).notes if "hold" in note]


def test_display_packages_that_leave_are_in_the_plan() -> None:
    build = "580.173.02-0ubuntu0.24.04.1"
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in driverset.names_to_query("ubuntu", (580,)):
        if "-server" in name or name == "nvidia-modprobe":
            node.packages_offered[name] = ("580.178.04-0ubuntu0.24.04.1",)
    for name in (
        "nvidia-driver-580-open",
        "nvidia-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
        "libnvidia-gl-580",
    ):
        node.installed[name] = build
    node.held = {"libnvidia-gl-580"}
    state = DriverInstalled(branch=580, precompiled=False)
    gone = "display packages are removed: libnvidia-gl-580; set packages: full"
    for notes in (state.plan(state.probe(node)).notes, state.forecast(node, "").notes):
        assert any(note.startswith(gone) for note in notes), notes
        assert "holds end with their packages: libnvidia-gl-580" in notes
    plan = state.forecast(node, "")
    assert set(plan.notes[0].partition("; removed: ")[2].split(", ")) == node.installed.keys()
    change = plan.changes[0]
    assert change.before == node.installed
    assert change.after["nvidia-utils-580-server"] == "580.178.04-0ubuntu0.24.04.1"
    assert len(change.after) == 6
    whole = DriverInstalled(branch=580, precompiled=False, packages="full")
    notes = whole.plan(whole.probe(node)).notes
    assert not [note for note in notes if "display" in note]


def test_a_half_configured_package_is_finished_before_anything_else() -> None:
    node = World(gpu())
    state = DriverInstalled(version="580.65.06")
    node.reach(state)
    node.broken.add("nvidia-kernel-open-dkms")
    before, after = node.reach(state)
    assert before.fields == {"broken"}
    assert not after


# --- kernels ---------------------------------------------------------------------------------


def test_a_new_kernel_without_a_module_blocks_a_reboot_until_it_is_built() -> None:
    node = World(gpu())
    state = DriverInstalled(version="580.65.06")
    node.reach(state)
    newest = "6.1.0-20-amd64"
    node.kernels[newest] = Kernel(newest, image="/boot/x", bootable=True)
    node.failing.add(newest)
    blocker = state.reboot_blocker(state.probe(node))
    assert blocker is not None
    assert newest in blocker
    assert "error: no member" in blocker
    node.kernels[newest] = replace(node.kernels[NEW], release=newest, running=False)
    assert state.reboot_blocker(state.probe(node)) is None


def test_a_failed_build_names_the_compilers_first_complaint() -> None:
    node = World(gpu())
    node.failing.add(NEW)
    _, after = node.reach(DriverInstalled(version="580.65.06"))
    (built,) = (change for change in after.changes if change.field == "built")
    assert built.why == f"{NEW}: x.c:1: error: no member"


def test_a_kernel_that_nothing_can_be_built_for_is_noted_and_does_not_block() -> None:
    node = World(gpu())
    del node.packages_offered[f"linux-headers-{OLD}"]
    before, after = node.reach(DriverInstalled(version="580.65.06"))
    assert not after
    assert any(f"linux-headers-{OLD}" in note for note in before.notes)


@pytest.mark.parametrize(
    "state", [DriverInstalled(branch=560), DriverInstalled(branch=580, headers="require")]
)
def test_no_kernel_is_to_be_removed_for_a_driver_that_is_refused(state: DriverInstalled) -> None:
    node = World(gpu())
    assert refusal(state, node)
    assert not [note for note in state.plan(state.probe(node)).notes if "remove" in note]


def test_the_kernel_that_boots_next_must_have_headers() -> None:
    node = World(gpu())
    node.kernels[NEW] = replace(node.kernels[NEW], headers=False)
    assert f"no kernel headers for {NEW}" in refusal(DriverInstalled(), node)
    node.packages_offered[f"linux-headers-{NEW}"] = ("1.0",)
    assert DriverInstalled().refuse(DriverInstalled().probe(node)) is None


@pytest.mark.parametrize("priority", [500, 1001])
@pytest.mark.parametrize("others", ["http://y  Packages", "http://x  Packages"])
def test_pins_that_let_another_repository_have_the_driver_are_named(
    priority: int, others: str
) -> None:
    node = World(gpu())
    whole = node.apt()
    offers = {
        name: tuple(
            replace(offer, priority=priority, origins=(others if n else "http://x  Packages",))
            for n, offer in enumerate(rows)
        )
        for name, rows in whole.offers.items()
    }
    pins = {
        SITE: {(name, row.version): 1001 for name, rows in whole.offers.items() for row in rows}
    }
    node.answers["AptQuery"] = lambda _: replace(whole, offers=offers, pins=pins)
    state = DriverInstalled()
    notes = state.plan(state.probe(node)).notes
    # With 500 a file that apt reads before overrides these pins.
    assert (
        f"pins in {SITE} come before those of driver-repository, and let the driver come from any of http://x, http://y"
        in notes
    ) == (priority > 700 and others == "http://y  Packages")


def test_a_pin_that_forbids_kernel_headers_is_named_with_its_file() -> None:
    node = World(gpu())
    names = {kernel: f"linux-headers-{kernel}" for kernel in (OLD, NEW)}
    offers = {name: (Offer("1.0", -1, ("http://x  Packages",)),) for name in names.values()}
    pins = {SITE: {(name, "1.0"): -1 for name in names.values()}}
    whole = node.apt()
    node.answers["AptQuery"] = lambda _: replace(whole, offers=whole.offers | offers, pins=pins)
    state = DriverInstalled()
    assert (
        f"kernel {OLD} can boot, and a pin in {SITE} forbids {names[OLD]}: it will have no nvidia module; "
        "remove that pin"
    ) in state.plan(state.probe(node)).notes
    node.kernels[NEW] = replace(node.kernels[NEW], headers=False)
    assert refusal(state, node).endswith(
        f", and a pin in {SITE} forbids {names[NEW]}; remove that pin"
    )


def test_require_wants_the_headers_of_every_kernel_there_already() -> None:
    why = refusal(DriverInstalled(headers="require"), World(gpu()))
    assert why == (
        f"no kernel headers for {OLD}; install linux-headers-{OLD} or set headers: install"
    )


# --- loading ---------------------------------------------------------------------------------


def test_an_image_without_gpus_is_prepared_and_not_loaded() -> None:
    node = World()
    before, after = node.reach(DriverInstalled())
    assert not after
    assert node.running is None
    assert node.files[PATHS["autoload_text"]].endswith("nvidia\nnvidia-uvm\nnvidia-modeset\n")
    assert "no NVIDIA GPU on PCI: installed, not loaded" in before.notes


def test_nouveau_on_a_gpu_costs_a_reboot_and_loading_is_tried_first() -> None:
    node = World(gpu(driver="nouveau"))
    node.more = Live(in_use="nouveau drives 0000:00:00.0")
    state = DriverInstalled()
    plan = state.plan(state.probe(node))
    assert cost(plan, "loaded") is Disruption.REBOOT
    steps = list(state.apply(state.probe(node), plan))
    assert any(isinstance(step, ops.LoadModules) and step.optional for step in steps)
    assert isinstance(steps[-1], ops.Reboot)


def test_modules_that_would_not_unload_are_left_to_a_reboot() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    node.more = Live(in_use="nvidia_uvm cannot be unloaded though no process holds a GPU")
    state = DriverInstalled(branch=580)
    plan = state.plan(state.probe(node))
    assert cost(plan, "loaded") is Disruption.REBOOT
    assert "reload the nvidia modules" not in " ".join(
        s.label for s in state.apply(state.probe(node), plan)
    )


TRAINING = GpuProcess(4711, "python3", "alice", "cri-1.scope", gpus=(0,))
IN_POD = replace(TRAINING, pod="trainer-0")
DAEMON = GpuProcess(
    99, "nvidia-persiste", "nvidia-persistenced", "nvidia-persistenced.service", gpus=(0,)
)


def test_a_stranger_on_a_gpu_is_refused_with_pid_and_command() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    node.holders = (DAEMON, TRAINING)
    state = DriverInstalled(branch=580)
    why = refusal(state, node)
    assert "pid 4711 (python3, user alice, unit cri-1.scope)" in why
    assert "persiste" not in why
    assert state.plan(state.probe(node)).gpu_users == (
        "pid 4711 (python3, user alice, unit cri-1.scope)",
    ), "the services that gpustate stops and starts again disturb no one"


def test_on_a_node_without_a_driver_the_worst_case_is_no_disruption() -> None:
    state, fresh = DriverInstalled(branch=580), World(gpu())
    assert state.worst_case(state.probe(fresh), NodeFacts()) == (Disruption.NONE, "")
    fresh.reach(DriverInstalled(branch=570))
    assert state.worst_case(state.probe(fresh), NodeFacts()) == (
        Disruption.DRAIN,
        "its version or parameters change",
    )


def test_a_pod_on_a_gpu_is_left_to_its_scheduler_which_drains_the_node() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    node.holders = (IN_POD,)
    state = DriverInstalled(branch=580)
    observed = state.probe(node)
    assert state.refuse(observed) is None
    plan = state.plan(observed)
    assert cost(plan, "loaded") is Disruption.DRAIN
    assert plan.gpu_users == ("pid 4711 (python3, user alice, pod trainer-0)",)


SERVICES = ("nvidia-persistenced.service", "nvidia-device-plugin.service", "site.service")


def test_services_that_are_stopped_are_named_with_what_becomes_of_them() -> None:
    node = World(gpu())
    state = DriverInstalled(branch=570)
    node.reach(state)
    node.services = SERVICES
    assert not state.plan(state.probe(node)).restarted
    other, absent = DriverInstalled(branch=580), DriverInstalled(ensure="absent")
    assert other.plan(other.probe(node)).restarted == SERVICES
    stays = "stopped for it, and not started again without a driver: nvidia-device-plugin.service, site.service"
    assert stays in absent.plan(absent.probe(node)).notes


def test_services_that_a_removal_stopped_are_started_with_the_next_driver_and_named() -> None:
    node = World(gpu())
    node.more = Live(left_stopped=("nvidia-device-plugin.service", "site.service (not enabled)"))
    absent, state = DriverInstalled(ensure="absent"), DriverInstalled(branch=580)
    assert not absent.plan(absent.probe(node))
    again = "stopped by the removal of the driver and started again: nvidia-device-plugin.service"
    plan, _ = node.reach(state)
    assert again in plan.notes
    done = labels(node)
    start = done.index("start the services that the removal of the driver stopped")
    assert start > done.index("load nvidia, nvidia-uvm, nvidia-modeset")


def test_a_removal_that_was_killed_after_unloading_starts_no_service() -> None:
    node = World(gpu())
    node.more = Live(stopped=("nvidia-device-plugin.service",))
    plan, _ = node.reach(DriverInstalled(ensure="absent"))
    assert [change.why for change in plan.changes] == ["a removal was interrupted"]
    assert labels(node) == ["record the services that stay stopped without a driver"]


def test_a_reboot_restarts_services_so_that_none_is_recorded() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    node.services, node.holders = SERVICES, (TRAINING,)
    state = DriverInstalled(branch=580, in_use="reboot")
    observed = state.probe(node)
    plan = state.plan(observed)
    assert not [note for note in plan.notes if "stopped" in note]
    labels = [step.label for step in state.apply(observed, plan)]
    assert "install the driver's 5 packages" in labels, labels
    assert "record the services that use the driver" not in labels


def test_in_use_reboot_turns_the_refusal_into_a_reboot() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    node.holders = (TRAINING,)
    state = DriverInstalled(branch=580, in_use="reboot")
    observed = state.probe(node)
    assert state.refuse(observed) is None
    assert cost(state.plan(observed), "loaded") is Disruption.REBOOT


def test_a_converged_node_is_not_asked_for_holders() -> None:
    node = World(gpu())
    state = DriverInstalled(branch=580)
    node.reach(state)
    node.queries.clear()
    assert not state.plan(state.probe(node))
    assert GpuClientsQuery() not in node.queries


# --- parameters ------------------------------------------------------------------------------

PROFILING = {"NVreg_RestrictProfilingToAdminUsers": 0}


def test_parameters_are_compared_with_the_loaded_module_not_with_the_file() -> None:
    node = World(gpu())
    state = DriverInstalled(branch=580, parameters=PROFILING)
    _, after = node.reach(state)
    assert not after
    node.files["/proc/driver/nvidia/params"] = "RmProfilingAdminOnly: 1\n"
    plan = state.plan(state.probe(node))
    assert plan.fields == {"parameters"}
    assert cost(plan, "parameters") is Disruption.DRAIN


def test_a_slip_in_a_parameters_name_is_refused_with_the_nearest() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=580))
    wrong = DriverInstalled(branch=580, parameters={"NVreg_DeviceFilesMode": 0})
    assert "did you mean NVreg_DeviceFileMode" in refusal(wrong, node)


def test_a_parameter_of_another_branch_or_without_a_number_is_refused_on_a_fresh_node() -> None:
    node = World(gpu())
    later = DriverInstalled(branch=570, parameters={"NVreg_CoherentGPUMemoryMode": "driver"})
    assert "added in 580" in refusal(later, node)
    wrong = DriverInstalled(branch=580, parameters={"NVreg_EnableMSI": "on"})
    assert "the module would not load" in refusal(wrong, node)


def test_a_parameter_that_the_driver_does_not_show_is_set_and_noted() -> None:
    node = World(gpu())
    state = DriverInstalled(branch=580, parameters={"NVreg_SomethingElse": 1})
    _, after = node.reach(state)
    assert not after
    assert "options nvidia NVreg_SomethingElse=1" in node.files[PATHS["options_text"]]
    assert any("does not show NVreg_SomethingElse" in note for note in after.notes)


def test_a_parameter_that_nobody_knows_is_noted_with_the_nearest_before_there_is_a_driver() -> None:
    node = World(gpu())
    names = {"NVreg_RestrictProfiling": 0, "NVreg_Xyz": 1, "NVreg_EnableMSI": 1}
    state = DriverInstalled(branch=580, parameters=names)
    first, after = node.reach(state)
    said = [note for note in first.notes if "not a known driver parameter" in note]
    assert [note.partition(" ")[0] for note in said] == ["NVreg_RestrictProfiling", "NVreg_Xyz"]
    assert said[0].endswith("; did you mean NVreg_RestrictProfilingToAdminUsers")
    assert "did you mean" not in said[1]
    assert any(
        "does not show NVreg_RestrictProfiling: " in note and "did you mean" in note
        for note in after.notes
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (438, "438"),
        ("0666", "438"),
        ("0x1b6", "438"),
        (-1, "4294967295"),
        ("driver", "driver"),
        ("Y", "1"),
        (0, "0"),
    ],
)
def test_values_are_compared_as_the_driver_shows_them(given: int | str, shown: str) -> None:
    assert plain_value(given) == shown


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"version": "580"}, "for the newest of a branch set branch: 580"),
        ({"version": "580.65.06", "branch": 570}, "is not of branch 570"),
        ({"parameters": {"modeset": 1}}, "must be NVreg_NAME"),
        ({"parameters": {"NVreg_X": "a b"}}, "blanks or quotes"),
        ({"module_type": "closed"}, "module_type"),
        ({"branches": 1}, "did you mean 'branch'"),
    ],
)
def test_wrong_parameters_of_the_state_are_policy_errors(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        build(DriverInstalled, given)


# --- GPUs and module types -------------------------------------------------------------------

V100, A100, H100, GH200, B200, K80 = "1db6", "20b0", "2330", "2342", "2901", "102d"


@pytest.mark.parametrize(
    ("devices", "branch", "wanted", "result"),
    [
        ((H100,), 580, "auto", "open"),
        ((H100,), 550, "auto", "proprietary"),
        ((H100,), 535, "open", "open"),
        ((A100,), 595, "proprietary", "proprietary"),
        ((V100,), 580, "auto", "proprietary"),
        ((V100, H100), 580, "auto", "proprietary"),
        ((GH200,), 550, "auto", "open"),
        ((B200,), 580, "auto", "open"),
        ((), 595, "auto", "open"),
        (("ffff",), 595, "auto", "open"),
        ((V100,), 590, "auto", "set branch: 580"),
        ((V100,), 580, "open", "set module_type: proprietary"),
        ((B200,), 580, "proprietary", "set module_type: open"),
        ((V100, B200), 580, "auto", "no driver supports both"),
        ((K80,), 535, "auto", "470 and older"),
        ((H100,), 610, "proprietary", "proprietary"),
        ((H100,), 615, "proprietary", "or branch: 610, the last that has them"),
        ((H100,), 470, "open", "begin with 515"),
    ],
)
def test_the_module_type_follows_from_gpus_and_branch(
    devices: tuple[str, ...], branch: int, wanted: str, result: str
) -> None:
    gpus = tuple(gpu(device, number) for number, device in enumerate(devices))
    kind, why = module_type(gpus, branch, wanted)
    assert result == kind or (why is not None and result in why)


def test_a_fresh_node_with_an_old_gpu_gets_the_newest_branch_that_drives_it() -> None:
    state = DriverInstalled()
    wanted = state.desired(state.probe(World(gpu(V100))))
    assert wanted.loaded == "580.178.04 proprietary"


def test_gpus_that_exclude_each_other_are_named() -> None:
    why = refusal(DriverInstalled(branch=580), World(gpu(V100), gpu(B200, 1)))
    assert "0000:00:00.0 (volta, 10de:1db6)" in why
    assert "0000:01:00.0 (blackwell, 10de:2901)" in why


# --- refusals --------------------------------------------------------------------------------


OTHER_BRANCH = "choose another branch, or a repository that has it in driver-repository"


def test_a_version_that_is_not_offered_is_refused_with_those_that_are() -> None:
    why = refusal(DriverInstalled(version="580.99.01"), World(gpu()))
    assert why == (
        "http://x has no driver 580.99.01; it has 580.178.04, 580.65.06; branches 570, 595; choose another version, or "
        "a repository that has it in driver-repository"
    )
    why = refusal(DriverInstalled(branch=999), World(gpu()))
    assert why.endswith(f" branch 999; it has branches 570, 580, 595; {OTHER_BRANCH}")
    many = (*(f"595.{minor}.01" for minor in range(10, 19)), "580.65.06")
    why = refusal(DriverInstalled(version="595.99.01"), World(gpu(), versions=many))
    assert why.endswith(
        "it has 595.18.01, 595.17.01, 595.16.01, 595.15.01, 595.14.01, 595.13.01 and 3 more; branch 580; choose "
        "another version, or a repository that has it in driver-repository"
    )


UBUNTU = (
    "nvidia-dkms-{}-open",
    "nvidia-headless-no-dkms-{}-open",
    "nvidia-utils-{}",
    "libnvidia-compute-{}",
)
VENDOR = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2604/x86_64"
ARCHIVE = "http://archive.ubuntu.com/ubuntu resolute-updates/restricted amd64 Packages"


def test_a_branch_of_a_repository_that_is_not_in_use_is_named_with_the_way_to_choose_it() -> None:
    """The pins that keep it away are gpustate's own: the policy chooses the repository."""
    node = World(gpu(), os_id="ubuntu", os_version="26.04")
    offers = {
        name.format(branch): (Offer(version, -1, (ARCHIVE,)),)
        for branch, version in (
            (570, "570.211.01-0ubuntu0.26.04.1"),
            (580, "580.178.04-0ubuntu0.26.04.1"),
        )
        for name in UBUNTU
    } | {
        name: (Offer("595.91.07-1ubuntu1", 700, (f"{VENDOR}  Packages",)),)
        for name in ("libnvidia-compute", "nvidia-dkms-open", "nvidia-headless-no-dkms-open")
    }
    node.answers["AptQuery"] = lambda _: Apt({}, offers)
    assert refusal(DriverInstalled(branch=580), node) == (
        f"{VENDOR} has no branch 580; it has branch 595; Ubuntu's archive has 580.178.04: choose it with --set "
        "driver-repository.origin=distribution, or another branch"
    )
    site = {
        "/etc/apt/preferences.d/site": {
            (name, rows[0].version): -1 for name, rows in offers.items()
        }
    }
    node.answers["AptQuery"] = lambda _: Apt({}, offers, pins=site)
    assert "a pin in /etc/apt/preferences.d/site forbids it" in refusal(
        DriverInstalled(branch=580), node
    )


@pytest.mark.parametrize(
    ("origin", "repository"),
    [
        ("http://deb.debian.org/debian trixie/non-free amd64 Packages", "Debian's archive"),
        ("NVIDIA packages (gpustate-driver-repository)", ""),
    ],
)
def test_the_repository_that_lacks_a_branch_is_named(origin: str, repository: str) -> None:
    node = World(gpu())
    whole = node.apt()
    offers = {
        name: tuple(replace(row, origins=(origin,)) for row in rows if "595" in row.version)
        for name, rows in whole.offers.items()
    }
    node.answers["AptQuery"] = lambda _: replace(whole, offers=offers)
    assert refusal(DriverInstalled(branch=580), node) == (
        f"{repository or origin} has no branch 580; it has branch 595; {OTHER_BRANCH}"
    )


def test_a_refusal_names_all_branches_though_the_first_question_is_for_one_only() -> None:
    node = World(gpu(), os_id="ubuntu", os_version="26.04")
    node.packages_offered = {
        name.format(branch): (f"{branch}.1.1-0ubuntu0.26.04.1",)
        for branch in (570, 580, 590)
        for name in UBUNTU
    } | {"nvidia-modprobe": ("595.84-0ubuntu1",)}

    def answer(world: World) -> Apt:
        query, whole = world.queries[-1], world.apt()
        assert isinstance(query, AptQuery)
        names = dict(query.names)["ubuntu"]
        return replace(whole, offers={n: rows for n, rows in whole.offers.items() if n in names})

    node.answers["AptQuery"] = answer
    assert refusal(DriverInstalled(branch=575), node).endswith(
        f"it has branches 570, 580, 590; {OTHER_BRANCH}"
    )


def test_a_node_without_a_repository_is_sent_to_the_state_that_adds_one() -> None:
    assert "add driver-repository" in refusal(DriverInstalled(), World(gpu(), versions=()))


def test_secure_boot_without_an_enrolled_key_is_refused_until_it_is() -> None:
    node = World(gpu())
    node.more = Live(secure_boot=SecureBoot(True, "/var/lib/dkms/mok.pub"))
    assert "mokutil --import /var/lib/dkms/mok.pub" in refusal(DriverInstalled(), node)
    for fine in (DriverInstalled(secure_boot="ignore"), DriverInstalled(load=False)):
        assert fine.refuse(fine.probe(node)) is None
    node.more = Live(secure_boot=SecureBoot(True, "/var/lib/dkms/mok.pub", True))
    assert DriverInstalled().refuse(DriverInstalled().probe(node)) is None


def test_what_is_built_under_secure_boot_is_signed_before_it_is_loaded() -> None:
    node, state = World(gpu()), DriverInstalled()

    def labels() -> list[str]:
        observed = state.probe(node)
        return [step.label for step in state.apply(observed, state.plan(observed))]

    assert not [label for label in labels() if label.startswith("sign ")]
    node.more = Live(secure_boot=SecureBoot(True, "/var/lib/dkms/mok.pub", True))
    did = labels()
    signed = [i for i, label in enumerate(did) if label.startswith("sign the nvidia modules")]
    built = [i for i, label in enumerate(did) if label.startswith("build the nvidia module for")]
    assert signed == [i + 1 for i in built]
    assert signed[0] < did.index(next(label for label in did if label.startswith("load ")))


def test_signed_modules_of_ubuntu_are_taken_where_no_key_is_enrolled_and_the_plan_says_why() -> (
    None
):
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in driverset.names_to_query("ubuntu", (580,)):
        node.packages_offered[name] = ("580.95.05-0ubuntu1",)
    for kernel in node.kernels:
        node.packages_offered[f"linux-modules-nvidia-580-server-open-{kernel}"] = ("1",)
    state = DriverInstalled(branch=580)

    def wanted() -> tuple[set[str], str]:
        observed = state.probe(node)
        return set(state.desired(observed).packages), " ".join(state.plan(observed).notes)

    signed = {f"linux-modules-nvidia-580-server-open-{kernel}" for kernel in node.kernels}
    assert not signed & wanted()[0]
    node.more = Live(secure_boot=SecureBoot(True))
    packages, notes = wanted()
    assert signed <= packages
    assert "built and signed by Ubuntu are used" in notes
    assert state.refuse(state.probe(node)) is None
    node.more = Live(secure_boot=SecureBoot(True, "/var/lib/shim-signed/mok/MOK.der", True))
    assert not signed & wanted()[0]


def test_signed_modules_do_not_leave_for_unsigned_ones_of_the_same_version() -> None:
    node = ubuntu("580.95.05-0ubuntu1", branch=580)
    node.more = Live(secure_boot=SecureBoot(True))
    state = DriverInstalled(branch=580)
    wanted = state.desired(state.probe(node))
    node.installed, node.running, node.loaded = wanted.packages, wanted.loaded, {"nvidia"}
    assert any(name.startswith("linux-modules-nvidia-") for name in node.installed)
    assert "is not enrolled" in refusal(DriverInstalled(branch=580, precompiled=False), node)
    unsigned = DriverInstalled(branch=580, precompiled=False)
    assert (unsigned.forecast(node, "").refusal or "").startswith("Secure Boot is on")
    assert DriverInstalled(branch=580).forecast(node, "").refusal is None
    assert unsigned.forecast(node, ENROLLED).refusal is None, "its key is enrolled first"
    node.more = Live(secure_boot=SecureBoot(True, "/var/lib/dkms/mok.pub", True))
    state = DriverInstalled(branch=580, precompiled=False)
    assert state.refuse(state.probe(node)) is None


def ubuntu(*versions: str, branch: int) -> World:
    """A node to which Ubuntu's archive offers a driver with signed modules."""
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in driverset.names_to_query("ubuntu", (branch,)):
        if "-server" in name:
            node.packages_offered[name] = versions
    for kernel in (OLD, NEW):
        node.packages_offered[f"linux-modules-nvidia-{branch}-server-open-{kernel}"] = ("6.1.1+1",)
    return node


@pytest.mark.parametrize(
    ("others", "move"),
    [
        ((), "; add the state kernel, which holds kernels"),
        ((KernelPinned(ensure="absent"),), "; add the state kernel, which holds kernels"),
        ((KernelPinned(policy="follow"),), "; set policy: hold in the state kernel"),
        ((KernelPinned(policy="hold"),), ""),
        ((KernelPinned(policy=NEW),), ""),
    ],
)
def test_signed_modules_without_held_kernels_are_warned_of(
    others: tuple[KernelPinned, ...], move: str
) -> None:
    for precompiled in (True, False):
        state = DriverInstalled(branch=580, precompiled=precompiled)
        observed = state.probe(ubuntu("580.173.02-0ubuntu0.24.04.1", branch=580))
        policy = {one.name: one for one in (state, *others)}
        said = conflict(state, policy, observed=observed)
        assert (said or "").endswith(move if precompiled else "")
        assert bool(said) == (precompiled and bool(move))


ENDED = "570.211.01-0ubuntu1.24.04.1"
ARCHIVE = "http://x noble-updates/restricted amd64 Packages"


@pytest.mark.parametrize("wanted", [{"branch": 570}, {"version": "570.211.01"}])
def test_an_ended_branch_of_ubuntus_archive_is_refused_with_the_one_that_follows(
    wanted: dict[str, Any],
) -> None:
    node = ubuntu(ENDED, branch=570)
    node.origin = ARCHIVE
    node.relations = driverset.parse_relations(
        f"nvidia-utils-570-server|{ENDED}||nvidia-utils-580-server\n"
    )
    assert refusal(DriverInstalled(**wanted), node) == (
        "branch 570 has ended in Ubuntu's archive, its packages install branch 580; set branch: 580"
    )


def test_an_ended_branch_of_the_archive_is_none_of_a_repository_that_has_it() -> None:
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in (
        "nvidia-dkms-570-open",
        "nvidia-headless-no-dkms-570-open",
        "nvidia-utils-570",
        "libnvidia-compute-570",
    ):
        node.packages_offered[name] = ("570.211.01-0ubuntu1",)
    node.relations = driverset.parse_relations(f"nvidia-utils-570|{ENDED}||nvidia-utils-580\n")
    state = DriverInstalled(branch=570)
    assert state.desired(state.probe(node)).library == "570.211.01"
    assert refusal(DriverInstalled(version="570.999"), node) == (
        "http://x has no driver 570.999; it has 570.211.01; choose another version, or a repository that has it in "
        "driver-repository"
    )

    # The archive has ended another branch, which this repository never had.
    node.relations = driverset.parse_relations(f"nvidia-utils-550|{ENDED}||nvidia-utils-570\n")
    whole, last = node.apt(), "550.163.01-0ubuntu0.24.04.1"
    ended = {
        name.replace("570", "550"): (Offer(last, -1, (ARCHIVE,)),)
        for name in whole.offers
        if "570" in name
    }
    node.answers["AptQuery"] = lambda _: replace(whole, offers=whole.offers | ended)
    by_version = refusal(DriverInstalled(version="550.163.01"), node)
    assert "Ubuntu's archive has 550.163.01: choose it with --set driver-repository" in by_version
    assert refusal(DriverInstalled(branch=550), node) == (
        "http://x has no branch 550; it has branch 570; choose another branch, or a repository that has it in "
        "driver-repository"
    )


@pytest.mark.parametrize("there", [None, 580, 570])
@pytest.mark.parametrize("wanted", [{"branch": 570}, {"version": "latest"}, {}])
def test_the_last_driver_of_an_ended_branch_is_only_taken_by_its_version(
    there: int | None, wanted: dict[str, Any]
) -> None:
    """Ubuntu's archive offers it still, beside the empty packages; a node that has it keeps it."""
    last, other = "570.211.01-0ubuntu0.24.04.2", "580.178.04-0ubuntu0.24.04.1"
    node = ubuntu(ENDED, last, branch=570)
    node.origin = ARCHIVE
    for name in driverset.names_to_query("ubuntu", (580,)):
        if "-server" in name:
            node.packages_offered[name] = (other,)
    node.relations = driverset.parse_relations(
        f"nvidia-utils-570-server|{ENDED}||nvidia-utils-580-server\n"
    )
    stems = ("nvidia-dkms-{}-server-open", "nvidia-headless-no-dkms-{}-server-open")
    names = (
        *stems,
        "nvidia-utils-{}-server",
        "libnvidia-compute-{}-server",
        "nvidia-compute-utils-{}-server",
    )
    if there:
        full = last if there == 570 else other
        node.installed = {name.format(there): full for name in names}
    state = DriverInstalled(**wanted)
    if there == 570:
        assert state.refuse(state.probe(node)) is None
        assert state.desired(state.probe(node)).packages == node.installed
    elif "branch" in wanted:
        assert refusal(state, node) == (
            "branch 570 has ended in Ubuntu's archive, its packages install branch 580; "
            "set branch: 580, or version: 570.211.01 for its last driver"
        )
    else:
        assert state.desired(state.probe(node)).library == "580.178.04"
    state = DriverInstalled(version="570.211.01")
    assert state.desired(state.probe(node)).library == "570.211.01"


def test_an_ended_branch_keeps_the_driver_that_a_node_has() -> None:
    mine = "570.211.01-0ubuntu0.24.04.2"
    node = ubuntu(ENDED, branch=570)
    node.relations = driverset.parse_relations(
        f"nvidia-utils-570-server|{ENDED}||nvidia-utils-580-server\n"
    )
    names = ("nvidia-dkms-570-server-open", "nvidia-headless-no-dkms-570-server-open")
    node.installed.clear()
    node.installed.update(
        dict.fromkeys((*names, "nvidia-utils-570-server", "libnvidia-compute-570-server"), mine)
    )
    state = DriverInstalled(branch=570)
    wanted = state.desired(state.probe(node))
    assert set(wanted.packages.values()) == {mine}
    first, second = (wanted.pin_text or "").split("Pin: ")[1:]
    assert first.startswith(f"version {ENDED}\nPin-Priority: -1")
    assert second.startswith(r"version /^570\.211\.01-[^-]*ubuntu[0-9]+\.24\.04\.[0-9]+/")
    assert "branch 570 has ended in Ubuntu's archive: its driver stays" in " ".join(
        state.plan(state.probe(node)).notes
    )
    # With the empty packages no driver is there.
    node.installed = dict.fromkeys(node.installed, ENDED)
    assert state.probe(node).whole is None


def signed_set(version: str, build: str) -> tuple[driverset.Relations, dict[str, tuple[str, ...]]]:
    """What Ubuntu's archive offers for every kernel, and what belongs together there."""
    stem = "nvidia-580-server-open"
    offers: dict[str, tuple[str, ...]] = {}
    rows: list[str] = []
    for kernel in (OLD, NEW):
        others = (f"linux-objects-{stem}-{kernel}", f"linux-signatures-nvidia-{kernel}")
        full = f"{kernel}+{build}"
        offers |= dict.fromkeys((f"linux-modules-{stem}-{kernel}", *others), (full,))
        rows.append(f"linux-modules-{stem}-{kernel}|{full}|{version}|{' '.join(others)}\n")
    return driverset.parse_relations("".join(rows)), offers


def test_signed_modules_are_pinned_with_all_that_belongs_to_them() -> None:
    version, meta = "580.173.02", "linux-modules-nvidia-580-server-open-generic"
    node = ubuntu(f"{version}-0ubuntu0.24.04.1", branch=580)
    node.relations, offers = signed_set(version, "1")
    node.packages_offered |= {**offers, meta: ("1+1",)}
    node.installed[meta] = "1+1"
    state = DriverInstalled(version=version, precompiled=True)

    def pinned() -> dict[str, str]:
        return files.pinned_modules(node.files.get(PATHS["pin_text"]))

    def settle() -> None:
        """As an apply of the present policy."""
        wanted = state.desired(state.probe(node))
        node.files[PATHS["pin_text"]] = wanted.pin_text or ""
        node.installed = dict(wanted.packages)

    settle()
    assert pinned() == {name: full for name, (full,) in offers.items()}
    # What follows the newest kernel may go on following it.
    assert meta in node.installed
    assert "pin_text" not in state.plan(state.probe(node)).fields

    # A newer build for the same kernel is for another driver.
    node.packages_offered |= {n: (found[0][:-1] + "2", *found) for n, found in offers.items()}
    settle()
    assert pinned() == {name: full for name, (full,) in offers.items()}

    # The pins of a kernel that was removed are no drift, and go when others change.
    gone = {name for name in offers if name.endswith(OLD)}
    del node.kernels[OLD]
    for name in gone:
        del node.installed[name]
    assert "pin_text" not in state.plan(state.probe(node)).fields
    assert gone < set(pinned())
    third = "6.1.0-20-amd64"
    name = f"linux-modules-nvidia-580-server-open-{third}"
    node.kernels[third] = replace(node.kernels[NEW], release=third, running=False)
    node.packages_offered[name] = ("3+1",)
    assert "pin_text" in state.plan(state.probe(node)).fields
    settle()
    assert set(pinned()) == {*offers, name} - gone
    assert DriverInstalled(ensure="absent").desired(state.probe(node)).pin_text is None


def test_pins_of_a_driver_that_is_built_here_name_no_signed_modules() -> None:
    node = ubuntu("580.173.02-0ubuntu0.24.04.1", branch=580)
    state = DriverInstalled(branch=580, precompiled=False)
    text = state.desired(state.probe(node)).pin_text
    assert text == files.pin_text("580.173.02", release="24.04")
    assert files.pinned_modules(text) == files.pinned_modules(None) == {}


@pytest.mark.parametrize(
    ("installed", "offered"),
    [
        (("-580", "580.178.04-0ubuntu1"), ("-580-server", "580.178.04-0ubuntu0.24.04.1")),
        (("-580-server", "580.178.04-0ubuntu0.24.04.1"), ("-580", "580.178.04-0ubuntu1")),
        (("-580", "580.178.04-0ubuntu1"), ("-580", "580.178.04-0ubuntu0.24.04.1")),
    ],
)
def test_the_same_driver_is_taken_from_the_repository_that_is_left(
    installed: tuple[str, str], offered: tuple[str, str]
) -> None:
    def names(suffix: str) -> tuple[str, ...]:
        return (
            f"nvidia-dkms{suffix}-open",
            f"nvidia-headless-no-dkms{suffix}-open",
            f"nvidia-utils{suffix}",
            f"libnvidia-compute{suffix}",
        )

    node = World(gpu(), versions=(), os_id="ubuntu")
    node.installed.clear()
    node.installed |= dict.fromkeys(names(installed[0]), installed[1])
    node.installed["nvidia-modprobe"] = "580.178.04-1ubuntu1"
    for name in (*names(offered[0]), "nvidia-modprobe"):
        node.packages_offered[name] = (offered[1],)
    state = DriverInstalled(branch=580)
    packages = state.desired(state.probe(node)).packages
    assert packages == dict.fromkeys((*names(offered[0]), "nvidia-modprobe"), offered[1])
    # Where both are on offer, what is there stays; so does a build that its own archive has replaced.
    for name in names(installed[0]):
        node.packages_offered[name] = (installed[1], *node.packages_offered.get(name, ()))
    assert (
        state.desired(state.probe(node)).packages.items()
        >= dict.fromkeys(names(installed[0]), installed[1]).items()
    )


@pytest.mark.parametrize(
    ("wanted", "outcome"),
    [
        ({"branch": 580}, "580.65.06"),
        ({"branch": 580, "precompiled": False}, "580.65.06"),
        ({"branch": 580, "precompiled": True}, "without prebuilt modules only"),
        ({"version": "580.173.02"}, "do not offer driver 580.173.02; to replace it, set a branch"),
        ({}, "do not offer driver 580.173.02; to replace it, set a branch"),
    ],
)
def test_a_signed_driver_of_the_archive_follows_the_policy_to_a_repository_with_other_versions(
    wanted: dict[str, Any], outcome: str
) -> None:
    mine = "580.173.02-0ubuntu0.24.04.1"
    node = ubuntu(mine, branch=580)
    first = DriverInstalled(branch=580, precompiled=True)
    node.installed = dict(first.desired(first.probe(node)).packages)
    kept = node.installed
    vendor = (
        "nvidia-dkms-580-open",
        "nvidia-headless-no-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
    )
    node.packages_offered = dict.fromkeys(vendor, ("580.65.06-0ubuntu1",))
    node.packages_offered |= {f"linux-headers-{kernel}": ("1",) for kernel in (OLD, NEW)}

    state = DriverInstalled(**wanted)
    observed = state.probe(node)
    after, why = state.desired(observed), state.refuse(observed)
    if outcome[0].isdigit():
        assert why is None
        assert after.packages == dict.fromkeys(vendor, f"{outcome}-0ubuntu1")
    else:
        assert outcome in (why or " ".join(state.plan(observed).notes))
        assert after.packages == kept
    # As long as the archive has any driver for servers, its drivers are in use.
    node.packages_offered |= dict.fromkeys(kept, ("580.126.20-0ubuntu0.24.04.1",))
    observed = state.probe(node)
    if "precompiled" not in wanted:
        assert state.desired(observed).packages == kept
        assert "no longer uses" not in " ".join(state.plan(observed).notes)


@pytest.mark.parametrize("wanted", [{}, {"branch": 595}, {"branch": 580}])
def test_a_full_driver_that_was_installed_by_hand_stays_without_its_repository(
    wanted: dict[str, Any],
) -> None:
    """``apt install nvidia-open`` of a repository that is not in use any more: the compute set is offered nowhere."""
    node = ubuntu("580.173.02-0ubuntu0.24.04.1", branch=580)
    node.installed.clear()
    for name in ("nvidia-dkms-open", "nvidia-open", "nvidia-utils"):
        node.installed[name] = "595.91.07-1ubuntu1"
    kept = dict(node.installed)
    state = DriverInstalled(**wanted)
    observed = state.probe(node)
    assert state.refuse(observed) is None
    assert (state.desired(observed).packages == kept) == (wanted != {"branch": 580})
    assert ("no longer uses" in " ".join(state.plan(observed).notes)) == (wanted != {"branch": 580})


@pytest.mark.parametrize("switches", ["", "pci", "bridges"])
@pytest.mark.parametrize(
    ("build", "offered", "moves"),
    [
        ("-0ubuntu0.24.04.1", ("580.173.02",), True),
        ("-0ubuntu0.24.04.1", ("580.126.20",), True),
        ("-0ubuntu0.24.04.1", (), False),
        ("-0ubuntu1", ("580.173.02",), False),
    ],
)
def test_where_nvswitches_are_the_archives_packages_for_desktops_give_way_to_those_for_servers(
    switches: str, build: str, offered: tuple[str, ...], moves: bool
) -> None:
    """Its Fabric Manager cannot be installed with them; it can be with NVIDIA's, of the same names."""
    desktop = (
        "nvidia-dkms-580-open",
        "nvidia-headless-no-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
    )
    switch = (PciGpu("0000:05:00.0", "22a3", "068000", None),) if switches == "pci" else ()
    node = World(gpu(), *switch, versions=(), os_id="ubuntu")
    node.bridges = 4 if switches == "bridges" else 0
    node.installed = dict.fromkeys([*desktop], f"580.173.02{build}")
    node.packages_offered = dict.fromkeys(desktop, (f"580.173.02{build}",))
    servers = tuple(f"{version}-0ubuntu0.24.04.1" for version in offered)
    if servers:
        node.packages_offered |= dict.fromkeys(SERVER, servers)
    state = DriverInstalled(branch=580)
    observed = state.probe(node)
    packages = state.desired(observed).packages
    assert (packages.keys() == set(SERVER)) == (moves and bool(switches)), packages
    said = " ".join(state.plan(observed).notes)
    ours = build != "-0ubuntu1" and bool(switches)
    assert ("for servers replace those for desktops" in said) == (ours and moves)
    assert ("set a branch or version that it has for servers" in said) == (ours and not moves)
    # A rollback, or a lock file, knows what was there.
    state = DriverInstalled(version="580.173.02", locked=node.installed)
    assert state.desired(observed).packages == node.installed
    assert "for servers" not in " ".join(state.plan(observed).notes)


SERVER = (
    "nvidia-dkms-580-server-open",
    "nvidia-headless-no-dkms-580-server-open",
    "nvidia-utils-580-server",
    "libnvidia-compute-580-server",
)


@pytest.mark.parametrize(
    ("offered", "build", "moves"),
    [
        (SERVER, "580.178.04-0ubuntu0.22.04.2", False),
        (SERVER, "580.178.04-0ubuntu0.22.04.1+esm1", False),
        (SERVER, "580.178.04-0ubuntu0.24.04.1", True),
        (SERVER[:1], "580.178.04-0ubuntu0.24.04.1", False),
    ],
)
def test_a_set_follows_the_release_of_ubuntu_and_no_rebuild(
    offered: tuple[str, ...], build: str, moves: bool
) -> None:
    """As a whole or not at all."""
    node = World(gpu(), versions=(), os_id="ubuntu")
    node.installed.clear()
    node.installed |= dict.fromkeys(SERVER, "580.178.04-0ubuntu0.22.04.1")
    for name in offered:
        node.packages_offered[name] = (build,)
    state = DriverInstalled(branch=580)
    wanted = build if moves else "580.178.04-0ubuntu0.22.04.1"
    assert set(state.desired(state.probe(node)).packages.values()) == {wanted}


def test_signed_modules_of_the_kernel_from_before_a_release_upgrade_stay() -> None:
    node = ubuntu("580.178.04-0ubuntu0.24.04.1", branch=580)
    old = f"linux-modules-nvidia-580-server-open-{OLD}"
    node.installed.clear()
    node.installed |= dict.fromkeys(SERVER[1:], "580.178.04-0ubuntu0.22.04.1")
    node.installed[old] = "5.15+1"
    del node.packages_offered[old]
    state = DriverInstalled(branch=580, precompiled=True)
    packages = state.desired(state.probe(node)).packages
    assert packages[old] == "5.15+1"
    assert packages["nvidia-utils-580-server"] == "580.178.04-0ubuntu0.24.04.1"


def test_a_tool_comes_from_the_repository_that_is_in_use() -> None:
    """Ubuntu's archive has nvidia-modprobe in a version of its own."""
    node = ubuntu("580.178.04-0ubuntu0.24.04.1", branch=580)
    node.packages_offered["nvidia-modprobe"] = ("550.54.14-1",)
    node.installed.clear()
    vendor = (
        "nvidia-dkms-580-open",
        "nvidia-headless-no-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
    )
    node.installed |= dict.fromkeys(vendor, "580.65.06-0ubuntu1")
    node.installed["nvidia-modprobe"] = "580.65.06-1"
    state = DriverInstalled(branch=580)
    node.installed = state.desired(state.probe(node)).packages
    assert node.installed["nvidia-modprobe"] == "550.54.14-1"
    # What the node keeps for a rollback, or a rebuild, is no reason to change a complete set.
    node.packages_offered["nvidia-modprobe"] = ("580.178.04-1", "550.54.14-1")
    assert state.desired(state.probe(node)).packages == node.installed
    node.packages_offered["nvidia-modprobe"] = ("550.54.14-2",)
    assert state.desired(state.probe(node)).packages == node.installed


@pytest.mark.parametrize("archive_first", [True, False])
def test_a_rollback_restores_the_components_under_their_own_names(archive_first: bool) -> None:
    """Fabric Manager has the branch in its name in Ubuntu's archive, and not in NVIDIA's repository."""
    components = (*SERVER, "nvidia-fabricmanager-580")
    archive: dict[str, str] = dict.fromkeys(components, "580.178.04-0ubuntu0.24.04.1")
    names = (
        "nvidia-dkms-580-open",
        "nvidia-headless-no-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
    )
    vendor: dict[str, str] = dict.fromkeys(names, "580.178.04-0ubuntu1")
    vendor |= dict.fromkeys(("nvidia-fabricmanager", "nvidia-modprobe"), "580.178.04-1")
    archive["nvidia-modprobe"] = "550.54.14-1"
    before, after = (archive, vendor) if archive_first else (vendor, archive)
    node = World(gpu(), versions=(), os_id="ubuntu")

    def offer(packages: Mapping[str, str]) -> None:
        node.packages_offered = {name: (full,) for name, full in packages.items()}

    node.installed = dict(before)
    offer(after)
    by = DriverInstalled(branch=580, precompiled=False)
    observed = by.probe(node)
    node.installed = by.desired(observed).packages
    assert node.installed == after
    offer(before)
    state = back(observed, by)
    assert state.desired(state.probe(node)).packages == before


def test_a_full_set_with_signed_modules_is_whole() -> None:
    installed = {"nvidia-driver-580-open": "580.173.02-0ubuntu0.24.04.1"}
    assert driverset.complete_set("ubuntu", installed) is None
    installed[f"linux-modules-nvidia-580-open-{NEW}"] = "6.8+1"
    found = driverset.complete_set("ubuntu", installed)
    assert found is not None
    assert (found[0].name, *found[1:]) == ("Ubuntu's archive, for desktops", "580.173.02", "open")


@pytest.mark.parametrize("meta", [True, False])
def test_with_signed_modules_the_metapackage_leaves_unless_its_modules_follow_the_kernel(
    meta: bool,
) -> None:
    """It depends on modules of DKMS, and apt would install the newest kernel with what stands for them."""
    version = "580.173.02-0ubuntu0.24.04.1"
    libraries = (
        "nvidia-utils-580",
        "libnvidia-compute-580",
        "nvidia-kernel-source-580-open",
        "libnvidia-gl-580",
    )
    leave = ("nvidia-dkms-580-open", "nvidia-driver-580-open")
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in (
        *libraries,
        *leave,
        "nvidia-headless-no-dkms-580-open",
        "nvidia-compute-utils-580",
    ):
        node.packages_offered[name] = (version,)
    signed = {f"linux-modules-nvidia-580-open-{kernel}": ("6.8+1",) for kernel in (OLD, NEW)}
    node.packages_offered |= signed
    node.installed.clear()
    node.installed |= dict.fromkeys((*libraries, *leave), version)
    follows = "linux-modules-nvidia-580-open-generic-hwe-24.04"
    if meta:
        node.installed[follows] = "6.8+1"
    state = DriverInstalled(precompiled=True)
    packages = state.desired(state.probe(node)).packages
    stay = {*libraries, *signed, "nvidia-compute-utils-580"}
    assert packages.keys() == {*stay, *((follows, leave[1]) if meta else ())}
    node.installed = dict(packages)
    assert state.desired(state.probe(node)).packages == packages


@pytest.mark.parametrize("wanted", [{}, {"branch": 580}, {"version": "580.173.02"}])
@pytest.mark.parametrize("meta", [(), ("nvidia-driver-580-open",)])
def test_a_desktop_driver_of_dkms_stays_one_with_signed_modules(
    meta: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    """Packages of NVIDIA's repository have the same names, and it has no signed modules."""
    version = "580.173.02-0ubuntu0.24.04.1"
    node = ubuntu(version, branch=580)
    desktop = (
        "nvidia-headless-no-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
        *meta,
    )
    signed = [f"linux-modules-nvidia-580-open-{kernel}" for kernel in (OLD, NEW)]
    node.packages_offered |= dict.fromkeys((*desktop, "nvidia-dkms-580-open"), (version,))
    node.packages_offered |= dict.fromkeys(signed, ("6.1.1+1",))
    node.installed.clear()
    node.installed |= dict.fromkeys((*desktop, "nvidia-dkms-580-open"), version)
    state = DriverInstalled(precompiled=True, **wanted)
    packages = state.desired(state.probe(node)).packages
    assert packages.keys() - {"nvidia-modprobe"} == {*desktop[:3], *signed}


@pytest.mark.parametrize("kind", ["", "-open"])
@pytest.mark.parametrize("there", ["", "-open"])
def test_a_desktop_driver_of_the_archive_leaves_for_all_packages_of_the_vendors(
    there: str, kind: str
) -> None:
    """Those of the same names are divided in another way: the daemon is a package of its own."""
    before, after = "580.173.02-0ubuntu0.24.04.1", "580.178.04-1ubuntu1"
    names = ("nvidia-headless-no-dkms-580", "nvidia-dkms-580", "nvidia-headless-580", "nvidia-driver-580")  # fmt: skip
    tools = ("nvidia-utils-580", "libnvidia-compute-580", "nvidia-compute-utils-580")
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in (*tools, *(f"{name}{o}" for name in names for o in ("", "-open"))):
        node.packages_offered[name] = (after, before)
    for name in ("nvidia-persistenced", "nvidia-modprobe"):
        node.packages_offered[name] = (after,)
    node.installed.clear()
    node.installed |= dict.fromkeys((*tools, *(f"{name}{there}" for name in names)), before)
    state = DriverInstalled(branch=580, module_type="open" if kind else "proprietary")
    packages = state.desired(state.probe(node)).packages
    assert packages.items() >= {"nvidia-persistenced": after, f"{names[0]}{kind}": after}.items()
    if kind != there:
        assert not packages.keys() & {f"{name}{there}" for name in names}
    node.bridges = 4
    notes = " ".join(state.plan(state.probe(node)).notes)
    assert "for servers" not in notes, notes
    node.installed = dict(packages)
    assert state.desired(state.probe(node)).packages == packages


def test_a_full_set_with_signed_modules_has_its_libraries_and_no_metapackage() -> None:
    node = ubuntu("580.173.02-0ubuntu0.24.04.1", branch=580)
    state = DriverInstalled(branch=580, packages="full", precompiled=True)
    node.installed = dict(state.desired(state.probe(node)).packages)
    assert {"libnvidia-gl-580-server", "xserver-xorg-video-nvidia-580-server"} < set(node.installed)
    assert not [n for n in node.installed if n.startswith(("nvidia-driver-", "nvidia-dkms-"))]
    assert state.desired(state.probe(node)).packages == node.installed
    compute = DriverInstalled(branch=580, precompiled=True)
    assert (
        "libnvidia-gl-580-server"
        not in compute.desired(replace(state.probe(node), packages={})).packages
    )


@pytest.mark.parametrize(
    ("state", "offers", "says"),
    [
        (DriverInstalled(branch=560), {}, f"no repository in use has branch 560; {OTHER_BRANCH}"),
        (
            DriverInstalled(branch=580, precompiled=True),
            dict.fromkeys(SERVER, ("580.178.04-0ubuntu1",)),
            "branch 580 is not available with prebuilt modules for every bootable kernel",
        ),
        (
            DriverInstalled(version="595.91.07", precompiled=True),
            dict.fromkeys(
                (
                    "nvidia-dkms-open",
                    "nvidia-headless-no-dkms-open",
                    "nvidia-utils",
                    "libnvidia-compute",
                ),
                ("595.91.07-1ubuntu1",),
            ),
            "apt offers driver 595.91.07 without prebuilt modules only; set precompiled: false",
        ),
    ],
)
def test_a_refusal_says_what_the_repository_lacks(
    state: DriverInstalled, offers: dict[str, tuple[str, ...]], says: str
) -> None:
    node = World(gpu(), versions=(), os_id="ubuntu")
    node.packages_offered |= offers
    assert refusal(state, node).startswith(says)


def test_a_refusal_names_the_kernels_that_prebuilt_modules_are_missing_for() -> None:
    node = ubuntu("580.173.02-0ubuntu0.24.04.1", branch=580)
    del node.packages_offered[f"linux-modules-nvidia-580-server-open-{OLD}"]
    assert refusal(DriverInstalled(branch=580, precompiled=True), node) == (
        f"branch 580 is not available with prebuilt modules for every bootable kernel (missing for {OLD}); "
        "set precompiled: false, or remove the kernels that are not needed"
    )


def test_pins_that_forbid_signed_modules_are_named_with_their_file() -> None:
    build = "580.173.02-0ubuntu0.24.04.1"
    node = ubuntu(build, branch=580)
    whole = node.apt()
    modules = [name for name in whole.offers if name.startswith("linux-modules-nvidia-")]
    pinned = {name: (replace(whole.offers[name][0], priority=-1),) for name in modules}
    pins = {SITE: {(name, one.version): -1 for name, (one,) in pinned.items()}}
    node.answers["AptQuery"] = replace(whole, offers=whole.offers | pinned, pins=pins)
    assert refusal(DriverInstalled(branch=580, precompiled=True), node).endswith(
        f"; remove the pins in {SITE} that forbid them, set precompiled: false, or remove the kernels that are not needed"
    )
    node.more = Live(secure_boot=SecureBoot(True, "/var/lib/dkms/mok.pub"))
    assert refusal(DriverInstalled(branch=580), node).endswith(
        f", or turn Secure Boot off, or remove the pins in {SITE} that forbid signed modules"
    )


def test_a_pinned_set_is_taken_under_its_own_names_where_another_flavour_has_that_version_too() -> (
    None
):
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in driverset.names_to_query("ubuntu", (570, 580)):
        branch = "570.211.01" if "-570" in name else "580.178.04"
        node.packages_offered[name] = (f"{branch}-0ubuntu0.24.04.1",)
    desktop = (
        "nvidia-dkms-580-open",
        "nvidia-headless-no-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
    )
    node.installed |= dict.fromkeys(desktop, "580.178.04-0ubuntu0.24.04.1")
    before = (
        *("nvidia-dkms-570-server-open", "nvidia-headless-no-dkms-570-server-open"),
        *(
            "nvidia-utils-570-server",
            "libnvidia-compute-570-server",
            "nvidia-compute-utils-570-server",
        ),
    )
    locked = dict.fromkeys(before, "570.211.01-0ubuntu0.24.04.1")
    state = DriverInstalled(version="570.211.01", module_type="open", locked=locked)
    packages = state.desired(state.probe(node)).packages
    assert set(packages) - {"nvidia-modprobe"} == set(before)


@pytest.mark.parametrize(
    ("live", "facts", "says"),
    [
        (Live(installer=True), {}, "nvidia-uninstall"),
        (Live(operator=True), {}, "driver.enabled=false"),
        (
            Live(modprobe=("/etc/modprobe.d/x.conf:2: install  nvidia-uvm /bin/false",)),
            {},
            "/etc/modprobe.d/x.conf:2 (install nvidia_uvm /bin/false) prevents the module from "
            "loading",
        ),
        (
            Live(beside=("programs get /x/libcuda.so.9.9",)),
            {},
            "programs get /x/libcuda.so.9.9; move it out of that folder",
        ),
        (Live(), {"os_id": "arch", "package_manager": "pacman"}, "unsupported distribution arch"),
    ],
)
def test_a_driver_of_somebody_else_is_left_alone(
    live: Live, facts: dict[str, Any], says: str
) -> None:
    node = World(gpu(), **facts)
    node.more = live
    assert says in refusal(DriverInstalled(), node)


def test_modules_that_no_boot_would_load_are_warned_of() -> None:
    def warnings(state: DriverInstalled, *modules: str) -> str:
        rows = enumerate(modules, 1)
        node.more = Live(
            modprobe=tuple(f"/etc/modprobe.d/x.conf:{n}:blacklist {m}" for n, m in rows)
        )
        return " ".join(state.plan(state.probe(node)).warnings)

    node = World(gpu())
    told = warnings(DriverInstalled(), "nvidia", "nvidia-uvm", "nvidia-modeset")
    assert "/etc/modprobe.d/x.conf:1 (blacklist nvidia) prevents boots from loading nvidia," in told
    assert "x.conf:2 (blacklist nvidia_uvm) prevents boots from loading nvidia-uvm," in told
    assert "blacklist" not in warnings(DriverInstalled(), "nvidia")  # nvidia-uvm brings it
    assert "blacklist" not in warnings(DriverInstalled(load=False), "nvidia-uvm")


@pytest.mark.parametrize("parameter", ["NVreg_RestrictProfilingToAdminUsers", "nvidia-uvm.x"])
def test_a_parameter_that_somebody_else_gives_later_is_refused(parameter: str) -> None:
    module, _, bare = parameter.rpartition(".")
    line = f"options {(module or 'nvidia').replace('-', '_')} {bare}=0"
    node = World(gpu())
    goal = DriverInstalled(parameters={parameter: 1})
    node.more = Live(modprobe=(f"/etc/modprobe.d/zz-acme.conf:3:{line}",))
    assert f"/etc/modprobe.d/zz-acme.conf:3 ({line}) is read after" in refusal(goal, node)
    assert f"the policy has {parameter}=1" in refusal(goal, node)
    for same in (
        DriverInstalled(parameters={parameter: "0x0"}),
        DriverInstalled(parameters={"NVreg_DeviceFileMode": 438}),
    ):
        assert same.refuse(same.probe(node)) is None
    node.more = Live(modprobe=(f"/etc/modprobe.d/acme.conf:3:{line}",))
    assert goal.refuse(goal.probe(node)) is None


def test_a_library_of_no_package_is_read_from_the_look() -> None:
    row = b"loaded=580.65.06\nbeside=/l/libcuda.so.595.91.07|/l/libcuda.so.580.65.06\nbeside=torn\n"
    observed = LiveMigQuery().parse(Answer(0, row)).beside
    assert observed == (
        "programs get /l/libcuda.so.595.91.07, which belongs to no package, in place of libcuda.so.580.65.06",
    )


def test_the_driver_of_a_run_file_goes_after_the_download_and_before_the_packages() -> None:
    node = World(gpu())
    node.more = Live(installer=True)
    before, after = node.reach(DriverInstalled(leftovers="uninstall"))
    assert cost(before, "installer") is Disruption.NONE
    assert not after
    done = [label.partition("'s")[0] for label in labels(node)]
    at = [
        done.index(f"{what} the driver")
        if what != "uninstall"
        else done.index(f"{what} the driver of NVIDIA")
        for what in ("download", "uninstall", "install")
    ]
    assert at == sorted(at)
    assert node.running == "595.91.07 open"


def test_taking_the_state_away_leaves_the_driver_of_a_run_file() -> None:
    node = World(gpu())
    node.more = Live(installer=True)
    gone = DriverInstalled(leftovers="uninstall", ensure="absent")
    _, after = node.reach(gone)
    assert not after
    assert node.more.installer


# --- absent ----------------------------------------------------------------------------------


def test_absent_unloads_purges_and_leaves_no_file() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=580, parameters=PROFILING))
    gone = DriverInstalled(branch=580, parameters=PROFILING, ensure="absent")
    before, after = node.reach(gone)
    assert before.disruption is Disruption.DRAIN
    assert not after
    assert not node.installed
    assert not node.held
    assert node.running is None
    assert not node.files


# --- what a node prints ----------------------------------------------------------------------


def test_the_live_answer_tells_open_from_proprietary_and_finds_the_builds_error() -> None:
    out = (
        "loaded=580.65.06\n"
        "nvrm=NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
        "library=libnvidia-ml.so.580.65.06\n"
        "secure_boot=1\nkey=/var/lib/dkms/mok.pub\nenrolled=1\n"
        "stopped=nvidia-persistenced.service\n"
        "log=\nDKMS make.log for nvidia-580.65.06 for kernel 6.1.0-9-amd64 (x86_64)\n"
        "x.c:1:2: error: no\n"
    )
    assert LiveMigQuery().parse(Answer(0, out.encode())) == Live(
        loaded="580.65.06 open",
        library="580.65.06",
        stopped=("nvidia-persistenced.service",),
        secure_boot=SecureBoot(True, "/var/lib/dkms/mok.pub", True),
        build_errors={"6.1.0-9-amd64": "x.c:1:2: error: no"},
    )


def test_apt_answers_with_packages_and_offers_in_one() -> None:
    out = (
        "libcuda1|amd64|580.65.06-1|hi \n=offers\n"
        "libcuda1:\n  Installed: 580.65.06-1\n  Version table:\n"
        " *** 580.65.06-1 700\n        500 http://x  Packages\n        100 /var/lib/dpkg/status\n"
    )
    apt = AptQuery(()).parse(Answer(0, out.encode()))
    assert apt.packages["libcuda1"].held
    assert apt.offers["libcuda1"] == (Offer("580.65.06-1", 700, ("http://x  Packages",)),)


def test_what_the_drivers_packages_want_and_do_not_have_is_the_drivers_own() -> None:
    out = (
        "nvidia-smi|amd64|580.65.06-1|hi \n=missing\nlibcuda1 580.65.06-1\nvim-common 2:9.0-1\n"
        "=offers\n"
    )
    apt = AptQuery(()).parse(Answer(0, out.encode()))
    assert apt.missing == ("libcuda1 580.65.06-1",)
    assert list(apt.packages) == ["nvidia-smi"]


LINK = "libcuda1: /usr/lib/x86_64-linux-gnu/libcuda.so.1 is not a link to libcuda.so.580.178.04"


def converged() -> World:
    node = World(gpu())
    node.reach(DriverInstalled())
    node.done.clear()
    return node


def test_a_damaged_file_is_put_back_without_touching_the_module() -> None:
    node = converged()
    damaged = [LINK]
    node.answers["PackageFiles"] = lambda _: tuple(damaged)
    node.runs["restore files of libcuda1"] = lambda _: damaged.clear()
    before, after = node.reach(node.goal)
    assert before.fields == {"damaged"}
    assert before.disruption is Disruption.NONE
    assert not after
    assert [step.label for step in node.done] == ["restore files of libcuda1"]


def test_missing_sources_are_put_back_before_anything_is_built() -> None:
    node = converged()
    damaged = ["nvidia-kernel-open-dkms: /usr/src/nvidia-580.178.04/dkms.conf is missing"]
    node.answers["PackageFiles"] = lambda _: tuple(damaged)
    node.runs["restore sources of nvidia-kernel-open-dkms"] = lambda _: damaged.clear()
    node.kernels[NEW] = replace(node.kernels[NEW], nvidia_version=None, nvidia_license=None)
    before, after = node.reach(node.goal)
    assert before.fields == {"damaged", "built"}
    assert before.disruption is Disruption.NONE
    assert not after
    assert [step.label for step in node.done] == [
        "restore sources of nvidia-kernel-open-dkms",
        f"build the nvidia module for {NEW}",
    ]


def test_a_device_node_of_a_gpu_that_was_opened_is_made_again() -> None:
    node = converged()
    node.more = Live(device_nodes=("/dev/nvidia0 is missing",))
    node.runs["create NVIDIA's device nodes"] = lambda _: setattr(node, "more", Live())
    before, after = node.reach(node.goal)
    assert before.fields == {"device_nodes"}
    assert not after
    assert isinstance(node.done[-1], ops.Run)
    node.more = Live(device_nodes=("/dev/nvidia0 is missing",))
    node.files["/proc/driver/nvidia/params"] = "ModifyDeviceFiles: 0\n"
    assert not node.goal.plan(node.goal.probe(node)).fields


# --- rollback --------------------------------------------------------------------------------


def back(observed: Observed, by: DriverInstalled) -> DriverInstalled:
    """The state that undoes a run of ``by`` on a node as observed, of which no earlier run is recorded."""
    row = StateBefore(parameters(by), pinned=plain(by.pinned(observed)), observed=plain(observed))
    runs = (RunBefore("r", states={"driver": row}),)
    (state, *_) = way_back(runs, "r", {"driver": DriverInstalled}).states
    assert isinstance(state, DriverInstalled)
    return state


@pytest.mark.parametrize("held", [(), ("libcuda1",)])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_rollback_leads_to_a_driver_that_was_installed_by_hand(
    loaded: bool, held: tuple[str, ...]
) -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    for path in PATHS.values():
        node.files.pop(path, None)
    node.held.clear()
    node.held.update(held)
    node.installed.pop("nvidia-persistenced")
    if not loaded:
        node.unload()
    by = DriverInstalled(branch=580)
    before = node.probe_of(by)
    assert (before.loaded == "570.211.01 open") == loaded
    _, rest = node.reach(by)
    assert not rest
    assert "nvidia-persistenced" in node.installed
    _, rest = node.reach(back(before, by))
    assert not rest
    now = node.probe_of(by)
    for field in ("packages", "held", "built", "library", *PATHS.keys() - {"stream"}):
        assert getattr(now, field) == getattr(before, field), field
    # A module of the run's driver would not fit the libraries.
    assert now.loaded == "570.211.01 open"


@pytest.mark.parametrize("module_type", ["open", "proprietary"])
@pytest.mark.parametrize("signed", [True, False])
def test_a_rollback_takes_modules_from_where_they_came_before(
    signed: bool, module_type: Literal["open", "proprietary"]
) -> None:
    node = World(gpu(), versions=(), os_id="ubuntu")
    kind = "-open" if module_type == "open" else ""
    for name in driverset.names_to_query("ubuntu", (580,)):
        node.packages_offered[name] = tuple(
            f"580.{n}-0ubuntu0.24.04.1" for n in ("178.04", "173.02")
        )
    relations: list[str] = []
    for flavour in ("-server", ""):
        for kernel in node.kernels:
            name = f"linux-modules-nvidia-580{flavour}{kind}-{kernel}"
            node.packages_offered[name] = ("6.1+2", "6.1+1")
            relations += [f"{name}|6.1+2|580.178.04|", f"{name}|6.1+1|580.173.02|"]
    node.relations = driverset.parse_relations("\n".join(relations) + "\n")
    kernels = tuple(node.kernels)
    full = (
        f"nvidia-driver-580{kind}",
        f"nvidia-dkms-580{kind}",
        "nvidia-utils-580",
        "libnvidia-compute-580",
    )
    compute = (f"nvidia-headless-no-dkms-580{kind}", "nvidia-utils-580", "libnvidia-compute-580")
    old = dict.fromkeys(compute if signed else full, "580.173.02-0ubuntu0.24.04.1")
    if signed:
        old |= {f"linux-modules-nvidia-580{kind}-{kernel}": "6.1+1" for kernel in kernels}
    node.installed.clear()
    node.installed.update(old)
    by = DriverInstalled(branch=580, module_type=module_type, precompiled=not signed)
    observed = by.probe(node)
    assert observed.whole is not None
    node.installed = by.desired(observed).packages
    assert any(name.startswith("linux-modules-") for name in node.installed) != signed
    state = back(observed, by)
    assert state.precompiled == signed
    assert state.desired(state.probe(node)).packages == old


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("bare", [OLD, NEW])
def test_a_rollback_leaves_a_kernel_without_signed_modules_that_had_none(
    bare: str, offered: bool
) -> None:
    versions = ("580.178.04-0ubuntu0.24.04.1", "580.173.02-0ubuntu0.24.04.1")
    node = ubuntu(*versions, branch=580)
    signed = {k: f"linux-modules-nvidia-580-server-open-{k}" for k in (OLD, NEW)}
    rows = ""
    for kernel, name in signed.items():
        parts = tuple(
            f"linux-{what}-{kernel}"
            for what in ("objects-nvidia-580-server-open", "signatures-nvidia")
        )
        node.packages_offered |= dict.fromkeys((name, *parts), ("6.1+2", "6.1+1"))
        for n, driver in (2, "580.178.04"), (1, "580.173.02"):
            rows += f"{name}|6.1+{n}|{driver}|{' '.join(parts)}\n"
    node.relations = driverset.parse_relations(rows)

    def reach(state: DriverInstalled) -> Observed:
        """The packages and modules that the state wants are there."""
        wanted = state.desired(state.probe(node))
        node.installed = dict(wanted.packages)
        for kernel, have in wanted.built.items():
            version, license = (have.split()[0], "Dual MIT/GPL") if have else (None, None)
            node.kernels[kernel] = replace(
                node.kernels[kernel], nvidia_version=version, nvidia_license=license
            )
        node.unload()
        if wanted.loaded:
            node.load()
        return state.probe(node)

    reach(DriverInstalled(version="580.173.02", precompiled=True))
    # As with the metapackage of signed modules, which follows the newest kernel.
    node.installed = {n: v for n, v in node.installed.items() if not n.endswith(bare)}
    node.kernels[bare] = replace(node.kernels[bare], nvidia_version=None, nvidia_license=None)
    node.unload()
    if bare != NEW:
        node.load()
    by = DriverInstalled(branch=580, precompiled=True)
    before = by.probe(node)
    assert before.built == {OLD: "580.173.02 open", NEW: "580.173.02 open", bare: None}
    assert set(reach(by).built.values()) == {"580.178.04 open"}
    state = back(before, by)
    if not offered:
        node.packages_offered[signed[bare]] = ("6.1+2",)
    observed = state.probe(node)
    assert state.refuse(observed) is None
    steps = [step.label for step in state.apply(observed, state.plan(observed))]
    assert ("unload the nvidia modules" in steps) == (bare == NEW)
    assert ("reload the nvidia modules" in steps) == (bare != NEW)
    now = reach(state)
    for field in ("packages", "built", "loaded", "modules"):
        assert getattr(now, field) == getattr(before, field), field
    assert not state.plan(now).fields & {"packages", "built", "loaded", "modules", "parameters"}


def test_a_rollback_to_signed_modules_that_are_gone_is_refused_with_their_kernel() -> None:
    node = ubuntu("580.178.04-0ubuntu0.24.04.1", "580.173.02-0ubuntu0.24.04.1", branch=580)
    by = DriverInstalled(version="580.173.02", precompiled=True)
    node.installed = dict(by.desired(by.probe(node)).packages)
    for kernel in (OLD, NEW):
        node.kernels[kernel] = replace(
            node.kernels[kernel], nvidia_version="580.173.02", nvidia_license="Dual MIT/GPL"
        )
    state = back(by.probe(node), DriverInstalled(branch=580))
    name = f"linux-modules-nvidia-580-server-open-{OLD}"
    del node.installed[name], node.packages_offered[name]
    assert refusal(state, node) == (
        "driver 580.173.02, pinned by a lock file or a rollback, is not available with prebuilt modules for every bootable "
        f"kernel (missing for {OLD}); offer them again, or remove the kernels that are not needed"
    )


def test_a_rollback_installs_no_headers_for_a_kernel_that_had_none() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    node.kernels[OLD] = replace(
        node.kernels[OLD], nvidia_version=None, nvidia_license=None, headers=False
    )
    by = DriverInstalled(branch=580)
    before = node.probe_of(by)
    node.reach(DriverInstalled(branch=580, headers="require"))
    state = back(before, by)
    node.kernels[OLD] = replace(node.kernels[OLD], headers=False)
    _, rest = node.reach(state)
    assert not rest
    now = node.probe_of(by)
    assert (now.headers, now.built) == (before.headers, before.built)
    # Where the run has brought them, DKMS builds a module.
    node.kernels[OLD] = replace(node.kernels[OLD], headers=True)
    assert state.desired(state.probe(node)).built[OLD] == "570.211.01 open"


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("flavour", ["-server", ""])
@pytest.mark.parametrize("offered", [True, False])
def test_a_driver_without_tools_comes_back(signed: bool, flavour: str, offered: bool) -> None:
    """As ``ubuntu-drivers install --gpgpu`` installs it; its tools may be offered no more by then."""
    old, new = (f"580.{n}-0ubuntu0.24.04.1" for n in ("173.02", "178.04"))
    node = World(gpu(), versions=(), os_id="ubuntu")
    for name in driverset.names_to_query("ubuntu", (580,)):
        node.packages_offered[name] = (new, old)
    modules = [f"linux-modules-nvidia-580{flavour}-open-{kernel}" for kernel in node.kernels]
    node.packages_offered |= dict.fromkeys(modules, ("6.1+2", "6.1+1"))
    rows = [f"{m}|6.1+2|580.178.04|\n{m}|6.1+1|580.173.02|\n" for m in modules]
    node.relations = driverset.parse_relations("".join(rows))
    node.installed = dict.fromkeys(
        (f"nvidia-headless-no-dkms-580{flavour}-open", f"libnvidia-compute-580{flavour}"), old
    )
    node.installed |= (
        dict.fromkeys(modules, "6.1+1") if signed else {f"nvidia-dkms-580{flavour}-open": old}
    )
    there = dict(node.installed)
    by = DriverInstalled(branch=580, precompiled=signed)
    observed = by.probe(node)
    node.installed = by.desired(observed).packages
    assert {f"nvidia-utils-580{flavour}"} <= node.installed.keys()
    if not offered:
        node.packages_offered[f"nvidia-utils-580{flavour}"] = (new,)
    state = back(observed, by)
    assert state.refuse(state.probe(node)) is None
    assert state.desired(state.probe(node)).packages == there


def test_a_version_that_is_gone_is_refused_by_a_rollback() -> None:
    node = World(gpu())
    node.reach(DriverInstalled(branch=570))
    pinned = DriverInstalled(branch=580).pinned(node.probe_of(DriverInstalled()))
    node.reach(DriverInstalled(branch=580))
    for name in NAMES:
        node.packages_offered[name] = ("580.178.04-1",)
    back = build(DriverInstalled, pinned)
    assert isinstance(back, DriverInstalled)
    why = refusal(back, node)
    assert why.startswith(
        "http://x has no driver 570.211.01; it has branch 580; choose another version"
    )


def test_nothing_is_pinned_without_a_whole_set() -> None:
    node = World(gpu())
    assert DriverInstalled().pinned(node.probe_of(DriverInstalled())) == {}
    node.installed = {"libcuda1": "570.211.01-1"}
    assert DriverInstalled().pinned(node.probe_of(DriverInstalled())) == {}


def test_an_old_display_card_beside_gpus_does_not_decide_the_modules() -> None:
    card = PciGpu("0000:65:00.0", "128b", "030000", None)  # GT 710
    gpu = PciGpu("0000:1b:00.0", "2330", "030200", None)
    assert module_type((gpu, card), 580, "auto") == ("open", None)
    assert module_type((card,), 580, "auto")[0] is None
    compute = PciGpu("0000:65:00.0", "102d", "030200", None)  # K80
    assert module_type((gpu, compute), 580, "auto")[0] is None
