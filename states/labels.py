"""The labels of GPU feature discovery (GFD) stand on the node, as a feature file of NFD.

A scheduler that selects nodes by GPU model, memory, MIG layout or driver reads node labels. In
Kubernetes GFD computes them in a pod on every node; this state computes the same ones from what NVML
says, under the same names and in the same form, and writes them where the worker of node feature
discovery (NFD) picks files up. No pod has to come up first, and drift of a label is drift of a node.

Surprising: NFD lets the later of two files win, in the order of their names, so two writers of one
label would take turns; where GFD's own file lies beside, this state refuses. A label that Kubernetes
would refuse (GFD writes those all the same: a machine called "To be filled by O.E.M.") is left out
and named. The time of writing, GFD's ``gfd.timestamp``, is left out unless asked for.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0, internal/lm: names and formats.
    kubernetes-sigs/node-feature-discovery v0.20, source/local/local.go: the feature file.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.file_queries import apart, noted
from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin, labels
from gpustate.probes.excluded_gpus import ExcludedGpusQuery, unseen
from gpustate.probes.gpu_facts import GpuFacts
from gpustate.probes.gpu_labels import look

FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
PATH = f"{FOLDER}/gpustate"
CONFIG_PATH = "/etc/nvidia-device-plugin/config.yaml"


@dataclass(frozen=True, slots=True)
class Observed:
    """The feature file, and what it should say of this node."""

    text: str | None  # without the time it was written at; None: there is no file
    wanted: str | None  # None: no GPUs, nothing to say
    problem: str | None = None  # why the labels cannot be told
    rival: str | None = None  # another file with GFD's labels
    notes: tuple[str, ...] = ()
    image: bool = False


class GpuLabelsWritten(State[Observed]):
    """A feature file of NFD holds the labels that GPU feature discovery gives this node.

    Args:
        mig_strategy: ``none``, ``single`` or ``mixed``; empty takes it from the device plugin's
            configuration, ``none`` where that does not say.
        config_path: absolute path of the device plugin's configuration on the node, for sharing and MIG strategy.
        timestamp: also write ``nvidia.com/gfd.timestamp``, the time at which labels last changed.

    Disruption:
        ``NONE``: NFD reads the file by itself.
    """

    name: ClassVar[str] = "gpu-labels"
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = (
        *("driver", "mig", "device-plugin-config", "quarantine"),
    )
    worst: ClassVar[Disruption] = Disruption.NONE
    left_to_apply: ClassVar[bool] = True
    stable: ClassVar[tuple[str, ...] | None] = ("text", "wanted")

    mig_strategy: Literal["", "none", "single", "mixed"] = ""
    config_path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@:-]+$")] = CONFIG_PATH
    timestamp: bool = False

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        observed = look(node)
        problem = unseen(facts.gpus, node.query(GpuFacts()), node.query(ExcludedGpusQuery()))
        config_text = node.read_text(self.config_path)
        files = node.read_texts(f"{FOLDER}/*")
        owner, text = apart(node.own_text(PATH))
        listed = None if text is None else labels.as_text(labels.parse(text))
        now = Observed(
            text=noted(owner, listed) if listed else listed,
            wanted=None,
            rival=_rival(files),
            image=facts.image,
        )
        if facts.image or not (facts.gpus or observed.nvml.gpus):
            return now
        if problem is not None:
            return replace(now, problem=problem)
        try:
            config = deviceplugin.read(config_text or "", self.config_path)
        except PolicyError as error:
            return replace(now, problem=str(error))
        strategy = self.mig_strategy or config.mig_strategy or "none"
        told = labels.compute(observed, labels.Options(strategy, config.sharing))
        if told.problem is not None:
            return replace(now, problem=told.problem)
        unfit = labels.unfit(told.values)
        left = {name: value for name, value in told.values.items() if name not in unfit}
        notes = [f"{name} is left out: {why}" for name, why in unfit.items()]
        return replace(
            now, wanted=labels.as_text(left), notes=(*config.warnings, *told.notes, *notes)
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(observed, text=None)
        return (
            observed
            if observed.image or observed.problem
            else replace(observed, text=observed.wanted)
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or observed.image:
            return None
        if observed.rival is not None:
            return (
                f"{observed.rival} has labels of GPU feature discovery, and two writers would "
                "overwrite each other; stop "
                "gpu-feature-discovery on this node and remove the file, or remove this state "
                "from the policy"
            )
        return observed.problem or None

    def plan(self, observed: Observed) -> Plan:
        notes = observed.notes
        if observed.image and not self.absent:
            notes = ("labels describe GPUs: they are written by the first apply on the machine",)
        return diff(observed, self.desired(observed), paths={"text": PATH}, notes=notes)

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "text" not in plan.fields:
            return
        text = self.desired(observed).text
        if text is None:
            yield ops.RemoveOwn(PATH)
        elif self.timestamp:
            yield ops.Run(_with_time(text), f"write {PATH} with the time", timeout=60)
        else:
            yield ops.PutText(PATH, text, mode=0o644)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """Nothing: labels are computed where gpustate runs, not on the node."""
        return iter(())


def _rival(files: dict[str, str]) -> str | None:
    """Another feature file with a label that only GFD writes."""
    for path, text in files.items():
        hidden = path.rpartition("/")[2].startswith(".")
        if path != PATH and not hidden and "nvidia.com/gpu.product" in labels.parse(text):
            return path
    return None


def _with_time(text: str) -> str:
    data = base64.encodebytes(text.encode()).decode("ascii")
    return (
        f"{{ base64 -d <<'END'\n{data}END\n"
        f"printf '{labels.TIMESTAMP}=%s\\n' \"$(date +%s)\"; }} | put {shlex.quote(PATH)} 0644 root:root"
    )
