"""A virtual machine with a vGPU has its licence: gridd.conf, the client's token, and nvidia-gridd.

Without a licence a vGPU works for a while and is then slowed down, which looks like anything but a
licence. So what counts is the driver's report (``License Status: Licensed``), not that files are there.

Surprising: gridd.conf comes as a template and may hold settings of others, which stay; the token is what
names the licence server, and is the machine's secret: it is compared by its checksum, and never shown.
Its mode is 0744, as NVIDIA's guide has it, though nothing of it is executed.

Sources:
    NVIDIA License System user guide, "Configuring a Licensed Client on Linux" (folder, mode 744, FeatureType,
    restart of nvidia-gridd); NVIDIA virtual GPU client licensing user guide (gridd.conf).
    NVIDIA/gpu-operator: the token's name, client_configuration_token.tok.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from gpustate import Disruption, Node, Plan, PolicyError, State, Step, diff, ops
from gpustate.core.file_queries import FileStat
from gpustate.core.parameter_types import HostName
from gpustate.core.planned import PlannedObservation
from gpustate.files import TextFiles
from gpustate.formats import gridd

UNIT = "nvidia-gridd.service"
CONF_PATH = "/etc/nvidia/gridd.conf"
TEMPLATE_PATH = "/etc/nvidia/gridd.conf.template"
TOKEN_PATH = "/etc/nvidia/ClientConfigToken/client_configuration_token.tok"
TOKEN_MODE = 0o744
LICENSED = "Licensed"
_TOKENS = TextFiles("client configuration token", PolicyError, 1)

_PROBE = f"""[ -e {TOKEN_PATH} ] && sha256sum {TOKEN_PATH} | cut -c 1-16 | sed 's/^/token=/'
[ -z "${{GPUSTATE_IMAGE-}}" ] && command -v nvidia-gridd >/dev/null && echo program && timeout -k 2 30 nvidia-smi -q 2>/dev/null | grep -E 'License Status|Virtualization Mode'
:"""


@dataclass(frozen=True, slots=True)
class Observed:
    """Configuration, token and licence."""

    conf_text: str | None = None
    token: str | None = None  # first digits of its checksum
    token_mode: str | None = None
    licensed: bool = False  # every licensed product of the machine
    active: bool = False
    enabled: bool = False
    installed: bool = False
    program: bool = False  # nvidia-gridd is there, with or without its unit
    statuses: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()  # virtualization mode of each GPU
    template_text: str | None = None
    image: bool = False


def _mode(stat: FileStat) -> str:
    owner = f", owner {stat.uid}:{stat.gid}" if (stat.uid, stat.gid) != (0, 0) else ""
    return f"{stat.mode:04o}{owner}"


class VgpuLicensed(State[Observed]):
    """The machine's vGPUs are licensed, by a token (NLS) or by a licence server of the old kind.

    Args:
        token_file: the client configuration token, on the machine gpustate runs on; empty: none.
        feature_type: 1 vGPU, 2 RTX virtual workstation, 4 compute, 0 unlicensed.
        server_address, server_port: licence server of the old kind, for driver branches that know it.
        backup_server_address, backup_server_port: a second one.
        wait_s: how long a licence may take to come, in seconds.

    Disruption:
        ``RESTART`` of nvidia-gridd; programs on the GPUs go on.

    Raises:
        PolicyError: the token's file cannot be read.
    """

    name: ClassVar[str] = "vgpu-guest"
    labels: ClassVar[Mapping[str, str]] = {
        "token": "licence token",
        "token_mode": "mode of the licence token",
        "licensed": "licensed",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.RESTART

    token_file: str = ""
    feature_type: Literal[0, 1, 2, 4] = 1
    server_address: HostName = ""
    server_port: Annotated[int, Field(ge=1, le=65535)] = 7070
    backup_server_address: HostName = ""
    backup_server_port: Annotated[int, Field(ge=1, le=65535)] = 7070
    wait_s: Annotated[int, Field(ge=1, le=600)] = 60

    @model_validator(mode="after")
    def _reads(self) -> VgpuLicensed:
        if not self.absent:
            self._token()
        return self

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        licensed = bool(self.token_file or self.server_address)
        return {"vgpu": True, "passthrough": False} if licensed else {}

    def _token(self) -> str | None:
        return _TOKENS.text(self.token_file) if self.token_file else None

    @property
    def _is_licensed(self) -> bool:
        return bool(self.token_file or self.server_address)

    def _values(self) -> dict[str, str]:
        values = {"FeatureType": str(self.feature_type)}
        if self.server_address:
            values |= {"ServerAddress": self.server_address, "ServerPort": str(self.server_port)}
        if self.backup_server_address:
            values |= {
                "BackupServerAddress": self.backup_server_address,
                "BackupServerPort": str(self.backup_server_port),
            }
        return values

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        conf, template = node.read_text(CONF_PATH), node.read_text(TEMPLATE_PATH)
        unit = node.units(UNIT).get(UNIT)
        stat = node.stats(TOKEN_PATH).get(TOKEN_PATH)
        output = node.shell(_PROBE).stdout
        token = next((line[6:] for line in output.splitlines() if line.startswith("token=")), None)
        statuses = gridd.license_status(output)
        return Observed(
            conf_text=conf,
            token=token,
            token_mode=_mode(stat) if stat is not None and stat.kind == "file" else None,
            licensed=bool(statuses) and all(status == LICENSED for status in statuses),
            active=unit is not None and unit.active,
            enabled=unit is not None and unit.enabled,
            installed=unit is not None and unit.load_state == "loaded",
            program="program" in output.splitlines(),
            statuses=statuses,
            modes=tuple(sorted(set(gridd.modes(output)))),
            template_text=template,
            image=facts.image,
        )

    def _conf(self, observed: Observed) -> str:
        base = observed.conf_text
        if base is None:
            base = gridd.HEADER + (observed.template_text or "")
        return gridd.merge(base, self._values())

    def _conf_before(self, observed: Observed) -> str | None:
        """gridd.conf without what is ours; ``None`` where nothing is left of it."""
        if observed.conf_text is None:
            return None
        text = gridd.restore(observed.conf_text)
        if not text.startswith(gridd.HEADER):
            return text
        body = text.removeprefix(gridd.HEADER)
        return None if body == (observed.template_text or "") else body

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            changed = self._conf_before(observed) != observed.conf_text
            cleared = replace(observed, conf_text=self._conf_before(observed))
            return replace(cleared, token=None, token_mode=None) if changed else cleared
        if not self._is_licensed:
            return observed
        token = self._token()
        digest = hashlib.sha256(token.encode()).hexdigest()[:16] if token is not None else None
        live = not observed.image
        return replace(
            observed,
            conf_text=self._conf(observed),
            token=digest if digest is not None else observed.token,
            token_mode=f"{TOKEN_MODE:04o}" if digest is not None else observed.token_mode,
            licensed=live if self.feature_type else observed.licensed,
            active=live,
            enabled=True,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not self._is_licensed or observed.installed:
            return None
        if observed.program:
            return (
                f"nvidia-gridd is installed without {UNIT}, so nothing would start it (NVIDIA's .run installer and "
                "the -grid package bring the unit): reinstall the vGPU guest driver with it"
            )
        return (
            "nvidia-gridd is not installed: it comes with NVIDIA's vGPU guest driver (-grid), not with the driver "
            "of the public repositories; install that one, or exclude the node from this state "
            "with only="
        )

    def plan(self, observed: Observed) -> Plan:
        restart = Disruption.RESTART if observed.active else Disruption.NONE
        status = ", ".join(sorted(set(observed.statuses))) or "no licensed product"
        notes: tuple[str, ...] = ()
        if not self.absent and not self._is_licensed:
            notes = ("neither a token nor a licence server is set: nothing to do",)
        elif not self.absent and observed.modes and not {"VGPU", "vGPU"} & set(observed.modes):
            notes = (f"no GPU here is a vGPU (virtualization mode {', '.join(observed.modes)})",)
        return diff(
            observed,
            self.desired(observed),
            costs=dict.fromkeys(("conf_text", "token", "licensed"), restart),
            why={"licensed": f"License Status: {status}"},
            paths={"conf_text": CONF_PATH},
            notes=notes,
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if plan.fields & {"token", "token_mode"}:
            token = None if self.absent else self._token()
            if token is None:
                yield ops.RemoveOwn(TOKEN_PATH)
            else:
                yield ops.PutText(
                    TOKEN_PATH, token, mode=TOKEN_MODE, owner="root:root", secret=True
                )
        if "conf_text" in plan.fields:
            if desired.conf_text is None:
                yield ops.RemoveFile(CONF_PATH)
            else:
                yield ops.PutText(
                    CONF_PATH, desired.conf_text, mode=None if observed.conf_text else 0o644
                )
            if self.absent:
                yield ops.ForgetOriginal(CONF_PATH)
        if self.absent:
            if plan.fields and observed.active:
                yield ops.RestartUnit(UNIT)
            return
        if "enabled" in plan.fields:
            yield ops.EnableUnit(UNIT, now=False)
        if plan.fields & {"conf_text", "token", "active", "licensed"}:
            yield ops.RestartUnit(UNIT)
            if self.feature_type:
                yield ops.RunLive(
                    f"licensed() {{ s=$(timeout 20 nvidia-smi -q | grep 'License Status') && ! printf '%s\\n' \"$s\" | grep -qv ': {LICENSED}'; }}\n"
                    f"wait_for {self.wait_s} licensed || {{ nvidia-smi -q | grep 'License Status' | sort -u; journalctl -u {UNIT} -n 10 --no-pager -o cat; "
                    'fail "the GPUs are not licensed: is the token valid, and the licence server in reach?"; }\neffect licensed',
                    "wait for the licence",
                    timeout=self.wait_s * 3 + 60,
                )
