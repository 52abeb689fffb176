"""slurm-gres with every release of Slurm that the lab has: 22.05 and 24.11 of Debian 12 and 13, 26.05 of unstable.

Real: slurmctld, slurmd, their files and jobs. Simulated: GPUs, NVML, CUDA, DCGM, and the 64 processors that slurmd reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import gpustate
from slurmjobs import APPLIED, Cluster

from gpustate_lab import api
from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]


@pytest.fixture(scope="module", params=["debian12", "debian13", "debian13-slurm26"])
def cluster(
    request: pytest.FixtureRequest,
    lab_factory: Callable[[LabSpec], Lab],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Two nodes in service."""
    spec = LabSpec(nodes=2, images=(request.param,), gpus=("8xH100",), slurm=True)
    cluster = Cluster.of(lab_factory(spec))
    cluster.policy = tmp_path_factory.mktemp("slurm") / "policy.py"
    cluster.policy.write_text(APPLIED)
    gpustate("apply", cluster.policy, "-i", cluster.lab.inventory, "--yes", code=0)
    cluster.until(
        lambda: all("INVALID_REG" not in s.flags for s in cluster.slurm.states().values())
    )
    cluster.resume()
    yield cluster
    api.down(cluster.lab.name)


CONF = "/etc/slurm/slurm.conf"
ALONE = "from gpustate import Policy, registry\n\npolicy = Policy(registry.get({}))\n"


@contextmanager
def edited(cluster: Cluster, program: str) -> Iterator[None]:
    """slurm.conf of all machines, changed by sed's program; the daemons run with it, and with the old one afterwards."""
    machines = (cluster.slurm.head, *cluster.lab.nodes)

    def start() -> None:
        cluster.slurm.head.run("systemctl restart slurmctld")
        for node in cluster.lab.nodes:
            node.run("systemctl restart slurmd")
        cluster.until(lambda: cluster.slurm.head.run("scontrol ping", check=False).returncode == 0)
        cluster.until(lambda: {*cluster.slurm.states()} == {"gpu1", "gpu2"})
        cluster.resume()

    for machine in machines:
        machine.run(["sed", "-i.before", "-E", program, CONF])
    try:
        start()
        yield
    finally:
        for machine in machines:
            machine.run(f"mv {CONF}.before {CONF}")
        start()


def notes(cluster: Cluster, verb: str, policy: Path, code: int = 0) -> list[str]:
    """Notes of slurm-gres on gpu1."""
    words = ("-i", cluster.lab.inventory, "-l", "gpu1", "-o", "json")
    ran = gpustate(verb, policy, *words, *(("--yes",) if verb == "apply" else ()), code=code)
    (state,) = (s for s in ran.node("gpu1")["states"] if s["state"] == "slurm-gres")
    return [*state.get("notes", ()), *filter(None, (state.get("reason"),))]


