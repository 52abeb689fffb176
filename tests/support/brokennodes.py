"""Nodes that are broken as people have met them, and healthy ones that look alike.

One scenario, two worlds: ``breaks`` makes the node that is broken, ``twin`` the healthy one whose looks are as
near to it as can be (the same services, the same oddity without its harm). ``problem`` is the public thread
that tells of it, as the cause has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from containerresults import GPUS as CONTAINER_GPUS
from containerresults import RESULTS
from nodetrees import ADDRESSES, KERNEL, LIBRARIES, UUIDS, V, World

from gpustate.diagnosis import chain, container_checks
from gpustate.formats import quarantine
from gpustate.formats.containerd import marks
from gpustate.formats.nvml_report import MigDevice, NvmlFacts

Change = Callable[[World], object]
MINE = "etc/modprobe.d/zz-mine.conf"
NEW = "580.95.05"
OLD_KERNEL = "6.1.0-27-amd64"
EFIVAR = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
HISTORY = f"""
Start-Date: 2026-01-02  06:11:03
Commandline: /usr/bin/unattended-upgrade
Upgrade: libnvidia-ml1:amd64 ({V}-1, {NEW}-1), libcuda1:amd64 ({V}-1, {NEW}-1)
End-Date: 2026-01-02  06:11:20
"""
MAKE_LOG = f"""DKMS make.log for nvidia-{V} for kernel {KERNEL} (x86_64)
/var/lib/dkms/nvidia/{V}/build/nvidia/os-mlock.c:42:1: error: too few arguments to function 'follow_pfn'
make[1]: *** [Makefile:1] Error 2
"""


@dataclass(frozen=True)
class Scenario:
    """One broken node and its healthy twin.

    Args:
        cause: the name ``explain`` must give it.
        problem: numbers of the problem in the collected reports of the field, for the count of what is covered.
        breaks: what is wrong.
        words: what the evidence must say.
        twin: the same node without its harm; without one, the plain healthy node is it.
    """

    cause: str
    problem: tuple[int, ...]
    breaks: Change
    words: tuple[str, ...]
    twin: Change | None = None

    def healthy(self) -> World:
        """The twin; the plain healthy node where the scenario has none of its own."""
        world = World()
        if self.twin is not None:
            self.twin(world)
        return world

    def broken(self) -> World:
        """The broken node."""
        world = World()
        self.breaks(world)
        return world

    def __str__(self) -> str:
        return self.cause


def both(*changes: Change) -> Change:
    """Several changes, one after the other."""

    def change(world: World) -> None:
        for one in changes:
            one(world)

    return change


def file(path: str, text: str = "") -> Change:
    """A file is there."""
    return lambda world: world.files.__setitem__(path, text)


def programs(**texts: str) -> Change:
    """Programs print something; ``__`` stands for a dash."""
    return lambda world: world.programs.update({k.replace("__", "-"): v for k, v in texts.items()})


def held(*uuids: str) -> Change:
    """GPUs in quarantine."""
    entries = (quarantine.Entry(uuid, "", "row remap", 4_000_000_000, 1, "x") for uuid in uuids)
    return file("var/lib/gpustate/quarantine.json", quarantine.as_text(tuple(entries)))


def scope(device: str) -> Change:
    """A container that systemd has read again, and lets open one device number; its nodes are files, of number 0:0."""
    return both(
        lambda world: setattr(world, "exposed", ("cri-containerd-ab.scope", 4_000_000)),
        lambda world: setattr(world, "scope_device", device),
    )


def starting(name: str, seconds: int = 0, restarts: int = 0) -> Change:
    """A service that has been starting for so long, or that systemd starts again and again."""

    def change(world: World) -> None:
        world.unit(name, "activating/start/enabled")
        world.files["proc/uptime"] = "5000.10 9000.20\n"
        world.since_s[name], world.restarts[name] = 5000 - seconds, restarts

    return change


def at_boot(name: str, state: str, *, on_disk: bool) -> Change:
    """A service that systemd remembers so; whether the disk has it started at boot."""
    return both(
        lambda world: world.unit(name, state),
        lambda world: world.at_boot.__setitem__(name, on_disk),
    )


STOPPED, RUNS = "inactive/dead/enabled", "active/running/enabled"
EXPORTER = "dcgm-exporter"
ITS_FILE = "etc/dcgm-exporter/own.csv"
TAKEN = "   0: 00000000:24B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 555 1\n"


def process(name: str, command: str = "", began: int = 99) -> Change:
    """A service with a main process and its command line; none of its answers hangs."""

    def change(world: World) -> None:
        world.unit(name, RUNS)
        pid = world.pids.setdefault(name, 700 + len(world.pids))
        # It began in the first second; see proc_pid_stat(5).
        world.files[f"proc/{pid}/stat"] = f"{pid} (a) b) S {'1 ' * 18}{began}"
        world.files["proc/uptime"] = "5000.10 9000.20\n"
        world.files[f"proc/{pid}/cmdline"] = command.replace(" ", "\0")
        world.files[f"proc/{pid}/environ"] = ""
        world.programs.setdefault("bash", "")

    return change


def drop_in(name: str, command: str = "/bin/false", file_name: str = "x") -> Change:
    """A drop-in that says what a service runs."""
    place = f"etc/systemd/system/{name}.service.d/{file_name}.conf"
    return file(place, f"[Service]\nExecStart=\nExecStart={command}\n")


def mps_pipes(variables: str) -> Change:
    """An MPS daemon that runs with a drop-in of its environment."""
    place = "etc/systemd/system/gpustate-mps.service"
    return both(
        lambda world: world.unit("gpustate-mps", RUNS),
        file(place, "[Service]\nEnvironment=CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps\n"),
        file(f"{place}.d/x.conf", f"[Service]\nEnvironment={variables}\n"),
    )


def exporter(
    name: str,
    fields: str = "DCGM_FI_DEV_GPU_UTIL, gauge, x\n",
    *,
    bash: str = "",
    engine: str = "",
    began: int = 99,
) -> Change:
    """An exporter with a counters file; one that hangs takes the request, and timeout ends who asked.

    Args:
        bash: how the request ends.
        began: when its process did, in hundredths of a second.
    """
    place = f"/usr/bin/dcgm-exporter -f @TREE@/{ITS_FILE} -a :9400{engine}"
    return both(
        process(name, command=place, began=began),
        file(ITS_FILE, f"# ours\n\n{fields}"),
        programs(bash=bash),
    )


# --- PCI and driver ------------------------------------------------------------------------------


def bound(driver: str) -> Change:
    """Both GPUs are bound to another kernel driver, and NVIDIA's is away."""

    def change(world: World) -> None:
        world.without_driver()
        world.pci = dict.fromkeys(ADDRESSES, ("0x2330", "0x030200", driver))

    return change


def secure_boot(signer: str, *enrolled: str, waiting: str = "") -> Change:
    """Secure Boot is on; the module has a signer, the kernel these keys, and one waits to be enrolled."""

    def change(world: World) -> None:
        world.files["signer"] = f"{signer}\n"
        world.files[EFIVAR] = "\x06\x00\x00\x00\x01"
        keys = "".join(
            f"1a2b3c4{n} I------     1 perm 1f030000     0     0 asymmetri {name}: 6cce: X509.rsa 4d0d []\n"
            for n, name in enumerate(("Debian Secure Boot CA", *enrolled))
        )
        world.files["proc/keys"] = keys
        world.programs["mokutil"] = f"        Subject: CN={waiting}\n" if waiting else ""

    return change


def loaded_proprietary(world: World) -> None:
    world.open_module, world.license = False, "NVIDIA"


def blackwell(world: World) -> None:
    world.pci = dict.fromkeys(ADDRESSES, ("0x2901", "0x030200", "nvidia"))


def pascal(world: World) -> None:
    world.pci = dict.fromkeys(ADDRESSES, ("0x15f8", "0x030200", "nvidia"))


def no_gpu_answers(world: World) -> None:
    world.nvml = replace(world.nvml, gpus=())


def upgraded(world: World) -> None:
    """What an unattended upgrade leaves: new files around the old module in memory."""
    world.on_disk = NEW
    world.libraries = {name: f"{name.partition('.')[0]}.so.{NEW}" for name in world.libraries}
    world.packages = dict.fromkeys(world.packages, f"{NEW}-1")
    world.nvml = NvmlFacts(source="nvml", error=18, error_text="Driver/library version mismatch")
    world.files["var/log/apt/history.log"] = HISTORY


def other_libraries(world: World) -> None:
    world.libraries = {name: f"{name.partition('.')[0]}.so.{NEW}" for name in world.libraries}


def beside(version: str, *, leads: bool = True) -> Change:
    """A libcuda of no package beside the driver's own; whether ldconfig prefers it."""

    def change(world: World) -> None:
        world.files[f"{LIBRARIES}/libcuda.so.{version}"] = world.elf
        world.owned_files = (f"libcuda.so.{V}",)
        if leads:
            world.files[f"{LIBRARIES}/libcuda.so.{V}"] = world.elf
            world.libraries["libcuda.so.1"] = f"libcuda.so.{version}"

    return change


