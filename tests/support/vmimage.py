"""The machine that tests start from: built once, booted once, and kept as it stood then.

Three things are made, each in a folder of the lab's cache whose name ends in a digest of all that
went into it: the packages, a disk, and a copy-on-write layer of that disk with a snapshot of the
running machine in it, so that a test starts in seconds. The disk is made without loop devices and
without a second machine: the root is filled in a chroot at native speed and packed by mke2fs.

The first boot runs the oldest kernel and lets ``update-grub`` write the boot loader's menu, so with
two kernels the machine stands as after a kernel upgrade: the next boot takes the other one.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

import vmpackages
from vm import FRESH, MACHINE, Vm

from gpustate_lab import images, paths
from gpustate_lab.command import run

GUEST = vmpackages.GUEST
#: Where the machine sees the packages: no network is needed then.
REPOSITORY = "/opt/nvidia"
COMPLETE = "complete"


def folder_of(kernels: int) -> Path:
    """Build what is missing, and return the folder of the machine with so many kernels."""
    lower = images.prepare(["debian12"], print).stacks["debian12"][-1]
    qemu = run(["qemu-system-x86_64", "--version"]).stdout
    sources = [path for path in sorted(GUEST.rglob("*")) if path.is_file()]
    sources += [Path(vmpackages.__file__), Path(__file__), vmpackages.BOOT_DISK]
    parts = [str(lower), qemu, str(kernels), *MACHINE, *(path.read_text() for path in sources)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    name = f"vm{kernels}"
    target = paths.cache_dir() / "machines" / f"{name}@{digest}"
    with paths.locked(paths.cache_dir() / "locks" / f"{name}.lock", wait_s=1800, what=name):
        if not (target / COMPLETE).exists():
            began = time.monotonic()
            for old in target.parent.glob(f"*{name}@*"):
                shutil.rmtree(old)
            target.mkdir(parents=True)
            try:
                _build(target, lower, kernels)
            except BaseException:
                shutil.rmtree(target)
                raise
            (target / COMPLETE).touch()
            print(f"machine {name}: built in {time.monotonic() - began:.0f} s")
    return target


def _build(folder: Path, lower: Path, kernels: int) -> None:
    key = folder / "id"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpustate-vm", "-f", str(key)])
    packages = vmpackages.build_repository(folder / "repository")
    downloads = paths.cache_dir() / "downloads" / "vm"
    program = [*images.NAMESPACES, "sh", str(GUEST / "image.sh"), str(folder), str(lower)]
    words = [str(downloads), str(GUEST), f"{key}.pub", str(kernels), str(packages)]
    run([*program, *words], timeout_s=1200, log=folder / "log")
    vm = Vm(folder, key, _host_key(folder))
    _layer(folder / "disk.raw", vm.disk)
    vm.power_on()
    try:
        vm.wait_ready(600)
        vm.run("systemctl is-system-running --wait || :", timeout_s=300)
        vm.run("update-grub && sync", timeout_s=300)
        vm.save(FRESH)
    finally:
        vm.cut_power()


def _layer(base: Path, disk: Path) -> None:
    create = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(base), str(disk)]
    run(create)


def _host_key(folder: Path) -> str:
    return " ".join((folder / "host.pub").read_text().split()[:2])


def machine(kernels: int, folder: Path) -> Vm:
    """A machine as it stood after its first boot, running, on a disk of its own in ``folder``."""
    made = folder_of(kernels)
    vm = Vm(folder, made / "id", _host_key(made))
    run(["cp", "--sparse=always", str(made / "disk.qcow2"), str(vm.disk)])
    vm.power_on(FRESH)
    return vm


def inventory(vm: Vm, made: Path) -> Path:
    """The inventory of one machine, which is ``vm1``."""
    text = f"""\
all:
  children:
    gpu:
      hosts:
        vm1: {{ansible_host: 127.0.0.1, ansible_port: {vm.port}}}
      vars:
        ansible_user: root
        ansible_ssh_private_key_file: {vm.key}
        ansible_ssh_common_args: -o UserKnownHostsFile={vm.known_hosts} -o StrictHostKeyChecking=yes
        gpustate:
          driver-repository: {{origin: mirror, url: "file:{REPOSITORY}/", key: {made}/repository/key.asc}}
"""
    path = vm.folder / "inventory.yml"
    path.write_text(text)
    return path
