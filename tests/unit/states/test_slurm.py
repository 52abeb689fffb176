"""Slurm's files, beside what others have in them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from goingback import rolled_back

from gpustate import Disruption, NodeFacts, PciGpu
from gpustate.core.queries import Answer
from gpustate.formats.slurm import Cpu
from gpustate.probes.gpu_facts import Gpu, MigDevice, NvmlFacts
from gpustate.probes.slurm_gpus import Places, SlurmPlacesQuery, job_scripts
from gpustate.states.dcgm_exporter import DcgmExporterRunning
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


CONF = "/etc/slurm/slurm.conf"
TYPES = "GresTypes=gpu\n"


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        (f"{TYPES}NodeName=n1 CPUs=8 Gres=gpu:a100:2,nvme:1\n", ()),
        (f"{TYPES}NodeName=n1 CPUs=8 Gres=gpu:a100:2(S:0-1)\n", ()),
        ("grestypes=nvme,gpu\nnodename=DEFAULT gres=gpu:2\nNodeName=n[0-3],m \\\n CPUs=8\n", ()),
        ("NodeName=n1 CPUs=8 Gres=gpu:2\n", (f"{CONF} needs: GresTypes=gpu",)),
        (
            "GresTypes=gpu\n# ours\nGresTypes=nvme\nNodeName=n1 Gres=gpu:2\n",
            (f"{CONF}:3 needs: GresTypes=nvme,gpu",),
        ),
        (f"{TYPES}NodeName=n[1-2] CPUs=8\n", (f"{CONF}:2 needs: Gres=gpu:a100:2",)),
        (
            f"{TYPES}NodeName=n1 CPUs=8 Gres=gpu:h100:2,shard:4 # Gres=gpu:a100:2\n",
            (
                f"{CONF}:2 has Gres=gpu:h100:2,shard:4, and Slurm takes GPUs of that type and number only: write "
                "Gres=gpu:a100:2 on all nodes, then: scontrol reconfigure",
            ),
        ),
        (
            f"{TYPES}NodeName=n1 Gres=gpu:a100:4\n",
            (
                f"{CONF}:2 has Gres=gpu:a100:4, and Slurm takes GPUs of that type and number only: write "
                "Gres=gpu:a100:2 on all nodes, then: scontrol reconfigure",
            ),
        ),
        (
            f"{TYPES}#NodeName=n1 Gres=gpu:h100:2\nNodeName=n2,n[01-09] Gres=gpu:h100:2\n",
            (
                f"{CONF} does not have this node; add, with what slurmd -C prints: NodeName=n1 Gres=gpu:a100:2 "
                "Feature=gpu,a100,driver580",
            ),
        ),
    ],
)
def test_a_plan_has_the_lines_that_slurm_conf_lacks_also_without_a_change(
    config: str, needs: tuple[str, ...]
) -> None:
    fake = node()
    fake.files[CONF] = config
    first, last = converge(SlurmGresConfigured(), fake)
    assert not last
    assert first.notes == last.notes == needs


def test_settings_of_included_files_count() -> None:
    fake = node()
    fake.files[CONF] = "ClusterName=c\nInclude nodes.conf\ninclude /srv/types.conf\n"
    fake.files["/etc/slurm/nodes.conf"] = "NodeName=n1 Gres=gpu:1\n"
    fake.files["/srv/types.conf"] = "GresTypes=gpu\n"
    *_, last = converge(SlurmGresConfigured(), fake)
    (note,) = last.notes
    assert note.startswith("/etc/slurm/nodes.conf:1 has Gres=gpu:1,")


HARDWARE = (
    "NodeName=n1 CPUs=8 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=515834\n"
    "UpTime=0-01:02:03\n"
)


def test_slurm_conf_includes_a_file_of_gpustate_s_own() -> None:
    fake = node()
    fake.shells = {"slurmd -C": (0, HARDWARE), **fake.shells}
    fake.files[CONF] = before = "ClusterName=c\nNodeName=n[1-2] CPUs=8 State=UNKNOWN\n"
    state = SlurmGresConfigured(nodes="n[1-2]", node_settings={"CPUs": "6", "Weight": "10"})
    first, last = converge(state, fake)
    assert fake.files[NODE].splitlines() == [
        "# Written by gpustate. In slurm.conf: Include gpustate-node.conf",
        "GresTypes=gpu",
        "# instead of: NodeName=n[1-2] CPUs=8 State=UNKNOWN",
        "NodeName=n[1-2] Gres=gpu:a100:2 Feature=gpu,a100,driver580 CPUs=6 State=UNKNOWN Weight=10",
    ]
    include = (f"{CONF} needs: Include gpustate-node.conf, instead of NodeName=n[1-2] in {CONF}:2",)
    assert first.notes[:-1] == last.notes == include
    assert first.notes[-1].startswith(f"copy {NODE} to the host of slurmctld, beside slurm.conf")
    assert fake.files[CONF] == before, "it is the site's"

    fake.files[CONF] = "ClusterName=c\nInclude gpustate-node.conf\n"
    plan = state.plan(state.probe(fake))
    assert (plan.fields, plan.notes, state.refuse(state.probe(fake))) == (set(), (), None)
    fake.files[CONF] += "GresTypes=gpu,nvme\n"
    list(converge(state, fake))
    assert "GresTypes" not in fake.files[NODE], "the latest of two counts"

    fake.files[CONF] += before
    assert state.refuse(state.probe(fake)) == (
        f"{CONF}:5 and {NODE} both have NodeName=n[1-2], and slurmctld refuses that: remove the line in {CONF}:5"
    )
    gone = SlurmGresConfigured(ensure="absent")
    assert "remove that line first" in str(gone.refuse(gone.probe(fake)))
    fake.files[CONF] = before
    list(converge(gone, fake))
    assert NODE not in fake.files


def included(state: SlurmGresConfigured, config: str, fake: FakeNode | None = None) -> list[str]:
    """The lines of nodes in the file for ``Include``; they are the same once slurm.conf has the file instead."""
    fake = fake or node()
    fake.shells = {"slurmd -C": (0, HARDWARE), **fake.shells}
    fake.files[CONF] = TYPES + config
    list(converge(state, fake))
    fake.files[CONF] = f"{TYPES}Include gpustate-node.conf\n"
    plan = state.plan(state.probe(fake))
    assert (plan.fields, plan.notes, state.refuse(state.probe(fake))) == (set(), (), None)
    return [line for line in fake.files[NODE].splitlines() if line.startswith("NodeName=")]


GPU_WORDS = "Gres=gpu:a100:2 Feature=gpu,a100,driver580"


def test_the_file_keeps_what_the_replaced_lines_say() -> None:
    assert included(
        SlurmGresConfigured(nodes="n[1-4]", node_settings={"weight": "7", "NodeAddr": "h[1-4]"}),
        "NodeName=DEFAULT RealMemory=500000 Gres=gpu:h100:8,nvme:2 Reason='ok'\n"
        "NodeName=n1,n3 NodeAddr=10.0.0.[1,3] Weight=5 Features=ib,driver570,cuda12.8 \\\n"
        ' Reason="bad fan"\n'
        "nodename=n2 nodeaddr=10.0.0.2 CPUs=64\nNodeName=m1 CPUs=2\n",
    ) == [
        "NodeName=n1,n3 Gres=gpu:a100:2,nvme:2 Feature=gpu,a100,driver580,ib RealMemory=500000"
        ' Reason="bad fan" NodeAddr=h1,h3 weight=7',
        "NodeName=n2 Gres=gpu:a100:2,nvme:2 Feature=gpu,a100,driver580 RealMemory=500000 Reason='ok'"
        " NodeAddr=h2 CPUs=64 weight=7",
        f"NodeName=n4 {GPU_WORDS} CPUs=8 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=1"
        " RealMemory=515072 weight=7 NodeAddr=h4",
    ]
    line = "NodeName=n[1-8] NodeAddr=10.0.0.[1-8] State=UNKNOWN"
    expected = line.replace("NodeAddr", f"{GPU_WORDS} NodeAddr")
    fake = node()
    assert included(SlurmGresConfigured(nodes="n[1-8]"), f"{line}\n", fake) == [expected]

    # A setting of the policy goes as it came.
    for settings in ({"Weight": "9"}, {}):
        state = SlurmGresConfigured(nodes="n[1-8]", node_settings=settings)
        list(converge(state, fake))
        assert ("Weight=9" in fake.files[NODE]) is bool(settings)
    assert fake.files[NODE].endswith(f"{expected}\n")


def test_addresses_are_as_many_as_the_nodes() -> None:
    state = SlurmGresConfigured(nodes="n[1-3]", node_settings={"NodeAddr": "h[1-2]", "Port": "7"})
    (conflict,) = state.conflicts({}, NodeFacts(), None)
    assert conflict.reason == "NodeAddr=h[1-2] of node_settings is not as long as nodes=n[1-3]"
    assert "NodeAddr=h[1-2]" in included(state, "NodeName=n[1-2],n3\n")[0]


def test_a_line_that_also_has_other_nodes_is_refused() -> None:
    fake = node()
    fake.files[CONF] = f"{TYPES}NodeName=n[1-3] NodeAddr=10.0.0.[1-3]\n"
    state = SlurmGresConfigured(nodes="n[1-2]")
    assert state.refuse(state.probe(fake)) == (
        f"{CONF}:2 has NodeName=n[1-3], and nodes=n[1-2] has only some of these: divide that line"
    )


def test_a_slurmd_without_files_of_its_own_is_not_given_any() -> None:
    fake = node()
    sent = "/run/slurm/conf"
    fake.files[f"{sent}/slurm.conf"] = f"{TYPES}NodeName=n1 Gres=gpu:a100:2\n"
    state = SlurmGresConfigured()
    for text in (
        "",
        "Name=gpu File=/dev/nvidia0\n",
        "NodeName=n2 Name=gpu File=/dev/nvidia[0-1]\n",
    ):
        fake.files[f"{sent}/gres.conf"] = text
        reason = str(state.refuse(state.probe(fake)))
        assert "add the lines that gpustate node labels -o slurm prints" in reason
    for text in ("NodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-1]\n", "AutoDetect=nvml\n"):
        fake.files[f"{sent}/gres.conf"] = text
        assert state.refuse(state.probe(fake)) is None
    *_, last = converge(state, fake)
    assert not {GRES, NODE} & set(fake.files)
    assert DROP_IN in fake.files
    assert (bool(last), last.notes) == (False, ())
    fake.files[f"{sent}/slurm.conf"] = "NodeName=n1 Gres=gpu:a100:2\n"
    assert state.probe(fake).needs == ("slurmctld's slurm.conf needs: GresTypes=gpu",)

    # It has its own file again; what was sent is left from before.
    fake.files[CONF] = f"{TYPES}NodeName=n1 Gres=gpu:a100:2\n"
    list(converge(state, fake))
    assert {GRES, NODE} <= set(fake.files)


def test_a_slurmd_that_has_not_got_its_files_yet_is_not_given_any() -> None:
    fake = node(active=False)
    fake.shells = {"--conf-server": (0, "configless\n"), **fake.shells}
    *_, last = converge(SlurmGresConfigured(), fake)
    assert not {GRES, NODE} & set(fake.files)
    assert last.notes == (
        "slurmd gets its files from slurmctld, and has none yet: start slurmd.service, then run again",
    )


def test_slurmd_that_ended_without_its_gpus_is_started() -> None:
    fake = node(active=False)
    fake.unit_states["slurmd.service"] = "failed"
    first, last = converge(SlurmGresConfigured(), fake)
    assert "active" in first.fields
    assert first.disruption == Disruption.NONE
    assert fake.done[-1].label == "start slurmd.service"
    assert not last


JOBS = {
    "Prolog": "/etc/slurm/prolog.d/gpustate-jobs.sh",
    "Epilog": "/etc/slurm/epilog.d/gpustate-jobs.sh",
}


def test_prolog_and_epilog_name_jobs_for_dcgm_exporter() -> None:
    fake = node()
    nodes = "NodeName=n1 Gres=gpu:2\n"
    fake.files[CONF] = TYPES + nodes
    state = SlurmGresConfigured(job_mapping="/var/lib/dcgm-exporter/job-mapping")
    first, last = converge(state, fake)
    assert (
        first.notes
        == last.notes
        == tuple(f"{CONF} needs: {key}=/etc/slurm/{key.lower()}.d/*" for key in JOBS)
    )
    for path in JOBS.values():
        assert fake.modes[path] == 0o755
        assert "FOLDER=/var/lib/dcgm-exporter/job-mapping\n" in fake.files[path]
    # The first of gres.conf is the second of NVML.
    assert "GPUS='1 0'\n" in fake.files[JOBS["Prolog"]]

    fake.files[CONF] = (
        f"{TYPES}{nodes}Prolog=/etc/slurm/prolog.d/*\nEpilog=/usr/local/sbin/epilog\n"
    )
    (note,) = state.plan(state.probe(fake)).notes
    assert note.startswith(f"{CONF}:4 has Epilog=/usr/local/sbin/epilog, which does not run")
    fake.files["/usr/local/sbin/epilog"] = f"#!/bin/sh\n{JOBS['Epilog']}\n"
    assert state.plan(state.probe(fake)).notes == ()

    fake.runs[f"remove {state.job_mapping}/[0-9]*"] = lambda node: node.files.__delitem__("/a job")
    fake.files["/a job"] = "41\n"
    list(converge(SlurmGresConfigured(ensure="absent", job_mapping=state.job_mapping), fake))
    assert not {"/a job", *JOBS.values()} & set(fake.files)


def test_jobs_are_named_by_the_mig_device_as_dcgm_exporter_names_it() -> None:
    mig = MigDevice("MIG-1", 7, 0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    divided = replace(GPUS[1], mig_current=True, mig_devices=(mig,))
    places = replace(PLACES, caps={(1, 7, None): 66, (1, 7, 0): 67})
    fake = node(GPUS[0], divided, places=places)
    list(converge(SlurmGresConfigured(job_mapping="/jobs"), fake))
    assert "GPUS='1.7 0'\n" in fake.files[JOBS["Prolog"]]


def test_the_exporter_has_to_read_the_folder_of_the_prolog() -> None:
    state = SlurmGresConfigured(job_mapping="/jobs")

    def conflicts(**policy: DcgmExporterRunning) -> list[str]:
        named = {name.replace("_", "-"): state for name, state in policy.items()}
        return [one.reason for one in state.conflicts(named, NodeFacts(), None)]

    assert conflicts() == conflicts(dcgm_exporter=DcgmExporterRunning(job_mapping="/jobs")) == []
    (text,) = conflicts(dcgm_exporter=DcgmExporterRunning())
    assert text == (
        "job_mapping is /jobs, and that of dcgm-exporter is not set: write the same in both"
    )


def run(script: str, tmp_path: Path, job: int, gpus: str = "") -> dict[str, str]:
    """Run a prolog or an epilog as slurmd does; what is in the folder then."""
    text = script.replace("/run/gpustate-job-mapping", f"{tmp_path}/booted")
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(job), "SLURM_JOB_GPUS": gpus}
    done = subprocess.run(
        ["sh", "-c", text], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    return {path.name: path.read_text() for path in sorted((tmp_path / "jobs").glob("[!.]*"))}


def test_jobs_come_and_go_in_the_files_of_their_gpus(tmp_path: Path) -> None:
    prolog, epilog = job_scripts(f"{tmp_path}/jobs", ("1", "0", "2.7", "2.13"))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/0").write_text("3\n")  # of a node that lost power
    assert run(prolog, tmp_path, 40, "0") == {"1": "40\n"}
    assert run(prolog, tmp_path, 41, "0,3") == {"1": "40\n41\n", "2.13": "41\n"}
    assert run(prolog, tmp_path, 41, "0,3") == {"1": "40\n41\n", "2.13": "41\n"}
    assert run(prolog, tmp_path, 42) == {"1": "40\n41\n", "2.13": "41\n"}, "a job without GPUs"
    assert run(epilog, tmp_path, 4) == {"1": "40\n41\n", "2.13": "41\n"}
    assert run(epilog, tmp_path, 41) == {"1": "40\n"}
    assert run(epilog, tmp_path, 40) == {}
    assert run(epilog, tmp_path, 40) == {}


def test_many_prologs_at_once_lose_no_job(tmp_path: Path) -> None:
    prolog, epilog = job_scripts(f"{tmp_path}/jobs", ("0",))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: run(prolog, tmp_path, job, "0"), range(24)))
    assert sorted(map(int, (tmp_path / "jobs/0").read_text().split())) == list(range(24))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: run(epilog, tmp_path, job), range(24)))
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_folder_that_cannot_be_created_does_not_fail_the_prolog(tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()
    for script in job_scripts(f"{tmp_path}/jobs", ("0",)):
        done = subprocess.run(["sh", "-c", script], capture_output=True, check=False)
        assert done.returncode == 0


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