def holder(world: World) -> None:
    world.files["proc/777/comm"] = "trainer\n"
    world.links["proc/777/fd/5"] = "dev/nvidia0"


def module_elsewhere(world: World) -> None:
    world.files[f"lib/modules/{OLD_KERNEL}/updates/dkms/nvidia.ko"] = ""


def module_set(uvm: str) -> Change:
    """The modules of the running kernel, of which nvidia-uvm says this."""

    def change(world: World) -> None:
        folder = f"lib/modules/{world.kernel}"
        texts = {"nvidia": "ELF", "nvidia-modeset": "ELF", "nvidia-uvm": uvm}
        for name, text in texts.items():
            world.files[f"{folder}/updates/dkms/{name}.ko"] = text
        rows = (f"updates/dkms/{name}.ko:\n" for name in texts)
        world.files[f"{folder}/modules.dep"] = "".join(rows)

    return change


def no_headers(world: World) -> None:
    world.gone.add("headers")


def precompiled(kernel: str) -> Change:
    """Precompiled modules, as Ubuntu has them, for one kernel."""

    def change(world: World) -> None:
        world.packages = {
            f"linux-modules-nvidia-580-server-{kernel}": "6.1.0-27.28",
            "libcuda1": f"{V}-1",
        }

    return change


def unfinished(world: World) -> None:
    world.files["var/lib/gpustate/runs/20260102T061103-aa/journal"] = (
        '{"e":"start","t":1}\n{"e":"intent","i":1}\n'
    )


def finished(world: World) -> None:
    world.files["var/lib/gpustate/runs/20260102T061103-aa/journal"] = (
        '{"e":"start","t":1}\n{"e":"end","stopped":0}\n'
    )


DRIVER = (
    Scenario("no-gpu-on-pci", (25,), lambda w: w.pci.clear(), ("no NVIDIA GPU on PCI",)),
    Scenario("gpus-held-for-virtual-machines", (25,), bound("vfio-pci"), ("all 2 GPUs are bound to vfio-pci",),
             lambda w: w.pci.__setitem__("0000:52:00.0", ("0x2330", "0x030200", "vfio-pci"))),
    Scenario("nouveau-bound", (14,), bound("nouveau"), ("bound to nouveau", "modprobe.d does not block nouveau"),
             file("etc/modprobe.d/blacklist.conf", "blacklist nouveau\n")),
    Scenario("nouveau-in-initramfs", (14,),
             both(bound("nouveau"), file("etc/modprobe.d/b.conf", "blacklist nouveau\n"), file(f"boot/initrd.img-{KERNEL}"),
                  programs(lsinitramfs="usr/lib/modules/6.1.0-28-amd64/kernel/drivers/gpu/drm/nouveau/nouveau.ko\n")),
             ("contains it and loads it first",),
             both(file("etc/modprobe.d/b.conf", "blacklist nouveau\n"), programs(lsinitramfs="nouveau.ko\n"))),
    Scenario("gpu-missing", (25,), lambda w: expect_gpus(w, 4), ("2 GPUs on PCI", "4 expected"),
             lambda w: expect_gpus(w, 2)),
    Scenario("gpu-off-the-bus", (25,), lambda w: w.off_the_bus.add(ADDRESSES[1]),
             (ADDRESSES[1], "returns only ones")),
    Scenario("mok-enrolment-waits", (15,), both(World.without_driver, secure_boot("Site DKMS", waiting="Site DKMS")),
             ("'Site DKMS' is in none", "at the console"), secure_boot("Site DKMS", "Site DKMS", waiting="Site DKMS")),
    Scenario("module-not-signed-for-secure-boot", (15,), both(World.without_driver, secure_boot("Site DKMS")),
             ("Secure Boot is on", "'Site DKMS'"), secure_boot("Site DKMS", "Site DKMS")),
    Scenario("open-modules-needed", (29,), both(World.without_driver, blackwell, loaded_proprietary),
             ("needs the open one",), blackwell),
    Scenario("proprietary-modules-needed", (29,), both(World.without_driver, pascal), ("older than Turing",),
             both(pascal, loaded_proprietary)),
    Scenario("gsp-off-with-open-modules", (28,),
             both(World.without_driver, file("etc/modprobe.d/gsp.conf", "options nvidia NVreg_EnableGpuFirmware=0\n")),
             ("NVreg_EnableGpuFirmware=0",),
             both(loaded_proprietary, file("etc/modprobe.d/gsp.conf", "options nvidia NVreg_EnableGpuFirmware=0\n"))),
    Scenario("gpu-not-supported-by-branch", (29,),
             both(World.without_driver, programs(dmesg="[  9.1] NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2330)\n"
                  "[  9.1] NVRM: installed in this system is not supported by the NVIDIA 470.256.02 driver release.\n")),
             ("is not supported by the NVIDIA 470.256.02",),
             programs(dmesg="[  9.1] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64\n")),
    Scenario("upgraded-under-a-loaded-module", (1, 22), both(upgraded, holder),
             (f"loaded {V}", "unattended-upgrades", "trainer (pid 777)"), file("var/log/apt/history.log", HISTORY)),
    Scenario("library-version-mismatch", (1,), other_libraries, (f"libnvidia-ml {NEW}", f"loaded {V}"),
             file("usr/local/lib/libcuda.so.555.42")),
    Scenario("library-of-no-package-in-the-way", (1,), beside(NEW), (f"libcuda.so.{NEW}, which belongs to no package, in place of libcuda.so.{V}",),
             beside("555.42.02", leads=False)),
    Scenario("module-file-of-another-version", (1,), both(lambda w: setattr(w, "on_disk", "570.99.01"), lambda w: setattr(w, "loaded", "570.99.01")),
             (f"the module file for kernel {KERNEL} has version 570.99.01", f"the libraries have {V}")),
    Scenario("kernel-compiler-missing", (19,),
             both(World.without_module, lambda w: w.gone.update({"gcc-12", "gcc"})), ("was built with gcc-12",),
             lambda w: w.gone.add("gcc-12")),
    Scenario("module-build-failed", (19,), both(World.without_module, file(f"var/lib/dkms/nvidia/{V}/build/make.log", MAKE_LOG)),
             ("too few arguments to function",), file(f"var/lib/dkms/nvidia/{V}/build/make.log", MAKE_LOG)),
    Scenario("kernel-headers-missing", (19,), both(World.without_module, no_headers), ("the headers of kernel",), no_headers),
    Scenario("precompiled-module-missing", (18,), both(World.without_module, precompiled(OLD_KERNEL)),
             (OLD_KERNEL, f"not for {KERNEL}"), precompiled(KERNEL)),
    Scenario("module-for-another-kernel", (19,), both(World.without_module, module_elsewhere), (f"built for {OLD_KERNEL}",),
             module_elsewhere),
    Scenario("module-file-missing", (19,), module_set(""), ("nvidia-uvm.ko is missing or not a module",), module_set("ELF")),
    Scenario("module-files-gone", (19,), lambda w: setattr(w, "on_disk", ""), (f"/lib/modules/{KERNEL} has no nvidia module", "the next boot"),
             both(lambda w: setattr(w, "on_disk", ""), lambda w: w.packages.clear())),
    Scenario("repository-unreachable", (17,),
             both(World.bare, programs(curl="!7"), file("etc/apt/sources.list.d/nvidia.list", "deb https://repo.example/d12 /\n")),
             ("is unreachable: https://repo.example/d12",),
             both(programs(curl="!7"), file("etc/apt/sources.list.d/nvidia.list", "deb https://repo.example/d12 /\n"))),
    Scenario("run-broken-off", (20,), both(World.without_driver, unfinished), ("20260102T061103-aa",), finished),
    Scenario("driver-not-installed", (16,), both(World.bare, programs(apt__cache="nvidia-open - x\n")),
             ("no driver is installed; available: nvidia-open",)),
    Scenario("driver-not-offered", (16,), both(World.bare, programs(apt__cache="")), ("no repository offers one",)),
    Scenario("module-kept-from-loading", (16,), file(MINE, "# x\ninstall nvidia /bin/false\n"),
             (f"/{MINE}:2 (install nvidia /bin/false) prevents it", "loaded now"),
             both(file(MINE, "install nvidia /bin/false\n"), file("etc/modprobe.d/a.conf", "install nvidia /sbin/modprobe -i nvidia\n"))),
    Scenario("module-blacklisted", (16,), both(World.without_driver, file(MINE, "blacklist nvidia\n")),
             ("but not loaded", f"/{MINE}:1 (blacklist nvidia)"), file(MINE, "blacklist nvidia\n")),
    Scenario("fabric-manager-before-the-driver", (11,), both(World.switches, World.fabric_down, file(MINE, "# x\nblacklist nvidia\n"),
             lambda w: w.unit("nvidia-fabricmanager", "failed/failed/enabled", "error: the driver is not loaded")),
             ("the driver is not loaded", f"/{MINE}:2 (blacklist nvidia)"), both(World.switches, file(MINE, "blacklist nvidia\n"))),
    Scenario("uvm-kept-from-loading", (16,), both(file(MINE, "install nvidia-uvm /usr/bin/true\n"), lambda w: w.majors.pop("nvidia-uvm")),
             ("nvidia_uvm is not loaded", f"/{MINE}:1"),
             both(file("usr/lib/modprobe.d/zz-mine.conf", "install nvidia-uvm /bin/false\n"), file(MINE, "# nothing\n"))),
    Scenario("uvm-blacklisted", (16,), both(file(MINE, "blacklist nvidia_uvm\n"), lambda w: w.majors.pop("nvidia-uvm")),
             ("nvidia-uvm is not loaded", f"/{MINE}:1"), file(MINE, "blacklist nvidia_uvm\n")),
    Scenario("module-not-loaded", (16,), both(World.without_driver, programs(dmesg="[  9.1] NVRM: GPU0 reason\n"
             "[  9.2] NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2168)\n[  9.3] NVRM: rm_init_adapter failed, device minor number 0\n")),
             ("but not loaded", "GPU0 reason")),
    *(Scenario(cause, (), both(World.without_driver, programs(dmesg=f"{line}\n[  9.3] NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62)\n"
               "[  9.4] nvidia: probe of 0000:1b:00.0 failed with error -1\n")), (line.partition("] ")[2],),
               programs(dmesg="[  9.1] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64\n"))
      for cause, line in (
          ("gpu-needs-power-cycle", "[  9.1] NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP"),
          ("gsp-firmware-missing", "[  9.1] nvidia 0000:1b:00.0: Direct firmware load for nvidia/580.65.06/gsp_ga10x.bin failed with error -2"),
          ("gpu-without-memory-window", "[  9.1] NVRM: BAR1 is 0M @ 0x0 (PCI:0000:1b:00.0)"))),
    Scenario("module-missing", (16,), World.without_module, (f"no nvidia module for kernel {KERNEL}",)),
)  # fmt: skip


