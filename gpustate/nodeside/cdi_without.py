"""Write the CDI specification of this node's GPUs, without those in quarantine.

    python3 -I -S -B cdi_without.py STATE_FOLDER PROC_ROOT

Run by an apply, and by the unit that writes the specification at boot while a GPU is in quarantine. The output
of nvidia-ctk is filtered: devices with the GPU's device node are removed, its MIG devices too, and ``all`` loses
everything that no other device has. If no GPU is left, no specification is written.

nvidia-ctk 1.19 accepts a list of GPUs (``--device-id``), earlier versions do not, and a fixed list at boot would
ignore the end of a quarantine. So the quarantines that are active now count. Only where it fails, as it does for all
GPUs when one is lost, is it given a list of those that answer.

The text is JSON, which every reader of CDI specifications accepts as YAML.

Sources:
    NVIDIA/nvidia-container-toolkit: CHANGELOG.md (1.19.0-rc.1, ``--device-id``), deployments/systemd
    (nvidia-cdi-refresh.service), cmd/nvidia-ctk/cdi/generate (the device ``all``).
    cncf-tags/container-device-interface: pkg/cdi/spec.go (one YAML reader for both forms); SPEC.md 0.8.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# On a node there is no installed gpustate: this file's own tree is it.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpustate.formats import quarantine

SPEC = Path("/var/run/cdi/nvidia.yaml")


def _gpus(proc: Path, held: quarantine.Quarantine) -> Iterator[tuple[str, str, bool]]:
    """UUID and minor number of each GPU, as the loaded driver lists them, and whether it is in quarantine."""
    for path in sorted(proc.glob("driver/nvidia/gpus/*/information")):
        cells = (row.partition(":") for row in path.read_text("utf-8", "replace").splitlines())
        rows = {key.strip(): value.strip() for key, _, value in cells}
        uuid, minor = rows.get("GPU UUID", ""), rows.get("Device Minor", "")
        yield uuid, minor, held.holds(uuid, path.parent.name.lower())


def held_nodes(proc: Path, held: quarantine.Quarantine) -> set[str]:
    """Device nodes of the GPUs in quarantine."""
    gpus = _gpus(proc, held)
    return {f"/dev/nvidia{minor}" for _, minor, is_held in gpus if is_held and minor.isdecimal()}


def answering(proc: Path, held: quarantine.Quarantine) -> list[str]:
    """UUIDs of the other GPUs that answer, or of their MIG devices."""
    uuids: list[str] = []
    for uuid in [uuid for uuid, _, is_held in _gpus(proc, held) if not is_held]:
        process = subprocess.run(
            ["nvidia-smi", "-i", uuid, "-L"], stdout=subprocess.PIPE, text=True, check=False
        )
        names = re.findall(r"UUID: (\S+)\)", process.stdout) if not process.returncode else []
        uuids += names[1:] or names
    return uuids


def _edits(device: dict[str, Any]) -> dict[str, Any]:
    edits = device.get("containerEdits")
    return edits if isinstance(edits, dict) else {}


def _nodes(device: dict[str, Any]) -> set[str]:
    rows = _edits(device).get("deviceNodes") or []
    return {str(node.get("hostPath") or node.get("path")) for node in rows}


def cut(spec: dict[str, Any], held: set[str]) -> dict[str, Any]:
    """The specification without devices that use one of these device nodes."""
    single = [device for device in spec["devices"] if device["name"] != "all"]
    removed = [device for device in single if _nodes(device) & held]
    remaining = [device for device in single if device not in removed]
    devices = list(remaining)
    for merged in (device for device in spec["devices"] if device["name"] == "all"):
        edits = {
            key: [
                row
                for row in rows
                if any(row in (_edits(device).get(key) or []) for device in remaining)
                or not any(row in (_edits(device).get(key) or []) for device in removed)
            ]
            if isinstance(rows, list)
            else rows
            for key, rows in _edits(merged).items()
        }
        if remaining:
            devices.append({**merged, "containerEdits": edits})
    return {**spec, "devices": devices}


def _attempt(*words: str) -> None:
    """Run a command whose failure is ignored: it only improves the specification."""
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def main(state: Path, proc: Path) -> int:
    """Write it, or remove it; exit code 0, or that of nvidia-ctk."""
    if shutil.which("nvidia-smi"):
        _attempt("nvidia-smi", "-L")
    _attempt(
        *("nvidia-ctk", "system", "create-device-nodes", "--control-devices"),
        "--load-kernel-modules",
    )
    SPEC.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        text = (state / quarantine.FILE).read_text("utf-8")
    except FileNotFoundError:
        text = ""
    held = quarantine.read(text, int(time.time()))
    # A .json in the folder itself would be read by runtimes before it is complete.
    with tempfile.TemporaryDirectory(prefix="gpustate-cdi.", dir="/run") as folder:
        fresh = Path(folder, "nvidia.json")
        command = ["nvidia-ctk", "cdi", "generate", "--format=json", f"--output={fresh}"]
        process = subprocess.run(command, check=False)
        if process.returncode and (names := answering(proc, held)):
            process = subprocess.run([*command, *(f"--device-id={n}" for n in names)], check=False)
        if process.returncode:
            return process.returncode
        spec = cut(json.loads(fresh.read_text("utf-8")), held_nodes(proc, held))
        if not spec["devices"]:
            SPEC.unlink(missing_ok=True)
            print(f"every GPU is in quarantine: removed {SPEC}")
            return 0
        # Runtimes notice a file that is renamed within the folder, not one that is moved into it.
        beside = SPEC.with_name(".gpustate-cdi")
        beside.write_text(json.dumps(spec, indent=2) + "\n", "utf-8")
        beside.chmod(0o644)
        os.replace(beside, SPEC)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
