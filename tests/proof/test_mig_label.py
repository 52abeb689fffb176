"""A MIG label is carried out by ``plan``, ``apply`` and ``drift``, with the states of mig-manager's protocol.

A machine that answers over ssh, and a cluster in memory. The layout is a file of the machine; that of real GPUs is
changed in ``test_watch.py`` of the nodes' tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rolloutbed import Bed

from gpustate.schedulers.mig_state import CONFIG, RUN_ANNOTATION, STATE
from gpustate.schedulers.nvidia_pods import FOR_MIG as PAUSED

pytestmark = [pytest.mark.node, pytest.mark.proof]

DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
POLICY = """\
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from gpustate import Disruption, Plan, Policy, State, Step, diff, ops


@dataclass(frozen=True, slots=True)
class Layout:
    config: str


class Mig(State[Layout]):
    name: ClassVar[str] = "mig"
    worst: ClassVar[Disruption] = Disruption.RESET
    folder: str = FOLDER
    config: Literal["whole", "halves"] = "whole"
    in_use: str = "refuse"

    def probe(self, node) -> Layout:
        return Layout((node.read_text(f"{self.folder}/layout") or "whole").strip())

    def desired(self, observed: Layout) -> Layout:
        return Layout(self.config)

    def plan(self, observed: Layout) -> Plan:
        return diff(observed, self.desired(observed), costs={"config": Disruption.DRAIN})

    def apply(self, observed: Layout, plan: Plan) -> Iterator[Step]:
        yield ops.PutText(f"{self.folder}/layout", f"{self.config}\\n")


policy = Policy(Mig())
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    made = Bed(tmp_path_factory.mktemp("mig"), 1)
    text = POLICY.replace("FOLDER", repr(str(made.machines[0].folder)))
    (made.folder / "policy.py").write_text(text)
    hosts = json.loads((made.folder / "inventory.yml").read_text())
    del hosts["all"]["hosts"]["n0"]["gpustate"]
    (made.folder / "inventory.yml").write_text(json.dumps(hosts))
    try:
        yield made
    finally:
        made.close()


def reset(bed: Bed, config: str = "halves") -> None:
    """The machine is not divided, and its Node is to be; the device plugin runs by its label."""
    bed.reset()
    (bed.machines[0].folder / "layout").unlink(missing_ok=True)
    with bed.cluster.lock:
        (daemon_set,) = bed.cluster.objects["daemonsets"].values()
        daemon_set["spec"]["template"]["spec"]["nodeSelector"] = {DEPLOY: "true"}
        labels = {DEPLOY: "true", CONFIG: config}
        bed.cluster.edit_node("n0", {"metadata": {"labels": labels}})
        bed.cluster._settle()
    bed.gate.begin()


def labels(bed: Bed) -> dict[str, str]:
    found: dict[str, str] = bed.cluster.node("n0")["metadata"]["labels"]
    return found


def wrong(bed: Bed) -> list[str]:
    """What is not as it has to be after a change that ended well."""
    node: dict[str, Any] = bed.cluster.node("n0")
    notes = node["metadata"]["annotations"]
    found = {
        "the layout": bed.machines[0].read("layout") == "halves",
        "the state": labels(bed).get(STATE) == "success",
        "the device plugin's label": labels(bed)[DEPLOY] == "true",
        "the mark of the change": RUN_ANNOTATION not in notes,
        "the cordon": not node["spec"].get("unschedulable"),
        "the hold": "gpustate.io/hold" not in notes,
        "the GPUs": node["status"]["allocatable"]["nvidia.com/gpu"] == "8",
    }
    return [what for what, good in found.items() if not good]


def states(bed: Bed) -> list[tuple[str, str]]:
    """Values of the state's label and the device plugin's, in their order."""
    found: list[tuple[str, str]] = []
    for _, _, item in bed.cluster._events:
        now = item["metadata"]["labels"]
        seen = (now.get(STATE, ""), now.get(DEPLOY, ""))
        if found[-1:] != [seen]:
            found.append(seen)
    return found


def test_apply_goes_through_the_states_and_a_second_one_writes_nothing(bed: Bed) -> None:
    reset(bed)
    planned = bed.run(verb="plan")
    assert "config: whole -> halves" in planned.out, planned.text
    ran = bed.run()
    assert ran.code == 0, ran.text
    assert wrong(bed) == []
    assert states(bed)[-4:] == [
        ("pending", "true"),
        ("pending", PAUSED),
        ("pending", "true"),
        ("success", "true"),
    ]
    drained = [name for name in bed.gate.writes if name.startswith("evict")]
    assert drained == ["evict train-n 1"]
    bed.gate.begin()
    again = bed.run()
    assert "changed=0" in again.out, again.text
    assert bed.run(verb="drift").code == 0
    assert bed.gate.writes == []


def test_a_layout_that_does_not_exist_changes_nothing(bed: Bed) -> None:
    reset(bed, "thirds")
    ran = bed.run()
    assert ran.code == 5, ran.text
    assert f"label {CONFIG}=thirds" in ran.text
    assert labels(bed)[STATE] == "failed"
    assert bed.machines[0].read("layout") == ""
    assert [name for name in bed.gate.writes if name.startswith(("hold", "evict"))] == []
