"""What gpustate supports and how that was tested, for README, docs and refusals.

A level is never higher than what a test shows, and a test compares the two. No GPU is real at any level: ``REAL`` means that the distribution, runtime or scheduler is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What is supported."""

    DISTRIBUTION = "distribution"
    RUNTIME = "runtime"
    SCHEDULER = "scheduler"


class Level(Enum):
    """How it was tested, the strongest first. The value is what README, docs and refusals print."""

    REAL = "tested on the real thing"
    SIMULATED = "tested on a simulated node"
    RECORDED = "tested against recorded data"


MEANINGS = {
    Level.REAL: "booted nodes run it itself, with the packages of its project; GPUs, NVIDIA's driver packages and kernels are simulated",
    Level.SIMULATED: "booted nodes with real systemd, sshd and package manager; the distribution's name, or the "
    "runtime, is simulated",
    Level.RECORDED: "decisions and steps are tested against recorded output; no node has run it",
}


@dataclass(frozen=True, slots=True)
class Support:
    """One line of the table.

    Args:
        kind: what it is.
        name: for people.
        ids: of a distribution, what nodes call themselves (``debian12``); of others, states.
        level: how it was tested.
        tests: modules below ``tests/`` that show it.
        note: what else a person has to know; may be empty.
    """

    kind: Kind
    name: str
    ids: tuple[str, ...]
    level: Level
    tests: tuple[str, ...]
    note: str = ""


#: All but runtimes: those, states and their tests on nodes declare (``tests/support/supporttable.py``).
TABLE = (
    Support(
        Kind.DISTRIBUTION,
        "Debian 12 and 13",
        ("debian12", "debian13"),
        Level.REAL,
        ("node/test_spine.py", "node/test_driver.py"),
    ),
    Support(
        Kind.DISTRIBUTION,
        "Rocky Linux 9 and 10, Amazon Linux 2023",
        ("rocky9", "rocky10", "amzn2023"),
        Level.SIMULATED,
        ("node/test_distributions.py",),
        "real rpm and dnf on Debian's kernel and libraries; packages with the relations of NVIDIA's spec files",
    ),
    Support(
        Kind.DISTRIBUTION,
        "SUSE Linux Enterprise 15",
        ("sles15",),
        Level.SIMULATED,
        ("node/test_distributions.py", "node/test_rpm_driver.py"),
        "real rpm and zypper on Debian's kernel and libraries",
    ),
    Support(
        Kind.DISTRIBUTION,
        "Ubuntu 22.04, 24.04 and 26.04",
        ("ubuntu2204", "ubuntu2404", "ubuntu2604"),
        Level.SIMULATED,
        ("node/test_distributions.py", "node/test_ubuntu.py"),
        "real apt, dpkg and DKMS of Debian; the archive is simulated, and NVIDIA's repository for 26.04 begins with "
        "branch 595; on 22.04 and 26.04 a share of the tests",
    ),
    Support(
        Kind.DISTRIBUTION,
        "Red Hat Enterprise Linux, AlmaLinux and Oracle Linux 8, 9 and 10; Rocky Linux 8",
        (
            *(f"{name}{major}" for name in ("rhel", "almalinux", "ol") for major in (8, 9, 10)),
            "rocky8",
        ),
        Level.RECORDED,
        ("unit/states/test_rpm_driver.py", "unit/states/test_rpm_families.py"),
        "package sets of real machines; keys and layouts from NVIDIA's repositories; Oracle Linux with UEK, too",
    ),
    Support(
        Kind.DISTRIBUTION,
        "SUSE Linux Enterprise 16, openSUSE Leap 15 and 16, Tumbleweed",
        ("sles16", "opensuse-leap15", "opensuse-leap16", "opensuse-tumbleweed"),
        Level.RECORDED,
        ("unit/states/test_rpm_families.py",),
        "package sets of real machines; keys and layouts from NVIDIA's repositories",
    ),
    Support(
        Kind.SCHEDULER,
        "Kubernetes 1.34 to 1.36",
        ("validator", "gpu-labels", "device-plugin-config"),
        Level.REAL,
        ("node/test_lab_kubernetes.py", "node/test_cluster_gpus.py"),
        "on containerd, with systemd and cgroupfs as cgroup drivers; API server, scheduler, kubelets and NVIDIA's device "
        "plugin; nodes of Debian, and simulated ones of Ubuntu",
    ),
    Support(
        Kind.SCHEDULER,
        "Slurm 22.05, 24.11 and 26.05",
        ("slurm-gres",),
        Level.REAL,
        ("node/test_slurm_gres.py", "proof/test_slurm_releases.py"),
        "slurmctld and slurmd of Debian 12, 13 and unstable",
    ),
)


def ids(kind: Kind, *levels: Level) -> tuple[str, ...]:
    """Everything of a kind, by its id; only of some levels where they are given."""
    return tuple(
        name
        for row in TABLE
        if row.kind is kind and (not levels or row.level in levels)
        for name in row.ids
    )


def level(kind: Kind, name: str) -> Level | None:
    """How one is supported; ``None`` where it is not."""
    return next((row.level for row in TABLE if row.kind is kind and name in row.ids), None)


def summary(kind: Kind) -> str:
    """What is supported, in one line, for refusals."""
    return "; ".join(
        f"{', '.join(ids(kind, grade))} ({grade.value})" for grade in Level if ids(kind, grade)
    )


def markdown(rows: Iterable[Support] = TABLE) -> str:
    """The table as README and docs have it."""
    lines = ["| | | how it was tested |", "| --- | --- | --- |"]
    lines += [
        f"| {row.kind.value} | {row.name} | {row.level.value}{f': {row.note}' if row.note else ''} |"
        for row in rows
    ]
    lines += ["", *(f"- **{grade.value}**: {meaning}." for grade, meaning in MEANINGS.items())]
    return "\n".join(lines) + "\n"
