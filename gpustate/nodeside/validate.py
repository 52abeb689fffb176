"""Run all checks on this node, write the validation record, and write the status files.

    validate                 validate now; exit code 0, or 3 with the first failed check in the first line
    validate --if-needed     the same, unless a successful validation of this node is still valid
    validate --boot          like --if-needed, and wait for a driver that is still loading
    validate --clean         only remove what a killed validation left in container runtimes

Started through a small sh wrapper beside it, by an apply and by a boot unit. The status files are those of the
GPU Operator's own validator, which its toolkit, device plugin and MIG manager wait for: each is written if its
test passed, stays if that could not run because others use the GPUs, and is removed otherwise. If the Operator's
containerised driver is in use, its validator owns these files and they are not changed.

Sources:
    NVIDIA/gpu-operator, cmd/nvidia-validator/main.go: file names; ``createStatusFile`` for the
    five lines of driver-ready, which other containers read as shell.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

# On a node there is no installed gpustate: the zip application is it.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpustate.diagnosis import chain, chain_probe
from gpustate.formats import nvml_report
from gpustate.nodeside import container_validation, cuda_validation, nvml_facts

ROOT = str(Path(__file__).resolve().parents[2])
FORMAT = "gpustate.proof/1"
EXIT_BROKEN = 3
EXIT_UNUSABLE = 69
RETRY_EVERY_S = 5.0
#: What a later try at boot does not change.
_HOPELESS = ("no nvidia module", "ordering cycle")

STATUS_FOLDER = Path("/run/nvidia/validations")
DRIVER_READY = """IS_HOST_DRIVER=true
NVIDIA_DRIVER_ROOT=/
DRIVER_ROOT_CTR_PATH=/host
NVIDIA_DEV_ROOT=/
DEV_ROOT_CTR_PATH=/host
"""
#: Status file, its content, and its checks; the last one is its test. An unhealthy GPU must get no workloads, but
#: other clients of the driver may run, so ``health`` belongs to the last.
STATUS_FILES = (
    ("driver-ready", DRIVER_READY, ("pci", "driver", "device-nodes", "libraries")),
    ("toolkit-ready", "", ("toolkit", "runtime", "cdi", "container")),
    ("cuda-ready", "", ("health", "cuda")),
)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file atomically, also in case of a power failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


class StatusFiles:
    """The status files that this validator writes.

    Name, inode and time of each one are recorded, so that a later removal does not remove a file that another
    validator has written in its place.
    """

    def __init__(self, enabled: bool, state: Path, folder: Path = STATUS_FOLDER) -> None:
        self.folder = folder
        self.notes = state / "status-files"
        self.wanted = enabled

    def operator_has_driver(self) -> bool:
        """The Operator's containerised driver runs here, so its validator owns these files."""
        if (self.folder / ".driver-ctr-ready").exists():
            return True
        try:
            return "IS_HOST_DRIVER=false" in (self.folder / "driver-ready").read_text(
                encoding="utf-8"
            )
        except (OSError, UnicodeDecodeError):
            return False

    def finish(self, checks: tuple[chain.Check, ...], *, busy: bool = False) -> list[str]:
        """Write those whose test and all checks before it passed, remove the others; return the names of those there.

        Args:
            checks: of this validation.
            busy: others use every GPU, so that the test of the last file could not run.
        """
        if not self.wanted or self.operator_has_driver():
            return []
        outcomes = {check.name: check.outcome for check in checks}
        written: list[str] = []
        marks: list[str] = []
        failed = False
        for name, text, links in STATUS_FILES:
            failed = failed or any(outcomes[link] == chain.FAILED for link in links)
            present = busy and name == "cuda-ready" and (self.folder / name).exists()
            if failed or (outcomes[links[-1]] != chain.OK and not present):
                (self.folder / name).unlink(missing_ok=True)
                continue
            write_atomically(self.folder / name, text)
            status = os.stat(self.folder / name)
            marks.append(f"{name} {status.st_ino} {int(status.st_mtime)}\n")
            written.append(name)
        write_atomically(self.notes, "".join(marks), 0o600)
        return written


