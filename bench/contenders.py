"""Who is compared, and how each is started: as its users start it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench import ansible_play, environments, operations, workload
from bench.testbed import Testbed

HERE = Path(__file__).parent
PROJECT = HERE / "project"
GPUSTATE = Path(sys.executable).with_name("gpustate")


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do it.

    Args:
        name: as it is asked for with ``--only``.
        about: for the table's foot.
        environment: name of the virtual environment it needs besides gpustate's own.
        changes: it makes drifted nodes right; the others only look.
        by_default: runs when nobody names contenders.
        most: nodes it is run for by default; more takes it many minutes.
    """

    name: str
    about: str
    environment: str = ""
    changes: bool = True
    by_default: bool = True
    most: int = 1_000_000


ALL = {
    one.name: one
    for one in (
        Contender(
            "floor",
            "one exec of gpustate's own probe script a node, asyncssh",
            "pyinfra",
            changes=False,
        ),
        Contender(
            "by-hand",
            "the same with a hand-written script",
            "pyinfra",
            changes=False,
            by_default=False,
        ),
        Contender("gpustate", "gpustate apply --yes"),
        Contender("drift", "gpustate drift", changes=False, by_default=False),
        Contender(
            "operations",
            "gpustate apply --yes with a policy of 20 operations of pyinfra",
            changes=False,
            by_default=False,
        ),
        Contender("pyinfra", "pyinfra 3.10, idiomatic deploy, -y", "pyinfra"),
        Contender("mitogen", "ansible-core 2.19 with Mitogen, free strategy", "mitogen", most=20),
        Contender(
            "ansible",
            "ansible-core 2.19, pipelining, ControlPersist, free strategy, 50 forks",
            "ansible",
            most=20,
        ),
    )
}


@dataclass(slots=True)
class Stage:
    """Files that contenders need, for one number of nodes and one way to them."""

    bed: Testbed
    count: int
    made: set[str] = field(default_factory=set[str])

    @property
    def hosts(self) -> list[str]:
        """Nodes that take part."""
        return self.bed.hosts[: self.count]

    def inventory(self) -> Path:
        """gpustate's, rewritten for the present port."""
        work = self.bed.work
        rows = [
            "all:",
            "  vars:",
            "    ansible_user: root",
            f"    ansible_port: {self.bed.port}",
            f"    ansible_ssh_private_key_file: {work}/bed/user",
            f"    ansible_ssh_common_args: -o UserKnownHostsFile={work}/bed/known_hosts",
            "  hosts:",
            *(
                f"    {host}: {{root: {work}/nodes/{host}, gpustate_state_folder: {work}/state/{host}}}"
                for host in self.hosts
            ),
        ]
        file = work / "inventory.yml"
        file.write_text("\n".join(rows) + "\n")
        return file

    def scripts(self) -> str:
        """A folder with the script of each node, as gpustate sends it."""
        name = f"scripts-{self.count}"
        if name not in self.made:
            words = [str(self.inventory()), str(PROJECT / "policy.py"), str(self.bed.work / name)]
            subprocess.run(
                [sys.executable, "-m", "bench.scripts", *words],
                check=True,
                env=self.environment(),
                cwd=self.bed.work,
            )
            self.made.add(name)
        return name

    def by_hand(self) -> str:
        """A folder with the script of each node, as somebody would write it."""
        name = f"by-hand-{self.count}"
        folder = self.bed.work / name
        folder.mkdir(exist_ok=True)
        for host in self.hosts:
            text = workload.hand_script(workload.root(self.bed.work, host))
            (folder / host).write_text(f"sh -s\n{text}")
        return name

    def environment(self) -> dict[str, str]:
        """Environment variables of a contender."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "GPUSTATE_"))}
        return {
            **kept,
            "PYTHONPATH": str(HERE.parent),
            "XDG_STATE_HOME": str(self.bed.work / "controller"),
            "BENCH_WORK": str(self.bed.work),
            "BENCH_NODES": str(self.count),
            "BENCH_PORT": str(self.bed.port),
        }

    def command(self, one: Contender) -> tuple[list[str], dict[str, str]]:
        """Command line and environment of a contender."""
        environment = self.environment()
        policy, inventory = str(PROJECT / "policy.py"), str(self.inventory())
        if one.name == "gpustate":
            return [str(GPUSTATE), "apply", policy, "-i", inventory, "--yes"], environment
        if one.name == "operations":
            policy = str(operations.write(self.bed.work))
            return [str(GPUSTATE), "apply", policy, "-i", inventory, "--yes"], environment
        if one.name == "drift":
            words = ["drift", policy, "-i", inventory, "--exit-zero-on-changes"]
            return [str(GPUSTATE), *words], environment
        programs = environments.programs(one.environment)
        if one.name in ("floor", "by-hand"):
            folder = self.scripts() if one.name == "floor" else self.by_hand()
            where = [str(self.bed.work), str(self.bed.port), str(self.count), folder]
            return [str(programs / "python"), "-m", "bench.floor", *where], environment
        if one.name == "pyinfra":
            deploy = [str(HERE / "pyinfra_inventory.py"), str(HERE / "pyinfra_deploy.py")]
            return [str(programs / "pyinfra"), "-y", *deploy], environment
        return self._ansible(one, programs, environment)

    def _ansible(
        self, one: Contender, programs: Path, environment: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        ansible_play.write(self.bed.work, self.hosts, self.bed.port)
        folder = self.bed.work / "ansible"
        environment |= {"ANSIBLE_CONFIG": str(folder / "ansible.cfg"), "ANSIBLE_STRATEGY": "free"}
        if one.name == "mitogen":
            where = "import ansible_mitogen, os; print(os.path.dirname(ansible_mitogen.__file__))"
            found = subprocess.check_output([programs / "python", "-c", where], text=True).strip()
            environment |= {
                "ANSIBLE_STRATEGY": "mitogen_free",
                "ANSIBLE_STRATEGY_PLUGINS": f"{found}/plugins/strategy",
            }
        play = ["-i", str(folder / "inventory.ini"), str(folder / "play.yml")]
        return [str(programs / "ansible-playbook"), *play], environment
