"""An image is baked without touching its builder, boots, finishes by itself, and is then what a
running node of the same policy is.

Baked is a copy of a lab image, with links in it that lead, absolutely, to places that exist on the
builder too. Simulated: GPUs, NVML, CUDA and NVIDIA's packages, as in every lab (docs/lab.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from commands import GPUSTATE, gpustate

from gpustate_lab import host, setup
from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = [pytest.mark.long, pytest.mark.node]

POLICY = """
from pathlib import Path

from gpustate import Policy, presets
from gpustate.states.mig import MigLayoutApplied
image = presets.image(
    driver={"branch": 580, "module_type": "open"},
    dev_char={"links": "always"},
    validator={"timeout_s": 20},
)
parted = Path(__file__).with_name("parted.yaml")
policy = Policy(*image.states, MigLayoutApplied("one", file=str(parted)))
"""
#: One GPU in halves, for every MIG device costs a boot its proof.
PARTED = """version: v1
mig-configs:
  one:
  - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}
  - {devices: [1, 2, 3, 4, 5, 6, 7], mig-enabled: false}
"""
IDENTITY = ("etc/hostname", "etc/machine-id", "var/lib/dbus/machine-id", "etc/ssh", "etc/hosts")
WORK = [
    *("nouveau", "driver", "fabric-manager", "persistenced", "containerd", "mig", "mig"),
    *("dev-char", "cdi", "gpu-labels", "validator"),
]


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def digests(*folders: Path) -> dict[str, str]:
    """Every file with its content, owner, mode and time; links with their targets."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            status = path.lstat()
            content = b""
            if path.is_symlink():
                content = os.readlink(path).encode()
            elif path.is_file():
                content = path.read_bytes()
            told = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
            found[str(path)] = f"{hashlib.sha256(content).hexdigest()[:16]} {told}"
    return found


def at_work(root: Path) -> list[int]:
    """Processes that were started for a root."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if any(word.endswith(b"chroot_enter.py") for word in words) and bytes(root) in words:
            found.append(int(entry.name))
    return found


@dataclass
class Root:
    """The root of an image on the builder, and a place on the builder that its links name."""

    path: Path
    upper: Path
    trap: Path
    lab: Lab
    node: Node
    policy: Path

    @property
    def words(self) -> tuple[object, ...]:
        inventory = ("-i", self.lab.inventory, "--node", self.node.name)
        return ("image", "bake", self.policy, "--root", self.path, *inventory)

    def bake(self, *words: object, code: int = 0) -> dict[str, Any]:
        return gpustate(*self.words, "--yes", "-o", "json", *words, code=code).document

    def unmount(self) -> None:
        host.unmount_all(self.path)


def set_traps(root: Path, trap: Path) -> None:
    """Links in the image to folders that exist in it and, with other content, on the builder."""
    inside = root / str(trap).lstrip("/")
    for name in ("modprobe.d", "containerd", "modules-load.d"):
        (trap / name).mkdir(parents=True)
        (trap / name / "config.toml").write_text("# the builder's own\n")
        real = root / "etc" / name
        inside.mkdir(parents=True, exist_ok=True)
        if real.is_dir():
            shutil.move(real, inside / name)
        else:
            (inside / name).mkdir()
        real.symlink_to(trap / name)
    # On the builder there is such a file, in the image there is none.
    (trap / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").symlink_to(trap / "resolv.conf")


@pytest.fixture(scope="module")
def make_root(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Root]]:
    """Makes a root like that of one of the lab's nodes, mounted on the builder."""
    made: list[Root] = []

    def make(name: str) -> Root:
        folder = tmp_path_factory.mktemp("image")
        node = lab.node(name)
        # Not below /tmp, which is another one in the image.
        trap = Path(tempfile.mkdtemp(dir="/srv", prefix="gpustate-trap-"))
        root = Root(folder / "root", folder / "upper", trap, lab, node, folder / "policy.py")
        root.policy.write_text(POLICY)
        root.policy.with_name("parted.yaml").write_text(PARTED)
        host.mount_overlay(root.path, node.layers, root.upper, folder / "work")
        made.append(root)
        setup._replace_sources(root.path, node.sources)
        set_traps(root.path, root.trap)
        return root

    yield make
    for root in made:
        root.unmount()
        shutil.rmtree(root.path.parent)
        shutil.rmtree(root.trap)


@dataclass
class Bake:
    """A root after it was baked, and the builder before and after that."""

    root: Root
    document: dict[str, Any]
    again: dict[str, Any]
    moved_by_second: dict[str, str]
    builder: tuple[dict[str, str], dict[str, str]]
    identity: tuple[dict[str, str], dict[str, str]]
    left_by_kill: list[str]