class Validator:
    """The validation of this node."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.wanted = chain.Expected(**config["wanted"])
        self.timeout_s = float(config["timeout_s"])
        self.state = Path(config["state"])
        self.status = StatusFiles(bool(config["status_files"]), self.state)
        self.environment = dict(
            os.environ,
            LC_ALL="C",
            PROC=config["proc"],
            SYS=config["sys"],
            L=config["libraries"],
            limit="15",
            G=str(self.state),
            CRI_ROWS=f"{ROOT} cri_rows {ROOT}/gpustate/nodeside/cri.py",
        )

    def sh(self, script: str) -> str:
        """Run a fragment that only reads."""
        try:
            process = subprocess.run(
                ["sh", "-c", script],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return (late.stdout or b"").decode("utf-8", "replace")
        return process.stdout.decode("utf-8", "replace")

    def nvml(self) -> nvml_report.NvmlFacts:
        """Query NVML, which may load the kernel module and create device nodes; that is intended here."""
        facts = nvml_report.from_json(
            nvml_facts.collect(self.config["pynvml"], min(self.timeout_s, 60.0))
        )
        return replace(facts, driver_loaded=facts.error not in (9, 12))

    def observe(self) -> chain.ChainObservation:
        """Observe everything that the checks need. CUDA runs first, because it creates device nodes."""
        nvml = self.nvml()
        results: list[dict[str, Any]] | None = None
        if self.wanted.cuda and nvml.error is None:
            before = chain_probe.parse(self.sh(chain_probe.KEY_SCRIPT), nvml)
            results = self.cuda(chain.cuda_devices(before))
        observed = chain_probe.parse(
            self.sh(chain_probe.KEY_SCRIPT + chain_probe.CHAIN_SCRIPT), nvml
        )
        if results is None:
            return replace(observed, containers=self.containers(observed))
        tested = {result["uuid"] for result in results}
        results += self.cuda(
            tuple(uuid for uuid in chain.cuda_devices(observed) if uuid not in tested)
        )
        observed = replace(observed, cuda=tuple(chain.CudaResult(**result) for result in results))
        return replace(observed, containers=self.containers(observed))

    def cuda(self, uuids: tuple[str, ...]) -> list[dict[str, Any]]:
        """Run the kernel on devices."""
        return cuda_validation.validate(uuids, self.timeout_s) if uuids else []

    def containers(
        self, observed: chain.ChainObservation
    ) -> tuple[chain.ContainerResult, ...] | None:
        """Start containers if the node has runtimes and its driver works, with the GPUs on which the kernel ran."""
        before = chain.evaluate(observed, self.wanted)[: chain.LINKS.index("toolkit")]
        if not chain.containers_apply(observed, self.wanted) or any(
            check.failed for check in before
        ):
            return None
        # A GPU in exclusive mode serves one process, such as the MPS server, which a container cannot reach.
        busy = {gpu.uuid for gpu in observed.nvml.gpus if gpu.compute_mode.startswith("Exclusive")}
        uuids = tuple(run.uuid for run in observed.cuda or () if run.ok and run.uuid not in busy)
        return container_validation.validate(observed, self.wanted, uuids, self.timeout_s)

    def key_now(self) -> chain.Key:
        """The key of a validation made now."""
        observed = chain_probe.parse(self.sh(chain_probe.KEY_SCRIPT), self.nvml())
        return chain.key(observed, self.wanted)

    def is_valid(self) -> bool:
        """The record of a successful validation is still valid, and its status files exist."""
        try:
            record = json.loads((self.state / "proof.json").read_text(encoding="utf-8"))
            if record["format"] != FORMAT or not record["ok"]:
                return False
            files_exist = all((STATUS_FOLDER / name).exists() for name in record["status_files"])
            return files_exist and record["made_for"] == json.loads(
                json.dumps(asdict(self.key_now()))
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def validate(self) -> tuple[chain.Check, ...]:
        """Run all checks once and write the record."""
        observed = replace(self.observe(), recorded_gpus=self.known_gpus())
        checks = chain.evaluate(observed, self.wanted)
        results = observed.cuda or ()
        written = self.status.finish(checks, busy=any(result.users for result in results))
        # NVML may have loaded the module just now, so the key is taken afterwards.
        key = chain.key(observed, self.wanted)
        record = {
            "format": FORMAT,
            "ok": chain.first_broken(checks) is None,
            "made_at": int(time.time()),
            "made_for": asdict(key),
            "known_gpus": self.known_after(observed, checks[0]),
            "checks": [asdict(check) for check in checks],
            "cuda": None if observed.cuda is None else [asdict(result) for result in observed.cuda],
            "containers": None
            if observed.containers is None
            else [asdict(result) for result in observed.containers],
            "status_files": written,
        }
        write_atomically(self.state / "proof.json", json.dumps(record, indent=1) + "\n", 0o600)
        return checks

    def known_gpus(self) -> tuple[tuple[str, str], ...]:
        """UUID and PCI address of the GPUs of the last good validation; empty without one."""
        try:
            text = (self.state / "proof.json").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ()
        return chain_probe.known_gpus(text)

    def known_after(self, observed: chain.ChainObservation, pci: chain.Check) -> list[list[str]]:
        """GPUs that the next validation expects: those that answer now, and those that are missing and not accepted so."""
        answering = {gpu.uuid: gpu.pci for gpu in observed.nvml.gpus if gpu.uuid}
        accepted = self.wanted.gpus is not None and not pci.failed
        missing = {
            uuid: address
            for uuid, address in observed.recorded_gpus
            if not accepted and address not in answering.values()
        }
        return [[uuid, address] for uuid, address in sorted({**missing, **answering}.items())]

    def validate_at_boot(self) -> tuple[chain.Check, ...]:
        """Run all checks, repeatedly while an installed driver may still be loading."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            checks = self.validate()
            broken = chain.first_broken(checks)
            hopeless = broken is not None and (
                broken.name == "pci" or any(words in broken.evidence for words in _HOPELESS)
            )
            if broken is None or hopeless or time.monotonic() + RETRY_EVERY_S > deadline:
                return checks
            time.sleep(RETRY_EVERY_S)


