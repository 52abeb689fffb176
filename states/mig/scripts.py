"""What the steps of the state ``mig`` run on a node, as sh.

Each fragment may be killed anywhere and run again. What it begins with is written down before it is
done: the services it stops, and (by steps before it) the layout that the node is to have.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from gpustate import Step, ops, shell
from gpustate.formats import gpu_services
from gpustate.formats.cdi import SPEC_PATH
from gpustate.mig.names import device_name
from gpustate.mig.plan import GpuPlan
from gpustate.mig.saved import bus_id
from gpustate.probes import device_nodes
from gpustate.states.mig.observed import CLIENTS, NO_RESET_PATH, RESET_CLIENTS, UNIT

#: Everything that starts with GPUs at boot, and finds them divided then. Services only: a path or a socket
#: starts before basic.target, after which this unit starts, and systemd breaks such a cycle by leaving one out.
_AFTER_US = (
    "nvidia-cdi-refresh.service",
    "gpustate-cdi-refresh.service",
    "containerd.service",
    "crio.service",
    "docker.service",
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "slurmd.service",
    *CLIENTS,
    gpu_services.VALIDATION,
)


def unit_text(folder: str) -> str:
    """The unit that divides the GPUs at boot."""
    return f"""# Written by gpustate (state mig); changes are undone by the next apply.
[Unit]
Description=Divide the NVIDIA GPUs into their MIG devices
After=systemd-modules-load.service systemd-udev-settle.service nvidia-persistenced.service nvidia-fabricmanager.service
Before={" ".join(_AFTER_US)}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh {folder}/restore {folder}/layout
# What runc takes a container's devices from; the rule of dev-char runs when the module is loaded, before these are there.
ExecStartPost=-/bin/sh -c '[ ! -e /etc/udev/rules.d/71-nvidia-dev-char.rules ] || exec nvidia-ctk system create-dev-char-symlinks --create-all'
TimeoutStartSec=600

[Install]
WantedBy=multi-user.target
"""


FUNCTIONS = shell.load("stopped_with", "gpustate.probes") + shell.fill(
    shell.load("functions", "gpustate.states.mig", UNIT=UNIT, VALIDATION=gpu_services.VALIDATION),
    SPEC=SPEC_PATH,
    GENERATE=shell.load("generate_cdi", "gpustate.shell", SPEC=SPEC_PATH),
)


def divide(
    folder: str,
    plans: Iterable[GpuPlan],
    addresses: dict[int, str],
    clients: Iterable[str],
    lost: Iterable[str] = (),
) -> Step:
    """Remove what goes, then give every GPU but the lost ones the layout that lies in the folder."""
    lines = [f"D={shlex.quote(folder)}", FUNCTIONS]
    lines.append("trap 'start_again' EXIT")
    lines.append("stop_clients " + " ".join(map(shlex.quote, clients)))
    for plan in plans:
        lines += _destroys(plan, bus_id(addresses[plan.gpu.index]))
    lines += [
        f'r=0; lost={shlex.quote(" ".join(map(bus_id, lost)))} sh "$D/restore" "$D/layout" || r=$?',
        "refresh_cdi",
        # Told to the next plan: a reset that is not to be had takes a reboot.
        '[ $r = 0 ] || { if waits=$(smi --query-gpu=pci.bus_id,mig.mode.current,mig.mode.pending --format=csv,noheader | grep -E "Enabled, Disabled|Disabled, Enabled"); '
        f'then mkdir -p /run/gpustate; printf "%s\\n" "$waits" >{NO_RESET_PATH}; '
        'echo "a GPU could not be reset; the next apply plans a reboot"; fi; exit $r; }',
        "effect divided",
    ]
    return ops.RunLive("\n".join(lines), "apply the MIG layout", timeout=1800)


def _destroys(plan: GpuPlan, bus: str) -> Iterator[str]:
    geometry = plan.gpu.profiles()
    for step in plan.steps:
        data = step.data
        if step.do == "destroy-compute-instance":
            numbers = f"{data['gpu_instance']} {data['compute_instance']}"
            yield f"drop_compute {bus} {numbers} {data['device']}"
        elif step.do == "destroy-gpu-instance":
            profile = geometry.get(data["profile"]) if geometry is not None else None
            number = profile.smi_id if profile is not None else 0
            yield f"drop {bus} {data['gpu_instance']} {number} {data['start']} {data['profile']}"


def wait_for_reboot(plans: Iterable[GpuPlan], addresses: dict[int, str]) -> Step | None:
    """Set the modes that a reset would make true; the reboot does. ``None``: no board keeps its mode."""
    lines = []
    for plan in plans:
        if any(step.do == "reset" for step in plan.steps) and plan.entry is not None:
            word = "1" if plan.entry.enabled else "0"
            bus = bus_id(addresses[plan.gpu.index])
            lines.append(f'o=$(smi -i {bus} -mig {word}) || fail "GPU {bus}: $(why "$o")"')
    if not lines:
        return None
    text = "\n".join(["D=/nonexistent", FUNCTIONS, *lines, "effect set"])
    return ops.RunLive(text, "set the MIG mode for after the reboot", timeout=300)


def nodes() -> Step:
    """Make the nodes of the capabilities that instances have."""
    text = device_nodes.make(device_nodes.CAPABILITIES)
    return ops.RunLive(text, "create the device nodes of MIG devices", timeout=60)


def start_stopped(folder: str) -> Step:
    """Start what an interrupted run has left stopped."""
    text = f"D={shlex.quote(folder)}\n{FUNCTIONS}\nstart_again\neffect started"
    return ops.RunLive(text, "restart the services stopped for MIG", timeout=600)


def forget(folder: str) -> Step:
    """Remove the folder of this state."""
    files = " ".join(shlex.quote(f"{folder}/{name}") for name in ("layout", "restore", "before"))
    text = f'for f in {files}; do forget_original "$f"; done\nrm -rf {shlex.quote(folder)} {NO_RESET_PATH}\neffect removed'
    return ops.Run(text, "remove the MIG layout and its boot service")


def known_clients(more: Iterable[str], *, resets: bool) -> tuple[str, ...]:
    """Units that may be stopped, in the order they are."""
    return (*more, *CLIENTS, *(RESET_CLIENTS if resets else ()))


def pieces_text(profile: str, start: int, slices: Iterable[int]) -> str:
    """``3g.40gb at 4``, with its compute instances where they are not one for all of it."""
    names = sorted(device_name(size, profile) for size in slices)
    inside = "" if names == [profile] else f" ({', '.join(names) or 'empty'})"
    return f"{profile} at {start}{inside}"
