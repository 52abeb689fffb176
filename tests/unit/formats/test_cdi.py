"""Whether a CDI specification tells the truth about a node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import ProbeError
from gpustate.formats import cdi

VERSION = "580.65.06"
#: What NVIDIA's own nvidia-ctk wrote on a lab node, by toolkit version.
REAL = {
    path.stem.rpartition("-")[2]: path.read_text()
    for path in sorted(
        (Path(__file__).parents[2] / "data/nvidia").glob("cdi-8xh100-toolkit-*.json")
    )
}


def document(gpus: int = 2, version: str = VERSION, **numbers: int) -> dict[str, Any]:
    """As ``nvidia-ctk cdi generate`` writes it, shortened."""
    nodes = [{"path": f"/dev/nvidia{n}", **numbers} for n in range(gpus)]
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook"],
    }
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            *(
                {"name": name, "containerEdits": {"deviceNodes": [nodes[n]]}}
                for n in range(gpus)
                for name in (str(n), f"GPU-{n}")
            ),
            {"name": "all", "containerEdits": {"deviceNodes": nodes}},
        ],
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "hooks": [hook],
            "mounts": [
                {
                    "containerPath": "/x",
                    "hostPath": f"/usr/lib/x86_64-linux-gnu/libcuda.so.{version}",
                },
                {
                    "containerPath": "/y",
                    "hostPath": "/usr/lib/x86_64-linux-gnu/libnvidia-egl-gbm.so.1.1.2",
                },
                {
                    "containerPath": "/z",
                    "hostPath": f"/lib/firmware/nvidia/{version}/gsp_ga10x.bin",
                },
            ],
        },
    }


def text(**what: Any) -> str:
    return "---\n" + yaml.safe_dump(document(**what))


def world(**changes: Any) -> cdi.World:
    good = cdi.World(
        driver_version=VERSION,
        gpus=(cdi.Gpu(0, "GPU-0"), cdi.Gpu(1, "GPU-1")),
        mig_caps={0: frozenset(), 1: frozenset()},
        nodes={"/dev/nvidia0": (195, 0), "/dev/nvidia1": (195, 1)},
    )
    return replace(good, **changes)


def judged(of: str, against: cdi.World) -> str:
    return "; ".join(cdi.judge(cdi.parse(of), against))


def test_a_specification_of_this_very_node_is_fresh() -> None:
    assert judged(text(), world()) == ""
    assert judged(json.dumps(document()), world()) == ""


@pytest.mark.parametrize(
    ("of", "against", "said"),
    [
        (text().replace("name: all", "name: most"), world(), "it has no device all"),
        (text(version="570.1.2"), world(), "files of driver 570.1.2, but 580.65.06 is loaded"),
        (
            text(),
            world(missing=frozenset({"/usr/bin/nvidia-cdi-hook"})),
            "nvidia-cdi-hook does not exist",
        ),
        (text(gpus=1), world(mig_caps={}), "it lacks /dev/nvidia1"),
        (text(gpus=3), world(), "/dev/nvidia2, which is not a GPU"),
        (
            text(gpus=1, major=195, minor=7),
            world(),
            "it lists /dev/nvidia0 as 195:7, but it is 195:0",
        ),
        (
            text(),
            world(gpus=(cdi.Gpu(0, "GPU-0"), cdi.Gpu(1, "GPU-9"))),
            "GPU-1, which the driver does not have",
        ),
        (text(), world(mig_caps={0: frozenset({30, 31})}), "MIG devices do not match"),
        (
            text().replace("nvidia.com/gpu", "example.com/gpu"),
            world(),
            "its kind is example.com/gpu",
        ),
        (text().replace("libcuda", "libother"), world(), "lists no driver library"),
        ("kind: nvidia.com/gpu\n", world(), "it has no devices"),
    ],
)
def test_each_way_of_being_stale_is_named(of: str, against: cdi.World, said: str) -> None:
    assert said in judged(of, against)


def test_device_numbers_count_only_where_the_specification_has_them() -> None:
    moved = world(nodes={"/dev/nvidia0": (240, 0), "/dev/nvidia1": (240, 1)})
    assert judged(text(), moved) == ""
    assert "240:0" in judged(text(gpus=2, major=195, minor=0), moved)


def test_a_gpu_in_mig_mode_without_instances_may_be_left_out() -> None:
    assert judged(text(gpus=1), world(mig_caps={1: frozenset()})) == ""
    assert "it lacks /dev/nvidia1" in judged(text(gpus=1), world(mig_caps={}))


def test_mig_devices_are_compared_by_their_capabilities() -> None:
    data = document()
    caps = [{"path": f"/dev/nvidia-caps/nvidia-cap{n}"} for n in (1, 2, 30, 31)]
    data["devices"].append({"name": "0:0", "containerEdits": {"deviceNodes": caps}})
    of = yaml.safe_dump(data)
    assert judged(of, world(mig_caps={0: frozenset({30, 31})})) == ""
    assert "MIG" in judged(of, world(mig_caps={0: frozenset({30, 32})}))


def test_gpus_that_nobody_has_opened_have_no_uuid_to_compare() -> None:
    assert judged(text(), world(gpus=(cdi.Gpu(0), cdi.Gpu(1)))) == ""


@pytest.mark.parametrize(
    ("of", "generated"),
    [
        (text(), True),
        ("# my own\n" + text(), False),
        (text().replace("/usr/bin/nvidia-cdi-hook", "/opt/mine"), False),
        ("kind: nvidia.com/gpu\ndevices: [{name: '0'}]\n", False),
    ],
)
def test_only_what_nvidia_ctk_alone_wrote_counts_as_generated(of: str, generated: bool) -> None:
    assert cdi.parse(of).generated is generated


@pytest.mark.parametrize("of", ["", "[]", "kind: 3", "a: [", "\t", "kind: nvidia.com/gpu\n\0"])
def test_a_torn_specification_is_one_clear_error(of: str) -> None:
    with pytest.raises(ProbeError, match="the CDI specification"):
        cdi.parse(of)


_KEYS = (
    "kind",
    "devices",
    "containerEdits",
    "deviceNodes",
    "path",
    "name",
    "hooks",
    "mounts",
    "major",
)
_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    st.text(max_size=300)
    | st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4).map(
        lambda data: yaml.safe_dump({"kind": cdi.KIND, **data})
    )
)
def test_the_parser_raises_nothing_else(of: str) -> None:
    try:
        spec = cdi.parse(of)
    except ProbeError:
        return
    cdi.judge(spec, world())


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27", "580.65.06"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
            "570.86.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.58  Release Build",
            "595.58",
        ),
        ("", ""),
        (None, ""),
    ],
)
def test_the_loaded_driver_is_read_of_both_kinds_of_module(line: str | None, version: str) -> None:
    assert cdi.driver_version(line) == version


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 50_000, "kind: " + "{a: " * 50_000])
def test_a_specification_of_brackets_is_torn_and_ends_no_run(text: str) -> None:
    """PyYAML's composer would take the whole program with it."""
    with pytest.raises(ProbeError, match="nested deeper than"):
        cdi.parse(text)


