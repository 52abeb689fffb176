"""The device plugin's configuration stands on the node: time-slicing, MPS, MIG strategy.

GPU feature discovery and the device plugin read one file. In Kubernetes it comes out of a ConfigMap by
way of a sidecar; here it is a plain file on the host, for a device plugin that runs as a host service
or mounts the folder, and for the state that computes labels. Several named configurations may be given
as the GPU Operator's ConfigMap has them; which one counts is said for each node.

Surprising: the plugin takes a key it does not know in silence, and then does not share anything.
``renameByDefault`` one level too high is the classic. Every such thing is an error here, before a node
is reached. And an edited file changes nothing until the plugin gets a SIGHUP: it gets one.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: api/config/v1, cmd/nvidia-device-plugin/main.go (SIGHUP);
    NVIDIA/k8s-device-plugin#1433 (renameByDefault), NVIDIA/gpu-operator#1144 (edits not applied).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, model_validator

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin
from gpustate.formats.deviceplugin.model import MPS_MOST_OLD
from gpustate.probes.gpu_facts import GpuFacts

PATH = "/etc/nvidia-device-plugin/config.yaml"


@dataclass(frozen=True, slots=True)
class Observed:
    """The file, and whoever reads it."""

    text: str | None
    plugin_active: bool = False  # the host service of the device plugin runs
    old_gpu: str | None = None  # a GPU below compute capability 7.5
    mig_gpu: int | None = None  # index of a GPU with MIG enabled


def _checked(value: object) -> object:
    """Let the strict reader speak; pydantic only carries what it says."""
    if not isinstance(value, Mapping):
        raise ValueError("wanted a configuration of the device plugin, as a mapping")
    try:
        deviceplugin.read_data(value, "")
    except PolicyError as error:
        raise ValueError(str(error).removeprefix(": ")) from None
    return value


ConfigData = Annotated[Json, BeforeValidator(_checked)]


class DevicePluginConfigured(State[Observed]):
    """The device plugin's configuration file holds what is asked for, and the plugin has read it.

    Args:
        config: the configuration: ``version``, ``flags``, ``sharing``, ``imex``.
        configs: several by name, instead of ``config``.
        selected: which of ``configs`` counts; per group or node from the inventory.
        default: which one counts where ``selected`` is empty.
        path: where the file stands.
        unit: host service of the device plugin, which is told to read it; empty: there is none.

    Disruption:
        ``RELOAD`` where the plugin runs as a host service: it registers its resources anew, and
        containers go on. Otherwise ``NONE``.
    """

    name: ClassVar[str] = "device-plugin-config"
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    after: ClassVar[tuple[str, ...]] = ("driver", "mig")
    worst: ClassVar[Disruption] = Disruption.RELOAD
    stable: ClassVar[tuple[str, ...] | None] = ("text",)

    config: ConfigData | None = None
    configs: dict[str, ConfigData] | None = None
    selected: str = ""
    default: str = ""
    path: str = PATH
    unit: str = "nvidia-device-plugin.service"

    @model_validator(mode="after")
    def _one_counts(self) -> DevicePluginConfigured:
        if self.config is not None and self.configs is not None:
            raise ValueError("set config or configs, not both")
        if not self.path.startswith("/") or not self.path.isprintable() or " " in self.path:
            raise ValueError(f"path: {self.path!r} is not an absolute path")
        try:
            self._config()
        except PolicyError as error:
            raise ValueError(str(error)) from None
        return self

    def _config(self) -> deviceplugin.PluginConfig:
        if self.configs is None:
            if self.selected or self.default:
                raise PolicyError("selected and default choose from configs, which is not set")
            return deviceplugin.read_data(self.config or {}, "")
        named = {name: deviceplugin.read_data(data, name) for name, data in self.configs.items()}
        return deviceplugin.choose(named, self.selected, self.default, place="configs")

    def probe(self, node: Node) -> Observed:
        text = node.own_text(self.path)
        nvml = node.query(GpuFacts())
        unit = node.units(self.unit).get(self.unit) if self.unit else None
        old = [gpu.name for gpu in nvml.gpus if _below_turing(gpu.compute_capability)]
        mig = [gpu.index for gpu in nvml.gpus if gpu.mig_current]
        return Observed(
            text=text,
            plugin_active=unit is not None and unit.active,
            old_gpu=old[0] if old else None,
            mig_gpu=mig[0] if mig else None,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(observed, text=None)
        return replace(observed, text=deviceplugin.as_text(self._config()))

    def refuse(self, observed: Observed) -> str | None:
        sharing = self._config().sharing
        if self.absent or sharing.strategy != "mps":
            return None
        if observed.mig_gpu is not None:
            return (
                f"GPU {observed.mig_gpu} has MIG enabled, and the device plugin does not share MIG devices "
                "with MPS; disable MIG, or use sharing.timeSlicing"
            )
        most = max(resource.replicas for resource in sharing.resources)
        if observed.old_gpu is not None and most > MPS_MOST_OLD:
            return (
                f"{most} replicas, and the device plugin takes at most {MPS_MOST_OLD} on {observed.old_gpu} "
                "(below compute capability 7.5); set fewer"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        cost = Disruption.RELOAD if observed.plugin_active else Disruption.NONE
        notes = () if self.absent else self._config().notes
        return diff(
            observed,
            self.desired(observed),
            costs={"text": cost},
            why={"text": f"{self.unit} reloads it"} if observed.plugin_active else None,
            paths={"text": self.path},
            notes=notes,
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "text" not in plan.fields:
            return
        yield ops.put_own(self.path, self.desired(observed).text)
        if observed.plugin_active:
            yield ops.RunLive(
                f"systemctl kill --kill-who=main -s HUP {self.unit}; sleep 1\n"
                f"systemctl is-active --quiet {self.unit} || fail '{self.unit} did not take its new "
                "configuration: journalctl -u '\neffect reloaded",
                f"reload the configuration of {self.unit}",
                timeout=60,
            )


def _below_turing(capability: str) -> bool:
    major, _, minor = capability.partition(".")
    return major.isdigit() and minor.isdigit() and (int(major), int(minor)) < (7, 5)
