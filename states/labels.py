"""The labels of GPU feature discovery (GFD) stand on the node, as a feature file of NFD.

A scheduler that selects nodes by GPU model, memory, MIG layout or driver reads node labels. In
Kubernetes GFD computes them in a pod on every node; this state computes the same ones from what NVML
says, under the same names and in the same form, and writes them where the worker of node feature
discovery (NFD) picks files up. No pod has to come up first, and drift of a label is drift of a node.

Surprising: NFD lets the later of two files win, in the order of their names, so two writers of one
label would take turns; where GFD's own file lies beside, this state refuses. A label that Kubernetes
would refuse (GFD writes those anyway: a machine called "To be filled by O.E.M.") is left out
and named. The time of writing, GFD's ``gfd.timestamp``, is left out unless asked for.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0, internal/lm: names and formats.
    kubernetes-sigs/node-feature-discovery v0.20, source/local/local.go: the feature file.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.file_queries import apart, noted
from gpustate.core.parameter_types import AbsolutePath
from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin, labels
from gpustate.formats.deviceplugin import NO_SHARING, Sharing
from gpustate.ops import first_boot
from gpustate.probes import gpu_labels
from gpustate.probes.gpu_labels import FOLDER, PATH

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
    options: str | None = None  # for the first boot of an image; None: it cannot compute labels


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
    computed: ClassVar[tuple[str, ...]] = ("text",)

    mig_strategy: Literal["", "none", "single", "mixed"] = ""
    config_path: AbsolutePath = CONFIG_PATH
    timestamp: bool = False

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        config_text = node.read_text(self.config_path)
        config, problem = None, None
        try:
            config = deviceplugin.read(config_text or "", self.config_path)
        except PolicyError as error:
            problem = str(error)
        strategy = self.mig_strategy or (config.mig_strategy if config else "") or "none"
        sharing = config.sharing if config else NO_SHARING
        result = gpu_labels.desired_labels(node, strategy, sharing)
        files = node.read_texts(f"{FOLDER}/*")
        owner, text = apart(node.own_text(PATH))
        listed = None if text is None else labels.as_text(labels.parse(text))
        observed = Observed(
            text=noted(owner, listed) if listed else listed,
            wanted=None,
            rival=gpu_labels.find_rival(files),
            image=facts.image,
        )
        if facts.image:
            able = problem is None and first_boot.has_python(node)
            return replace(observed, options=options(strategy, sharing) if able else None)
        if result.text is None and result.problem is None:
            return observed
        if (wrong := result.problem or problem) is not None:
            return replace(observed, problem=wrong)
        warnings = config.warnings if config else ()
        return replace(observed, wanted=result.text, notes=(*warnings, *result.notes))

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
            return gpu_labels.rival_reason(observed.rival)
        return observed.problem or None

    def plan(self, observed: Observed) -> Plan:
        notes = observed.notes
        if observed.image and not self.absent:
            when = "first boot" if observed.options is not None else "first apply on the machine"
            notes = (f"labels depend on the machine's GPUs: its {when} writes them",)
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
        """The machine computes its labels itself, where the image has a Python that can."""
        if self.absent or observed.options is None:
            return
        write = f"put {shlex.quote(PATH)} 0644 own"
        if self.timestamp:
            stamp = f"printf '{labels.TIMESTAMP}=%s\\n' \"$(date +%s)\""
            write = f"{{ cat; {stamp}; }} | {write}"
        writes = {f"{PATH}": write}
        yield first_boot.compute_files("labels", observed.options, writes, f"write {PATH}")


def options(strategy: str, sharing: Sharing) -> str:
    """What the program of the first boot has to know of the policy, as JSON."""
    shared = [[resource.name, resource.replicas] for resource in sharing.resources]
    data = {"strategy": strategy, "sharing": [sharing.strategy, shared, sharing.renamed]}
    return json.dumps(data, sort_keys=True)


def _with_time(text: str) -> str:
    data = base64.encodebytes(text.encode()).decode("ascii")
    return (
        f"{{ base64 -d <<'END'\n{data}END\n"
        f"printf '{labels.TIMESTAMP}=%s\\n' \"$(date +%s)\"; }} | put {shlex.quote(PATH)} 0644 root:root"
    )
