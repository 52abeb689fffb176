"""Slurm's files, beside what others have in them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from goingback import rolled_back

from gpustate import Disruption, NodeFacts, PciGpu
from gpustate.core.queries import Answer
from gpustate.formats.slurm import Cpu
from gpustate.probes.gpu_facts import Gpu, MigDevice, NvmlFacts
from gpustate.probes.slurm_gpus import Places, SlurmPlacesQuery
from gpustate.states.slurm import SlurmGresConfigured
from gpustate.testing import FakeNode, converge

STEPLESS = {"slurm-gres": "no slurmd there, and nothing to configure"}

GRES, NODE = "/etc/slurm/gres.conf", "/etc/slurm/gpustate-node.conf"
DROP_IN = "/etc/systemd/system/slurmd.service.d/gpustate.conf"
TOPO = "GPU0\t X \tNV12\nGPU1\tNV12\t X \n"
CPUS = tuple(Cpu(n, n % 2, n // 2, n % 2) for n in range(8))
PLACES = Places("n1", CPUS, {"0000:1b:00.0": "0,2,4,6", "0000:43:00.0": "1,3,5,7"}, topology=TOPO)

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"slurm-gres": "gres.conf with foreign lines"}


def gpu(index: int, pci: str, minor: int | None, **more: object) -> Gpu:
    return Gpu(index, f"GPU-{index}", pci, minor, "NVIDIA A100-SXM4-40GB", **more)  # type: ignore[arg-type]


#: NVML's order is not PCI order here, and neither is the driver's.
GPUS = (gpu(0, "0000:43:00.0", 0), gpu(1, "0000:1b:00.0", 1))


def node(*gpus: Gpu, places: Places = PLACES, active: bool = True, slurmd: bool = True) -> FakeNode:
    pci = tuple(PciGpu(one.pci, "20b0", "030200", "nvidia") for one in GPUS)
    return FakeNode(
        facts=NodeFacts(systemd=True, pci=pci),
        units={"slurmd.service": "active"} if active else {},
        shell={"slurmd": (0, "slurmd\n" if slurmd else "")},
        answers={
            "GpuFacts": NvmlFacts(source="nvml", driver_version="580.65.06", gpus=gpus or GPUS),
            "SlurmPlacesQuery": places,
        },
    )


def test_gpus_are_described_in_pci_order_with_cores_and_links() -> None:
    fake = node()
    first, last = converge(SlurmGresConfigured(), fake)
    assert fake.files[GRES].splitlines()[1:-1] == [
        "Name=gpu Type=a100 File=/dev/nvidia1 Cores=0-3 Links=-1,12",
        "Name=gpu Type=a100 File=/dev/nvidia0 Cores=4-7 Links=12,-1",
    ]
    assert "NodeName=n1 Gres=gpu:a100:2 Feature=gpu,a100,driver580" in fake.files[NODE]
    assert first.disruption == Disruption.RESTART
    assert "slurm.conf of the cluster needs" in first.notes[0]
    assert fake.done[-1].label == "restart slurmd.service"
    assert not last


@pytest.mark.parametrize(
    ("config", "noted"),
    [
        ("NodeName=n1 CPUs=8 Gres=gpu:h100:2,shard:4 # Gres=gpu:a100:2\n", True),
        ("NodeName=n1 CPUs=8 Gres=gpu:a100:2,nvme:1\n", False),
        ("NodeName=n1 CPUs=8 Gres=gpu:2\n", False),
        ("#NodeName=n1 Gres=gpu:h100:2\nNodeName=n2 Gres=gpu:h100:2\n", False),
    ],
)
def test_another_type_in_slurm_conf_is_noted_also_without_a_change(
    config: str, noted: bool
) -> None:
    fake = node()
    fake.files["/etc/slurm/slurm.conf"] = config
    *_, last = converge(SlurmGresConfigured(), fake)
    assert not last
    assert bool(last.notes) is noted
    if noted:
        assert last.notes[0].startswith("slurm.conf has Gres=gpu:h100:2,shard:4, and Slurm ignores")
        assert "write Gres=gpu:a100:2 on all nodes" in last.notes[0]


def test_lines_of_others_stay_and_removal_gives_the_file_back() -> None:
    fake = node(active=False)
    fake.files[GRES] = before = "# site\nName=tape Count=2"
    list(converge(SlurmGresConfigured(shards=2), fake))
    assert fake.files[GRES].startswith(before)
    assert "Name=shard Count=2 File=/dev/nvidia0" in fake.files[GRES]
    *_, last = converge(SlurmGresConfigured(ensure="absent"), fake)
    assert fake.files[GRES] == before
    assert NODE not in fake.files
    assert not last


def test_slurmd_starts_after_the_device_nodes_and_again_when_it_ended() -> None:
    fake = node()
    list(converge(SlurmGresConfigured(), fake))
    assert "After=nvidia-persistenced.service" in fake.files[DROP_IN]
    assert "Restart=on-failure" in fake.files[DROP_IN]
    labels = [step.label for step in fake.done]
    assert labels.index("systemctl daemon-reload") < labels.index("restart slurmd.service")
    fake.files[DROP_IN] = "[Service]\n"
    fake.done.clear()
    first, last = converge(SlurmGresConfigured(), fake)
    assert (first.fields, first.disruption) == ({"drop_in"}, Disruption.NONE)
    assert not last
    list(converge(SlurmGresConfigured(ensure="absent"), fake))
    assert DROP_IN not in fake.files


def test_somebody_s_own_line_for_gpus_is_refused() -> None:
    fake = node()
    fake.files[GRES] = "AutoDetect=nvml\n"
    state = SlurmGresConfigured()
    assert "line 1 (AutoDetect=nvml) already describes GPUs" in str(state.refuse(state.probe(fake)))


def test_mig_devices_are_lines_with_their_access_files() -> None:
    mig = MigDevice("MIG-1", 7, 0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    divided = replace(GPUS[0], mig_current=True, mig_devices=(mig,))
    places = replace(PLACES, caps={(0, 7, None): 66, (0, 7, 0): 67})
    fake = node(divided, GPUS[1], places=places)
    list(converge(SlurmGresConfigured(), fake))
    assert (
        "Type=a100_1g.5gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66,"
        "/dev/nvidia-caps/nvidia-cap67"
    ) in fake.files[GRES]
    state = SlurmGresConfigured()
    observed = state.probe(node(divided, GPUS[1]))
    assert "has no access files" in str(state.refuse(observed))
    assert not state.plan(observed)


def test_a_gpu_whose_device_node_nobody_tells_is_refused() -> None:
    state = SlurmGresConfigured()
    observed = state.probe(node(gpu(0, "0000:1b:00.0", None)))
    assert "which /dev/nvidiaX" in str(state.refuse(observed))


def test_lines_are_not_written_of_fewer_gpus_than_the_driver_has() -> None:
    state = SlurmGresConfigured()
    assert "not 0000:1b:00.0" in str(state.refuse(state.probe(node(GPUS[0]))))


def test_a_host_without_slurm_is_left_alone_and_told() -> None:
    fake = node(slurmd=False, active=False)
    first, _ = converge(SlurmGresConfigured(), fake)
    assert not first
    assert "not installed" in first.notes[0]


def test_places_are_read_from_what_the_node_printed() -> None:
    said = (
        "host=n1.example\ncpu=0 0 0 0\ncpu=1 x 0 0\nnear=0000:1b:00.0 0-3\n"
        "cap=gpu0/mig/gi7/access 66\ncap=gpu0/mig/gi7/ci0/access 67\ncap=x\ntopo\n" + TOPO
    )
    places = SlurmPlacesQuery().parse(Answer(0, said.encode()))
    assert places.host == "n1"
    assert places.cpus == (Cpu(0, 0, 0, 0),)
    assert places.caps == {(0, 7, None): 66, (0, 7, 0): 67}
    assert places.topology == TOPO


def test_a_file_of_ours_is_mended_and_one_of_the_site_keeps_its_owner_and_mode() -> None:
    kept = f"/var/lib/gpustate/originals/{hashlib.sha256(GRES.encode()).hexdigest()[:24]}"
    fake = node()
    list(converge(SlurmGresConfigured(), fake))
    fake.files[f"{kept}.path"] = GRES
    fake.modes |= {GRES: 0o600, NODE: 0o666}
    fake.done.clear()
    first, last = converge(SlurmGresConfigured(), fake)
    assert first.fields == {"gres_file", "node_text"}
    assert first.disruption == Disruption.NONE
    assert {step.label for step in fake.done} == {f"write {GRES}", f"write {NODE}"}
    assert (fake.modes[GRES], fake.modes[NODE]) == (0o644, 0o644)
    assert not last

    fake.files[kept] = "# site\n"
    fake.modes[GRES] = 0o640
    assert not SlurmGresConfigured().plan(SlurmGresConfigured().probe(fake))


def test_a_rollback_restores_the_bytes() -> None:
    site = "# site\nName=tape Count=2"
    for first in (None, SlurmGresConfigured()):
        fake = node(active=False)
        fake.files[GRES] = site
        rolled_back(fake, first, SlurmGresConfigured(shards=2))
