"""Every GPU of the node is validated, from PCI to a CUDA kernel.

The last state of a policy. It changes nothing about GPUs. On the node it checks PCI, driver, libraries, device nodes,
container toolkit, container runtime, CDI, a container with every GPU, and CUDA. It keeps a record of the result there
and installs a boot unit that validates again at every boot. A failed validation names the first failed check, its
evidence, and the fix.

A record is valid until something changes that it depends on: the boot id, the loaded driver, the files of its
libraries and modules, Fabric Manager where it ran, the GPUs that answer, their MIG layout, the container
runtime's configuration, or the parameters of this state. So a converged node does not run kernels at every probe.

The boot unit also writes the files below /run/nvidia/validations that the GPU Operator's validator
writes, because they are on tmpfs and the Operator's own pods wait for them. Where the Operator's
containerised driver is at work, they are left to it.

Surprising: there is no systemctl daemon-reload. The unit is for the next boot, and a reload can remove the GPUs from
running containers.

Sources:
    NVIDIA/gpu-operator, cmd/nvidia-validator: order of the checks and the status files;
    NVIDIA/nvidia-container-toolkit#48: what daemon-reload does to running GPU containers.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gpustate import Conflict, Node, NodeFacts, Plan, ProbeError, State, Step, diff, ops, shell
from gpustate.core.inventory import PLAIN_PATH
from gpustate.core.parameter_types import OptionalName
from gpustate.core.queries import ShippedFile
from gpustate.diagnosis import chain, chain_probe
from gpustate.diagnosis.validation_record import ValidationRecord, read_record
from gpustate.documents import JsonView
from gpustate.formats import gpu_services
from gpustate.formats.quarantine import Quarantine
from gpustate.probes.gpu_facts import LIBRARY_FOLDERS, PYNVML, GpuFacts

UNIT = gpu_services.VALIDATION
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
UNIT_LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
STATUS_FOLDER = "/run/nvidia/validations"
#: The program on the node, beside its wrapper ``validate`` and ``config.json``.
ARCHIVE = "validate.pyz"

HOLDS = "holds"
NONE = "none"

#: What :data:`ARCHIVE` contains: package and file.
PROGRAM = (
    ("gpustate.nodeside", "validate.py"),
    ("gpustate.nodeside", "container_hooks.py"),
    ("gpustate.nodeside", "container_image.py"),
    ("gpustate.nodeside", "container_inside.py"),
    ("gpustate.nodeside", "container_scope.py"),
    ("gpustate.nodeside", "container_validation.py"),
    ("gpustate.nodeside", "cri.py"),
    ("gpustate.nodeside", "cri_pod.py"),
    ("gpustate.nodeside", "cri_rows.py"),
    ("gpustate.nodeside", "cuda_validation.py"),
    ("gpustate.nodeside", "nvml_facts.py"),
    ("gpustate.nodeside", "nvml_health.py"),
    ("gpustate.nodeside", "pod_image.py"),
    ("gpustate.formats", "device_links.py"),
    ("gpustate.diagnosis", "chain.py"),
    ("gpustate.diagnosis", "container_checks.py"),
    ("gpustate.diagnosis", "chain_data.py"),
    ("gpustate.diagnosis", "remedies.py"),
    ("gpustate.diagnosis", "chain_probe.py"),
    ("gpustate.diagnosis", "chain_key.sh"),
    ("gpustate.diagnosis", "chain_gpus.sh"),
    ("gpustate.diagnosis", "chain_driver.sh"),
    ("gpustate.diagnosis", "chain_runtimes.sh"),
    ("gpustate.diagnosis", "chain_cdi.sh"),
    ("gpustate.probes", "cdi_specs.sh"),
    ("gpustate.probes", "cri_status.py"),
    ("gpustate.probes", "bundled_says.sh"),
    ("gpustate.probes", "cri_says.sh"),
    ("gpustate.probes", "kubelet_cgroup.sh"),
    ("gpustate.probes", "mig_capabilities.py"),
    ("gpustate.probes", "mig_capabilities.sh"),
    ("gpustate.diagnosis", "health.py"),
    ("gpustate.formats", "nvml_report.py"),
    ("gpustate.formats", "quarantine.py"),
    ("gpustate.formats", "xids.py"),
    ("gpustate.shell", "__init__.py"),
    ("gpustate.shell", "agents.sh"),
)

_PACKAGE = "gpustate.states.validator"
_WRAPPER_HEAD = """#!/bin/sh
# Written by gpustate (state validator); changes are undone by the next apply.
# Validates every GPU of this node: see gpustate/nodeside/validate.py in validate.pyz (unzip -l).
"""
_UNIT = """# Written by gpustate (state validator); changes are undone by the next apply.
[Unit]
Description=Validate every NVIDIA GPU
# Without the default dependencies, multi-user.target does not wait for the validation.
DefaultDependencies=no
Conflicts=shutdown.target
Before=shutdown.target
After=basic.target systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service
After=nvidia-cdi-refresh.service gpustate-cdi-refresh.service containerd.service docker.service crio.service

