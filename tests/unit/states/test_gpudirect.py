"""OFED, nvidia-peermem, GDRCopy and GPUDirect Storage, in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpustate import Disruption, NodeFacts, PciGpu, ops
from gpustate.core.queries import Answer
from gpustate.probes.kernel_modules import KernelModuleQuery, Kmod
from gpustate.probes.rdma import Rdma, RdmaQuery
from gpustate.states import gds, peermem
from gpustate.states.gdrcopy import GdrCopyInstalled
from gpustate.states.gds import GpuDirectStorageEnabled
from gpustate.states.ofed import OfedInstalled
from gpustate.states.peermem import AUTOLOAD_PATH, GpuDirectRdmaEnabled
from gpustate.testing import FakeNode, check_contract, converge

STEPLESS = {
    "ofed": "its default installs nothing, and there is no OFED",
    "peermem": "no network card of NVIDIA there, and DMA-BUF would need nothing",
}

KERNEL = "6.1.0-28-amd64"
H100 = PciGpu("0000:1b:00.0", "2330", "030200", "nvidia")
V100 = PciGpu("0000:1b:00.0", "1db6", "030200", "nvidia")
FACTS = NodeFacts(kernel=KERNEL, pci=(H100,), systemd=True)
CRC = "0x1a2b3c4d"
CARD = Rdma(nics=("0000:05:00.0",))
OFED = replace(CARD, ofed="24.10-1.1.4", symbol=CRC)
#: Ubuntu's linux-nvidia and its kernels before 6.8.
UBUNTU = replace(CARD, symbol=CRC)
SIGNED = f"/lib/modules/{KERNEL}/kernel/nvidia-535srv/nvidia-peermem.ko"


def module(symbols: str = "", **more: Any) -> Kmod:
    settings: dict[str, Any] = {
        "built": {KERNEL: "580.65.06"},
        "headers": (KERNEL,),
        "running": KERNEL,
        "symbols": symbols,
    }
    return Kmod(**{**settings, **more})


GOOD = f"{CRC}\tib_register_peer_memory_client"


def rdma_node(rdma: Rdma, kmod: Kmod, **more: Any) -> FakeNode:
    def built(node: FakeNode) -> None:
        node.answers["KernelModuleQuery"] = module(GOOD)

    settings: dict[str, Any] = {
        "facts": FACTS,
        "answers": {"RdmaQuery": rdma, "KernelModuleQuery": kmod},
        "shell": {"Open Kernel Module": (0, "535.230.02 proprietary\n")},
        "runs": {
            "build nvidia-peermem": built,
            "unload nvidia_peermem": lambda node: node.loaded.discard("nvidia_peermem"),
            "load nvidia-peermem": lambda node: node.loaded.add("nvidia_peermem"),
        },
    }
    return FakeNode(**{**settings, **more})


def open_driver(rdma: Rdma = CARD, **more: Any) -> FakeNode:
    return rdma_node(rdma, module(), shell={"Open": (0, "580.65.06 open\n")}, **more)


def test_dma_buf_needs_nothing_on_the_node() -> None:
    node = open_driver()
    (plan,) = converge(GpuDirectRdmaEnabled(), node, rounds=0)
    assert not plan
    assert "DMA-BUF" in plan.notes[0]
    assert GpuDirectRdmaEnabled().refuse(GpuDirectRdmaEnabled().probe(node)) is None


def test_peermem_is_built_anew_against_the_ofed_that_is_there_then_loaded() -> None:
    node = rdma_node(OFED, module())
    first, second = converge(GpuDirectRdmaEnabled(), node)
    assert [step.label for step in node.done] == [
        f"build nvidia-peermem for {KERNEL}",
        f"write {AUTOLOAD_PATH}",
        "load nvidia-peermem",
    ]
    assert first.disruption is Disruption.NONE
    assert not second


def test_peermem_that_fits_is_only_loaded() -> None:
    node = rdma_node(OFED, module(GOOD))
    first, second = converge(GpuDirectRdmaEnabled(), node)
    assert first.fields == {"autoload_text", "loaded"}
    assert not second


def test_peermem_of_another_ofed_is_named() -> None:
    node = rdma_node(OFED, module("0xdead\tib_register_peer_memory_client"))
    (plan,) = converge(GpuDirectRdmaEnabled(), node, rounds=0)
    why = next(change.why for change in plan.changes if change.field == "built")
    assert "against another one" in why
    assert "24.10-1.1.4" in why


def test_a_kernel_that_has_what_peermem_registers_with_needs_no_ofed() -> None:
    node = rdma_node(UBUNTU, module())
    first, second = converge(GpuDirectRdmaEnabled(), node)
    assert first.fields == {"built", "autoload_text", "loaded"}
    assert "the kernel's own RDMA stack, was built without it" in str(first.changes)
    assert not second
    # Ubuntu's signed module is built with it, and there may be no headers that show what the kernel has.
    node = rdma_node(CARD, module(GOOD, path=SIGNED, headers=()))
    first, second = converge(GpuDirectRdmaEnabled(), node)
    assert first.fields == {"autoload_text", "loaded"}
    assert not second


def test_removal_unloads_what_is_ours_and_nothing_of_others() -> None:
    node = rdma_node(OFED, module(GOOD))
    list(converge(GpuDirectRdmaEnabled(), node))
    first, last = converge(GpuDirectRdmaEnabled(ensure="absent"), node)
    assert first.disruption is Disruption.DRAIN
    assert not last
    assert AUTOLOAD_PATH not in node.files
    assert "nvidia_peermem" not in node.loaded
    theirs = rdma_node(OFED, module(GOOD), modules=("nvidia_peermem",))
    (plan,) = converge(GpuDirectRdmaEnabled(ensure="absent"), theirs, rounds=0)
    assert not plan


def test_peermem_leaves_when_the_node_has_come_to_dma_buf() -> None:
    node = open_driver(files={AUTOLOAD_PATH: peermem.AUTOLOAD_TEXT}, modules=("nvidia_peermem",))
    first, second = converge(GpuDirectRdmaEnabled(), node)
    assert first.fields == {"autoload_text", "loaded"}
    assert not second


PEERMEM_REFUSALS = [
    ({"rdma": CARD}, {}, "needs OFED"),
    ({"rdma": replace(OFED, stale=("mlx5_core",))}, {}, "mlx5_core"),
    ({"rdma": replace(OFED, symbol=None)}, {}, "Module.symvers"),
    ({"rdma": OFED, "modules": ("nv_peer_mem",)}, {}, "nv_peer_mem"),
    ({"rdma": OFED, "kmod": module(headers=())}, {}, "linux-headers-6.1.0-28-amd64"),
    ({"rdma": CARD}, {"method": "dma-buf"}, "proprietary"),
    ({"rdma": OFED, "kmod": module(path=SIGNED)}, {}, "precompiled=False"),
    ({"rdma": CARD, "kmod": module(path=SIGNED)}, {}, "needs OFED"),
    ({"rdma": CARD, "kmod": module(GOOD)}, {}, "needs OFED"),
]


@pytest.mark.parametrize(("world", "parameters", "word"), PEERMEM_REFUSALS)
def test_a_node_without_a_way_is_refused_by_name(
    world: dict[str, Any], parameters: dict[str, Any], word: str
) -> None:
    rdma, kmod = world.pop("rdma"), world.pop("kmod", module())
    state = GpuDirectRdmaEnabled(**parameters)
    reason = state.refuse(state.probe(rdma_node(rdma, kmod, **world)))
    assert reason is not None
    assert word in reason
    assert ";" in reason, "the next move is missing"


def test_a_node_without_a_network_card_is_left_alone() -> None:
    node = rdma_node(Rdma(), module())
    (plan,) = converge(GpuDirectRdmaEnabled(), node, rounds=0)
    assert not plan
    assert "no NVIDIA network card" in plan.notes[0]


def test_the_fragment_of_rdma_is_read_as_it_is_printed() -> None:
    text = (
        "nic=0000:05:00.0\nloaded=mlx_compat 24.10-1.1.4|\nloaded=mlx5_core 24.10-1.1.4|AAA\n"
        "disk=mlx_compat 25.04-0.6.0|\ndisk=mlx5_core 25.04-0.6.0|BBB\n"
        f"symbol={CRC}\tib_register_peer_memory_client\t/x\tEXPORT_SYMBOL\ninfo=OFED-internal-25.04-0.6.0:\n"
    )
    found = RdmaQuery().parse(Answer(0, text.encode()))
    assert found.ofed == "25.04-0.6.0"
    assert found.stale == ("mlx_compat", "mlx5_core")
    assert found.symbol == CRC
    own_stack = "loaded=mlx5_core |\ndisk=mlx5_core |\ndisk=ib_core |X\nloaded=ib_core |X\n"
    left_behind = "symbol=0xdead\tib_register_peer_memory_client\t/x\tEXPORT_SYMBOL\n"
    inbox = RdmaQuery().parse(Answer(0, (own_stack + left_behind).encode()))
    assert inbox.ofed is None
    assert inbox.stale == ()
    assert inbox.symbol is None
    own = f"own={CRC}\tib_register_peer_memory_client\tib_core\tEXPORT_SYMBOL\n"
    assert RdmaQuery().parse(Answer(0, (own_stack + left_behind + own).encode())).symbol == CRC
    beside = RdmaQuery().parse(
        Answer(0, b"loaded=mlx5_core |\ndisk=mlx_compat 1|\ndisk=mlx5_core 1|\n")
    )
    assert beside.stale == ("mlx_compat",)


def test_the_fragment_of_a_module_is_read_as_it_is_printed() -> None:
    text = (
        "loaded=2.6|AAA\nkernel=5.10|||\n"
        "kernel=6.1|1|1|/lib/modules/6.1/gdrdrv.ko|version:        2.6|description:    built for opensource NVIDIA driver|srcversion: BBB\n"
        "symbol=0x1\tone\nsource=2.5\nsource=2.6\nerror=x.c:1: error: no\n"
    )
    found = KernelModuleQuery("gdrdrv", "gdrdrv").parse(Answer(0, text.encode()))
    assert found.built == {"5.10": None, "6.1": "2.6"}
    assert found.version_on_disk == "2.6"
    assert found.stale
    assert "opensource" in found.description
    assert found.sources == ("2.5", "2.6")
    assert "error: no" in found.error


def test_ofed_is_installed_before_a_reboot_takes_it_up() -> None:
    state = OfedInstalled(package="doca-ofed")

    def installed(node: FakeNode) -> None:
        node.installed["doca-ofed"] = "24.10.1-1"
        node.files["/var/lib/gpustate/brought/ofed"] = "doca-ofed\n"
        node.answers["RdmaQuery"] = replace(CARD, ofed="24.10-1", stale=("mlx_compat",))

    def taken(node: FakeNode) -> None:
        node.installed.clear()
        node.files.pop("/var/lib/gpustate/brought/ofed")

    node = FakeNode(
        facts=FACTS,
        candidates={"doca-ofed": [("24.10.1-1", "doca")]},
        answers={"RdmaQuery": CARD},
        runs={"install doca-ofed": installed, "remove doca-ofed": taken},
    )
    first, second = converge(state, node)
    assert first.fields == {"version"}
    assert second.fields == {"stale"}
    assert second.disruption is Disruption.REBOOT
    assert any(isinstance(step, ops.Reboot) for step in state.apply(state.probe(node), second))
    *_, last = converge(OfedInstalled(package="doca-ofed", ensure="absent"), node)
    assert not last
    assert node.installed == {}


def test_an_ofed_that_nobody_offers_is_refused() -> None:
    state = OfedInstalled(package="doca-ofed", version="1.0")
    node = FakeNode(answers={"RdmaQuery": CARD}, candidates={"doca-ofed": [("24.10.1-1", "doca")]})
    assert "doca-ofed 1.0" in (state.refuse(state.probe(node)) or "")


# --- GDRCopy -------------------------------------------------------------------------------------

GDR = {
    "gdrdrv-dkms": [("2.6-1", "x"), ("2.5-1", "x")],
    "libgdrapi": [("2.6-1", "x"), ("2.5-1", "x")],
}


def gdr_node(driver: str = "open", **more: Any) -> FakeNode:
    def build(node: FakeNode, version: str) -> None:
        said = node.shells["echo open"]
        kind = "opensource" if isinstance(said, tuple) and said[1] == "open" else "proprietary"
        node.answers["KernelModuleQuery"] = module(
            built={KERNEL: version}, description=f"built for {kind} NVIDIA driver"
        )

    def install(node: FakeNode) -> None:
        version = "2.5" if node.vars.get("old") else "2.6"
        node.installed |= {"gdrdrv-dkms": f"{version}-1", "libgdrapi": f"{version}-1"}
        node.files["/var/lib/gpustate/brought/gdrcopy"] = "gdrdrv-dkms\nlibgdrapi\n"
        build(node, version)

    def load(node: FakeNode) -> None:
        found = node.answers["KernelModuleQuery"]
        node.answers["KernelModuleQuery"] = replace(found, loaded=found.version_on_disk)

    def unload(node: FakeNode) -> None:
        node.answers["KernelModuleQuery"] = replace(node.answers["KernelModuleQuery"], loaded=None)

    def remove(node: FakeNode) -> None:
        node.installed.clear()
        node.files.pop("/var/lib/gpustate/brought/gdrcopy", None)
        node.answers["KernelModuleQuery"] = module(built={KERNEL: None})

    settings: dict[str, Any] = {
        "facts": FACTS,
        "candidates": GDR,
        "answers": {"KernelModuleQuery": module(built={KERNEL: None})},
        "shell": {"echo open": (0, driver), "stat -c '%t %a' /dev/gdrdrv": (0, "")},
        "runs": {
            "install gdrdrv-dkms": install,
            "build gdrdrv": lambda node: build(node, "2.6"),
            "unload gdrdrv": unload,
            "load gdrdrv": load,
            "check that /dev/gdrdrv": lambda node: node.shells.update(
                {"stat -c '%t %a' /dev/gdrdrv": (0, "666\n")}
            ),
            "remove /dev/gdrdrv": lambda node: node.shells.update(
                {"stat -c '%t %a' /dev/gdrdrv": (0, "")}
            ),
            "remove gdrdrv-dkms": remove,
        },
    }
    return FakeNode(**{**settings, **more})


def test_gdrdrv_is_built_anew_when_the_driver_changes_its_kind() -> None:
    node = gdr_node()
    list(converge(GdrCopyInstalled(), node))
    node.shells["echo open"] = (0, "proprietary")
    first, second = converge(GdrCopyInstalled(), node)
    assert first.fields == {"built"}
    assert first.disruption is Disruption.DRAIN
    assert "other kind" in first.changes[0].why
    assert not second


def test_gdrdrv_whose_file_is_gone_is_built_anew() -> None:
    node = gdr_node()
    list(converge(GdrCopyInstalled(), node))
    node.answers["KernelModuleQuery"] = replace(
        node.answers["KernelModuleQuery"], built={KERNEL: None}
    )
    first, second = converge(GdrCopyInstalled(), node)
    assert first.fields == {"built"}
    assert not second


def test_versions_that_do_not_match_are_refused() -> None:
    state = GdrCopyInstalled()
    node = gdr_node(candidates={"gdrdrv-dkms": [("2.6-1", "x")], "libgdrapi": [("2.5-1", "x")]})
    assert "gdrdrv-dkms" in (state.plan(state.probe(node)).refusal or "")
    assert GdrCopyInstalled(required=False).plan(state.probe(node)).refusal is None
    assert not next(iter(converge(GdrCopyInstalled(required=False), node, rounds=0)))


# --- GPUDirect Storage ---------------------------------------------------------------------------


def gds_node(live: str = "driver=580.65.06 open\n", **more: Any) -> FakeNode:
    settings: dict[str, Any] = {
        "facts": FACTS,
        "candidates": {gds.PACKAGE: [("2.26.6-1", "x"), ("2.16.1-1", "x")]},
        "answers": {"KernelModuleQuery": module(built={KERNEL: None})},
        "shell": {"nvidia-fs/version": (0, live)},
    }

    def install(node: FakeNode) -> None:
        node.installed[gds.PACKAGE] = "2.26.6-1"
        node.answers["KernelModuleQuery"] = module(built={KERNEL: "2.26.6"})

    def load(node: FakeNode) -> None:
        node.answers["KernelModuleQuery"] = replace(
            node.answers["KernelModuleQuery"], loaded="2.26.6", stale=False
        )
        node.shells["nvidia-fs/version"] = (0, live + "says=version: 2.26\n")

    def unload(node: FakeNode) -> None:
        node.answers["KernelModuleQuery"] = replace(node.answers["KernelModuleQuery"], loaded=None)
        node.shells["nvidia-fs/version"] = (0, live)

    def remove(node: FakeNode) -> None:
        node.installed.clear()
        node.answers["KernelModuleQuery"] = module(built={KERNEL: None})

    runs = {
        "install nvidia-fs": install,
        "build nvidia-fs": install,
        "unload nvidia_fs": unload,
        "load nvidia-fs": load,
        "remove nvidia-fs": remove,
    }
    return FakeNode(**{**settings, "runs": runs, **more})


def test_nvidia_fs_is_installed_loaded_and_says_its_version() -> None:
    node = gds_node()
    first, second = converge(GpuDirectStorageEnabled(), node)
    assert first.disruption is Disruption.NONE
    assert not second
    *_, last = converge(GpuDirectStorageEnabled(ensure="absent"), node)
    assert not last
    assert GpuDirectStorageEnabled().autoload_path not in node.files


def test_a_module_that_is_gone_from_disk_is_built_again() -> None:
    node = gds_node()
    list(converge(GpuDirectStorageEnabled(), node))
    node.answers["KernelModuleQuery"] = module(built={KERNEL: None}, loaded="2.26.6")
    first, second = converge(GpuDirectStorageEnabled(), node)
    assert first.fields == {"built"}
    assert not second


GDS_REFUSALS = [
    ("driver=535.230.02 proprietary\n", {}, {}, "open driver modules only"),
    ("driver=580.65.06 open\nprecompiled=1\n", {}, {}, "precompiled"),
    ("driver=580.65.06 open\n", {"version": "9.9"}, {}, "9.9"),
    ("", {}, {"facts": replace(FACTS, pci=(V100,))}, "volta"),
]


@pytest.mark.parametrize(("live", "parameters", "world", "word"), GDS_REFUSALS)
def test_what_nvidia_fs_cannot_live_with_is_seen_before_anything_is_installed(
    live: str, parameters: dict[str, Any], world: dict[str, Any], word: str
) -> None:
    state = GpuDirectStorageEnabled(**parameters)
    observed = state.probe(gds_node(live, **world))
    reason = state.refuse(observed) or state.plan(observed).refusal
    assert reason is not None
    assert word in reason


def test_an_old_nvidia_fs_goes_with_the_proprietary_driver() -> None:
    state = GpuDirectStorageEnabled(version="2.16.1")
    assert state.refuse(state.probe(gds_node("driver=535.230.02 proprietary\n"))) is None


@pytest.mark.parametrize(
    ("state", "node"),
    [
        (GpuDirectRdmaEnabled(), rdma_node(OFED, module())),
        (OfedInstalled(package="doca-ofed"), FakeNode(answers={"RdmaQuery": CARD})),
        (GdrCopyInstalled(), gdr_node()),
        (GpuDirectStorageEnabled(), gds_node()),
    ],
)
def test_they_keep_the_contract_of_every_state(state: Any, node: FakeNode) -> None:
    check_contract(state, node)


@pytest.mark.parametrize("image", [False, True])
def test_without_a_driver_only_the_package_and_the_file_are_wanted(image: bool) -> None:
    """What the module says and how it was built cannot change then: a plan of it would have no steps."""
    seen = gds.Observed(
        packages={gds.PACKAGE: "2.20.5-1"},
        autoload_text=GpuDirectStorageEnabled().autoload_text,
        built="2.17.5",
        stale=True,
        says="2.17",
        image=image,
    )
    assert GpuDirectStorageEnabled().plan(seen).fields == set()
