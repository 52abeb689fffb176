"""A node as a tree of files and recorded answers, on which the real fragments of ``explain`` run.

Real: the fragments, sh and the tools they use, the readers, the judgement. Recorded: what programs of the
node print (systemctl, modinfo, dpkg-query, containerd, kubectl and so on), and what NVML says. Absolute paths
of a fragment are led into the tree, so no root is needed and nothing of this machine is looked at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from contextlib import chdir
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from nvmljson import to_json

from gpustate.core.node import Node
from gpustate.core.queries import Answer, Query
from gpustate.diagnosis import chain, chain_probe
from gpustate.explain import causes, walk
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.probes import cri_queries
from gpustate.probes.gpu_facts import GpuFacts

T = TypeVar("T")
V = "580.65.06"
KERNEL = "6.1.0-28-amd64"
BOOT_ID = "0a1b2c3d-0000-4000-8000-000000000001"
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0")
UUIDS = ("GPU-aaaaaaaa", "GPU-bbbbbbbb")
BUILD = "Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: Programs of this machine that the fragments may use.
TOOLS = [
    "awk",
    "cat",
    "cut",
    "find",
    "grep",
    "head",
    "mkdir",
    "mktemp",
    "mv",
    "od",
    "printf",
    "readlink",
    "rm",
    "sed",
    "sh",
    "sha256sum",
    "sort",
    "stat",
    "tail",
    "timeout",
    "tr",
    "wc",
]
_ROOTED = re.compile(
    r"""(?<![\w$}./*\\-])/(?=(?:etc|dev|var|run|lib|boot|proc|sys|usr/lib|usr/local)/)(?!dev/null)"""
)

#: Packages whose version the chain compares with that of the loaded module.
_SET = (
    "libcuda1",
    "libnvidia-ml1",
    "libnvidia-compute",
    "nvidia-kernel-dkms",
    "nvidia-kernel-open-dkms",
    "nvidia-dkms-",
)

_STAT = """for last; do :; done
case $* in *device_mode*) exec @STAT@ "$@" ;; esac
case $last in @TREE@/dev/*) cat @TREE@/answers/devices ;; *) exec @STAT@ "$@" ;; esac
"""
_SYSTEMCTL = """for last; do :; done
case "$*" in
  "show -p ActiveState,ExecStart containerd") cat @TREE@/answers/containerd_unit ;;
  "show -p SubState --value "*) sed -n "s/^$last //p" @TREE@/answers/sub ;;
  is-active*) grep -qsx "$last" @TREE@/answers/active ;;
  is-enabled*) grep -qsx "$last" @TREE@/answers/enabled ;;
  *UnitsLoadTimestampMonotonic*) cat @TREE@/answers/units_loaded ;;
  *DeviceAllow*) cat @TREE@/answers/scope ;;
  *--value*) cat @TREE@/answers/since ;;
  show*) cat @TREE@/answers/units ;;
esac
"""
_MODINFO = """case $1 in -F) ;; *) for f; do echo "filename:       $f"; case $(cat "$f") in ELF) echo "version: x" ;; esac; done; exit 0 ;; esac
case $2 in version) cat @TREE@/answers/on_disk ;; license) cat @TREE@/answers/license ;; signer) cat @TREE@/answers/signer ;; esac
"""


def gpus(count: int = 2, **changes: Any) -> tuple[Gpu, ...]:
    """GPUs as NVML tells of them."""
    made = (
        Gpu(index=i, uuid=UUIDS[i], pci=ADDRESSES[i], minor=i, name="NVIDIA H100 80GB HBM3")
        for i in range(count)
    )
    return tuple(replace(gpu, **changes) for gpu in made)


@dataclass
class World:
    """A healthy node of two GPUs with containerd, a kubelet and the device plugin; scenarios change it."""

    containers: tuple[chain.ContainerResult, ...] | None = (
        None  # in the kept proof; None: as it should be
    )
    kernel: str = KERNEL
    elf: str = "\x7fELF\x02\x01\x01".ljust(64, "\0")  # what is in the libraries
    loaded: str = V
    open_module: bool = True
    module_gpus: int = 0  # how many the module lists; 0: those of NVML
    on_disk: str = V
    license: str = "Dual MIT/GPL"
    libraries: dict[str, str] = field(
        default_factory=lambda: {
            "libnvidia-ml.so.1": f"libnvidia-ml.so.{V}",
            "libcuda.so.1": f"libcuda.so.{V}",
        }
    )
    dangling: set[str] = field(default_factory=set)  # libraries whose link leads to nothing
    pci: dict[str, tuple[str, str, str]] = field(
        default_factory=lambda: dict.fromkeys(ADDRESSES, ("0x2330", "0x030200", "nvidia"))
    )
    nvml: NvmlFacts = field(
        default_factory=lambda: NvmlFacts(
            source="nvml",
            driver_version=V,
            nvml_version=f"13.{V}",
            cuda_version="13.0",
            gpus=gpus(),
        )
    )
    majors: dict[str, int] = field(default_factory=lambda: {"nvidia": 195, "nvidia-uvm": 510})
    devices: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {
            "/dev/nvidia0": (195, 0),
            "/dev/nvidia1": (195, 1),
            "/dev/nvidiactl": (195, 255),
            "/dev/nvidia-uvm": (510, 0),
        }
    )
    packages: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(
            ("libcuda1", "libnvidia-ml1", "nvidia-kernel-open-dkms"), f"{V}-1"
        )
    )
    owned_files: tuple[str, ...] = ()  # base names that belong to a package
    owners: dict[str, str] = field(default_factory=dict)  # path to the package that brings it
    modules: set[str] = field(default_factory=lambda: {"nvidia", "nvidia_uvm"})
    units: dict[str, str] = field(
        default_factory=lambda: {
            "containerd": "active/running/enabled",
            "kubelet": "active/running/enabled",
            "nvidia-cdi-refresh": "inactive/dead/enabled",
        }
    )
    at_boot: dict[str, bool] = field(
        default_factory=dict
    )  # unit: it is enabled on disk, where systemd remembers otherwise
    pids: dict[str, int] = field(default_factory=dict)  # unit: its main process
    whys: dict[str, str] = field(default_factory=dict)  # unit: line of its journal
    files: dict[str, str] = field(default_factory=dict)  # path without the first slash: text
    programs: dict[str, str] = field(
        default_factory=dict
    )  # name: text it prints; '!' in front: and fails
    gone: set[str] = field(
        default_factory=set
    )  # programs that are not installed; ``headers``: nor those
    proven: tuple[chain.CudaResult, ...] | None = None
    wanted: chain.Expected | None = None  # what the kept proof was asked for
    specs: dict[str, str] = field(
        default_factory=dict
    )  # whole CDI specifications; @DEV@ is the first GPU's node, @TREE@ the root
    registered: dict[str, list[str]] | None = field(
        default_factory=lambda: {"nvidia.com/gpu": list(UUIDS)}
    )
    sockets: dict[str, int] = field(
        default_factory=lambda: {"kubelet.sock": 1000, "nvidia-gpu.sock": 1010}
    )
    node: dict[str, Any] | None = field(default_factory=lambda: kube_node())
    slices: tuple[str, ...] = ()  # devices of the DRA driver: type|uuid|name
    says: dict[str, str] = field(default_factory=dict)  # socket of a runtime to what it says by CRI
    containerd_command: str = "/usr/bin/containerd"  # of its service
    runtime: str = "/usr/bin/nvidia-container-runtime"
    handler: bool = True
    cdi: dict[str, list[str]] = field(
        default_factory=lambda: {"var/run/cdi/nvidia.yaml": ["0", "1", "all"]}
    )
    off_the_bus: set[str] = field(default_factory=set)  # addresses that answer with ones
    links: dict[str, str] = field(default_factory=dict)  # symbolic links, both ends below the tree
    folders: set[str] = field(default_factory=set)  # empty ones; where a file belongs, say
    modes: dict[str, int] = field(default_factory=dict)  # path to its permissions
    removed_units: set[str] = field(default_factory=set)  # whose file is gone since systemd read it
    unmet: set[str] = field(default_factory=set)  # units whose condition is not met
    restarts: dict[str, int] = field(
        default_factory=dict
    )  # how often systemd has started a unit again
    since_s: dict[str, int] = field(
        default_factory=dict
    )  # when a unit was last started, with its uptime
    exposed: tuple[str, int] | None = (
        None  # a container that systemd gives no GPU, and since when it runs
    )
    scope_device: str = "/dev/null"  # what systemd lets it open
    units_loaded_us: int = 5_000_000
    no_kubernetes: bool = False

    # --- small words for scenarios -----------------------------------------------------------------

    def without_driver(self) -> None:
        """Nothing of the driver is loaded or usable; what is installed stays."""
        self.loaded, self.modules, self.majors, self.devices = "", set(), {}, {}
        self.pci = {address: (device, kind, "") for address, (device, kind, _) in self.pci.items()}
        self.nvml = NvmlFacts(error=9)

    def without_module(self) -> None:
        """No module for the running kernel either."""
        self.without_driver()
        self.on_disk = ""

    def bare(self) -> None:
        """A driver was never installed."""
        self.without_module()
        self.packages, self.libraries = {}, {}
        self.nvml = NvmlFacts(error=12)

    def unit(self, name: str, state: str, why: str = "") -> None:
        """A unit as ``active/sub/enabled``, and what its journal says."""
        self.units[name] = state
        if why:
            self.whys[name] = why

    def each_gpu(self, **changes: Any) -> None:
        """Change what NVML says of every GPU."""
        self.nvml = replace(
            self.nvml, gpus=tuple(replace(gpu, **changes) for gpu in self.nvml.gpus)
        )

    def one_gpu(self, index: int, **changes: Any) -> None:
        """Change what NVML says of one GPU."""
        self.nvml = replace(
            self.nvml,
            gpus=tuple(
                replace(gpu, **changes) if gpu.index == index else gpu for gpu in self.nvml.gpus
            ),
        )

    def switches(self) -> None:
        """Two NVSwitches on PCI, and a fabric that is complete."""
        for number in (5, 6):
            self.pci[f"0000:0{number}:00.0"] = ("0x22a3", "0x068000", "nvidia-nvswitch")
        self.each_gpu(fabric_state="completed", fabric_status="success")
        self.packages["nvidia-fabricmanager"] = f"{V}-1"
        self.unit("nvidia-fabricmanager", "active/running/enabled")

    def a100(self) -> None:
        """A board of A100: NVSwitches, and GPUs that tell nothing of a fabric; a kernel ran on each."""
        self.switches()
        self.each_gpu(fabric_state="", fabric_status="", name="NVIDIA A100-SXM4-80GB")
        gpus = dict.fromkeys(ADDRESSES, ("0x20b2", "0x030200", "nvidia"))
        self.pci |= gpus
        self.prove()

    def nvlink5(self) -> None:
        """Switches behind a network function, as on B200 boards."""
        self.pci = dict.fromkeys(ADDRESSES, ("0x2901", "0x030200", "nvidia"))
        self.each_gpu(fabric_state="completed", fabric_status="success", name="NVIDIA B200")
        self.files["sys/class/infiniband/mlx5_4/device/vpd"] = "\x82\x00NVIDIA SW_MNG\x00"
        self.modules |= {"mlx5_ib", "ib_umad", "ib_core"}
        self.packages |= {"nvidia-fabricmanager": f"{V}-1", "nvlsm": "2025.03.1-1"}
        self.unit("nvidia-fabricmanager", "active/running/enabled")

    def fabric_down(self) -> None:
        """The GPUs say that their fabric is not up."""
        self.each_gpu(fabric_state="in progress", fabric_status="")

    def prove(self, **first: Any) -> None:
        """A proof is kept; ``first`` is how the first device fared, if not well."""
        good = [chain.CudaResult(uuid, True, 0.4) for uuid in UUIDS]
        if first:
            good[0] = chain.CudaResult(UUIDS[0], False, 0.1, **first)
        self.proven = tuple(good)

    def slurm(self, state: str = "IDLE", reason: str = "") -> None:
        """A Slurm node without Kubernetes."""
        self.no_kubernetes = True
        self.unit("slurmd", "active/running/enabled")
        self.files["etc/slurm/gres.conf"] = (
            "NodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia[0-1]\n"
        )
        tail = f" Reason={reason} [slurm@2026-01-01T00:00:00]" if reason else ""
        self.programs["scontrol"] = (
            f"NodeName=gpu1 Arch=x86_64 Gres=gpu:h100:2 State={state} ThreadsPerCore=1 Partitions=gpu{tail}\n"
        )


def kube_node() -> dict[str, Any]:
    """A Node object as the API server gives it, as far as it is read."""
    labels = {
        "kubernetes.io/hostname": "gpu1",
        "feature.node.kubernetes.io/pci-10de.present": "true",
    }
    return {
        "metadata": {"name": "gpu1", "labels": labels},
        "spec": {},
        "status": {
            "capacity": {"cpu": "64", "nvidia.com/gpu": "2"},
            "allocatable": {"cpu": "64", "nvidia.com/gpu": "2"},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}
            ],
        },
    }


class Tree(Node):
    """A world on disk, and a node that answers from it."""

    def __init__(self, world: World, folder: Path) -> None:
        self.name, self.vars = "gpu1", {}
        self.world, self.top = world, folder
        self.bin = folder / "bin"
        self._tools()
        self._kernel()
        self._userland()
        self._services()
        self._containers()
        self._cluster()
        for path, text in world.files.items():
            self.put(path, text.replace("@TREE@", str(self.top)))
        for path, target in world.links.items():
            (self.top / path).parent.mkdir(parents=True, exist_ok=True)
            (self.top / path).symlink_to(self.top / target)
        for path in world.folders:
            (self.top / path).mkdir(parents=True)
        for path, mode in world.modes.items():
            (self.top / path).chmod(mode)
        if world.proven is not None or world.wanted is not None:
            self._proof(world.proven or ())

    def query(self, query: Query[T]) -> T:
        """Run an ask's fragment in the tree; NVML's answer is the recorded one."""
        script = query.script()
        if script in (GpuFacts(walk.NVML_S).script(), GpuFacts().script()):
            return query.parse(Answer(0, self._nvml().encode()))
        return query.parse(self.run(script))

    def run(self, script: str) -> Answer:
        """Run sh with its absolute paths led into the tree, and lead the answer back."""
        done = subprocess.run(
            ["/bin/sh", "-c", _ROOTED.sub(f"{self.top}/", script)],
            env={
                "LC_ALL": "C",
                "PATH": str(self.bin),
                "PROC": f"{self.top}/proc",
                "SYS": f"{self.top}/sys",
                "G": f"{self.top}/var/lib/gpustate",
                "SHIPPED": f"{self.top}/shipped",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout.replace(str(self.top).encode(), b""))

    def view(self) -> causes.View:
        """What ``explain`` sees of it."""
        with patch.multiple(walk, CHAIN_S=300, CLUES_S=300):
            return walk.query(self)

    # --- the parts of the tree ---------------------------------------------------------------------

    def put(self, path: str, text: str) -> None:
        """Write a file below the tree; programs and firmware are never empty."""
        if path.startswith(("usr/bin/", "lib/firmware/")):
            text = text or "#"
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def program(self, name: str, text: str) -> None:
        """A program of the node."""
        if name in self.world.gone:
            return
        text = text.replace("@TREE@", str(self.top)).replace("@STAT@", str(shutil.which("stat")))
        self.bin.mkdir(exist_ok=True)
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def prints(self, name: str, text: str) -> None:
        """A program that prints a recorded answer; one that begins with ``!`` or ``!7`` then fails."""
        failed = re.match(r"!(\d*)", text)
        self.put(f"answers/{name}.out", text[failed.end() :] if failed else text)
        status = int(failed[1] or 1) if failed else 0
        self.program(name, f"cat @TREE@/answers/{name}.out\nexit {status}\n")

    def _tools(self) -> None:
        self.bin.mkdir(parents=True)
        for name in TOOLS:
            (self.bin / name).symlink_to(os.path.realpath(str(shutil.which(name))))
        self.program("stat", _STAT)
        self.program("systemctl", _SYSTEMCTL)
        self.program("modinfo", _MODINFO)
        self.prints("uname", f"{self.world.kernel}\n")
        for name in ("gcc", "gcc-12"):
            self.program(name, "")
        for name, text in self.world.programs.items():
            self.prints(name, text)

    def _kernel(self) -> None:
        world = self.world
        self.put("proc/sys/kernel/random/boot_id", f"{BOOT_ID}\n")
        self.put("proc/sys/kernel/hostname", "gpu1\n")
        self.put("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz root=/dev/vda1 ro quiet\n")
        self.put("proc/version", f"{BUILD}\n")
        self.put(
            "proc/modules", "".join(f"{name} 1 0 - Live 0x0\n" for name in sorted(world.modules))
        )
        (self.top / f"lib/modules/{world.kernel}").mkdir(parents=True)
        if "headers" not in world.gone:
            (self.top / f"lib/modules/{world.kernel}/build").mkdir()
        if world.on_disk:
            self.put(f"lib/modules/{world.kernel}/updates/dkms/nvidia.ko", "")
        devices = "".join(f"{major} {name}\n" for name, major in world.majors.items())
        self.put("proc/devices", f"Character devices:\n{devices}\nBlock devices:\n")
        if world.loaded:
            kind = "Open Kernel Module for x86_64" if world.open_module else "x86_64 Kernel Module"
            self.put(
                "proc/driver/nvidia/version",
                f"NVRM version: NVIDIA UNIX {kind}  {world.loaded}  Release Build\n",
            )
            for gpu in (
                gpus(world.module_gpus) if world.module_gpus else world.nvml.gpus
            ) or gpus():
                text = f"Model: NVIDIA\nGPU UUID: {gpu.uuid}\nDevice Minor: {gpu.minor}\n"
                self.put(f"proc/driver/nvidia/gpus/{gpu.pci}/information", text)
        for address, (device, kind, driver) in world.pci.items():
            folder = f"sys/bus/pci/devices/{address}"
            for name, text in (("vendor", "0x10de"), ("device", device), ("class", kind)):
                self.put(f"{folder}/{name}", f"{text}\n")
            gone = address in world.off_the_bus
            (self.top / folder / "config").write_bytes(b"\xff" * 4 if gone else b"\xde\x10\x30\x23")
            if driver:
                bound = self.top / f"sys/bus/pci/drivers/{driver}"
                bound.mkdir(parents=True, exist_ok=True)
                (bound / address).symlink_to(f"../../devices/{address}")
                (self.top / folder / "driver").symlink_to(f"../../drivers/{driver}")

    def _userland(self) -> None:
        world = self.world
        self.put("answers/on_disk", f"{world.on_disk}\n" if world.on_disk else "")
        self.put("answers/license", f"{world.license}\n" if world.on_disk else "")
        self.put("answers/signer", world.files.pop("signer", ""))
        for name, target in world.libraries.items():
            self.put(f"{LIBRARIES}/{target}", world.elf)
            if name in world.dangling:
                (self.top / LIBRARIES / target).unlink()
            (self.top / LIBRARIES / name).symlink_to(target)
        rows = "".join(
            f"package={name}|{version}|ii \n"
            for name, version in world.packages.items()
            if name.startswith(_SET)
        )
        more = "".join(
            f"installed={name}|{version}|ii \n" for name, version in world.packages.items()
        )
        self.put("answers/packages", rows)
        self.put("answers/installed", more)
        rows = "".join(f"{package}: {path}\n" for path, package in world.owners.items())
        self.put("answers/owners", rows)
        self.put("answers/owned", "".join(f"{name}\n" for name in world.owned_files))
        self.program(
            "dpkg-query",
            'case "$*" in -S*) cat @TREE@/answers/owners; grep -qsx -- "${2#??}" @TREE@/answers/owned ;; *installed=*) cat @TREE@/answers/installed ;; *) cat @TREE@/answers/packages ;; esac\n',
        )
        lines = ""
        for path, (major, minor) in world.devices.items():
            kind = "character special file" if major else "regular file"
            lines += f"node={path}|{kind}|{major:x}|{minor:x}\n"
            self.put(path[1:], "device")
            (self.top / path[1:]).chmod(0o666)
        self.put("answers/devices", lines)

    def _services(self) -> None:
        world = self.world
        (self.top / "run/systemd/system").mkdir(parents=True)
        text, active, at_boot, subs = "", "", "", ""
        for name, state in world.units.items():
            unit = name if name.endswith(".socket") else f"{name}.service"
            is_active, sub, enabled = state.split("/")
            active += f"{name}\n" if is_active == "active" else ""
            subs += f"{name} {sub}\n"
            at_boot += f"{name}\n" if enabled == "enabled" else ""
            # The order in which systemctl prints them: that of its own interfaces, not that of the question.
            if world.at_boot.get(name, enabled == "enabled"):
                wants = self.top / "etc/systemd/system/multi-user.target.wants"
                wants.mkdir(parents=True, exist_ok=True)
                (wants / unit).symlink_to(f"/lib/systemd/system/{unit}")
            if name in world.removed_units:
                text += f"FragmentPath={self.top}/etc/systemd/system/{unit}\n"
            load = "masked" if enabled.startswith("masked") else "loaded"
            text += f"Result=success\nId={unit}\nLoadState={load}\nActiveState={is_active}\nSubState={sub}\n"
            text += f"UnitFileState={enabled}\nActiveEnterTimestampMonotonic=1\n"
            text += f"MainPID={world.pids.get(name, 0)}\nNRestarts={world.restarts.get(name, 0)}\n"
            text += f"InactiveExitTimestampMonotonic={world.since_s.get(name, 0)}000000\n"
            ours = f"etc/systemd/system/{name}.service.d/"
            text += f"DropInPaths={' '.join(f'{self.top}/{one}' for one in world.files if one.startswith(ours))}\n"
            text += f"ConditionResult={'no' if name in world.unmet else 'yes'}\nConditionTimestampMonotonic=1\n\n"
        text += (
            "Id=nvlsm.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n"
            if "nvlsm" not in world.units
            else ""
        )
        self.put("answers/units", text)
        self.put("answers/active", active)
        self.put("answers/enabled", at_boot)
        self.put("answers/sub", subs)
        state = world.units.get("containerd", "inactive").partition("/")[0]
        words = _ROOTED.sub(f"{self.top}/", world.containerd_command)
        command = f"{{ path=/usr/bin/containerd ; argv[]={words} ; ignore_errors=no }}"
        self.put("answers/containerd_unit", f"ExecStart={command}\nActiveState={state}\n")
        self.put("answers/units_loaded", f"{world.units_loaded_us}\n")
        scope, since = world.exposed or ("", 0)
        self.put(
            "answers/scope",
            f"ControlGroup=/pod\nDeviceAllow={self.top}{world.scope_device} rwm\nDevicePolicy=strict\n",
        )
        self.put("answers/since", f"{since}\n")
        if scope:
            self.put(f"run/systemd/transient/{scope}", "")
            self.put("sys/fs/cgroup/pod/cgroup.procs", "4242\n")
            self.put("proc/4242/root/dev/nvidiactl", "")
            self.put("proc/4242/root/dev/nvidia0", "")
        said = "".join(f"  {name}.service) echo '{why}' ;;\n" for name, why in world.whys.items())
        self.program("journalctl", f"case $2 in\n{said}esac\n")

    def _containers(self) -> None:
        world = self.world
        version = "NVIDIA Container Toolkit CLI version 1.18.2\n"
        for name, text in (
            ("nvidia-ctk", version),
            ("nvidia-container-runtime", "runc version 1.1.5\n"),
        ):
            if name not in world.programs:
                self.prints(name, text)
        section = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options"
        binary = (
            str(self.bin / "nvidia-container-runtime")
            if world.runtime.startswith("/usr/bin")
            else world.runtime
        )
        dump = (
            f"version = 3\n[{section}]\nBinaryName = '{binary}'\n"
            if world.handler
            else "version = 3\n"
        )
        if "containerd" not in world.programs:
            self.prints("containerd", dump)
        for folder in ("etc/cdi", "var/run/cdi"):
            (self.top / folder).mkdir(mode=0o755, parents=True)
        for path, names in world.cdi.items():
            devices = "".join(
                f'- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia{name.partition(":")[0] if name != "all" else 0}\n  name: "{name}"\n'
                for name in names
            )
            spec = f"---\ncdiVersion: 0.5.0\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/nvidiactl\ndevices:\n{devices}kind: nvidia.com/gpu\n"
            self.put(path, _ROOTED.sub(f"{self.top}/", spec))
        for path, text in world.specs.items():
            self.put(
                path,
                text.replace("@DEV@", f"{self.top}/dev/nvidia0").replace("@TREE@", str(self.top)),
            )

        self._cri()

    def _cri(self) -> None:
        """Sockets of runtimes; a python3 that prints what the program for asking them would."""
        if not self.world.says:
            return
        for file in cri_queries.SHIPS:
            self.put(f"shipped/{file.digest}/{file.name}", "")
        cases = ""
        for path, rows in self.world.says.items():
            place = self.top / path
            place.parent.mkdir(parents=True, exist_ok=True)
            with socket.socket(socket.AF_UNIX) as one, chdir(place.parent):
                one.bind(place.name)
            self.put(f"answers/{place.name}", rows)
            cases += f"  */{place.name}) cat {self.top}/answers/{place.name} ;;\n"
        self.program("python3", f'for w in "$@"; do case $w in\n{cases}esac; done\n')

    def _cluster(self) -> None:
        world = self.world
        if world.no_kubernetes:
            return
        folder = "var/lib/kubelet/device-plugins"
        for name, when in world.sockets.items():
            self.put(f"{folder}/{name}", "")
            os.utime(self.top / folder / name, (when, when))
        if world.registered is not None:
            data = {
                "Data": {"PodDeviceEntries": None, "RegisteredDevices": world.registered},
                "Checksum": 1,
            }
            self.put(f"{folder}/kubelet_internal_checkpoint", json.dumps(data))
        if world.node is not None:
            self.put("etc/kubernetes/kubelet.conf", "")
            self.put("answers/kubectl.out", json.dumps(world.node, indent=2) + "\n")
            # The real one keeps a cache in the home directory otherwise, and explain writes nothing there.
            rows = "".join(f"slice={row}\n" for row in world.slices)
            self.put("answers/kubectl-slices.out", rows)
            cacheless = 'case "$*" in *--cache-dir=/dev/null*resourceslices*) cat @TREE@/answers/kubectl-slices.out ;; *--cache-dir=/dev/null*) cat @TREE@/answers/kubectl.out ;; *) exit 1 ;; esac\n'
            self.program("kubectl", cacheless)

    def _nvml(self) -> str:
        nvml = self.world.nvml
        head = f"loaded={1 if self.world.loaded else ''}\nlibrary=/usr/lib/libnvidia-ml.so.1\n"
        if nvml.source == "none":
            return f"{head}error={nvml.error}\n"
        return f"{head}nvml={json.dumps(to_json(nvml))}\n"

    def _container_results(self, results: tuple[chain.CudaResult, ...]) -> list[dict[str, Any]]:
        """What a container showed: as the world has it, else every GPU that answers."""
        if self.world.containers is not None:
            return [asdict(one) for one in self.world.containers]
        gpus = tuple(gpu.uuid for gpu in self.world.nvml.gpus if gpu.error is None)
        nodes = tuple(f"/dev/nvidia{number}" for number in range(len(gpus)))
        files = (f"/{LIBRARIES}/libcuda.so.{V}",)
        way = "containerd 1.7.24, handler nvidia"
        one = chain.ContainerResult(
            way, devices=nodes, files=files, gpus=gpus, cuda_ok=sum(one.ok for one in results)
        )
        return [asdict(one)]

    def _proof(self, results: tuple[chain.CudaResult, ...]) -> None:
        observed = chain_probe.parse(self.run(chain_probe.KEY_SCRIPT).text, self.world.nvml)
        key = chain.key(observed, self.world.wanted or chain.Expected())
        proof = {
            "format": "gpustate.proof/1",
            "ok": all(one.ok for one in results),
            "made_at": 1,
            "made_for": asdict(key),
            "checks": [],
            "cuda": [asdict(one) for one in results],
            "containers": self._container_results(results),
            "status_files": [],
        }
        self.put("var/lib/gpustate/proof.json", json.dumps(proof))
