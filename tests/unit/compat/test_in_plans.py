"""The matrix in front of the first write: facts of a node and of what it is to become, and the refusal."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from filestates import First, here, request

from gpustate import Policy, policies, registry
from gpustate.cli.matrix import known_facts
from gpustate.compat.collect import collect
from gpustate.compat.facts import Value, format_value
from gpustate.core.change import Change, Plan
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.planned import PlannedObservation
from gpustate.core.policy import build, resolve
from gpustate.core.state import AnyState
from gpustate.engine import fleet, gate
from gpustate.errors import PolicyError, ProbeError, RefusedError
from gpustate.formats import gpu_models
from gpustate.formats.pci_gpus import PciGpu
from gpustate.manifests import ClusterSettings, Component, DraDriver
from gpustate.manifests.settings import ToolkitContainer
from gpustate.plan.document import policy_data
from gpustate.states.container_toolkit import ContainerToolkitInstalled
from gpustate.states.containerd import ContainerdHandlerRegistered
from gpustate.states.driver import DriverInstalled
from gpustate.states.fabric_manager import FabricManagerRunning
from gpustate.states.gds import GpuDirectStorageEnabled
from gpustate.states.mig import MigLayoutApplied
from gpustate.states.nvlsm import SubnetManagerInstalled
from gpustate.states.repository import DriverRepository

DATA = Path(__file__).parents[2] / "data"
B200 = PciGpu("0000:1b:00.0", "2901", "030200", None)
B300 = PciGpu("0000:1b:00.0", "3182", "030200", None)
L40S = PciGpu("0000:1b:00.0", "26b9", "030200", None)


def node(gpu: PciGpu, **more: object) -> NodeFacts:
    """A Debian 12 node with one GPU."""
    given: dict[str, object] = {"os_id": "debian", "os_version": "12", "machine": "x86_64"}
    return NodeFacts(**{**given, "kernel": "6.1.0-49-amd64", "pci": (gpu,), **more})  # type: ignore[arg-type]


def known(facts: NodeFacts, *states: object, **results: StateResult) -> dict[str, str]:
    """Facts as a person reads them."""
    found = collect(facts, states, {}, results)  # type: ignore[arg-type]
    return {name: format_value(value) for name, value in found.items()}


def test_facts_of_a_node_are_what_the_probe_is_sure_of() -> None:
    assert known(node(L40S)) == {
        "os": "debian",
        "os_version": "12.*",
        "machine": "x86_64",
        "kernel": "6.1.0",
        "arch": "ada",
        "gpu": "L40S",
        "geforce": "no",
        "mig_capable": "no",
        "fabric": "pcie",
        **{"crio": "none", "docker": "none", "podman": "none"},
    }


def test_what_does_not_show_stays_unknown() -> None:
    assert "fabric" not in known(node(B200)), "NVLink 5 is not on PCI"
    assert "kernel" not in known(node(L40S, container=True)), "it is that of the host"
    strange = PciGpu("0000:1b:00.0", "26ff", "030200", None)
    assert "gpu" not in known(node(strange))
    assert known(node(strange))["arch"] == "ada"
    assert "arch" not in known(node(PciGpu("0000:1b:00.0", "ffff", "030200", None)))


def test_a_driver_counts_as_it_will_be() -> None:
    states = (DriverInstalled(branch=580), DriverRepository())
    assert known(node(L40S), *states)["driver"] == "580.*"
    assert known(node(L40S), *states)["driver_from"] == "vendor"
    changes = (
        Change("library", "570.86.15", "580.65.06"),
        Change("built", {"6.1.0": None}, {"6.1.0": "580.65.06 open"}),
    )
    found = known(node(L40S), *states, driver=StateResult("driver", Outcome.PENDING, Plan(changes)))
    assert (found["driver"], found["module_type"]) == ("580.65.06", "open")


def test_a_fabric_manager_that_cannot_be_planned_yet_is_no_fabric_manager_that_does_not_run() -> (
    None
):
    observed = {
        "fabric-manager": SimpleNamespace(
            topology="nvlink5", version=None, at_boot=False, nvlsm=True
        )
    }

    def found(result: StateResult) -> dict[str, Value]:
        return collect(node(B200), (FabricManagerRunning(),), observed, {"fabric-manager": result})

    later = StateResult("fabric-manager", Outcome.KNOWN_AFTER, known_after=("driver",))
    assert format_value(found(later)["fabric"]) == "nvlink5"
    assert "fabric_manager_runs" not in found(later)
    plan = Plan((Change("version", None, "580.65.06-1"), Change("at_boot", False, True)))
    planned = found(StateResult("fabric-manager", Outcome.PENDING, plan))
    assert format_value(planned["fabric_manager"]) == "580.65.06"
    assert format_value(planned["fabric_manager_runs"]) == "yes"
    assert (
        format_value(found(StateResult("fabric-manager", Outcome.UNCHANGED))["fabric_manager_runs"])
        == "no"
    )


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.FAILED, Outcome.NOT_RUN])
@pytest.mark.parametrize("probed", [True, False])
def test_what_a_refused_state_would_install_is_unknown_and_not_absent(
    outcome: Outcome, probed: bool
) -> None:
    """Its refusal is the cause, and a rule about the absence would only report the consequence."""
    switched = node(L40S, pci=(L40S, PciGpu("0000:07:00.0", "22a3", "068000", None)))
    observation = SimpleNamespace(topology="nvswitch", version=None, at_boot=False, nvlsm=False)
    observed: dict[str, object] = {"fabric-manager": observation} if probed else {}
    states = (FabricManagerRunning(),)
    result = StateResult("fabric-manager", outcome, reason="the repository cannot be read")
    facts = collect(switched, states, observed, {"fabric-manager": result})
    assert "fabric" in facts
    assert not {"fabric_manager", "fabric_manager_runs"} & set(facts)
    assert gate.compatible(facts, {}).reason is None
    if probed:
        unchanged = StateResult("fabric-manager", Outcome.UNCHANGED)
        facts = collect(switched, states, observed, {"fabric-manager": unchanged})
        assert "fabric-manager-missing" in str(gate.compatible(facts, {}).reason)


def test_of_a_state_that_cannot_be_planned_yet_only_the_policys_own_words_are_known() -> None:
    observed = {
        "driver": SimpleNamespace(library="550.54.14", built={"6.1.0": "550.54.14 proprietary"}),
        "container-toolkit": SimpleNamespace(versions={"nvidia-container-toolkit": "1.16.0-1"}),
        "containerd": SimpleNamespace(version="1.7.27"),
        "nvlsm": SimpleNamespace(topology="nvlink5", version="2025.03.6-1", loaded=("ib_umad",)),
    }
    states = (
        DriverInstalled(branch=580),
        ContainerToolkitInstalled(version="1.18.2"),
        ContainerdHandlerRegistered(),
        SubnetManagerInstalled(),
    )
    later = {
        name: StateResult(name, Outcome.KNOWN_AFTER, known_after=("preflight",))
        for name in observed
    }
    found = {k: format_value(v) for k, v in collect(node(B200), states, observed, later).items()}
    assert (found["driver"], found["toolkit"], found["containerd"]) == ("580.*", "1.18.2", "1.7.27")
    assert found["fabric"] == "nvlink5"
    assert not {"module_type", "libnvidia_container", "nvlsm", "ib_umad"} & set(found)


def test_the_toolkit_counts_as_it_will_be() -> None:
    after = dict.fromkeys(("nvidia-container-toolkit", "libnvidia-container1"), "1.18.2-1")
    result = StateResult(
        "container-toolkit", Outcome.PENDING, Plan((Change("versions", {}, after),))
    )
    found = collect(
        node(L40S), (ContainerToolkitInstalled(mode="cdi"),), {}, {"container-toolkit": result}
    )
    assert format_value(found["toolkit"]) == format_value(found["libnvidia_container"]) == "1.18.2"
    assert format_value(found["runtime_mode"]) == "cdi"


@pytest.mark.parametrize(
    ("state", "observed", "facts"),
    [
        (
            "gds",
            {"packages": {"nvidia-fs-dkms": "2.29.4-1"}},
            {"gds": "yes", "nvidia_fs": "2.29.4"},
        ),
        ("gds", {"packages": {}}, {"gds": "yes", "nvidia_fs": "none"}),
        ("gdrcopy", {"packages": {"gdrdrv-dkms": "2.6-1"}}, {"gdrcopy": "2.6"}),
        ("ofed", {"ofed": "24.10-1.1.4"}, {"ofed": "24.10", "ofed_kind": "mlnx"}),
        ("ofed", {"ofed": None}, {"ofed": "none"}),
        (
            "dcgm",
            {
                "packages": {
                    "datacenter-gpu-manager-4-core": "1:4.6.0-1",
                    "datacenter-gpu-manager-4-cuda13": "1:4.6.0-1",
                }
            },
            {"dcgm": "4.6.0", "dcgm_cuda": "13"},
        ),
        ("dcgm-exporter", {"version": "4.8.3-1"}, {"dcgm_exporter": "4.8.3"}),
        ("podman", {"version": "5.4.2"}, {"podman": "5.4.2"}),
        ("docker", {"version": "26.1.5"}, {"docker": "26.1.5", "nvidia_ctk_configures": "no"}),
        ("crio", {"version": "1.34.0"}, {"crio": "1.34.0", "nvidia_ctk_configures": "no"}),
        ("k0s", {"version": "1.7.27"}, {"containerd": "1.7.27", "nvidia_ctk_configures": "no"}),
        ("nouveau", {"loaded": ()}, {"nouveau_loaded": "no"}),
        ("mig", {"modes": {"0": "on", "1": "off"}}, {"mig": "yes", "mig_mixed": "yes"}),
        ("mig", {"modes": {"0": "off"}}, {"mig": "no", "mig_mixed": "no"}),
        ("imex", {"topology": "none", "version": None, "at_boot": False}, {"imex": "none"}),
    ],
)
def test_a_state_says_what_it_sees_of_the_node(
    state: str, observed: dict[str, object], facts: dict[str, str]
) -> None:
    results = {state: StateResult(state, Outcome.UNCHANGED)}
    seen = {state: SimpleNamespace(**observed)}
    found = collect(node(L40S), (registry.get(state)(),), seen, results)
    assert facts.items() <= {name: format_value(value) for name, value in found.items()}.items()


@pytest.mark.parametrize(
    ("versions", "compat", "rule"),
    [
        (("13.0",), False, "cuda-13-driver"),
        (("13.0",), True, ""),
        (("12.9",), False, ""),
        # One of them has what it needs.
        (("12.9", "13.0"), False, ""),
    ],
)
def test_a_cuda_toolkit_that_the_planned_driver_cannot_run_is_refused(
    versions: tuple[str, ...], compat: bool, rule: str
) -> None:
    toolkit = registry.get("cuda-toolkit").model_validate({"versions": versions})
    seen = {"cuda-toolkit": SimpleNamespace(compat=compat)}
    results = {"cuda-toolkit": StateResult("cuda-toolkit", Outcome.UNCHANGED)}
    facts = collect(node(L40S), (toolkit,), seen, results, {"driver": "570.211.01"})
    reason = str(gate.compatible(facts, {}).reason or "")
    assert reason.startswith(f"blocked by compatibility rule {rule}: ") if rule else not reason


@pytest.mark.parametrize(("server", "rule"), [("", ""), ("licence.example.org", "dcgm-vgpu")])
def test_a_licensed_vgpu_guest_gets_no_dcgm(server: str, rule: str) -> None:
    guest = registry.get("vgpu-guest").model_validate({"server_address": server})
    states = (guest, registry.get("dcgm")())
    seen = {"dcgm": SimpleNamespace(packages={"datacenter-gpu-manager-4-core": "1:4.6.0-1"})}
    results = {name: StateResult(name, Outcome.UNCHANGED) for name in ("dcgm", "vgpu-guest")}
    reason = str(gate.compatible(collect(node(L40S), states, seen, results), {}).reason or "")
    assert reason.startswith(f"blocked by compatibility rule {rule}: ") if rule else not reason


def test_the_nri_plugin_of_a_policy_is_judged_with_the_nodes_runtime() -> None:
    for nri, version, blocked in (
        (True, "1.7.27", True),
        (True, "2.3.1", False),
        (False, "1.7.27", False),
    ):
        cluster = ClusterSettings(toolkit=ToolkitContainer(nri=nri))
        seen = {"containerd": SimpleNamespace(version=version)}
        results = {"containerd": StateResult("containerd", Outcome.UNCHANGED)}
        states = (registry.get("containerd")(),)
        facts = collect(node(L40S), states, seen, results, cluster.matrix_facts())
        assert ("containerd-nri-versions" in str(gate.compatible(facts, {}).reason)) is blocked


HOSTS = [
    machine
    for machine in yaml.safe_load((DATA / "machines.yaml").read_text("utf-8"))["machines"]
    if re.search(r"\bdriver=", machine["set"])
    and not re.search(r"gpu_operator|dra=|vgpu|fabric_manager=none|imex=", machine["set"])
]


@pytest.mark.parametrize("machine", HOSTS, ids=lambda machine: machine["name"])
def test_a_plan_says_of_an_ordinary_machine_what_its_source_says(machine: dict[str, Any]) -> None:
    wanted = known_facts(tuple(machine["set"].split()))
    written = {name: format_value(value) for name, value in wanted.items()}
    (model,) = written["gpu"].split(",")
    switches = [PciGpu("0000:07:00.0", "22a3", "068000", None)]
    facts = NodeFacts(
        os_id=written.get("os", ""),
        os_version=written.get("os_version", "").removesuffix(".*"),
        machine=written.get("machine", "x86_64"),
        kernel=written.get("kernel", ""),
        pci=(
            PciGpu("0000:1b:00.0", gpu_models.MODELS[model][0], "030200", None),
            *(switches if written.get("fabric") == "nvswitch" else ()),
        ),
    )
    kind = written.get("module_type", "auto")
    driver = build(DriverInstalled, {"version": written["driver"], "module_type": kind})
    states: list[AnyState] = [driver]
    chosen = {name: written[name] for name in ("driver", "module_source") if name in written}
    results = {
        "driver": StateResult("driver", Outcome.KNOWN_AFTER, Plan(facts=chosen), known_after=("x",))
    }
    observed: dict[str, object] = {}
    if "fabric_manager" in written or "fabric_manager_runs" in written:
        states.append(FabricManagerRunning())
        observed["fabric-manager"] = SimpleNamespace(
            topology={"mnnvl": "multi-node"}.get(written["fabric"], written["fabric"]),
            version=written.get("fabric_manager"),
            at_boot=written.get("fabric_manager_runs") != "no",
            nvlsm=written.get("nvlsm") != "none",
        )
        results["fabric-manager"] = StateResult("fabric-manager", Outcome.UNCHANGED)
    if "mig" in written:
        states.append(MigLayoutApplied())
        observed["mig"] = SimpleNamespace(modes={"0": "on"})
        results["mig"] = StateResult("mig", Outcome.UNCHANGED)
    if "nvidia_fs" in written:
        states.append(GpuDirectStorageEnabled())
        observed["gds"] = SimpleNamespace(packages={"nvidia-fs-dkms": written["nvidia_fs"]})
        results["gds"] = StateResult("gds", Outcome.UNCHANGED)
    judged = gate.compatible(collect(facts, states, observed, results), {})
    if machine["works"]:
        assert judged.reason is None
    else:
        assert machine["rule"] in " ".join((str(judged.reason), *judged.notes))


def test_what_is_taken_away_is_not_judged() -> None:
    assert "driver" not in known(node(B200), DriverInstalled(version="570.86.15", ensure="absent"))


def test_a_block_is_a_refusal_with_rule_reason_and_next_move() -> None:
    facts = collect(node(B300), (DriverInstalled(version="580.65.06"),), {}, {})
    judged = gate.compatible(facts, {})
    refusal = judged.reason
    assert isinstance(refusal, RefusedError)
    assert refusal.exit_code == 5
    assert str(refusal) == (
        "blocked by compatibility rule driver-first-b300: B300 and GB300 are known to drivers from "
        "580.82.07 on; use branch 580 from 580.82.07 on, or a later one"
    )


def test_an_exception_lets_it_pass_and_stays_visible() -> None:
    facts = collect(node(B300), (DriverInstalled(version="580.65.06"),), {}, {})
    judged = gate.compatible(facts, {"driver-first-b300": "lab board"})
    assert judged.reason is None
    assert judged.allowed == {"driver-first-b300": "lab board"}
    assert judged.notes[-1] == "matrix: driver-first-b300 is allowed: lab board"


def test_exceptions_come_from_the_policy_and_from_the_inventory() -> None:
    policy = Policy(DriverInstalled(), allow={"a": "all"})
    mine = InventoryNode("n1", vars={"gpustate": {"allow": {"b": "here"}}})
    assert resolve(policy, mine, registered=["driver"]).allow == {"a": "all", "b": "here"}
    assert policy.with_ensure("absent").allow == {"a": "all"}
    assert policy_data(policy, "p")["allow"] == {"a": "all"}
    assert "allow" not in policy_data(Policy(DriverInstalled()), "p")


@pytest.mark.parametrize("allow", [["a"], {"a": ""}, {"a": 1}])
def test_an_exception_without_a_reason_is_a_mistake_of_the_inventory(allow: object) -> None:
    mine = InventoryNode("n1", vars={"gpustate": {"allow": allow}})
    with pytest.raises(PolicyError, match="gpustate: allow: "):
        resolve(Policy(DriverInstalled()), mine)


@pytest.mark.parametrize(
    ("state", "observed"),
    [
        (DriverInstalled(branch=580), SimpleNamespace(library="580.65.06", build={})),
        (FabricManagerRunning(), SimpleNamespace(topology="nvlink5", version=None)),
        (ContainerToolkitInstalled(), SimpleNamespace()),
    ],
)
def test_a_field_that_was_renamed_stops_the_node_instead_of_switching_rules_off(
    state: AnyState, observed: object
) -> None:
    results = {state.name: StateResult(state.name, Outcome.UNCHANGED)}
    with pytest.raises(ProbeError, match=rf"{state.name}: its facts for the .* has no attribute"):
        collect(node(B200), (state,), {state.name: observed}, results)


def test_a_fact_that_the_matrix_does_not_know_is_a_mistake_in_the_state() -> None:
    class Misspelt(ContainerdHandlerRegistered):
        def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
            return {"contanerd": "1.7.27"}

    with pytest.raises(ProbeError, match="contanerd"):
        collect(node(B200), (Misspelt(),), {}, {})


GPU_CLUSTER = """\
apiVersion: nvidia.com/v1alpha1
kind: GPUCluster
metadata: {{name: gpu-cluster}}
spec: {{draDriver: {{repository: r, image: i, version: v0.5.0{more}}}}}
"""


@pytest.mark.parametrize(
    ("more", "observed", "rule"),
    [
        ("", {}, ""),
        ("", {"containerd": ("1.6.20",)}, "dra-containerd"),
        ("", {"containerd": ("2.3.4",)}, ""),
        (", featureGates: {DynamicMIG: true}", {}, ""),
        (", featureGates: {DynamicMIG: true, MPSSupport: true}", {}, "dra-gates-dynamicmig-mpssupport"),
        (", featureGates: {DynamicMIG: false, MPSSupport: true}", {}, ""),
        (", featureGates: {IMEXDaemonsWithDNSNames: false}", {}, "dra-gates-cliques-dns-names"),
        ("", {"imex": ("mnnvl", "580.65.06", True)}, "imex-compute-domains"),
        (", computeDomains: {enabled: false}", {"imex": ("mnnvl", "580.65.06", True)}, ""),
    ],
)  # fmt: skip
def test_the_dra_driver_of_a_policy_is_judged_with_its_nodes(
    more: str, observed: dict[str, tuple[object, ...]], rule: str, tmp_path: Path
) -> None:
    file = tmp_path / "gpucluster.yaml"
    file.write_text(GPU_CLUSTER.format(more=more))
    cluster = policies.load(str(file)).cluster
    assert cluster is not None
    fields = {"containerd": ("version",), "imex": ("topology", "version", "at_boot")}
    seen = {
        name: SimpleNamespace(**dict(zip(fields[name], values, strict=True)))
        for name, values in observed.items()
    }
    states = [registry.get(name)() for name in seen]
    results = {name: StateResult(name, Outcome.UNCHANGED) for name in seen}
    facts = collect(node(L40S), states, seen, results, cluster.matrix_facts())
    reason = str(gate.compatible(facts, {}).reason or "")
    assert reason.startswith(f"blocked by compatibility rule {rule}: ") if rule else not reason


def test_a_plan_refuses_a_node_for_the_dra_driver_of_its_policy(tmp_path: Path) -> None:
    gates = {"DynamicMIG": True, "MPSSupport": True}
    dra, off = DraDriver(image="i:v1"), Component(enabled=False)
    for settings, code in (
        (ClusterSettings(dra_driver=dra, device_plugin=off), 0),
        (ClusterSettings(dra_driver=dra), 5),
        (ClusterSettings(dra_driver=replace(dra, feature_gates=gates), device_plugin=off), 5),
    ):
        asked = request(here(tmp_path / "state"), First(path=str(tmp_path / "a")), apply=False)
        policy = Policy(*asked.policy.states, cluster=settings)
        assert fleet.run(replace(asked, policy=policy)).exit_code == code
