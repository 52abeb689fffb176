"""Package sets of real machines, as dpkg and rpm list them: which driver that is, and what a policy for it would change.

The sets are in ``tests/data/driver-sets``, one file each: names, versions and architectures as the machine or the
recipe has them, and in the head what a person reads in them. ``driver`` is the driver that is completely installed,
``modules`` whether DKMS builds its modules (``dkms``) or a package has them for one kernel (``ready``), ``from`` whose
packages they are. Only where there is something: ``leaves`` what is installed and does not belong to it, ``moves``
what has another version in the repository, ``broken`` what dpkg has not finished, ``relations`` what apt says of
transitional packages, ``part`` where the list lacks packages that the driver cannot do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpustate import NodeFacts, PciGpu
from gpustate.core.queries import Answer
from gpustate.ops.transaction import Transaction
from gpustate.probes.gpu_clients import GpuClientsQuery
from gpustate.probes.kernels import Kernel
from gpustate.states.driver import DriverInstalled
from gpustate.states.driver.observed import AptQuery, Live, Observed
from gpustate.testing import FakeNode

FOLDER = Path(__file__).parents[2] / "data/driver-sets"
SETS = {path.stem: path for path in sorted(FOLDER.glob("*/*.txt"))}
#: Turing, which both kinds of modules drive.
T4 = PciGpu("0000:00:00.0", "1eb8", "030200", None)


@dataclass(frozen=True)
class Machine:
    """One set, on the machine it was read from."""

    head: Mapping[str, str]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, path: Path) -> Machine:
        lines = path.read_text("utf-8").splitlines()
        head = (line[2:].partition(": ") for line in lines if line.startswith("# "))
        rows = tuple(tuple(line.split()) for line in lines if not line.startswith("#"))
        return cls({key: value for key, _, value in head}, rows)

    @property
    def manager(self) -> str:
        os_id = self.head["os"].rpartition("-")[0]
        return {"debian": "apt", "ubuntu": "apt"}.get(
            os_id, "zypper" if os_id.startswith(("sle", "opensuse")) else "dnf"
        )

    def answer(self) -> str:
        """What the fragments of the query print there; the repositories have what is installed."""
        kernel = self.head["kernel"]
        if self.manager == "apt":
            native = "arm64" if "arm64" in {row[3] for row in self.rows} else "amd64"
            listed = [f"{name}|{arch}|{full}|{status}" for status, name, full, arch in self.rows]
            policy = "".join(
                f"{name if arch == native else f'{name}:{arch}'}:\n  Version table:\n"
                f"     {self.offered(name, full)} 500\n        500 http://repository.test/ ./ Packages\n"
                for status, name, full, arch in self.rows
                if status[1] != "c"
            )
            relations = self.head.get("relations", "").split()
            dpkg = f"dpkg|{native}|1.22.6|ii"
            return "\n".join(
                (dpkg, *listed, "=missing", "=offers", f"{policy}=relations", *relations)
            )
        listed = [f"{name}|{arch}|{full}" for name, full, arch in self.rows]
        head = [f"=rpm {self.manager}", *listed, "=locks", "=stream", "=offers"]
        if self.manager == "dnf":
            offered = [f"{name}|{full}|cuda|{arch}" for name, full, arch in self.rows]
            return "\n".join(
                (*head, *offered, f"kernel-devel|{kernel.rpartition('.')[0]}|base|x86_64\n")
            )
        offered = [
            f'<solvable kind="package" name="{name}" edition="{full}" arch="{arch}" repository="cuda"/>'
            for name, full, arch in self.rows
        ]
        return "\n".join((*head, *offered))

    def offered(self, name: str, installed: str) -> str:
        """The version that the repository has."""
        moved = self.head.get("moves", " ").split()
        return moved[1] if moved[:1] == [name] else installed

    def node(self) -> FakeNode:
        os_id, _, os_version = self.head["os"].rpartition("-")
        driver, _, kind = self.head["driver"].partition(" ")
        kernel = Kernel(
            self.head["kernel"],
            image="/boot/vmlinuz",
            bootable=True,
            running=True,
            headers=True,
            nvidia_version=driver,
            nvidia_license="Dual MIT/GPL" if kind == "open" else "NVIDIA",
        )
        facts = NodeFacts(
            os_id=os_id,
            os_version=os_version,
            package_manager=self.manager,
            kernel=kernel.release,
            systemd=True,
            machine="aarch64" if kernel.release.endswith("aarch64") else "x86_64",
            pci=(T4,),
        )
        return FakeNode(
            facts=facts,
            answers={
                "Kernels": (kernel,),
                "AptQuery": AptQuery(()).parse(Answer(0, self.answer().encode())),
                "TransactionQuery": Transaction(),
                "LiveMigQuery": Live(loaded=self.head["driver"], library=driver),
                GpuClientsQuery(): (),
                "ServicesQuery": (),
                "BridgesQuery": 0,
            },
        )


#: What is not read or planned yet as it should be, and why.
def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Packages that a plan installs, moves or removes, with their versions; of those that leave it is ``-``."""
    return {
        name: after.get(name, "-")
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }


@pytest.mark.parametrize("name", SETS)
def test_the_installed_driver_is_read_from_its_packages(name: str) -> None:
    machine = Machine.read(SETS[name])
    observed: Observed = DriverInstalled().probe(machine.node())
    found = observed.whole
    assert " ".join(observed.broken) == machine.head.get("broken", "")
    if machine.head["driver"] == "none":
        assert found is None
        return
    assert found is not None
    scheme, version, kind = found
    assert f"{version} {kind}" == machine.head["driver"]
    assert machine.head.get("from", "") in scheme.name


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, path in SETS.items()
        if (head := Machine.read(path).head)["driver"] != "none" and "part" not in head
    ],
)
def test_a_policy_for_the_installed_driver_changes_no_package(name: str) -> None:
    machine = Machine.read(SETS[name])
    version, _, kind = machine.head["driver"].partition(" ")
    ready = machine.head["modules"] == "ready"
    state = DriverInstalled(
        version=version, module_type="open" if kind == "open" else "proprietary", precompiled=ready
    )
    observed: Observed = state.probe(machine.node())
    assert state.refuse(observed) is None
    expected = dict.fromkeys(machine.head.get("leaves", "").split(), "-")
    if moves := machine.head.get("moves"):
        package, _, moved = moves.partition(" ")
        expected[package] = moved
    assert changes(observed.packages, state.desired(observed).packages) == expected