def expect_gpus(world: World, count: int) -> None:
    """The kept proof was asked for a number of GPUs."""
    world.wanted = chain.Expected(gpus=count)


# --- GPUs and fabric -----------------------------------------------------------------------------


def rack(world: World) -> None:
    world.each_gpu(name="NVIDIA GB200", fabric_state="completed", fabric_status="success")


def mig(world: World, pending: bool | None = None, devices: bool = True) -> None:
    migs = (MigDevice("MIG-x"), MigDevice("MIG-y")) if devices else ()
    world.each_gpu(
        mig_current=True, mig_pending=True if pending is None else pending, mig_devices=migs
    )
    world.cdi = {"var/run/cdi/nvidia.yaml": ["0:0", "0:1", "1:0", "1:1", "all"]}
    world.registered, world.no_kubernetes = None, True


def divided(world: World) -> None:
    """The state mig has given each GPU two devices, the second with one GPU instance for both."""
    first, second = (f"0000{address.upper()}" for address in ADDRESSES)
    world.files["var/lib/gpustate/mig/layout"] = (
        f"# Written by gpustate\ngpu {first} on\ninstance {first} 9 0 3g.40gb 3g.40gb\n"
        f"instance {first} 9 4 3g.40gb 3g.40gb\ngpu {second} on\n"
        f"instance {second} 9 0 3g.40gb 2c.3g.40gb,1c.3g.40gb\n"
    )


def without(package: str, unit: str | None = None) -> Change:
    """A package is not installed, nor its unit."""

    def change(world: World) -> None:
        world.packages.pop(package, None)
        world.units.pop(unit or package, None)

    return change


def masked(name: str) -> Change:
    """A service that nothing starts."""
    return lambda world: world.unit(name, "inactive/dead/masked")


def capabilities(world: World) -> None:
    """One GPU instance with a compute instance on each GPU, and the nodes of their capabilities."""
    mig(world)
    world.majors["nvidia-caps"] = 235
    for gpu, name, minor in (
        (0, "gi1", 12),
        (0, "gi1/ci0", 13),
        (1, "gi1", 147),
        (1, "gi1/ci0", 148),
    ):
        path = f"proc/driver/nvidia/capabilities/gpu{gpu}/mig/{name}/access"
        world.files[path] = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        world.devices[f"/dev/nvidia-caps/nvidia-cap{minor}"] = (235, minor)


VALIDATOR = "var/lib/gpustate/validator/config.json"
FABRIC = "nvidia-fabricmanager"
GPUS = (
    Scenario("gpu-lost", (25,), lambda w: w.one_gpu(1, error=15), ("GPU is lost (NVML 15)",)),
    Scenario("nvml-timeout", (25,), lambda w: w.one_gpu(1, error=10), ("timeout (NVML 10)",)),
    Scenario("driver-library-missing", (1,), lambda w: w.libraries.pop("libcuda.so.1"), ("libcuda.so.1 is not installed",)),
    Scenario("driver-library-dangling", (1,), lambda w: w.dangling.add("libcuda.so.1"), ("libcuda.so.1 leads to libcuda.so.580.65.06, which",)),
    Scenario("driver-library-damaged", (1,), lambda w: setattr(w, "elf", w.elf[:60]), ("libnvidia-ml.so.580.65.06 is truncated",)),
    Scenario("access-blocked", (2,), lambda w: setattr(w, "nvml", NvmlFacts(source="nvml", error=17)),
             ("blocked by the operating system",)),
    Scenario("nothing-to-ask-nvml-with", (16,), lambda w: setattr(w, "nvml", NvmlFacts(error=127)), ("neither a complete python3",)),
    # A display card of another model that no driver takes is no loss.
    Scenario("gpu-refused-by-driver", (25,), both(lambda w: w.pci.__setitem__(ADDRESSES[1], ("0x2330", "0x030200", "")),
             lambda w: setattr(w, "nvml", replace(w.nvml, gpus=w.nvml.gpus[:1])), lambda w: (w.registered or {})["nvidia.com/gpu"].pop()),
             ("serves other GPUs of this model", ADDRESSES[1]), lambda w: w.pci.__setitem__("0000:65:00.0", ("0x128b", "0x030000", ""))),
    Scenario("gpu-not-in-nvml", (25,), lambda w: setattr(w, "nvml", replace(w.nvml, gpus=w.nvml.gpus[:1])), (ADDRESSES[1],)),
    Scenario("gpu-without-device-node", (16,), both(lambda w: setattr(w, "nvml", replace(w.nvml, gpus=w.nvml.gpus[:1])),
             lambda w: setattr(w, "module_gpus", 2), lambda w: w.devices.pop("/dev/nvidia1")), ("/dev/nvidia1 is missing",)),
    Scenario("mig-mode-waits-for-a-reset", (8,), lambda w: w.each_gpu(mig_current=False, mig_pending=True),
             ("MIG mode will be on",), lambda w: w.each_gpu(mig_current=False, mig_pending=False)),
    Scenario("fabric-manager-on-a-rack-node", (13,),
             both(rack, lambda w: w.unit(FABRIC, "failed/failed/enabled", "error: no NVSwitch found")),
             ("the switches of the rack",), both(rack, lambda w: w.unit(FABRIC, "inactive/dead/disabled"))),
    Scenario("imex-failed", (13,), both(rack, lambda w: w.unit("nvidia-imex", "failed/failed/enabled", "error: nodes_config.cfg is empty"),
             file("etc/nvidia-imex/nodes_config.cfg")), ("lists no node",),
             lambda w: w.unit("nvidia-imex", "failed/failed/enabled", "error: nodes_config.cfg is empty")),
    Scenario("imex-stopped", (13,), both(rack, lambda w: w.unit("nvidia-imex", "inactive/dead/enabled")),
             ("nvidia-imex is enabled and does not run",), lambda w: w.unit("nvidia-imex", "inactive/dead/enabled")),
    Scenario("nvlink5-modules-missing", (12,), both(World.nvlink5, World.fabric_down, lambda w: w.modules.discard("ib_umad")),
             ("mlx5_4", "ib_umad is not loaded"), World.nvlink5),
    Scenario("nvlink-subnet-manager-missing", (12,), both(World.nvlink5, World.fabric_down, without("nvlsm")),
             ("nvlsm is not installed",), World.nvlink5),
    Scenario("driver-too-old-for-nvlink5", (12,), both(World.nvlink5, World.fabric_down, lambda w: old_driver(w)),
             ("570.86.15 is older",), both(World.nvlink5)),
    Scenario("fabric-manager-missing", (11,), both(World.switches, World.fabric_down, without(FABRIC)),
             ("Fabric Manager is not installed",), without(FABRIC)),
    Scenario("fabric-manager-version", (11,), both(World.switches, World.fabric_down,
             lambda w: w.packages.__setitem__(FABRIC, "580.95.05-1"),
             lambda w: w.unit(FABRIC, "failed/failed/enabled", "version mismatch: driver 580.65.06")),
             (f"{FABRIC} is 580.95.05", "version mismatch"), World.switches),
    Scenario("fabric-manager-masked", (11,), both(World.switches, World.fabric_down, masked(FABRIC)),
             ("nvidia-fabricmanager is masked", "in progress"), both(World.switches, masked(FABRIC))),
    Scenario("nvlsm-masked", (12,), both(World.nvlink5, World.fabric_down, masked("nvlsm")), ("nvlsm is masked",),
             both(World.nvlink5, masked("nvlsm"))),
    Scenario("fabric-manager-down", (11,), both(World.switches, World.fabric_down, lambda w: w.unit(FABRIC, "inactive/dead/disabled")),
             ("is inactive (disabled)",), both(World.switches, lambda w: w.unit(FABRIC, "inactive/dead/disabled"))),
    Scenario("fabric-not-complete", (11, 40), both(World.switches, World.fabric_down), ("in progress",), World.switches),
    Scenario("fabric-manager-drop-in", (11,), both(World.switches, World.fabric_down, drop_in(FABRIC),
             lambda w: w.unit(FABRIC, "failed/failed/enabled", "Main process exited, code=exited, status=1/FAILURE")),
             (f"{FABRIC} is failed (Main process", f"{FABRIC}.service.d/x.conf has ExecStart=/bin/false"), both(World.switches, drop_in(FABRIC))),
    Scenario("uvm-not-loaded", (16,), lambda w: w.majors.pop("nvidia-uvm"), ("nvidia-uvm is not loaded",)),
    Scenario("uvm-node-not-made", (16,), lambda w: w.devices.pop("/dev/nvidia-uvm"), ("/dev/nvidia-uvm is missing",)),
    Scenario("device-node-not-a-device", (16,), lambda w: w.devices.__setitem__("/dev/nvidia1", (0, 0)),
             ("/dev/nvidia1 is a regular file, not a device",)),
    Scenario("device-numbers-moved", (35,), lambda w: w.devices.__setitem__("/dev/nvidia-uvm", (511, 0)), ("instead of 510:0",),
             both(lambda w: w.devices.__setitem__("/dev/nvidia-uvm", (511, 0)), lambda w: w.majors.__setitem__("nvidia-uvm", 511))),
    Scenario("device-node-missing", (16,), lambda w: w.devices.pop("/dev/nvidia1"), ("/dev/nvidia1 is missing",)),
    Scenario("mig-capability-without-node", (8, 35), both(capabilities, lambda w: w.devices.pop("/dev/nvidia-caps/nvidia-cap13"),
             lambda w: w.devices.__setitem__("/dev/nvidia-caps/nvidia-cap147", (511, 147))),
             ("nvidia-cap13 is missing (gpu0/mig/gi1/ci0)", "nvidia-cap147 is 511:147 instead of 235:147"), capabilities),
    Scenario("mig-without-devices", (8, 9), lambda w: mig(w, devices=False), ("there are no MIG devices",), mig),
    Scenario("results-cannot-be-written", (40,), both(file("run/nvidia", "x"), file(VALIDATOR, '{"status_files": true}')),
             ("/run/nvidia is a regular file, not a folder",),
             both(file("run/nvidia/validations/cuda-ready"), file(VALIDATOR, '{"status_files": true}'))),
    Scenario("fabric-not-ready", (11,), lambda w: w.prove(error=802, text="cuInit"), ("CUDA 802",), World.prove),
    Scenario("two-mps-daemons", (33,), both(lambda w: w.prove(error=46, text="cuCtxCreate"),
             programs(ps="  11 nvidia-cuda-mps-control -d\n  12 /opt/x/nvidia-cuda-mps-control -f\n")),
             ("2 MPS control daemons",), both(World.prove, programs(ps="  11 nvidia-cuda-mps-control -d\n"))),
    Scenario("gpu-exclusive-and-taken", (33,), both(lambda w: w.prove(error=46, text="cuCtxCreate"), programs(ps="")),
             ("CUDA 46", "no MPS daemon"), World.prove),
    Scenario("cuda-compat-in-the-way", (1,), lambda w: w.prove(error=804, text="cuInit"), ("CUDA 804",), World.prove),
    Scenario("memory-error", (27,), lambda w: w.prove(error=214, text="cuCtxSynchronize"), ("CUDA 214",), World.prove),
    Scenario("wrong-result", (40,), lambda w: w.prove(error=None, text="the kernel gave a wrong result"), ("wrong result",), World.prove),
    Scenario("peermem-built-for-another-rdma-stack", (36,), both(lambda w: rdma(w),
             programs(dmesg="[ 5.0] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n")),
             ("loads nvidia-peermem", "disagrees about version"),
             both(lambda w: rdma(w), lambda w: w.modules.add("nvidia_peermem"))),
    Scenario("peermem-not-loaded", (36,), lambda w: rdma(w), ("loads nvidia-peermem",),
             both(lambda w: rdma(w), lambda w: w.files.pop("etc/modules-load.d/peermem.conf"))),
)  # fmt: skip