[Service]
Type=oneshot
ExecStart=/bin/sh @FOLDER@/validate --boot
TimeoutStartSec=@LIMIT@

[Install]
WantedBy=multi-user.target
"""

_PROBE = shell.load("probe", _PACKAGE, LINK=UNIT_LINK, STATUS=STATUS_FOLDER)
_FORGET = shell.load("forget", _PACKAGE, STATUS=STATUS_FOLDER)
#: States whose changes a validation looks at.
_OBSERVED = (
    *("driver", "fabric-manager", "persistenced", "container-toolkit"),
    *("containerd", "docker", "crio", "podman", "k3s", "k0s", "microk8s", "mig", "cdi"),
)


#: Runs the module of ``gpustate.nodeside`` that the first argument names.
_MAIN = """import runpy, sys
runpy.run_module("gpustate.nodeside." + sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def _content(package: str, file: str) -> bytes:
    if file.endswith(".sh"):
        return shell.load(file.removesuffix(".sh"), package).encode()
    return ShippedFile(file, package, file).load()


@cache
def archive() -> bytes:
    """The program as a zip application: the same bytes on every controller, so it is not compressed."""
    members = {"__main__.py": _MAIN.encode()}
    for package, file in PROGRAM:
        folders = package.split(".")
        for end in range(1, len(folders) + 1):
            members.setdefault("/".join([*folders[:end], "__init__.py"]), b"")
        members[f"{package.replace('.', '/')}/{file}"] = _content(package, file)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as pyz:
        for name, data in sorted(members.items()):
            pyz.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Observed:
    """The record on a node, whether it is valid, and the program that renews it."""

    proof: str  # holds, none, or why not
    program: str = ""  # hash of the validation program; empty: not there
    unit: str | None = None  # text of the boot unit
    enabled: bool = False
    status_missing: tuple[str, ...] = ()  # status files the validation wrote that are gone
    left: tuple[str, ...] = ()  # names of our things in the state folder
    key: chain.Key = field(default_factory=chain.Key)  # what a record would be valid for now
    checks: tuple[chain.Check, ...] = ()  # of the record
    made_at: int = 0  # time of the record; 0: unknown
    proc: str = "/proc"
    sys: str = "/sys"
    state_folder: str = "/var/lib/gpustate"
    quarantine: Quarantine = field(default_factory=Quarantine)
    image: bool = False  # a root to be baked: nothing can be validated there


class NodeValidated(State[Observed]):
    """The node has a validation record, with every GPU working, that is valid for its present boot and configuration.

    Args:
        cuda: run a CUDA kernel on every GPU and MIG device; without it the driver's report is trusted.
        gpus: how many GPUs there must be; when not given, those of the last good validation. Given once, it accepts
            that a GPU is gone.
        containers: ``auto`` validates containers where the toolkit, a runtime handler, a CDI
            specification or a kubelet is, ``required`` always, ``none`` never. It starts a container with every
            GPU through each runtime that is configured for it, and removes it again.
        handler: runtime handler that pods use; ``auto``: the default one, or any other, that runs NVIDIA's runtime;
            empty: none.
        cdi: a CDI specification must be there and fit the GPUs, and a container must get them by it; when not given,
            where containers need it, one is there, or a service writes one at boot.
        status_files: write the GPU Operator's files below /run/nvidia/validations.
        timeout_s: seconds one GPU and one container may take, and a boot may take until all checks pass; 10 to 1800.
        force: validate again although the record is valid, as ``gpustate validate`` does.

    Disruption:
        ``NONE``. The kernel takes some 500 MiB of GPU memory for a moment.

    Raises:
        StepFailed: a check failed; the reason names the first one.
    """

    name: ClassVar[str] = "validator"
    labels: ClassVar[Mapping[str, str]] = {
        "proof": "validation",
        "program": "validator",
        "status_missing": "missing status files",
        "left": "leftovers",
    }
    after: ClassVar[tuple[str, ...]] = (
        "preflight",
        "nouveau",
        "driver-repository",
        "toolkit-repository",
        *_OBSERVED,
    )
    # The device nodes of gds are in the specification for containers.
    known_after: ClassVar[tuple[str, ...]] = (*_OBSERVED, "quarantine", "gds")
    stable: ClassVar[tuple[str, ...] | None] = (
        *("proof", "program", "unit", "enabled", "status_missing", "key"),
    )
    validating: ClassVar[bool] = True
    needs_gpu: ClassVar[bool] = True

    cuda: bool = True
    gpus: Annotated[int, Field(ge=1, le=64)] | None = None
    containers: Literal["auto", "required", "none"] = "auto"
    handler: OptionalName = "auto"
    cdi: bool | None = None
    status_files: bool = True
    timeout_s: Annotated[int, Field(ge=10, le=1800)] = 120
    force: bool = False

    @property
    def wanted(self) -> chain.Expected:
        """The parameters of the checks."""
        return chain.Expected(self.cuda, self.gpus, self.containers, self.handler, self.cdi)

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        nvml = node.query(GpuFacts())
        answer = node.shell(chain_probe.KEY_SCRIPT + _PROBE)
        unit = node.own_text(UNIT_PATH)
        pairs = chain_probe.pairs(answer.stdout)
        values = dict(reversed(pairs))
        chain_observed = chain_probe.parse(answer.stdout, nvml)
        key = chain.key(chain_observed, self.wanted)
        record = read_record(values.get("proof", ""))
        present = {value for name, value in pairs if name == "status"}
        return Observed(
            proof=_verdict(record, key),
            program=_digest(value for name, value in pairs if name == "program"),
            unit=unit,
            enabled="enabled" in values,
            status_missing=tuple(name for name in record.status_files if name not in present)
            if record
            else (),
            left=tuple(value for name, value in pairs if name == "left"),
            key=key,
            checks=record.checks if record else (),
            made_at=record.made_at if record else 0,
            proc=_folder(values.get("proc", "/proc")),
            sys=_folder(values.get("sys", "/sys")),
            quarantine=chain_observed.quarantine,
            state_folder=_folder(values.get("state", "/var/lib/gpustate")),
            image=not facts.systemd,
        )

    def conflicts(
        self, policy: JsonView, facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        if observed is None and not self.absent and "driver" in policy and policy["driver"].absent:
            yield Conflict(
                "it validates the driver, which the policy removes; remove validator too, or keep "
                "driver"
            )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(
                observed,
                proof=NONE,
                program="",
                unit=None,
                enabled=False,
                status_missing=(),
                left=(),
            )
        files = self._files(observed)
        return replace(
            observed,
            proof=observed.proof if observed.image else HOLDS,
            program=_program_digest(files, f"{observed.state_folder}/validator/"),
            unit=self._unit(observed),
            enabled=True,
            status_missing=() if self.status_files else observed.status_missing,
        )

    def plan(self, observed: Observed) -> Plan:
        desired = self.desired(observed)
        if self.force and not self.absent and observed.proof == HOLDS:
            observed = replace(observed, proof="requested again")
        out = (f"GPU in quarantine: {entry.text}" for entry in observed.quarantine.active)
        over = (f"the quarantine has ended: {entry.text}" for entry in observed.quarantine.expired)
        plan = diff(
            observed,
            desired,
            paths={"unit": UNIT_PATH},
            why={}
            if self.absent
            else {
                "proof": "runs the validation on the node",
                "unit": "revalidates at every boot",
                "program": "the validation program and its configuration",
                "status_missing": "the GPU Operator's pods wait for them",
            },
        )
        return replace(plan, warnings=(*out, *over))

    def verify(self, observed: Observed) -> Plan:
        return self.model_copy(update={"force": False}).plan(observed)

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if self.absent:
            yield from self._remove(observed, plan)
            return
        files = self._files(observed)
        if "program" in plan.fields:
            for path, text in files.items():
                yield ops.PutText(path, text, mode=0o755 if path.endswith("/validate") else 0o644)
        if "unit" in plan.fields:
            yield ops.PutText(UNIT_PATH, self._unit(observed), mode=0o644)
        if "enabled" in plan.fields:
            folder = UNIT_LINK.rpartition("/")[0]
            text = f"mkdir -p {folder}\nln -sfn {UNIT_PATH} {UNIT_LINK}\neffect enabled"
            yield ops.Run(text, f"enable {UNIT} for the next boot")
        if plan.fields & {"proof", "status_missing"}:
            always = "" if self.force else " --if-needed"
            yield ops.Run(
                f"sh {shlex.quote(observed.state_folder + '/validator/validate')}{always}\neffect validated",
                "validate the node",
                timeout=6 * self.timeout_s + 120,
            )

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent:
            yield ops.RunLive(
                f"sh {shlex.quote(observed.state_folder + '/validator/validate')} --boot\neffect validated",
                "validate the node",
                timeout=6 * self.timeout_s + 120,
            )

    def _remove(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "enabled" in plan.fields:
            yield ops.Run(f"rm -f {UNIT_LINK}\neffect disabled", f"disable {UNIT}")
        if "unit" in plan.fields:
            yield ops.RemoveOwn(UNIT_PATH)
        if plan.fields & {"left", "program", "proof", "status_missing"}:
            files = shlex.join(self._files(observed))
            yield ops.Run(f"set -- {files}\n{_FORGET}", "remove the validation result and program")

    def _files(self, observed: Observed) -> dict[str, str]:
        """Path and text of the validation program, with its wrapper and configuration."""
        folder = f"{observed.state_folder}/validator"
        config = {
            "wanted": {
                "cuda": self.cuda,
                "gpus": self.gpus,
                "containers": self.containers,
                "handler": self.handler,
                "cdi": self.cdi,
            },
            "status_files": self.status_files,
            "timeout_s": self.timeout_s,
            "proc": observed.proc,
            "sys": observed.sys,
            "state": observed.state_folder,
            "pynvml": PYNVML.path.replace("$SHIPPED", f"{observed.state_folder}/lib"),
            "libraries": LIBRARY_FOLDERS,
        }
        return {
            f"{folder}/validate": _WRAPPER_HEAD + shell.load("validate", _PACKAGE, FOLDER=folder),
            f"{folder}/{ARCHIVE}": archive().decode("utf-8", "surrogateescape"),
            f"{folder}/config.json": json.dumps(config, indent=1) + "\n",
        }

    def _unit(self, observed: Observed) -> str:
        return shell.fill(
            _UNIT, FOLDER=f"{observed.state_folder}/validator", LIMIT=str(6 * self.timeout_s + 120)
        )


def _folder(path: str) -> str:
    """A path the node named; it is written into a program and a unit."""
    if re.fullmatch(PLAIN_PATH, path):
        return path
    raise ProbeError(
        f"the node says that {path[:80]!r} is a folder of it, which is not a plain path"
    )


def _verdict(record: ValidationRecord | None, key: chain.Key) -> str:
    """Whether the record is valid, and why not."""
    if record is None:
        return NONE
    if moved := record.made_for.moved(key):
        return f"outdated: {moved}"
    if record.ok:
        return HOLDS
    broken = chain.first_broken(record.checks)
    return (
        "failed" if broken is None else f"failed: {broken.name}: {broken.evidence}; {broken.remedy}"
    )


def _program_digest(files: Mapping[str, str], folder: str) -> str:
    """Of what ``sha256sum validate validate.pyz config.json`` prints for these."""
    return _digest(
        f"{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()}  {path.removeprefix(folder)}"
        for path, text in files.items()
    )


def _digest(sums: Iterable[str]) -> str:
    """Of what ``sha256sum`` prints; empty where it printed nothing."""
    lines = "".join(f"{line}\n" for line in sums)
    return hashlib.sha256(lines.encode()).hexdigest()[:16] if lines else ""