def kill_in_the_middle(root: Root) -> list[str]:
    """Start a bake and kill the controller, it alone, while packages are installed."""
    process = subprocess.Popen(
        [GPUSTATE, *map(str, root.words), "--yes"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "step driver: install the driver" in line:
            break
    time.sleep(1.0)
    assert process.poll() is None, "it was over before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    wait_until(lambda: not at_work(root.path), 10, "every process of the bake is gone")
    return [str(point) for point in host.mount_points(root.path) if point != root.path]


def identity_of(root: Path) -> dict[str, str]:
    return digests(*(root / name for name in IDENTITY if (root / name).exists()))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("gpu1", True), id="debian12-killed"),
        pytest.param(("gpu1", False), id="debian12", marks=pytest.mark.proof),
        pytest.param(("gpu2", True), id="debian13-killed", marks=pytest.mark.proof),
    ],
)
def baked(request: pytest.FixtureRequest, make_root: Callable[[str], Root]) -> Bake:
    """One image baked, after a bake that was killed in some of them, and baked once more."""
    name, killed = request.param
    root = make_root(name)
    builder, identity = digests(Path("/etc"), root.trap), identity_of(root.path)
    left = kill_in_the_middle(root) if killed else []
    document = root.bake()
    before = digests(root.upper)
    again = root.bake()
    after = digests(root.upper)
    moved = {path: told for path, told in after.items() if before.get(path) != told}
    result = Bake(
        root,
        document,
        again,
        moved,
        (builder, digests(Path("/etc"), root.trap)),
        (identity, identity_of(root.path)),
        left,
    )
    assert host.mount_points(root.path) == [root.path]
    assert at_work(root.path) == []
    root.unmount()
    return result


def test_nothing_of_the_builder_is_touched_or_stays_mounted(baked: Bake) -> None:
    before, after = baked.builder
    assert after == before
    assert baked.left_by_kill == []


def test_everything_that_an_image_can_hold_is_in_it(baked: Bake) -> None:
    upper = baked.root.upper
    inside = upper / str(baked.root.trap).lstrip("/")
    assert (inside / "modprobe.d/gpustate-nouveau.conf").is_file()
    assert "nvidia" in (inside / "containerd/config.toml").read_text()
    wants = upper / "etc/systemd/system/multi-user.target.wants"
    for unit in ("gpustate-firstboot.service", "gpustate-validate.service"):
        assert (wants / unit).is_symlink()
    kernels = [path.name for path in (upper / "usr/lib/modules").iterdir()]
    assert len(kernels) == 2
    for kernel in kernels:
        assert list((upper / "usr/lib/modules" / kernel).rglob("nvidia.ko*")), kernel
    assert [row["state"] for row in baked.document["first_boot"]] == WORK
    assert baked.document["left_to_apply"] == []


def test_a_second_bake_changes_nothing_and_moves_no_time(baked: Bake) -> None:
    outcomes = {row["state"]: row["outcome"] for row in baked.again["nodes"][0]["states"]}
    assert set(outcomes.values()) == {"unchanged"}, outcomes
    assert baked.moved_by_second == {}
    assert baked.again["first_boot"] == baked.document["first_boot"]


def test_an_image_carries_no_identity_and_no_trace_of_the_bake(baked: Bake) -> None:
    before, after = baked.identity
    assert after == before
    upper = baked.root.upper
    assert not os.path.lexists(upper / "usr/sbin/policy-rc.d")
    assert not (upper / "var/lib/gpustate/lock").exists()
    assert not (upper / "var/lib/gpustate/bake.made").exists()
    assert os.readlink(upper / "etc/resolv.conf") == str(baked.root.trap / "resolv.conf")
    assert not os.path.lexists(upper / str(baked.root.trap / "resolv.conf").lstrip("/"))
    left = [
        p for p in (upper / "run", upper / "tmp", upper / "dev") if p.is_dir() and any(p.iterdir())
    ]
    assert left == []


def observed(policy: Path, lab: Lab, node: Node) -> dict[str, Any]:
    ran = gpustate("plan", policy, "-i", lab.inventory, "-l", node.name, "-o", "json", code=0)
    (row,) = ran.document["nodes"]
    assert {state["outcome"] for state in row["states"]} == {"unchanged"}
    # Another boot is another boot; what the CDI specification says of it is in the digest.
    for key in ("boot_id", "runtime", "files"):  # inodes and times are a machine's own
        row["observed"]["validator"]["key"].pop(key)
    seen: dict[str, Any] = row["observed"]
    return seen