def old_driver(world: World) -> None:
    """The same set in a branch from before the switches."""
    old = "570.86.15"
    world.loaded = world.on_disk = old
    world.libraries = {name: f"{name.partition('.')[0]}.so.{old}" for name in world.libraries}
    world.packages = {
        name: (v if name == "nvlsm" else f"{old}-1") for name, v in world.packages.items()
    }


def rdma(world: World) -> None:
    """A network function of an RDMA stack, and a file that asks for peermem."""
    world.files["sys/class/infiniband/mlx5_0/node_type"] = "1: CA\n"
    world.files["etc/modules-load.d/peermem.conf"] = "nvidia-peermem\n"
    world.modules |= {"ib_core", "mlx5_ib"}


# --- containers ----------------------------------------------------------------------------------

DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"
DROP_IN_TEXT = "[plugins.x.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n"
CONFIG = "etc/containerd/config.toml"


_EDITS = "  containerEdits: {env: [X=1]}\n"


def numbered(minor: int) -> Change:
    """A specification that gives device numbers."""
    spec = (
        "---\ncdiVersion: 0.5.0\ndevices:\n- containerEdits:\n    deviceNodes:\n    - path: @DEV@\n      type: c\n"
        f'      major: 195\n      minor: {minor}\n  name: "0"\n- name: "1"\n{_EDITS}- name: all\n{_EDITS}kind: nvidia.com/gpu\n'
    )
    return both(
        lambda w: w.cdi.clear(), lambda w: w.specs.__setitem__("var/run/cdi/nvidia.yaml", spec)
    )


TOOLKIT = "etc/nvidia-container-runtime/config.toml"
KEPT = "var/lib/gpustate/originals/0123abcd"
WHOLE = (
    "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
    f'- name: "0"\n{_EDITS}- name: "1"\n{_EDITS}- name: all\n{_EDITS}'
)
PATHLESS = f"{WHOLE}containerEdits:\n  deviceNodes:\n  - {{major: 195, minor: 255}}\n"


#: A generated one with both GPUs, up to its device ``all``.
CUT = WHOLE[: WHOLE.index('- name: "1"')] + (
    '- name: "1"\n  containerEdits:\n    hooks:\n    - hookName: createContainer\n      path: @TREE@/usr/bin/nvidia-cdi-hook\n'
)


SOCKET = f"{WHOLE}containerEdits:\n  mounts:\n  - hostPath: /run/nvidia-persistenced/socket\n    containerPath: /run/nvidia-persistenced/socket\n"


def names(
    path: str, package: str = "", place: str = "var/run/cdi/nvidia.yaml", note: str = ""
) -> Change:
    """A specification names what does not exist, and a package brings it."""
    text = f"{note}{WHOLE}containerEdits:\n  hooks:\n  - hookName: createContainer\n    path: /usr/bin/nvidia-cdi-hook\n  mounts:\n  - hostPath: {path}\n    containerPath: /x\n  - hostPath: @TREE@/opt/lib/libcuda.so.{V}\n    containerPath: /y\n"
    there = "usr/bin/nvidia-cdi-hook"
    return both(
        specification(text.replace("/usr/bin/nvidia-cdi-hook", f"@TREE@/{there}"), place),
        file(there),
        file(f"opt/lib/libcuda.so.{V}", "x"),
        lambda w: w.owners.update({path: package} if package else {}),
    )


def kept(path: str, text: str | None = "version = 3\n") -> Change:
    """gpustate has written a file, which was so before, or was not there."""

    def change(world: World) -> None:
        world.files[f"{KEPT}.path"] = f"/{path}"
        if text is not None:
            world.files[KEPT] = text

    return change


def specification(text: str, path: str = "var/run/cdi/nvidia.yaml") -> Change:
    """The one CDI specification of the node."""
    return both(lambda w: w.cdi.clear(), lambda w: w.specs.__setitem__(path, text))


def docker(
    state: str, *, runtimes: str = "nvidia runc", ours: bool = True, only: bool = False
) -> Change:
    """docker is here; it runs with these runtimes, gpustate has set it up, and no other runtime has NVIDIA's."""

    def change(world: World) -> None:
        programs(
            dockerd="", docker="".join(f"docker_runtime={name}\n" for name in runtimes.split())
        )(world)
        world.unit("docker", state)
        if ours:
            world.files["var/lib/gpustate/docker.ours"] = "runtimes.nvidia\n"
        if only:
            world.no_kubernetes, world.handler = True, False
            world.units.pop("kubelet")

    return change


def crio(state: str) -> Change:
    """CRI-O is here, and containerd has no handler."""
    return both(
        programs(crio=""), lambda w: w.unit("crio", state), lambda w: setattr(w, "handler", False)
    )


def without_kubelet(world: World) -> None:
    """No kubelet runs or starts at boot."""
    world.units.pop("kubelet")