def report(checks: tuple[chain.Check, ...]) -> int:
    """Print the first failed check and its remedy, then the others; their evidence if they failed, or none did."""
    broken = chain.first_broken(checks)
    if broken is not None:
        print(f"validation failed at {broken.name}: {broken.evidence}\nnext: {broken.remedy}")
    for check in checks:
        if check is not broken and (broken is None or check.failed):
            print(f"{check.name}: {check.outcome}: {check.evidence}")
    if broken is None:
        return 0
    print("passed:", ", ".join(check.name for check in checks if check.outcome == chain.OK))
    return EXIT_BROKEN


def main() -> int:
    """Entry point of the wrapper."""
    parser = argparse.ArgumentParser(prog="validate")
    parser.add_argument("--config", required=True)
    parser.add_argument("--if-needed", action="store_true")
    parser.add_argument("--boot", action="store_true")
    parser.add_argument("--clean", action="store_true")
    options = parser.parse_args()
    try:
        validator = Validator(json.loads(Path(options.config).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"{options.config} cannot be used: {error}; rewrite it (state validator): gpustate apply POLICY -l NODE"
        )
        return EXIT_UNUSABLE
    validator.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(validator.state / "validate.lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the boot unit and an apply may run at the same time
        if options.clean:
            container_validation.clean()
            return 0
        if (options.boot or options.if_needed) and validator.is_valid():
            print("the last validation is still valid")
            return 0
        try:
            return report(validator.validate_at_boot() if options.boot else validator.validate())
        except OSError as error:
            fix = (
                f"free disk space below {validator.state}"
                if error.errno in (errno.ENOSPC, errno.EDQUOT)
                else "mount it read-write, and move away anything in the place of its files and folders"
            )
            print(f"the validation record cannot be written: {error}; {fix}")
            return EXIT_UNUSABLE


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a child stuck in the driver must not delay the exit