def test_slurm_runs_with_the_file_that_its_own_one_includes(
    cluster: Cluster, tmp_path: Path
) -> None:
    nodes = [cluster.lab.node(name) for name in ("gpu1", "gpu2")]
    policy = tmp_path / "policy.py"
    parameters = 'nodes="gpu[1-2]", node_settings={"Weight": "7"}'
    policy.write_text(APPLIED.replace('"slurm-gres")()', f'"slurm-gres")({parameters})'))
    for node in nodes:
        node.run(f"cp {CONF} {CONF}.full; sed -i /^GresTypes=/d {CONF}")
    first = notes(cluster, "plan", policy)
    assert re.match(
        rf"{CONF} needs: Include gpustate-node.conf, instead of NodeName=gpu1 in {CONF}:\d+\b",
        first[0],
    )
    gpustate("apply", policy, "-i", cluster.lab.inventory, "--yes", code=0)
    for node in nodes:
        node.run(f"mv {CONF}.full {CONF}")
    texts = {node.run("cat /etc/slurm/gpustate-node.conf").stdout for node in nodes}
    (text,) = texts
    cluster.slurm.head.run(f"cat >/etc/slurm/gpustate-node.conf <<'END'\n{text}END")

    # Slurm itself refuses the same node twice, and so does the state.
    twice = "/etc/slurm/twice.conf"
    # Newer ones look at their port and folder first.
    lines = "Include gpustate-node.conf\\nSlurmctldPort=6899\\nStateSaveLocation=/tmp"
    cluster.slurm.head.run(f"(cat {CONF}; printf '%b\\n' '{lines}') >{twice}")
    ended = cluster.slurm.head.run(["timeout", "20", "slurmctld", "-D", "-f", twice], check=False)
    assert ended.returncode not in (0, 124)
    assert "uplicated Node" in ended.stderr + ended.stdout
    nodes[0].run(f"cp {CONF} {CONF}.once; echo Include gpustate-node.conf >>{CONF}")
    assert "both have NodeName=gpu1" in notes(cluster, "plan", policy, code=5)[-1]
    nodes[0].run(f"mv {CONF}.once {CONF}")

    with edited(
        cluster, "/^(NodeName|GresTypes)=/d; s/^PartitionName/Include gpustate-node.conf\\n&/"
    ):
        assert sorted(cluster.job("-N2 --gres=gpu:h100:8 hostname").split()) == ["gpu1", "gpu2"]
        for node in nodes:
            shown = cluster.slurm.scontrol("show", "node", node.name)
            assert "ActiveFeatures=gpu,h100," in shown
            assert re.search(rf"NodeAddr={re.escape(node.address)}\b", shown)
            assert "Weight=7" in shown
        assert notes(cluster, "plan", policy) == []
        assert gpustate("drift", policy, "-i", cluster.lab.inventory).code == 0
        alone = tmp_path / "alone.py"
        alone.write_text(ALONE.format('"slurm-gres")('))
        removed = gpustate("plan", "--remove", alone, "-i", cluster.lab.inventory)
        assert "remove that line first" in removed.out
    gpustate("apply", cluster.policy, "-i", cluster.lab.inventory, "--yes", code=0)


def test_a_slurm_conf_without_gres_types_is_told_the_line(cluster: Cluster) -> None:
    assert notes(cluster, "plan", cluster.policy) == []
    with edited(cluster, "s/^GresTypes=.*/GresTypes=nvme/; s/(NodeName=gpu1 .*)h100:8/\\1h100:7/"):
        types, gres = notes(cluster, "plan", cluster.policy)
        assert re.fullmatch(rf"{CONF}:\d+ needs: GresTypes=nvme,gpu", types)
        assert (
            "has Gres=gpu:h100:7, and Slurm takes GPUs of that type and number only: write Gres=gpu:h100:8"
            in gres
        )


JOBS = "/var/lib/dcgm-exporter/job-mapping"
METRICS = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:9400/metrics\").read().decode())'"


def test_metrics_of_gpus_have_the_job_that_runs_on_them(cluster: Cluster, tmp_path: Path) -> None:
    policy = tmp_path / "policy.py"
    exporter = f'registry.get("dcgm")(), registry.get("dcgm-exporter")(job_mapping="{JOBS}"),'
    policy.write_text(
        APPLIED.replace('"slurm-gres")(),', f'"slurm-gres")(job_mapping="{JOBS}"), {exporter}')
    )
    node = cluster.lab.node("gpu1")
    expected = [f"{CONF} needs: {key}=/etc/slurm/{key.lower()}.d/*" for key in ("Prolog", "Epilog")]
    assert notes(cluster, "apply", policy) == expected

    def named() -> dict[str, str]:
        found = re.findall(r'GPU_TEMP\{gpu="(\d)"[^}]*hpc_job="(\d+)"', node.run(METRICS).stdout)
        return {gpu: job for job, gpu in ((job, gpu) for gpu, job in found)}

    scripts = "Prolog=/etc/slurm/prolog.d/*\\nEpilog=/etc/slurm/epilog.d/*"
    with edited(cluster, f"s,^ReturnToService=,{scripts}\\n&,"):
        assert notes(cluster, "plan", policy) == []
        assert named() == {}
        cluster.submit("-w gpu1 --gres=gpu:2 --wrap 'srun sleep 120'")
        cluster.submit("-w gpu1 --gres=gpu:1 --wrap 'srun sleep 120'")
        cluster.until(lambda: len(named()) == 3)
        jobs = cluster.head("squeue -h -o %A").stdout.split()
        assert sorted(named()) == ["0", "1", "2"]
        assert {*named().values()} == {*jobs}
        shown = cluster.slurm.scontrol("-d", "show", "job", named()["0"])
        assert "IDX:0-1" in shown or "IDX:0)" in shown
        cluster.head(f"scancel {jobs[0]}")
        cluster.until(lambda: {*named().values()} == {jobs[1]})
        cluster.head("scancel --user=op")
        cluster.until(lambda: named() == {})
        assert cluster.state("gpu1").flags == {"IDLE"}, "no prolog failed"
    words = ("-i", cluster.lab.inventory, "-l", "gpu1", "--yes")
    policy.write_text(ALONE.format('"dcgm-exporter")(), registry.get("dcgm")('))
    gpustate("remove", policy, *words, code=0)
    gpustate("apply", cluster.policy, *words, code=0)
    assert node.run("ls /etc/slurm/prolog.d /etc/slurm/epilog.d", check=False).stdout.split() == []


