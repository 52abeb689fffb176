"""The CUDA Multi Process Service runs on a host without Kubernetes, validated with two clients.

MPS lets processes share a GPU at the same time instead of in turns. Its control daemon has to run
before the first client, with the GPUs in exclusive mode, so that nobody goes past it; limits given to
the daemon are what every client gets that asks for none. In Kubernetes the device plugin brings a
daemon of its own for each resource: there this state has no place.

Surprising: a client that cannot reach the daemon runs anyway, without MPS, as long as the GPU is
in default mode. So validation needs two processes with a context on the same GPU at once, both of them known to the
MPS server. One server serves one user at a time: jobs of
other users wait. Exclusive mode is lost with a reboot, so the unit sets it, and takes it back.

Sources:
    nvidia-cuda-mps-control(1) of 580.65.06; NVIDIA MPS documentation 580;
    NVIDIA/k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mps (order, shares, limits of clients).
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import Field

from gpustate import Conflict, Disruption, Node, NodeFacts, Step, ops, shell
from gpustate.bases.service import ServiceObservation, ServiceState
from gpustate.core.file_queries import ODD, FileStat, refuse_odd
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.parameter_errors import pattern
from gpustate.core.parameter_types import PlainPath
from gpustate.core.queries import ShippedFile
from gpustate.diagnosis import remedies as remedies
from gpustate.documents import JsonView
from gpustate.formats import dpkg, keyed, mps, systemd
from gpustate.formats.deviceplugin.model import MPS_MOST, MPS_MOST_OLD
from gpustate.formats.numbers import parse_uint
from gpustate.formats.rpm import is_rpm
from gpustate.probes.gpu_facts import Gpu, GpuFacts, NvmlFacts

UNIT = mps.UNIT
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
_PROOF = '"$G/mps-proof"'
CONTROL = "/usr/bin/nvidia-cuda-mps-control"
SMI = "/usr/bin/nvidia-smi"
#: Debian and NVIDIA's repository for it keep MPS apart from the driver; Ubuntu and RPM do not.
PACKAGE = "nvidia-cuda-mps"
#: What the daemon and its servers make in their two folders.
PIPES = ("control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid")
LOGS = ("control.log", "server.log")
#: The pipe folder as it has to be.
OPEN = "root's, open to all"
_SMI = '[ -r "$PROC/driver/nvidia/version" ] && timeout -k 2 20 nvidia-smi --format=csv,noheader'
#: Asked where NVML was not, and where something is to change: nvidia-smi wakes every GPU.
_MODES = f"{_SMI} --query-gpu=uuid,compute_mode"
_HOLDERS = f"{_SMI} --query-compute-apps=pid,process_name"
_PROGRAM = ShippedFile("mps_validation.py", "gpustate.nodeside", "mps_validation.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(ServiceObservation):
    """The daemon, and the GPUs it is for."""

    unit_text: str | None
    threads: str | None = None  # default share of threads; None: the daemon does not answer
    exclusive: tuple[str, ...] = ()  # UUIDs of GPUs in exclusive mode
    proven: str | None = None  # what the validation record is valid for
    control: bool = False  # nvidia-cuda-mps-control is there
    package: str | None = None  # version of the package that has it, where it has one of its own
    clients: int = 0  # processes that use it now
    holders: tuple[str, ...] = ()  # processes on the GPUs beside MPS
    nvml: NvmlFacts = field(default_factory=NvmlFacts)
    foreign: str | None = None  # another control daemon
    kubelet: bool = False
    site: Mapping[str, str] = field(default_factory=dict[str, str])  # drop-ins of others
    folder: str = (
        OPEN  # owner and mode of the pipe folder, where other users cannot get at the daemon
    )
    strange: str = ""  # something in the pipe folder that no daemon has made

    @property
    def installed(self) -> Mapping[str, str]:
        return {PACKAGE: self.package} if self.package else {}

    @property
    def all_held(self) -> bool:
        return True


class MpsRunning(ServiceState[Observed]):
    """The MPS control daemon runs with its limits, and two clients at once went through it.

    Args:
        clients: give each client one share of so many of threads and memory, as the device plugin
            does for as many replicas; no limit when not given.
        gpus: UUIDs of the GPUs that are shared; empty: all of the node.
        exclusive: put the GPUs into exclusive mode, so that nothing runs beside MPS.
        pipe_folder: where clients find the daemon; CUDA's own default needs no setting in jobs.
        log_folder: where the daemon and its servers log.

    Disruption:
        ``DRAIN`` where processes use the GPUs, with MPS or beside it; otherwise ``RESTART``.
    """

    name: ClassVar[str] = "mps"
    labels: ClassVar[Mapping[str, str]] = {
        "threads": "share of threads of a client",
        "exclusive": "GPUs in exclusive mode",
        "proven": "validated with two clients",
        "control": "control daemon answers",
        "folder": "folder of the pipes",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    after: ClassVar[tuple[str, ...]] = ("persistenced", "fabric-manager")
    known_after: ClassVar[tuple[str, ...]] = ("driver", "mig")
    needs_gpu: ClassVar[bool] = True
    left_to_apply: ClassVar[bool] = True
    worst: ClassVar[Disruption] = Disruption.DRAIN
    worst_if: ClassVar[str] = "programs use MPS"
    stable: ClassVar[tuple[str, ...] | None] = (
        *("unit_text", "active", "at_boot", "threads", "exclusive", "proven", "folder"),
    )
    disturbs: ClassVar[str] = ""
    unit: ClassVar[str] = UNIT
    files: ClassVar[Mapping[str, str]] = {"unit_text": UNIT_PATH}
    reloads: ClassVar[frozenset[str]] = frozenset({"unit_text"})
    restarts: ClassVar[frozenset[str]] = frozenset(
        {"package", "unit_text", "active", "threads", "exclusive"}
    )
    install_s: ClassVar[int] = 900

    clients: Annotated[int, Field(ge=1, le=MPS_MOST)] | None = None
    gpus: tuple[
        Annotated[
            str, pattern(r"^GPU-[0-9a-f-]{36}$", "the UUID of a GPU, as nvidia-smi -L has it")
        ],
        ...,
    ] = Field(default=(), strict=False)
    exclusive: bool = True
    pipe_folder: PlainPath = "/tmp/nvidia-mps"
    log_folder: PlainPath = "/var/log/nvidia-mps"

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.at_driver(offer.chosen.get("driver"), PACKAGE)

    def probe(self, node: Node) -> Observed:
        fields, nvml = self.read(node, PACKAGE), node.query(GpuFacts())
        kubelet = node.units("kubelet.service").get("kubelet.service")
        folders = () if self.absent else (self.pipe_folder, self.log_folder)
        answer = node.shell(_probe_script(self.pipe_folder, folders))
        modes = {gpu.uuid: gpu.compute_mode for gpu in nvml.gpus}
        if nvml.works and not all(modes.values()):
            modes = mps.parse_modes(node.shell(_MODES).stdout)
        pipes = node.stats(self.pipe_folder).get(self.pipe_folder)
        package = node.packages(PACKAGE).get(PACKAGE)
        keys = keyed.lists(answer.stdout)
        for row in keys.get("odd", []):
            refuse_odd(row)
        clients = frozenset(keys.get("client", []))
        observed = Observed(
            **fields,
            threads=_threads(keyed.first(keys, "threads")),
            exclusive=tuple(uuid for uuid, mode in modes.items() if mode == "Exclusive_Process"),
            proven=keyed.first(keys, "proof") or None,
            control="control" in keys,
            package=package.version if package is not None and package.installed else None,
            clients=len(clients),
            nvml=nvml,
            foreign=keyed.first(keys, "daemon") or None,
            kubelet=kubelet is not None and kubelet.active,
            folder=_otherwise(pipes),
            strange=keyed.first(keys, "strange"),
            site=node.drop_ins(UNIT),
        )
        if not nvml.driver_loaded or observed == self.desired(observed):
            return observed
        holders = mps.parse_processes(node.shell(_HOLDERS).stdout)
        return replace(observed, holders=tuple(f"{p} {n}" for p, n in holders if p not in clients))

    def _shared(self, observed: Observed) -> tuple[Gpu, ...]:
        uuids = set(self.gpus)
        gpus = sorted(observed.nvml.gpus, key=lambda gpu: gpu.pci)
        return tuple(gpu for gpu in gpus if not uuids or gpu.uuid in uuids)

    def _unit(self, observed: Observed) -> str:
        gpus = tuple(mps.MpsGpu(gpu.uuid, gpu.memory_mib or 0) for gpu in self._shared(observed))
        return mps.unit_text(
            mps.Service(
                control=CONTROL,
                smi=SMI,
                gpus=gpus,
                only=bool(self.gpus),
                exclusive=self.exclusive,
                clients=self.clients or 0,
                pipe_folder=self.pipe_folder,
                log_folder=self.log_folder,
            )
        )

    def _package(self, observed: Observed) -> str | None:
        """Version of the package that has to be there: the driver's; what is there, where it has none."""
        if observed.control and observed.package is None:
            return None
        fits = (
            version
            for version in (observed.package or "", *(v for _, v in observed.offered))
            if version and dpkg.upstream_version(version) == observed.nvml.driver_version
        )
        return next(fits, observed.package)

    def _proof(self, observed: Observed) -> str:
        made_for = f"{self._unit(observed)}{''.join(observed.site.values())}{observed.nvml.driver_version}{_PROGRAM.digest}"
        return hashlib.sha256(made_for.encode()).hexdigest()[:16]

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            own_uuids = [gpu.uuid for gpu in self._shared(observed)] if observed.active else []
            # What was set by hand is not ours to remove.
            held = tuple(uuid for uuid in observed.exclusive if uuid not in own_uuids)
            return replace(
                observed,
                control=observed.control and observed.package is None,
                package=None,
                unit_text=None,
                active=False,
                at_boot=False,
                threads=None if observed.active else observed.threads,
                exclusive=held,
                proven=None,
            )
        if observed.image or self._obstacle(observed) is not None:
            return observed
        shared = tuple(gpu.uuid for gpu in self._shared(observed))
        foreign = tuple(uuid for uuid in observed.exclusive if uuid not in shared)
        exclusive = set(shared) | set(foreign) if self.exclusive else set(observed.exclusive)
        return replace(
            observed,
            control=True,
            package=self._package(observed),
            unit_text=self._unit(observed),
            active=True,
            at_boot=True,
            threads=mps.thread_percentage(self.clients or 0),
            exclusive=tuple(gpu.uuid for gpu in observed.nvml.gpus if gpu.uuid in exclusive),
            proven=self._proof(observed),
            folder=OPEN,
        )

    def _obstacle(self, observed: Observed) -> str | None:
        """Why MPS cannot run here, with the next move."""
        if reason := super().refuse(observed):
            return reason
        if observed.kubelet:
            return (
                "a kubelet runs here: in Kubernetes the device plugin runs MPS (sharing.mps); "
                "exclude the node from this state with only="
            )
        if observed.foreign is not None:
            pid, _, folder = observed.foreign.partition("|")
            where = f"CUDA_MPS_PIPE_DIRECTORY={shlex.quote(folder)} " if folder else ""
            return (
                f"another MPS control daemon runs (pid {pid}{folder and f', pipe folder {folder}'}); stop it: "
                f"echo quit | {where}nvidia-cuda-mps-control"
            )
        path, folder = systemd.effective_variable(observed.site, mps.PIPES)
        if path and folder != self.pipe_folder:
            return (
                f"{path} has {UNIT} run with {mps.PIPES}={folder}, and jobs look in "
                f"{self.pipe_folder}: remove that line, then systemctl daemon-reload, or name "
                "that folder with pipe_folder"
            )
        if nothing := systemd.runs_nothing(observed.site, UNIT):
            return nothing
        # What lies beside the pipes of the daemon that is set up is nobody's business.
        if observed.strange and mps.pipe_folder_of(observed.unit_text or "") != self.pipe_folder:
            return (
                f"{self.pipe_folder} holds {observed.strange}, which no MPS daemon created; set "
                "pipe_folder to a folder used by MPS only"
            )
        if not observed.nvml.works:
            return f"NVML: {observed.nvml.error_text or observed.nvml.error_name or 'no answer'}; see: gpustate explain"
        if not observed.control and self._package(observed) is None:
            none = "" if is_rpm(observed.manager) else f", and no repository offers {PACKAGE} "
            version = "" if is_rpm(observed.manager) else observed.nvml.driver_version
            return (
                f"nvidia-cuda-mps-control not found{none}{version}; install the driver's package "
                "that has it (Ubuntu: "
                "nvidia-compute-utils-<branch>-server, RPM: nvidia-driver-cuda, SUSE: nvidia-compute-utils-G06)"
            )
        return self._unfit(observed)

    def _unfit(self, observed: Observed) -> str | None:
        """Why these GPUs cannot be shared so."""
        missing = sorted(set(self.gpus) - {gpu.uuid for gpu in observed.nvml.gpus})
        if missing:
            return f"no GPU {missing[0]} on this node; name GPUs listed by: nvidia-smi -L"
        shared = self._shared(observed)
        if not shared:
            return "no GPU on this node; exclude the node from this state with only="
        for gpu in shared:
            if gpu.mig_current:
                return (
                    f"GPU {gpu.index} has MIG enabled, which excludes exclusive mode; disable MIG "
                    "on it, or select the other GPUs with gpus"
                )
            major, _, minor = gpu.compute_capability.partition(".")
            old = major.isdigit() and minor.isdigit() and (int(major), int(minor)) < (7, 0)
            if old and (self.clients or 0) > MPS_MOST_OLD:
                return f"{gpu.name} takes {MPS_MOST_OLD} clients at most; set fewer"
        return None

    def refuse(self, observed: Observed) -> str | None:
        return None if self.absent or observed.image else self._obstacle(observed)

    def conflicts(
        self, policy: JsonView, facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        mig = policy.get("mig")
        if observed is None and mig is not None and not (self.absent or mig.absent or self.gpus):
            divided = mig.divides(facts)
            if divided is not None:
                yield Conflict(
                    f"mig ({mig.config}) gives the GPU {divided} MIG mode, and such a GPU has no exclusive mode: "
                    "remove one of the two from the policy, or select the shared GPUs with gpus"
                )

    def costs(self, observed: Observed) -> Mapping[str, Disruption]:
        used = observed.clients or observed.holders
        return dict.fromkeys(self.restarts, Disruption.DRAIN if used else Disruption.RESTART)

    def why(self, observed: Observed) -> Mapping[str, str]:
        clients = f"{observed.clients} client{'' if observed.clients == 1 else 's'}"
        ends = f"ends {clients}, and waits for no other process"
        return {
            "proven": "" if self.absent else "validated with two concurrent clients",
            "folder": f"every user's clients go through {self.pipe_folder}",
            "unit_text": ends if observed.clients or observed.holders else "",
        }

    def notes(self, observed: Observed) -> Iterator[str]:
        if observed.image:
            yield "MPS is configured by the first apply on the machine, where its GPUs are"
        elif observed.holders and observed.exclusive != self.desired(observed).exclusive:
            yield f"on the GPUs beside MPS now: {', '.join(observed.holders[:3])}"

    def configure(
        self, observed: Observed, desired: Observed, moved: frozenset[str]
    ) -> Iterator[Step]:
        yield from super().configure(observed, desired, moved)
        if "folder" in moved:
            yield ops.Run(
                f"chown 0:0 {self.pipe_folder}; chmod 0755 {self.pipe_folder}; effect made",
                f"make {self.pipe_folder} accessible to all users",
                timeout=30,
            )

    def start(self, observed: Observed, desired: Observed, moved: frozenset[str]) -> Iterator[Step]:
        yield from super().start(observed, desired, moved)
        label = "validate MPS with two clients"
        yield ops.RunLive(self._prove(observed), label, timeout=120)

    def _prove(self, observed: Observed) -> str:
        gpu = self._shared(observed)[0].uuid
        words = f"{CONTROL} {gpu} {int(self.exclusive)}"
        moves = " ".join(
            f"*'CUDA error {code} '*) printf ': %s' {shlex.quote(remedies.cuda(code))} ;;"
            for code in (802, 803, 804)
        )
        return (
            f"cat >\"$R/mps_validation.py\" <<'PROGRAM'\n{_PROGRAM.load().decode()}PROGRAM\n"
            f"remedy_for() {{ case $1 in {moves} esac; }}\nset -- {words}\n"
        ) + shell.load(
            "mps_validate", "gpustate.states", PIPES=self.pipe_folder, PROOF=self._proof(observed)
        )

    def remove(self, observed: Observed, moved: frozenset[str]) -> Iterator[Step]:
        yield from super().remove(observed, moved)
        if observed.unit_text is not None and observed.foreign is None:
            yield ops.Run(
                f"{_emptied(self.pipe_folder, PIPES)}; {_emptied(self.log_folder, LOGS)}; effect removed",
                f"remove the daemon's files from {self.pipe_folder} and {self.log_folder}",
                timeout=30,
            )
        if "proven" in moved:
            yield ops.Run(
                f"rm -f {_PROOF}\neffect removed", "remove the MPS validation program", timeout=60
            )

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """Nothing: the unit names GPUs, which an image does not have."""
        return iter(())


def _probe_script(pipe_folder: str, folders: tuple[str, ...]) -> str:
    """Ask for the program and the daemon's answers.

    Args:
        pipe_folder: where the daemon is asked.
        folders: these have to be folders, or not to be there.
    """
    # ``odd`` is told of files: it looks above one that nobody has.
    inside = " ".join(f"{folder}/.gpustate" for folder in folders)
    words = {"PIPES": pipe_folder, "INSIDE": inside, "CONTROL": CONTROL, "UNIT": UNIT}
    return f"{ODD}{shell.load('mps_probe', 'gpustate.states', **words)}"


def _otherwise(pipes: FileStat | None) -> str:
    """The pipe folder: owner and mode, where they keep clients of other users away."""
    if pipes is None or pipes.kind != "dir" or (pipes.uid == 0 and pipes.mode & 0o555 == 0o555):
        return OPEN
    return f"owner {pipes.uid}:{pipes.gid}, mode {pipes.mode:04o}"


def _emptied(folder: str, names: tuple[str, ...]) -> str:
    """Remove these files of a folder, and the folder if nothing else is in it."""
    files = " ".join(f"{folder}/{name}" for name in names)
    return f"rm -f {files}; rmdir {folder} 2>/dev/null || :"


def _threads(text: str) -> str | None:
    """The daemon's answer, written in one way; ``None`` where it is none."""
    number, _, fraction = text.partition(".")
    value = parse_uint(number)
    return None if value is None else f"{value}.{fraction[:1] or 0}"
