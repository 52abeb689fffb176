"""Debian's own archive, with the package lists and signatures that its mirrors have today: plan and simulated installation.

Nodes have no way out, so this machine's apt fetches the lists. Modules of these drivers cannot be built for the lab's kernels:
nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import gpustate
from labnodes import LabFactory, without_repositories

from gpustate_lab.spec import LabSpec

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = {"debian12": "bookworm", "debian13": "trixie"}
COMPONENTS = "main contrib non-free non-free-firmware"
POLICY = """
states:
  driver: {module_type: proprietary}
  persistenced: {}
"""


@pytest.fixture(scope="module")
def lists(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Today's lists of a release, read with apt."""
    folder = tmp_path_factory.mktemp("apt")
    for name in (
        "etc/preferences.d",
        "etc/sources.list.d",
        "state/lists/partial",
        "cache/archives/partial",
    ):
        (folder / name).mkdir(parents=True)
    (folder / "etc/sources.list").write_text(sources(image))
    (folder / "status").write_text("")
    (folder / "apt.conf").write_text(
        f'Dir::Etc "{folder}/etc"; Dir::State "{folder}/state"; Dir::Cache "{folder}/cache";\n'
        f'Dir::State::status "{folder}/status"; APT::Sandbox::User "root";\n'
        'APT::Architecture "amd64"; APT::Architectures { "amd64"; };\n'
        'Acquire::Languages "none"; APT::Update::Error-Mode "any";\n'
    )
    done = subprocess.run(
        ["apt-get", "update", "-q"],
        env={**os.environ, "APT_CONFIG": str(folder / "apt.conf")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"Debian's archive cannot be read from here: {done.stderr.strip()[-300:]}")
    return folder / "state/lists"


def sources(image: str) -> str:
    suite = SUITES[image]
    return "".join(
        f"deb [signed-by={KEYRING}] http://deb.debian.org/{path} {COMPONENTS}\n"
        for path in (f"debian {suite}", f"debian-security {suite}-security")
    )


@pytest.mark.by_turns
@pytest.mark.parametrize("image", list(SUITES), scope="module")
def test_a_plan_takes_what_debians_archive_has(
    lab_factory: LabFactory, image: str, lists: Path, tmp_path: Path
) -> None:
    # Debian's archive has no Fabric Manager.
    lab = lab_factory(LabSpec(nodes=1, images=(image,), gpus=("1xL40S",)))
    (node,) = lab.nodes
    (node.root / "etc/apt/sources.list").write_text(sources(image))
    for file in lists.iterdir():
        if file.is_file():
            shutil.copy(file, node.root / "var/lib/apt/lists" / file.name)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    inventory = without_repositories(lab, tmp_path)
    words = ("plan", policy, "-i", inventory, "-l", node.name, "-o", "json")
    (row,) = gpustate(*words, code=0).document["nodes"]
    states = {state["state"]: state for state in row["states"]}
    (change,) = [one for one in states["driver"]["changes"] if one["field"] == "packages"]
    packages: dict[str, str] = change["after"]
    version = node.run(
        "apt-cache show nvidia-smi | sed -n 's/^Version: //p' | head -n 1"
    ).stdout.strip()
    assert {n: v for n, v in packages.items() if n not in ("nvidia-persistenced", "nvidia-modprobe")} == dict.fromkeys(
        ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-cuda-mps", "nvidia-kernel-dkms", "nvidia-smi"),
        version,
    )  # fmt: skip
    for name in ("nvidia-persistenced", "nvidia-modprobe"):
        candidate = node.run(
            f"apt-cache policy {name} | sed -n 's/ *Candidate: //p'"
        ).stdout.strip()
        assert packages[name] == candidate
    wanted = " ".join(f"{name}={full}" for name, full in packages.items())
    simulated = node.run(f"apt-get install -s --no-install-recommends {wanted}").stdout
    assert f"Inst nvidia-persistenced ({packages['nvidia-persistenced']} " in simulated
    assert "Remv" not in simulated
