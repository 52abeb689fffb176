"""A real kernel: modules that stay in use, an initramfs that boots, GRUB, a reboot, a power cut.

Everything here runs in a virtual machine under qemu's software emulation (``tests/support/vm.py``).
Real: the kernel and its modules, DKMS, depmod, modprobe, udev, initramfs-tools, GRUB, dpkg, apt, systemd,
sshd. Simulated: a PCI device without anything behind it, modules ``nouveau`` and ``nvidia`` that bind
to it, and libraries nobody calls; so CUDA is not proven here.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import vmimage
from commands import GPUSTATE, Ran, gpustate
from shares import everything, share
from vm import Vm, missing
from vmpackages import VERSION

pytestmark = [
    pytest.mark.node,
    pytest.mark.proof,
    pytest.mark.skipif(bool(missing()), reason=f"no virtual machine here: {', '.join(missing())}"),
]

POLICY = f"""\
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.preflight import PreflightPassed
from gpustate.states.repository import DriverRepository

policy = Policy(
    PreflightPassed(gpus="1xH100"),
    NouveauBlacklisted(),
    DriverRepository(),
    DriverInstalled(version="{VERSION}"),
)
"""
APPLY_TIMEOUT_S = 3600
GPU = "0000:81:00.0"

#: One fact a line. ``initramfs`` is what lsinitramfs finds of nouveau in the image of any kernel.
LOOK = f"""
echo "kernel=$(uname -r)"
echo "modules=$(lsmod | grep -oE '^(nouveau|nvidia[a-z_]*) ' | sort | tr -d '\\n')"
for d in /sys/bus/pci/devices/{GPU}/driver; do [ ! -e $d ] || echo "bound=$(basename $(readlink $d))"; done
[ ! -e /sys/module/nvidia/version ] || echo "loaded=$(cat /sys/module/nvidia/version)"
echo "proc=$(grep -o 'x86_64  [0-9.]*' /proc/driver/nvidia/version)"
echo "installed=$(dpkg-query -W -f '${{Version}}' nvidia-kernel-open-dkms)"
for i in /boot/vmlinuz-*; do k=${{i#/boot/vmlinuz-}}
  echo "built=$k $(modinfo -k $k -F version nvidia) $(modinfo -k $k -F vermagic nvidia | cut -d ' ' -f 1)"
  n=$(lsinitramfs /boot/initrd.img-$k) || echo "torn=$k"
  echo "initramfs=$(echo "$n" | grep -c 'nouveau\\.ko')"
done
echo "audit=$(dpkg --audit | head -n 3 | tr '\\n' ' ')"
echo "held=$(apt-mark showhold | grep -c nvidia)"
"""


class Machine:
    """A machine, its inventory, and gpustate against it."""

    def __init__(self, vm: Vm, kernels: int, policy: Path) -> None:
        self.vm = vm
        self.policy = policy
        self.inventory = vmimage.inventory(vm, vmimage.folder_of(kernels))

    def apply(self, code: int | None = 0) -> Ran:
        words = ("apply", self.policy, "-i", self.inventory, "--yes", "-o", "json")
        return gpustate(*words, code=code, timeout=APPLY_TIMEOUT_S)

    def apply_through(self, points: list[str]) -> Ran:
        """Apply, and keep the machine as it stands at each of some :data:`CUTS`, in the order they come by."""
        vm = self.vm
        start = len(vm.console.read_text(errors="replace"))
        words = [GPUSTATE, "apply", str(self.policy), "-i", str(self.inventory), "--yes"]
        words += ["-o", "json"]
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for point in points:
                self._reach(point, process, start)
                vm.save(point)
            out, err = process.communicate(timeout=APPLY_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        return Ran(subprocess.CompletedProcess(words, process.returncode, out, err))

    def _reach(self, point: str, process: subprocess.Popen[str], start: int) -> None:
        script = CUTS[point][0]
        waiting = self.vm.waiting_for(script) if script else None

        def reached() -> bool:
            if waiting is None:
                return FIRST_WORDS in self.vm.console.read_text(errors="replace")[start:]
            return waiting.poll() is not None

        try:
            while not reached():
                assert process.poll() is None, (point, process.communicate())
                time.sleep(0.05)
            assert waiting is None or waiting.returncode == 0, point
        finally:
            if waiting is not None and waiting.poll() is None:
                waiting.kill()
                waiting.wait()

    def observed(self) -> dict[str, list[str]]:
        """What the machine's own tools say."""
        found: dict[str, list[str]] = {}
        for line in self.vm.run(LOOK).splitlines():
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value.strip())
        return found

    def converged(self) -> None:
        """The machine's own tools see the driver and no nouveau, and a further apply does nothing."""
        observed = self.observed()
        assert observed["modules"] == ["nvidia nvidia_modeset nvidia_uvm"], observed
        assert observed["bound"] == ["nvidia"], observed
        assert observed["loaded"] == [VERSION], observed
        assert observed["proc"] == [f"x86_64  {VERSION}"], observed
        assert observed["installed"] == [f"{VERSION}-1"], observed
        kernels = [built.split()[0] for built in observed["built"]]
        assert observed["built"] == [f"{kernel} {VERSION} {kernel}" for kernel in kernels], observed
        assert observed["kernel"] == kernels[-1:], observed
        assert set(observed["initramfs"]) == {"0"}, observed
        assert "torn" not in observed, observed
        assert observed["audit"] == [""], observed
        assert int(observed["held"][0]) > 5, observed
        again = self.apply().node("vm1")
        outcomes = {state["state"]: state["outcome"] for state in again["states"]}
        assert set(outcomes.values()) == {"unchanged"}, outcomes
        assert (again["connections"], again["execs"]) == (1, 1)


def reason(ran: Ran, name: str) -> str:
    """What a run says of one state."""
    states = {state["state"]: state for state in ran.node("vm1")["states"]}
    return f"{states[name].get('reason')} {states[name].get('evidence')}"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.py"
    path.write_text(POLICY)
    return path


def _running(folder: Path, kernels: int) -> Iterator[Vm]:
    vm = vmimage.machine(kernels, folder)
    try:
        yield vm
    finally:
        vm.cut_power()
        vm.disk.unlink()


#: What is under way when the power goes, in the order it comes by: how it is seen on the machine, and
#: how the power goes. Nothing to see: the first line that the next kernel says.
CUTS = {
    "initramfs": ("ls /boot/initrd.img-*.new", "cord"),
    "packages": ("grep -q 'status unpacked nvidia-smi' /var/log/dpkg.log", "cord"),
    "compiler": ("pgrep -x cc1", "button"),
    "reboot": ("", "cord"),
}
FIRST_WORDS = "Linux version"
# Another run lists no points as taken: all of its tests are left to ``make proof``.
TAKEN = share("power cuts", list(CUTS), most=3, always=True) if everything() else list(CUTS)


@dataclass(frozen=True)
class Journey:
    """One apply from beginning to end, with the machine kept at some points of it."""

    machine: Machine
    before: dict[str, list[str]]
    boot: str
    ran: Ran


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Iterator[Journey]:
    """The machine as it stood after its first boot, applied to."""
    for vm in _running(tmp_path_factory.mktemp("vm"), 1):
        machine = Machine(vm, 1, policy)
        before, boot = machine.observed(), vm.boot_id
        in_use = vm.run("! rmmod nouveau 2>&1")
        assert in_use.endswith("Module nouveau is in use"), in_use
        ran = machine.apply_through(TAKEN)
        yield Journey(machine, before, boot, ran)


def test_nouveau_drives_the_gpu_at_first(journey: Journey) -> None:
    assert journey.before["modules"] == ["nouveau"]
    assert journey.before["bound"] == ["nouveau"]
    assert journey.before["initramfs"] == ["1"]


def test_an_apply_with_a_reboot_inside_loads_what_it_installed_and_leaves_no_nouveau(
    journey: Journey,
) -> None:
    ran = journey.ran
    assert ran.code == 0, ran.out + ran.err
    assert "reboots=1" in ran.document["summary"].split()
    assert journey.machine.vm.boot_id != journey.boot
    journey.machine.converged()


@pytest.mark.parametrize("point", TAKEN)
def test_after_a_power_cut_the_machine_boots_and_the_next_apply_converges(
    journey: Journey, point: str
) -> None:
    vm = journey.machine.vm
    vm.cut_power()
    vm.power_on(point, ready=False)
    if CUTS[point][1] == "cord":
        vm.cut_power()
        vm.power_on()
    else:
        vm.reset()
        time.sleep(1)
    vm.wait_ready()
    assert vm.boot_id != journey.boot
    assert journey.machine.apply().code == 0
    journey.machine.converged()


def test_a_kernel_without_a_module_is_never_booted_into(
    tmp_path_factory: pytest.TempPathFactory, policy: Path
) -> None:
    for vm in _running(tmp_path_factory.mktemp("vm2"), 2):
        machine = Machine(vm, 2, policy)
        old, new = vm.run("ls /lib/modules | sort -V").split()
        boot = vm.boot_id
        assert vm.run("uname -r") == old
        assert vm.run("grep -m 1 -o 'vmlinuz-[^ ]*' /boot/grub/grub.cfg") == f"vmlinuz-{new}"

        vm.run(f"mv /lib/modules/{new}/build /lib/modules/{new}/away")
        without_headers = machine.apply(code=None)
        assert without_headers.code != 0
        assert f"no kernel headers for {new}" in reason(without_headers, "driver")
        assert "withheld" in reason(without_headers, "nouveau")
        assert vm.run("dpkg-query -W 'nvidia*' 2>/dev/null | wc -l") == "0"
        assert (vm.boot_id, vm.run("uname -r")) == (boot, old)
        vm.run(f"mv /lib/modules/{new}/away /lib/modules/{new}/build")

        vm.run(f"mkdir -p /etc/gpustate-vm; touch /etc/gpustate-vm/dkms-build-{new}")
        not_built = machine.apply(code=None)
        assert not_built.code != 0
        assert f"kernel {new}" in reason(not_built, "driver")
        assert "error: too few arguments" in reason(not_built, "driver")
        assert "withheld" in reason(not_built, "nouveau")
        assert (vm.boot_id, vm.run("uname -r")) == (boot, old)
        assert vm.run(f"modinfo -k {new} -F version nvidia || echo none") == "none"

        vm.run(f"rm /etc/gpustate-vm/dkms-build-{new}")
        machine.apply()
        assert vm.run("uname -r") == new
        machine.converged()

        # GRUB is told to boot the older one next, and that one loses its module and its headers.
        vm.run(f"mv /lib/modules/{old}/build /lib/modules/{old}/away")
        vm.run(f"rm -r /lib/modules/{old}/updates; depmod {old}")
        machine.apply()
        entry = vm.run(f"grep -o 'gnulinux-{old}-advanced-[^ ]*' /boot/grub/grub.cfg | tr -d \\'")
        submenu = vm.run("grep -o 'gnulinux-advanced-[^ ]*' /boot/grub/grub.cfg | tr -d \\'")
        vm.run(f"grub-reboot '{submenu}>{entry}'")
        refused = machine.apply(code=5)
        assert f"no kernel headers for {old}" in reason(refused, "driver")
