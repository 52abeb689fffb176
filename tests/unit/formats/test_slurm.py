"""GPUs in Slurm's words."""

from __future__ import annotations

import pytest

from gpustate.formats import slurm
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.formats.slurm import Cpu, MigFiles, SlurmGpu


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA TITAN V", "titan_v"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("", "gpu"),
        ("Name=gpu\nX", "name_gpu_x"),
    ],
)
def test_a_type_is_what_jobs_would_call_the_gpu(name: str, kind: str) -> None:
    assert slurm.type_name(name) == kind


#: Two sockets of two cores of two threads, as the kernel numbers them: sockets alternate, threads come last.
ALTERNATING = [Cpu(n, n % 2, n // 2 % 2, n % 2) for n in range(8)]


def test_cores_are_counted_socket_by_socket_and_not_as_the_kernel_counts_cpus() -> None:
    assert slurm.core_numbers(ALTERNATING, {0, 2, 4, 6}) == "0-1"
    assert slurm.core_numbers(ALTERNATING, {1, 3, 5, 7}) == "2-3"
    assert slurm.core_numbers(ALTERNATING, {1, 5}) == "2"


def test_all_cores_near_means_that_none_is_better() -> None:
    assert slurm.core_numbers(ALTERNATING, range(8)) == ""
    assert slurm.core_numbers(ALTERNATING, ()) == ""
    assert slurm.core_numbers((), {1}) == ""


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("", set()),
        ("3-1", set()),
        ("0-99999999999", set()),
        ("x", set()),
    ],
)
def test_a_list_of_cpus_is_expanded(text: str, numbers: set[int]) -> None:
    assert slurm.expand(text) == numbers


TOPO = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\tPIX\t0-47,96-143\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNODE\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU2\tSYS\tNODE\t X \tSYS\t48-95,144-191\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\tSYS\t X \t\t\t\t\n\n"
    "Legend:\n\n  X    = Self\n"
)


def test_links_are_read_from_the_topology() -> None:
    assert slurm.links(TOPO, 3) == ((-1, 18, 0), (18, -1, 0), (0, 0, -1))


def test_a_table_of_others_or_without_links_says_nothing() -> None:
    assert slurm.links(TOPO, 2) is None
    assert slurm.links(TOPO, 4) is None
    assert slurm.links(TOPO.replace("NV18", "PHB"), 3) is None
    assert slurm.links("", 1) is None


def test_lines_name_the_driver_s_node_in_pci_order() -> None:
    gpus = [SlurmGpu(2, "a100", "0-7", (-1, 12)), SlurmGpu(0, "a100", "0-7", (12, -1))]
    assert slurm.gres_lines(gpus) == [
        "Name=gpu Type=a100 File=/dev/nvidia2 Cores=0-7 Links=-1,12",
        "Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-7 Links=12,-1",
    ]
    assert slurm.gres_value(gpus) == "gpu:a100:2"


def test_mig_devices_have_several_files_and_types_of_their_own() -> None:
    files = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    gpus = [
        SlurmGpu(0, "a100", migs=(MigFiles("1g.10gb", files), MigFiles("1g.10gb", files))),
        SlurmGpu(1, "a100"),
    ]
    lines = slurm.gres_lines(gpus, shards=4)
    assert lines[0] == (
        "Name=gpu Type=a100_1g.10gb MultipleFiles="
        "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22"
    )
    assert lines[3] == "Name=shard Count=4 File=/dev/nvidia1"
    assert slurm.gres_value(gpus, shards=4) == "gpu:a100:1,gpu:a100_1g.10gb:2,shard:4"