def first_boot_of(node: Node) -> str:
    file = node.root / "var/lib/gpustate/firstboot/result"
    return file.read_text().strip() if file.exists() else ""


def test_a_machine_that_boots_it_is_what_a_running_node_of_the_policy_is(baked: Bake) -> None:
    root, lab = baked.root, baked.root.lab
    inventory = ("-i", lab.inventory, "-l", root.node.name)
    booted = root.node.on_top(root.upper)
    booted.reset(wait=False)
    wait_until(lambda: first_boot_of(booted) == "running", 240, "the first boot is at work")
    booted.kill()  # the power is lost in the middle of it
    booted.boot()
    wait_until(lambda: first_boot_of(booted) == "done", 240, "the first boot is finished")
    assert booted.run("systemctl is-system-running", check=False).stdout.strip() == "running"
    assert "disabled" in booted.run("systemctl is-enabled gpustate-firstboot", check=False).stdout
    gpustate("drift", root.policy, *inventory, code=0)
    gpustate("validate", root.policy, *inventory, code=0)
    facts = json.loads(gpustate("facts", *inventory, "-o", "json", code=0).out)["nodes"][0]
    assert facts["first_boot"] == "done"
    assert "image" in facts
    assert not facts["image"]
    from_image = observed(root.policy, lab, booted)
    booted.reboot()
    gpustate("drift", root.policy, *inventory, code=0)

    root.node.reset()
    gpustate("apply", root.policy, *inventory, "--yes", code=0)
    assert observed(root.policy, lab, root.node) == from_image


@pytest.mark.proof
def test_a_first_boot_that_cannot_be_finished_fails_loudly_and_is_taken_up_again(
    baked: Bake,
) -> None:
    root, lab = baked.root, baked.root.lab
    inventory = ("-i", lab.inventory, "-l", root.node.name)
    broken = replace(root.node, spec=replace(root.node.spec, faults=("cuda-802",)))
    broken = broken.on_top(root.upper)
    broken.reset()
    result = first_boot_of(broken)
    assert result.startswith("failed: validator: validate the node: "), result
    assert "802" in result
    failed = broken.run("systemctl --failed --no-legend --plain").stdout
    assert "gpustate-firstboot.service" in failed
    told = gpustate("plan", root.policy, *inventory)
    assert "first boot of its image: failed: validator" in told.out
    assert (
        "first boot of its image: failed"
        in gpustate("explain", root.node.name, "-i", lab.inventory).out
    )
    broken.fault("cuda-802", on=False)
    broken.run("systemctl restart gpustate-firstboot")
    assert first_boot_of(broken) == "done"
    gpustate("drift", root.policy, *inventory, code=0)
    root.node.reset(wait=False)


def test_what_cannot_be_baked_is_said_in_one_line(
    make_root: Callable[[str], Root], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    linked = tmp_path / "linked"
    for name in ("proc", "run", "sys", "tmp"):
        (linked / name).mkdir(parents=True)
    (linked / "dev").symlink_to("/etc")
    for folder, words in (
        (Path("/"), "the root of the running system"),
        (tmp_path / "none", "No such file"),
        (empty, "/dev is missing; this is not the root of an image"),
        (linked, "/dev is not a directory"),
    ):
        ran = gpustate("image", "bake", "nouveau", "--root", folder, "--yes", code=1)
        assert words in ran.err
        assert len(ran.err.strip().splitlines()) == 1

    root = make_root("gpu1")
    undecided = tmp_path / "undecided.py"
    undecided.write_text("from gpustate import presets\npolicy = presets.image()\n")
    root.policy = undecided
    ran = gpustate(*root.words, "--dry-run")
    assert ran.code == 0, ran.err  # the driver is planned behind its repository
    for kernel in (root.path / "boot").glob("vmlinuz-*"):
        kernel.unlink()
    for order in (root.path / "lib/modules").glob("*/modules.order"):
        order.unlink()
    ran = gpustate(*root.words, "--yes", code=5)
    assert "no kernel is installed in the image" in ran.out
    root.unmount()


def test_two_bakes_of_one_root_do_not_meet(make_root: Callable[[str], Root]) -> None:
    root = make_root("gpu1")
    first = subprocess.Popen(
        [GPUSTATE, *map(str, root.words), "--yes"], stderr=subprocess.PIPE, text=True
    )
    assert first.stderr is not None
    first.stderr.readline()
    second = gpustate("image", "bake", root.policy, "--root", root.path, "--dry-run", code=8)
    assert "another bake is running" in second.err
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert not (root.upper / "var/lib/gpustate/lock").exists()
    assert not os.path.lexists(root.upper / "usr/sbin/policy-rc.d")
    root.unmount()