def unrefreshed(world: World) -> None:
    """No CDI specification, and no service that writes one at boot."""
    world.cdi.clear()
    world.units.pop("nvidia-cdi-refresh")


CRIO_SOCKET = "var/run/crio/crio.sock"
CRI_OK = (
    "cri=ok|containerd|v1.7.24||runc\ncri_handler=runc|io.containerd.runc.v2||1\n"
    "cri_handler=nvidia|io.containerd.runc.v2|/usr/bin/nvidia-container-runtime|1\n"
)


def cri(rows: str, socket: str = "run/containerd/containerd.sock") -> Change:
    """A runtime says this of itself."""
    return lambda world: world.says.__setitem__(socket, rows)


def served(name: str, handler: str = "") -> Change:
    """gpustate has had this daemon read the handler."""
    return file(f"var/lib/gpustate/{name}.served", f"{handler}\n")


OTHER_HANDLER = (
    "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.other.options]\n"
    "BinaryName = 'nvidia-container-runtime'\n"
)


VERSION = "NVIDIA Container Runtime version 1.18.2\ncommit: x\nspec: 1.2.1\n"
CRIO = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'

CONTAINERS = (
    Scenario("toolkit-configuration-broken", (3,), both(file(TOOLKIT, "disable-require = false\nx = [\n"), kept(TOOLKIT)),
             (f"/{TOOLKIT}:", "not valid TOML", f"original of /{TOOLKIT}: /{KEPT}"),
             file(TOOLKIT, "disable-require = false\n[nvidia-container-runtime]\nmode = 'cdi'\n")),
    Scenario("containerd-masked", (3,), masked("containerd"), ("containerd is masked", "is not running"),
             both(masked("containerd"), lambda w: w.gone.add("containerd"))),
    Scenario("toolkit-missing", (16,), lambda w: w.gone.add("nvidia-ctk"), ("nvidia-ctk is not installed",),
             both(lambda w: w.gone.update({"nvidia-ctk", "nvidia-container-runtime"}), lambda w: setattr(w, "handler", False),
                  unrefreshed, without_kubelet)),
    Scenario("toolkit-not-usable", (16,), lambda w: w.modes.__setitem__("bin/nvidia-container-runtime", 0o644),
             ("/bin/nvidia-container-runtime is a regular file of mode 644",),
             lambda w: w.modes.__setitem__("bin/nvidia-container-runtime", 0o755)),
    Scenario("low-level-runtime-missing", (3,), programs(nvidia__container__runtime=f"!{VERSION}time= level=error msg=\"failed to create NVIDIA "
             "Container Runtime: error constructing low-level runtime: error locating runtime: no runtime binary found from candidate list: [runc crun]\"\n"),
             ("the toolkit finds no runc or crun", "candidate list: [runc crun]"), programs(nvidia__container__runtime=VERSION)),
    Scenario("toolkit-broken", (16,), programs(nvidia__ctk="!error while loading shared libraries: libnvidia-container.so.1\n"),
             ("ended with 1", "libnvidia-container")),
    Scenario("containerd-configuration-broken", (3,), programs(containerd="!containerd: toml: line 7: expected ]\n"), ("toml: line 7",)),
    Scenario("containerd-stopped", (3,), lambda w: w.unit("containerd", "inactive/dead/enabled"), ("is not running",)),
    Scenario("containerd-disabled", (3,), lambda w: w.unit("containerd", "inactive/dead/disabled"), ("is not running, and it is disabled",),
             both(lambda w: w.unit("containerd", "inactive/dead/disabled"), programs(crio=""), lambda w: w.unit("crio", RUNS),
                  cri("cri=ok|cri-o|1.31.2|systemd|\ncri_handler=nvidia|||0", CRIO_SOCKET))),
    Scenario("containerd-down", (3,), lambda w: w.unit("containerd", "failed/failed/enabled", "invalid plugin config: no such runtime"),
             ("is not running", "invalid plugin config")),
    Scenario("containerd-missing", (3,), both(lambda w: w.gone.add("containerd"),
             lambda w: setattr(w, "wanted", chain.Expected(containers="required"))), ("containerd is not installed",),
             lambda w: w.gone.add("containerd")),
    Scenario("containerd-imports-lost", (3,), both(lambda w: setattr(w, "handler", False), file(DROP_IN, DROP_IN_TEXT),
             file(CONFIG, "version = 3\n")), ("no longer imports that folder",),
             both(file(DROP_IN, DROP_IN_TEXT), file(CONFIG, 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n'))),
    Scenario("containerd-block-unclosed", (3,), both(lambda w: setattr(w, "handler", False), file(CONFIG, f"version = 3\n{marks.BEGIN}\n")),
             ("config.toml:2: gpustate's block begins here", "'# END gpustate' is missing"),
             file(CONFIG, f"version = 3\n{marks.BEGIN}\n{marks.END}\n")),
    Scenario("containerd-handler-missing", (3,), lambda w: setattr(w, "handler", False), ("no runtime handler for GPUs",),
             docker(RUNS, only=True)),
    Scenario("containerd-cri-disabled", (), programs(containerd="disabled_plugins = ['cri']\n"),
             ("disabled_plugins lists cri",), both(programs(containerd="disabled_plugins = ['cri']\n", kubelet=""), without_kubelet)),
    Scenario("containerd-runc-missing", (), cri('cri=unserved|no corresponding runtime configured in `containerd.runtimes` for '
             '`containerd` `default_runtime_name = "runc"'), ("so that no pod can start", "no corresponding runtime"), cri(CRI_OK)),
    Scenario("cri-dead", (), cri('cri=unserved|`mirrors` cannot be set when `config_path` is provided'),
             ("so that no pod can start", "`mirrors` cannot be set"), cri(CRI_OK)),
    Scenario("containerd-configuration-unread", (), cri("cri=ok|containerd|v1.7.24||runc\ncri_handler=runc|io.containerd.runc.v2||1"),
             ("no nvidia; it has runc",), cri(CRI_OK)),
    Scenario("handler-without-type", (), cri(CRI_OK.replace("nvidia|io.containerd.runc.v2", "nvidia|")),
             ("handler nvidia has no runtime_type",), cri(CRI_OK)),
    Scenario("cgroup-drivers-disagree", (), cri(CRI_OK.replace("runtime|1", "runtime|0")),
             ("handler runc: systemd, handler nvidia: cgroupfs",), cri(CRI_OK)),
    Scenario("crio-configuration-unread", (), both(crio(RUNS), cri("cri=ok|cri-o|1.31.2|systemd|\ncri_handler=crun|||0", CRIO_SOCKET), lambda w: w.cdi.clear()),
             ("no runtime handler for GPUs; it has crun",), both(crio(RUNS), cri("cri=ok|cri-o|1.31.2|systemd|\ncri_handler=nvidia|||0", CRIO_SOCKET))),
    Scenario("handler-left-behind", (4,), lambda w: setattr(w, "runtime", "/usr/local/nvidia/toolkit/nvidia-container-runtime"),
             ("which does not exist",)),
    Scenario("handler-of-another-program", (), lambda w: setattr(w, "runtime", "/bin/sh"), ("not nvidia-container-runtime",)),
    Scenario("runtime-template-in-the-way", (3,), both(file("var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl"),
             file("var/lib/rancher/rke2/agent/etc/containerd/config.toml", "[plugins]\n")), ("config.toml.tmpl", "no nvidia runtime"),
             both(file("var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl"),
                  file("var/lib/rancher/rke2/agent/etc/containerd/config.toml", '[plugins.x.containerd.runtimes."nvidia"]\n'))),
    Scenario("container-runtime-failed", (3,), both(programs(dockerd=""), file("var/lib/gpustate/docker.ours", "runtimes.nvidia\n"), drop_in("docker", "/usr/sbin/dockerd -D"), lambda w: w.unit("docker", "activating/auto-restart/enabled",
             "unable to configure the Docker daemon with file /etc/docker/daemon.json: invalid character")),
             # Nobody uses it.
             ("docker failed", "daemon.json"), lambda w: w.unit("docker", "failed/failed/enabled", "invalid character")),
    Scenario("runtime-down", (3,), docker("inactive/dead/masked", only=True), ("docker does not run", "gpustate has configured it", "masked"),
             docker("inactive/dead/masked", ours=False)),
    Scenario("docker-configuration-broken", (3,), both(docker(RUNS), file("etc/docker/daemon.json", "{ x"), kept("etc/docker/daemon.json", None),
                  programs(dockerd="!unable to configure the Docker daemon: invalid character 'x'\n")),
             ("/etc/docker/daemon.json", "invalid character", "did not exist before gpustate"),
             both(docker(RUNS), file("etc/docker/daemon.json", '{\n "runtimes": {}\n}\n'), kept("etc/docker/daemon.json", None))),
    Scenario("docker-without-runtime", (3,), docker(RUNS, runtimes="runc io.containerd.runc.v2"),
             ("docker runs without the runtime nvidia", "it has runc"), docker(RUNS, runtimes="runc", ours=False)),
    Scenario("container-runtime-drop-in", (3,), both(programs(crio=""), served("crio"), drop_in("crio"), lambda w: w.unit("crio", "failed/failed/enabled")),
             ("crio.service.d/x.conf has ExecStart=/bin/false",), both(drop_in("crio"), lambda w: w.unit("crio", "inactive/dead/disabled"))),
    Scenario("crio-configuration-broken", (3,), both(crio(RUNS), served("crio"), programs(crio="!Error: toml: line 3: expected ]\n")),
             ("CRI-O cannot read", "toml: line 3"), both(crio(RUNS), served("crio"), programs(crio=CRIO))),
    Scenario("daemon-reload-took-gpus", (2,), lambda w: setattr(w, "exposed", ("cri-containerd-ab.scope", 4_000_000)),
             ("cri-containerd-ab.scope", "Unknown Error"),
             lambda w: setattr(w, "exposed", ("cri-containerd-ab.scope", 6_000_000))),
    Scenario("daemon-reload-took-gpus", (2,), scope("/dev/nvidiactl"), ("cri-containerd-ab.scope",), scope("/dev/char/0:0")),
    Scenario("cdi-not-a-file", (35,), both(lambda w: w.cdi.clear(), lambda w: w.folders.add("var/run/cdi/nvidia.yaml")),
             ("/var/run/cdi/nvidia.yaml is a directory",), lambda w: w.folders.add("etc/cdi/nvidia.yaml")),
    Scenario("cdi-broken", (35,), specification("{"), ("/var/run/cdi/nvidia.yaml:2: is not YAML",), specification(WHOLE)),
    Scenario("every-gpu-in-quarantine", (35,), both(held(*UUIDS), lambda w: w.cdi.clear()), ("every GPU is in quarantine", "GPU-aaaaaaaa"),
             both(held(UUIDS[1]), file("etc/kubernetes/node-feature-discovery/features.d/gpustate", "nvidia.com/gpu.count=1\n"))),
    # NVIDIA's runtime needs none.
    Scenario("cdi-missing", (35,), lambda w: w.cdi.clear(), ("no CDI specification",), unrefreshed),
    Scenario("cdi-foreign", (35,), names("/opt/libcuda.so.570.86.15", place="etc/cdi/site.yaml", note="# Anna\n"),
             ("/etc/cdi/site.yaml names missing files", "the file is foreign"),
             names("/usr/bin/nvidia-cdi-hook", place="etc/cdi/site.yaml", note="# Anna\n")),
    Scenario("driver-files-missing", (35,), names("/usr/bin/nvidia-cuda-mps-server", "nvidia-cuda-mps"),
             ("names missing files of packages: /usr/bin/nvidia-cuda-mps-server (nvidia-cuda-mps)",)),
    Scenario("toolkit-files-missing", (35,), names("/usr/bin/nvidia-ctk-hook", "nvidia-container-toolkit-base:amd64"),
             ("/usr/bin/nvidia-ctk-hook (nvidia-container-toolkit-base)",)),
    Scenario("package-files-missing", (35,), names("/usr/bin/nvidia-imex-no", "nvidia-imex"),
             ("/usr/bin/nvidia-imex-no (nvidia-imex)",)),
    Scenario("persistenced-drop-in", (35,), both(specification(SOCKET), drop_in("nvidia-persistenced"),
             lambda w: w.unit("nvidia-persistenced", "failed/failed/enabled")), ("nvidia-persistenced.service.d/x.conf has ExecStart=/bin/false",),
             both(specification(WHOLE), drop_in("nvidia-persistenced"), lambda w: w.unit("nvidia-persistenced", "failed/failed/enabled"))),
    Scenario("persistenced-stopped", (35,), both(specification(SOCKET), lambda w: w.unit("nvidia-persistenced", "inactive/dead/masked")),
             ("nvidia-persistenced is masked", "/run/nvidia-persistenced/socket"),
             both(specification(WHOLE), lambda w: w.unit("nvidia-persistenced", "inactive/dead/masked"))),
    Scenario("cdi-names-missing-files", (35,), lambda w: w.cdi.__setitem__("var/run/cdi/nvidia.yaml", ["0", "1", "7", "all"]),
             ("/dev/nvidia7",)),
    Scenario("cdi-lacks-devices", (35, 9), lambda w: w.cdi.__setitem__("var/run/cdi/nvidia.yaml", ["0", "all"]), ("no device for 1",)),
    Scenario("cdi-names-gone-devices", (35,), both(mig, lambda w: w.cdi.__setitem__("var/run/cdi/nvidia.yaml", ["0:0", "0:1", "0:2", "1:0", "1:1", "all"])),
             ("names MIG devices that no longer exist: 0:2",), mig),
    Scenario("mig-devices-lost", (35,), both(mig, divided, lambda w: w.one_gpu(1, mig_devices=(MigDevice("MIG-x"),))),
             ("no longer exist: 1:1; GPU 1 has 1 of 2 MIG devices",), both(mig, divided)),
    Scenario("cdi-device-numbers", (35,), numbered(9), ("195:9", "195:0"), numbered(0)),
    Scenario("cdi-device-named-twice", (35,), lambda w: w.cdi.__setitem__("var/run/cdi/old.yaml", ["0"]), ("both define nvidia.com/gpu=0",),
             lambda w: w.cdi.__setitem__("etc/cdi/nvidia.yaml", ["0", "1", "all"])),
)  # fmt: skip


# --- kubelet, plugin, scheduler, metrics ---------------------------------------------------------


def spec(**keys: object) -> Change:
    """Keys of the Node's spec."""

    def change(world: World) -> None:
        assert world.node is not None
        world.node["spec"].update(keys)

    return change


def status(part: str, **quantities: str) -> Change:
    """Resources of the Node; ``gpu`` is ``nvidia.com/gpu``."""

    def change(world: World) -> None:
        assert world.node is not None
        world.node["status"][part].update(
            {f"nvidia.com/{k.replace('_', '-')}": v for k, v in quantities.items()}
        )

    return change


def condition(value: str, kind: str = "Ready") -> Change:
    """How Kubernetes holds the node."""

    def change(world: World) -> None:
        assert world.node is not None
        row = {
            "type": kind,
            "status": value,
            "reason": "KubeletNotReady",
            "message": "PLEG is not healthy",
        }
        world.node["status"]["conditions"] = [row]

    return change


PLUGIN_FILE = "etc/nvidia-device-plugin/config.yaml"
RIGHT = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 2\n"
WRONG = RIGHT.replace("sharing:\n", "sharing:\n  renameByDefaultt: true\n")


def shared(world: World) -> None:
    world.registered = {"nvidia.com/gpu": [f"{uuid}::{n}" for uuid in UUIDS for n in (0, 1)]}
    status("capacity", gpu="4")(world)
    status("allocatable", gpu="4")(world)


def renamed(world: World) -> None:
    """The kubelet keeps the resource of before the change of sharing, without its devices."""
    assert world.node is not None
    devices = [f"{uuid}::{n}" for uuid in UUIDS for n in (0, 1)]
    world.registered = {"nvidia.com/gpu": [], "nvidia.com/gpu.shared": devices}
    world.node["status"].update(
        capacity={"nvidia.com/gpu": "2", "nvidia.com/gpu.shared": "4"},
        allocatable={"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"},
    )


def sliced(*, divided: bool) -> Change:
    """NVIDIA's DRA driver offers two whole GPUs, of which one may be divided since; the device plugin was there before."""

    def change(world: World) -> None:
        if divided:
            mixed(V)(world)
        status("allocatable", gpu="0")(world)
        file("var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock", "")(world)
        world.slices = tuple(f"gpu|{uuid}|gpu-{number}" for number, uuid in enumerate(UUIDS))
        # What the kubelet remembers of the device plugin that was there before.
        world.registered = {"nvidia.com/gpu": list(UUIDS)}

    return change


def counted(strategy: str, count: int) -> Change:
    """Four MIG devices of one profile on two GPUs, and a feature file with a strategy and a count."""

    def change(world: World) -> None:
        mig(world)
        one = MigDevice("MIG-x", name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", memory_mib=40192)
        world.each_gpu(mig_devices=(one, replace(one, uuid="MIG-y")))
        lines = f"nvidia.com/gpu.count={count}\nnvidia.com/mig.strategy={strategy}\n"
        file("etc/kubernetes/node-feature-discovery/features.d/gpustate", lines)(world)

    return change


def mixed(version: str) -> Change:
    """One GPU divided, one whole, MIG strategy mixed, in some driver."""

    def change(world: World) -> None:
        world.each_gpu(mig_current=False, mig_pending=False)
        world.one_gpu(1, mig_current=True, mig_pending=True, mig_devices=(MigDevice("MIG-x"),))
        world.cdi = {"var/run/cdi/nvidia.yaml": ["0", "1:0", "all"]}
        world.registered = {"nvidia.com/gpu": [UUIDS[0]], "nvidia.com/mig-1g.10gb": ["MIG-x"]}
        quantities = {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "1"}
        assert world.node is not None
        world.node["status"].update(capacity=quantities, allocatable=quantities)
        world.loaded = world.on_disk = version
        world.libraries = {
            name: f"{name.partition('.')[0]}.so.{version}" for name in world.libraries
        }
        world.packages = dict.fromkeys(world.packages, f"{version}-1")

    return change


def discovered(*labels: str) -> Change:
    """Node feature discovery labels the Node, on which nothing offers GPUs."""

    def change(world: World) -> None:
        assert world.node is not None
        world.registered = None
        world.node["status"].update(capacity={}, allocatable={})
        keys = {f"feature.node.kubernetes.io/{label}.present": "true" for label in labels}
        world.node["metadata"]["labels"] = keys

    return change


CLUSTER = (
    Scenario("gpus-not-discovered", (), discovered("pci-0200_15b3"), ("no feature.node.kubernetes.io/pci-10de.present",),
             discovered("pci-0200_15b3", "pci-0302_10de")),
    Scenario("kubelet-stopped-by-mig-manager", (7,), both(lambda w: w.unit("kubelet", "inactive/dead/enabled"),
             file("etc/nvidia-mig-manager/hooks.yaml", "  apply-start:\n  - systemctl stop kubelet\n")), ("systemctl stop kubelet",),
             file("etc/nvidia-mig-manager/hooks.yaml", "  apply-start:\n  - systemctl stop kubelet\n")),
    Scenario("kubelet-down", (7,), lambda w: w.unit("kubelet", "activating/auto-restart/enabled", "failed to run Kubelet: swap on"),
             ("swap on",), lambda w: w.unit("kubelet", "inactive/dead/disabled")),
    Scenario("device-plugin-kept-off", (7,), both(lambda w: w.sockets.pop("nvidia-gpu.sock"), lambda w: setattr(w, "registered", {}),
             lambda w: kube_labels(w, {"gpu.deploy.device-plugin": "paused-for-driver-upgrade"})),
             ("device-plugin=paused-for-driver-upgrade", "kubectl label node", "--overwrite"),
             both(lambda w: w.sockets.pop("nvidia-gpu.sock"), lambda w: setattr(w, "registered", {}), lambda w: (w.node or {})["status"].update(
                  {key: {"nvidia.com/gpu": "0"} for key in ("capacity", "allocatable")}),
                  lambda w: kube_labels(w, {"gpu.deploy.device-plugin": "false"}))),
    Scenario("device-plugin-not-running", (31,), both(lambda w: w.sockets.pop("nvidia-gpu.sock"),
             file("var/log/pods/kube-system_nvidia-device-plugin-x_1/ctr/0.log", "F Failed to initialize NVML: not found\n")),
             ("has no socket", "Failed to initialize NVML"),
             # The kubelet leaves 0 for a plugin that was removed, as for DRA.
             both(lambda w: w.sockets.pop("nvidia-gpu.sock"), lambda w: setattr(w, "registered", {}), lambda w: (w.node or {})["status"].update(
                  {key: {"nvidia.com/gpu": "0"} for key in ("capacity", "allocatable")}))),
    Scenario("device-plugin-not-registered", (31,), both(lambda w: setattr(w, "registered", {})), ("did not register",),
             lambda w: setattr(w, "registered", None)),
    Scenario("sharing-in-the-wrong-place", (34,), file(PLUGIN_FILE, WRONG), ("renameByDefault", "2 of nvidia.com/gpu"),
             both(shared, file(PLUGIN_FILE, RIGHT))),
    Scenario("sharing-not-applied", (34,), file(PLUGIN_FILE, RIGHT), ("shares each GPU 2 times",), file(PLUGIN_FILE, "version: v1\n")),
    Scenario("mig-offered-whole", (), both(mixed(V), lambda w: setattr(w, "registered", {"nvidia.com/gpu": list(UUIDS)})),
             ("offered as whole GPUs by the device plugin: GPU 1",), mixed(V)),
    Scenario("device-plugin-withdrew-gpus", (31,), both(lambda w: setattr(w, "registered", {"nvidia.com/gpu": [UUIDS[0]]}),
             programs(dmesg=f"[ 99.1] NVRM: Xid (PCI:{ADDRESSES[1]}): 74, pid=0, NVLink: fatal error detected on link 1\n")),
             ("withdrew", "Xid 74"), shared),
    Scenario("device-plugin-lacks-gpus", (31,), lambda w: setattr(w, "registered", {"nvidia.com/gpu": [UUIDS[0]]}), (UUIDS[1],), shared),
    Scenario("mig-manager-stuck", (6,), both(
             lambda w: kube_labels(w, {"mig.config": "all-1g.10gb", "mig.config.state": "pending",
                                       "gpu.deploy.device-plugin": "paused-for-mig-change"})),
             ("mig.config.state is pending", "gpu.deploy.device-plugin"),
             lambda w: kube_labels(w, {"mig.config": "all-disabled", "mig.config.state": "success", "gpu.deploy.device-plugin": "true"})),
    Scenario("operator-upgrade-stuck", (20,), both(spec(unschedulable=True),
             lambda w: kube_labels(w, {"gpu-driver-upgrade-state": "drain-required"})), ("drain-required", "cordoned"),
             lambda w: kube_labels(w, {"gpu-driver-upgrade-state": "upgrade-done"})),
    Scenario("node-not-ready", (7, 30), condition("False"), ("PLEG is not healthy",)),
    Scenario("gpu-healthy-false", (), condition("False", "GPUHealthy"), ("GPUHealthy is False", "PLEG is not healthy")),
    Scenario("driver-known-bad-with-mixed-mig", (10,), mixed("570.133.20"), ("570.133.20 with MIG strategy mixed",), mixed("570.86.15")),
    Scenario("gpus-kept-unhealthy", (26,), status("allocatable", gpu="1"), ("only 1 of 2 nvidia.com/gpu",), renamed),
    Scenario("no-gpu-resource", (31, 40), both(status("capacity", gpu="0"), status("allocatable", gpu="0")), ("Kubernetes lists none",)),
    Scenario("labels-stale", (38,), file("etc/kubernetes/node-feature-discovery/features.d/gpustate", "nvidia.com/gpu.count=8\n"),
             ("gpu.count is 8", "lists 2"), file("etc/kubernetes/node-feature-discovery/features.d/gpustate", "nvidia.com/gpu.count=2\n")),
    Scenario("node-labels-stale", (38,), lambda w: kube_labels(w, {"gpu.count": "8"}), ("gpu.count is 8", "lists 2"),
             lambda w: kube_labels(w, {"gpu.count": "2"})),
    Scenario("resource-slices-stale", (38,), sliced(divided=True), ("offer gpu-1 (GPU-bbbbbbbb), which is divided by MIG",), sliced(divided=False)),
    Scenario("labels-missing", (38,), lambda w: kube_labels(w, {"gpu.deploy.gpu-feature-discovery": "true"}), ("no label nvidia.com/gpu.product",),
             lambda w: kube_labels(w, {"gpu.deploy.gpu-feature-discovery": "true", "gpu.product": "NVIDIA-H100", "gpu.count": "2"})),
    Scenario("kubelet-masked", (7, 30), both(masked("kubelet"), condition("Unknown")), ("kubelet is masked", "not ready"), masked("kubelet")),
    Scenario("slurmd-masked", (30,), both(lambda w: w.slurm("DOWN", "Not responding"), masked("slurmd")), ("slurmd is masked",),
             lambda w: w.slurm("IDLE")),
    Scenario("cordoned", (21,), both(spec(unschedulable=True, taints=[{"key": "maintenance", "effect": "NoSchedule"}])),
             ("cordoned (maintenance:NoSchedule)",), spec(taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])),
    Scenario("slurm-misses-gpus", (38,), lambda w: w.slurm("IDLE+DRAIN", "gres/gpu count reported lower than configured (0 < 2)"),
             ("gres/gpu count reported lower",), World.slurm),
    Scenario("slurmd-down", (30,), both(World.slurm, lambda w: w.unit("slurmd", "failed/failed/enabled", "error: cannot open gres.conf")),
             ("cannot open gres.conf",), World.slurm),
    Scenario("slurm-without-nvml", (30,), both(lambda w: w.slurm("DOWN+DRAIN", "gres/gpu count reported lower than configured (0 < 2)"),
             lambda w: w.unit("slurmd", "failed/failed/enabled", "error: cannot find gpu plugin for gpu/nvml")), ("cannot find gpu plugin for gpu/nvml",), World.slurm),
    Scenario("slurm-type-differs", (38,), both(lambda w: w.slurm("IDLE+DRAIN+INVALID_REG", "gres/gpu count reported lower than configured (0 < 2)"),
             file("etc/slurm/gres.conf", "NodeName=gpu2 Name=gpu Type=h100 File=/dev/nvidia0\nName=gpu Type=a100 File=/dev/nvidia[0-1] # Type=h100\n")),
             ("slurm.conf has Gres=gpu:h100:2", "gres.conf has Type=a100"),
             both(World.slurm, file("etc/slurm/gres.conf", "NodeName=gpu2 Name=gpu Type=a100 File=/dev/nvidia0\nName=gpu Type=h100 File=/dev/nvidia[0-1]\n"))),
    Scenario("slurm-drained", (21,), lambda w: w.slurm("MIXED+DRAIN", "bad nic"), ("MIXED+DRAIN", "bad nic"), lambda w: w.slurm("MIXED")),
    Scenario("two-dcgm-host-engines", (32,), programs(ps="  7 /usr/bin/nv-hostengine -n\n  9 /usr/local/bin/nv-hostengine -n -p 5556\n"),
             ("2 DCGM host engines",), programs(ps="  7 /usr/bin/nv-hostengine -n\n")),
    Scenario("exporter-stopped", (32,), both(lambda w: w.unit("nvidia-dcgm", "active/running/enabled"),
             lambda w: w.unit("nvidia-dcgm-exporter", "inactive/dead/enabled")), ("nvidia-dcgm-exporter is enabled and does not run",),
             both(lambda w: w.unit("nvidia-dcgm", "active/running/enabled"), lambda w: w.unit("nvidia-dcgm-exporter", "inactive/dead/disabled"))),
    Scenario("dcgm-stopped", (32,), lambda w: w.unit("nvidia-dcgm", "inactive/dead/enabled"), ("nvidia-dcgm is enabled",), masked("nvidia-dcgm")),
    Scenario("other-exporter-stopped", (32,), lambda w: w.unit(EXPORTER, "inactive/dead/enabled"), ("dcgm-exporter is enabled",),
             both(lambda w: w.unit(EXPORTER, "inactive/dead/enabled"), lambda w: w.unmet.add(EXPORTER))),
    Scenario("nvidia-dcgm-masked", (32,), both(masked("nvidia-dcgm"), lambda w: w.unit("nvidia-dcgm-exporter", STOPPED)),
             ("nvidia-dcgm is masked", "nvidia-dcgm-exporter, which is enabled"), masked("nvidia-dcgm")),
    Scenario("mps-other-daemon", (33,), both(lambda w: w.unit("gpustate-mps", STOPPED), programs(ps="  7 nvidia-cuda-mps-control -d\n")),
             ("does not run, and a foreign MPS control daemon does: 7",),
             both(lambda w: w.unit("gpustate-mps", RUNS), programs(ps="  7 nvidia-cuda-mps-control -d\n"))),
    Scenario("mps-drop-in", (33,), both(drop_in("gpustate-mps"), lambda w: w.unit("gpustate-mps", "failed/failed/enabled")),
             ("gpustate-mps.service.d/x.conf has ExecStart=/bin/false",), both(drop_in("gpustate-mps"), lambda w: w.unit("gpustate-mps", RUNS))),
    Scenario("mps-pipes-moved", (33,), mps_pipes("'CUDA_MPS_PIPE_DIRECTORY=/run/other'"),
             ("gpustate-mps.service.d/x.conf moves the pipes of gpustate-mps to /run/other", "expect them in /tmp/nvidia-mps"),
             mps_pipes("CUDA_MPS_LOG_DIRECTORY=/x CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps")),
    Scenario("mps-down", (33,), masked("gpustate-mps"), ("gpustate-mps is masked", "by MPS"),
             lambda w: w.unit("gpustate-mps", RUNS)),
    Scenario("dcgm-drop-in", (32,), both(drop_in("nvidia-dcgm"), drop_in("nvidia-dcgm", "/usr/bin/nv-hostengine -n", "gpustate"),
             lambda w: w.unit("nvidia-dcgm", "activating/auto-restart/enabled")), ("nvidia-dcgm.service.d/x.conf has ExecStart=/bin/false",),
             both(drop_in("nvidia-dcgm"), lambda w: w.unit("nvidia-dcgm", "inactive/dead/disabled"))),
    Scenario("exporter-without-engine", (32,), exporter("nvidia-dcgm-exporter", engine=" -r localhost:5555"),
             ("no host engine listens at localhost:5555",),
             both(exporter("nvidia-dcgm-exporter", engine=" -r localhost:5555"),
                  file("proc/net/tcp", "   0: 0100007F:15B3 00000000:0000 0A 00000000:00000000 00:00000000\n"))),
    Scenario("exporter-silent", (32,), exporter("nvidia-dcgm-exporter", ""), (f"runs with /{ITS_FILE}, which names no field",),
             exporter("nvidia-dcgm-exporter")),
    Scenario("other-exporter-silent", (32,), exporter(EXPORTER, bash="!124"), ("hangs: http://127.0.0.1:9400/metrics",),
             both(process(EXPORTER, command="/usr/bin/docker run --name dcgm-exporter x"), programs(bash="!124"))),
    Scenario("exporter-empty", (32,), exporter("nvidia-dcgm-exporter", bash="!3"), ("has no value of any GPU",),
             exporter("nvidia-dcgm-exporter", bash="!3", began=495_000)),
    Scenario("exporter-port-taken", (32,), both(file("proc/net/tcp", TAKEN),
             lambda w: w.unit(EXPORTER, "failed/failed/enabled", "listen tcp :9400: bind: address already in use")),
             ("address already in use", "port 9400", "is taken by a process"),
             both(file("proc/net/tcp", TAKEN), lambda w: w.unit(EXPORTER, RUNS))),
    Scenario("exporter-failed", (32,), lambda w: w.unit(EXPORTER, "failed/failed/enabled", "error: counters.csv line 3: unknown field"),
             ("counters.csv line 3",), lambda w: w.unit(EXPORTER, "active/running/enabled")),
)  # fmt: skip


def kube_labels(world: World, more: dict[str, str]) -> None:
    """Labels of the Node, without ``nvidia.com/``."""
    assert world.node is not None
    world.node["metadata"]["labels"].update(
        {f"nvidia.com/{key}": value for key, value in more.items()}
    )


# --- a container that the validator started -------------------------------------------------------


def showed(kind: str) -> Change:
    """The kept proof has a container that failed so."""

    def change(world: World) -> None:
        assert CONTAINER_GPUS == UUIDS
        world.prove()
        world.containers = (RESULTS[kind],)

    return change


STARTED = tuple(
    Scenario(f"container-{kind.name}", (35,), showed(kind.name), (kind.summary,))
    for kind in container_checks.KINDS
)

SCENARIOS = (*DRIVER, *GPUS, *CONTAINERS, *STARTED, *CLUSTER)


def failing(index: int, error: int) -> Change:
    """A GPU for which NVML has an error."""
    return lambda world: world.one_gpu(index, error=error)


def wpr2(index: int) -> Change:
    """A line about one GPU in the kernel's log."""
    return programs(dmesg=f"[  9.1] NVRM: GPU {ADDRESSES[index]}: unexpected WPR2 already up\n")


CUDA_FAILED = tuple(
    chain.CudaResult(uuid, False, 0.1, error, "cuInit")
    for uuid, error in zip(UUIDS, (802, 700), strict=True)
)
#: Other ways to a cause.
VARIANTS = (
    # What another GPU reports explains nothing: here one in quarantine has fallen off the bus.
    Scenario("nvml-timeout", (), both(held(UUIDS[1]), failing(0, 10), failing(1, 15)), ("GPU 0", "NVML 10")),
    Scenario("nvml-timeout", (), both(failing(0, 10), failing(1, 15)), ("GPU 0", "GPU 1")),
    Scenario("nvml-timeout", (), both(failing(0, 10), wpr2(1)), ("GPU 0",)),
    Scenario("gpu-needs-power-cycle", (), both(failing(0, 10), wpr2(0)), ("GPU 0",)),
    Scenario("memory-error", (), both(held(UUIDS[0]), lambda w: setattr(w, "proven", CUDA_FAILED)),
             ("CUDA 700",)),
    Scenario("containerd-handler-missing", (), both(served("containerd", "nvidia"), programs(containerd=OTHER_HANDLER)),
             ("no runtime handler nvidia, so pods with runtimeClassName nvidia fail", "it has other"),
             # A handler of any name, which somebody else has configured.
             programs(containerd=OTHER_HANDLER)),
    Scenario("cdi-broken", (), specification(PATHLESS),
             ("container runtimes ignore /var/run/cdi/nvidia.yaml: a device node has no path",)),
    # Cut in the middle, it is YAML and lacks the common edits, or the last devices.
    Scenario("cdi-broken", (), both(specification(CUT), file("usr/bin/nvidia-cdi-hook")),
             ("/var/run/cdi/nvidia.yaml is incomplete: no device all, no driver library",),
             both(specification(f"# Anna\n{CUT}- name: all\n{_EDITS}"), file("usr/bin/nvidia-cdi-hook"))),
    Scenario("cdi-broken", (), both(specification(f"{CUT}- name: all\n{_EDITS}"), file("usr/bin/nvidia-cdi-hook")),
             ("/var/run/cdi/nvidia.yaml is incomplete: no driver library",)),
    Scenario("cdi-broken", (), specification(WHOLE[: WHOLE.index('"1"')]), ("container runtimes ignore /var/run/cdi/nvidia.yaml: ",)),
)  # fmt: skip

GONE = "inactive/dead/disabled"
#: docker and CRI-O that do not run, and whether that is a fault.
DOWN = (
    (docker(STOPPED, ours=False, only=True), True),
    (docker(STOPPED), True),
    (docker(GONE), False),
    (both(docker(STOPPED), lambda w: w.unit("docker.socket", RUNS)), False),
    (docker(GONE, ours=False), False),
    (both(crio("inactive/dead/masked"), served("crio")), True),
    (crio(STOPPED), True),
    (both(programs(crio=""), lambda w: w.unit("crio", STOPPED)), False),
    (both(crio(GONE), served("crio"), lambda w: w.unit("containerd", GONE)), True),
)