# --- what NVIDIA's program writes -----------------------------------------------------------------


def real_world(text: str) -> cdi.World:
    """The node that a real specification was written on."""
    devices = {one["name"]: one["containerEdits"] for one in json.loads(text)["devices"]}
    minors = {
        name: int(edits["deviceNodes"][0]["path"].removeprefix("/dev/nvidia"))
        for name, edits in devices.items()
        if name != "all"
    }
    gpus = [cdi.Gpu(minors[name], name) for name in minors if name.startswith("GPU-")]
    nodes = {f"/dev/nvidia{gpu.minor}": (195, gpu.minor) for gpu in gpus}
    nodes |= {"/dev/nvidiactl": (195, 255), "/dev/nvidia-modeset": (195, 254)}
    nodes |= {"/dev/nvidia-uvm": (510, 0), "/dev/nvidia-uvm-tools": (510, 1)}
    return cdi.World(driver_version="580.178.04", gpus=tuple(gpus), nodes=nodes)


def test_there_is_one_for_each_toolkit_version() -> None:
    assert sorted(REAL) == ["1.17.8", "1.18.2", "1.20.1"]


@pytest.mark.parametrize("version", REAL)
def test_a_specification_of_the_real_nvidia_ctk_is_fresh_and_generated(version: str) -> None:
    spec, world = cdi.parse(REAL[version]), real_world(REAL[version])
    assert len(world.gpus) == 8
    assert cdi.judge(spec, world) == ()
    assert spec.generated
    assert set(spec.devices) == cdi.expected_names(world)


@pytest.mark.parametrize("version", REAL)
def test_a_real_specification_is_stale_after_a_driver_update_or_a_lost_gpu(version: str) -> None:
    spec, world = cdi.parse(REAL[version]), real_world(REAL[version])
    updated = cdi.judge(spec, replace(world, driver_version="595.91.07"))
    assert "it lists files of driver 580.178.04, but 595.91.07 is loaded" in updated
    (gone, _) = cdi.judge(spec, replace(world, gpus=world.gpus[:7]))
    assert "which is not a GPU of the driver" in gone


def test_a_major_number_that_moved_is_found_where_the_minor_is_left_out() -> None:
    """nvidia-ctk 1.20 writes major numbers, and nvidia-uvm gets another one at each load."""
    spec, world = cdi.parse(REAL["1.20.1"]), real_world(REAL["1.20.1"])
    moved = replace(world, nodes={**world.nodes, "/dev/nvidia-uvm": (511, 0)})
    assert cdi.judge(spec, moved) == (
        "it lists /dev/nvidia-uvm as 510:0, but it is 511:0 on the node",
    )