def test_features_are_what_jobs_may_ask_for() -> None:
    gpu = Gpu(0, name="NVIDIA L40S", memory_mib=46068, compute_capability="8.9")
    nvml = NvmlFacts(driver_version="580.65.06", cuda_version="13.0", gpus=(gpu, gpu))
    words = slurm.features(nvml)
    assert words == ("gpu", "l40s", "ada_lovelace", "cc8.9", "gpumem45g", "driver580", "cuda13.0")
    assert slurm.node_line("n1", "gpu:l40s:2", words).startswith(
        "NodeName=n1 Gres=gpu:l40s:2 Feature=gpu,"
    )
    assert slurm.features(NvmlFacts()) == ()


OTHERS = "# site\nName=tape Count=2\n"


@pytest.mark.parametrize("text", ["", OTHERS, OTHERS.rstrip("\n"), "\n\n"])
def test_lines_of_others_are_what_they_were_once_ours_are_gone(text: str) -> None:
    placed = slurm.place(text, ["Name=gpu File=/dev/nvidia0"])
    assert placed.startswith(text)
    changed = slurm.place(placed, ["Name=gpu File=/dev/nvidia1"])
    assert "nvidia0" not in changed
    assert slurm.place(changed, ["Name=gpu File=/dev/nvidia1"]) == changed
    assert slurm.place(changed, []) == text


def test_the_block_stays_where_somebody_moved_it() -> None:
    placed = slurm.place("", ["a"]) + OTHERS
    assert slurm.place(placed, ["b"]).endswith(OTHERS)
    assert slurm.text_outside(slurm.place(placed, ["b"])) == OTHERS


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Name=gpu File=/dev/nvidia[0-7]", True),
        ("name=GPU Count=2", True),
        ("NodeName=n1 Name=gpu Count=2", True),
        ("NodeName=n[1-9] Name=gpu Count=2", True),
        ("NodeName=n2 Name=gpu Count=2", False),
        ("AutoDetect=nvml", True),
        ("AutoDetect=off", False),
        ("# Name=gpu", False),
        ("Name=gpux Count=1", False),
    ],
)
def test_somebody_else_s_line_for_this_node_is_found(line: str, found: bool) -> None:
    text = slurm.place(f"# a\n{line}\n", ["Name=gpu File=/dev/nvidia0"])
    assert (slurm.foreign(text, "n1") == f"line 2 ({line})") is found


@pytest.mark.parametrize(
    ("names", "name", "listed"),
    [
        ("gpu[01-16,20],head", "gpu07", True),
        ("gpu[01-16,20],head", "gpu20", True),
        ("gpu[01-16,20],head", "head", True),
        ("gpu[01-16,20],head", "gpu7", False),
        ("gpu[1-16]", "gpu07", False),
        ("gpu[8-12]", "gpu10", True),
        ("r[1-2]n[1-4]-ib", "r2n4-ib", True),
        ("r[1-2]n[1-4]-ib", "r3n4-ib", False),
        ("gpu[001-100]", "gpu100", True),
        ("gpu[1-3]", "gpu1x", False),
        ("gpu[", "gpu1", False),
        ("", "gpu1", False),
    ],
)
def test_a_hostlist_has_the_names_that_slurm_expands_it_to(
    names: str, name: str, listed: bool
) -> None:
    assert (name in slurm.hosts(names)) is listed


@pytest.mark.parametrize(
    ("configured", "right", "fits"),
    [
        ("gpu:h100:8(S:0-1),nvme:2", "gpu:h100:8", True),
        ("gpu:8", "gpu:h100:8", True),
        ("gpu", "gpu:h100:1", True),
        ("gpu:a100:7", "gpu:a100:7,gpu:a100_1g.5gb:7", False),
        ("gpu:14", "gpu:a100:7,gpu:a100_1g.5gb:7", True),
        ("gpu:h100:8", "gpu:h100:8,shard:32", False),
        ("gpu:8,shard:32", "gpu:h100:8,shard:32", True),
        ("gpu:4090:2", "gpu:4090:2", True),
    ],
)
def test_gres_of_slurm_conf_is_compared_by_type_and_number(
    configured: str, right: str, fits: bool
) -> None:
    assert slurm.gres_fits(configured, right) is fits