def configless(cluster: Cluster) -> None:
    """Have the nodes get their files from slurmctld, as their administrator sets it up; the cluster stays so."""
    head = cluster.slurm.head
    server = f'SLURMD_OPTIONS="--conf-server {head.address}:6817"'
    # Debian's unit asks for a file of the node's own.
    drop_in = "/etc/systemd/system/slurmd.service.d/site.conf"
    head.run(f"sed -i 's/^ReturnTo/SlurmctldParameters=enable_configless\\n&/' {CONF}")
    head.run("systemctl restart slurmctld")
    for node in cluster.lab.nodes:
        node.run(
            f"rm {CONF}; "
            f"echo '{server}' >/etc/default/slurmd; printf '[Unit]\\nConditionPathExists=\\n' >{drop_in}; "
            "systemctl daemon-reload; systemctl restart slurmd"
        )


def test_a_node_without_files_of_its_own_is_judged_by_those_of_slurmctld(cluster: Cluster) -> None:
    words = ("-i", cluster.lab.inventory)
    node = cluster.lab.node("gpu1")
    sent, local = "/run/slurm/conf", "/etc/slurm/gres.conf /etc/slurm/gpustate-node.conf"
    node.run(f"rm -f {local}")

    def reconfigure(gpus: int) -> None:
        """Have the nodes get slurmctld's files, and wait for them."""
        cluster.slurm.head.run(f"sed -i s/h100:[0-9]/h100:{gpus}/ {CONF}")
        cluster.slurm.scontrol("reconfigure")
        query = f"grep -q h100:{gpus} {sent}/slurm.conf && grep -q nvidia7 {sent}/gres.conf"
        cluster.until(lambda: node.run(query, check=False).returncode == 0)

    configless(cluster)
    cluster.until(lambda: node.run(f"cat {sent}/slurm.conf", check=False).returncode == 0)
    (refused,) = notes(cluster, "plan", cluster.policy, code=5)
    assert (
        "add the lines that gpustate node labels -o slurm prints to gres.conf on its host"
        in refused
    )
    lines = re.findall(
        "^NodeName=.* Name=gpu .*",
        gpustate("node", "labels", *words, "-o", "slurm").out,
        re.MULTILINE,
    )
    assert len(lines) == 16
    text = "\n".join(lines)
    cluster.slurm.head.run(f"cat >/etc/slurm/gres.conf <<'END'\n{text}\nEND")
    reconfigure(8)
    assert notes(cluster, "plan", cluster.policy) == []
    gpustate("apply", cluster.policy, *words, "--yes", code=0)
    cluster.until(
        lambda: all("INVALID_REG" not in s.flags for s in cluster.slurm.states().values())
    )
    cluster.resume()
    assert cluster.job("-w gpu1 --gres=gpu:h100:8 hostname") == "gpu1\n"
    assert gpustate("drift", cluster.policy, *words).code == 0
    assert node.run(f"ls {local}", check=False).stdout == ""
    reconfigure(7)
    (note,) = notes(cluster, "plan", cluster.policy)
    assert re.match(r"slurmctld's slurm.conf:\d+ has Gres=gpu:h100:7, and Slurm takes", note)

    # Nothing is there yet.
    node.run("systemctl stop slurmd; rm -rf /run/slurm")
    (note,) = notes(cluster, "plan", cluster.policy)
    assert "has none yet: start slurmd.service" in note
    gpustate("apply", cluster.policy, *words, "--yes", code=0)
    assert node.run(f"ls {local}", check=False).stdout == ""
