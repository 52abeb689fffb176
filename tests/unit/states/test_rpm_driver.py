"""The driver's packages on every distribution with rpm, over a node in memory: which, from where, with what steps."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpustate import NodeFacts, PciGpu, ops, shell
from gpustate.core.queries import Answer
from gpustate.formats.aptsources import Offer
from gpustate.formats.dpkg import Package
from gpustate.ops.transaction import Transaction
from gpustate.probes.gpu_clients import GpuClientsQuery
from gpustate.probes.kernels import Kernel
from gpustate.states.driver import DriverInstalled
from gpustate.states.driver.observed import Apt, AptQuery, Live, SecureBoot
from gpustate.testing import FakeNode, check_contract

H100 = PciGpu("0000:00:00.0", "2330", "030200", None)
V100 = PciGpu("0000:00:00.0", "1db4", "030200", None)
RHEL_OPEN: tuple[str, ...] = (
    "kmod-nvidia-open-dkms",
    "nvidia-driver-cuda",
    "nvidia-modprobe",
    "nvidia-persistenced",
)
RHEL_CLOSED = ("kmod-nvidia-latest-dkms", *RHEL_OPEN[1:])
ALL_RHEL = (*RHEL_OPEN, "kmod-nvidia-latest-dkms", "nvidia-open", "cuda-drivers")
STREAMS = ("580-open", "580-dkms", "580", "open-dkms", "latest-dkms")


def suse(generation: str, o: str = "-open", kmp: str = "") -> tuple[str, ...]:
    return (
        f"nvidia-compute-{generation}",
        f"nvidia-compute-utils-{generation}",
        f"nvidia{o}-driver-{generation}{kmp}",
        "nvidia-modprobe",
        "nvidia-persistenced",
    )


EL8 = "4.18.0-553.el8_10.x86_64"
EL9 = "5.14.0-503.11.1.el9_5.x86_64"
EL10 = "6.12.0-211.51.1.el10_2.x86_64"
AMZN = "6.1.119-129.201.amzn2023.x86_64"
SLE15, SLE16 = "6.4.0-150600.23.65-default", "6.12.0-160000.5-default"
#: Distribution, its version, kernel, driver, module type, streams; names that are installed, and the stream.
TABLE: list[tuple[str, str, str, str, str, tuple[str, ...], tuple[str, ...], str | None]] = [
    *(
        (os_id, version, kernel, "580.65.06", "open", STREAMS, RHEL_OPEN, "580-open")
        for os_id in ("rhel", "rocky", "almalinux", "ol")
        for version, kernel in (("8.10", EL8), ("9.6", EL9))
    ),
    ("rocky", "9.6", EL9, "580.65.06", "proprietary", STREAMS, RHEL_CLOSED, "580-dkms"),
    ("rocky", "9.6", EL9, "595.91.07", "open", STREAMS, RHEL_OPEN, "open-dkms"),
    ("amzn", "2023", AMZN, "580.65.06", "open", STREAMS, RHEL_OPEN, "580-open"),
    *(
        (os_id, "10.0", EL10, "580.65.06", "open", (), RHEL_OPEN, None)
        for os_id in ("rhel", "rocky", "almalinux")
    ),
    ("rhel", "10.0", EL10, "580.65.06", "proprietary", (), RHEL_CLOSED, None),
    ("sles", "15.7", SLE15, "580.65.06", "open", (), suse("G06"), None),
    ("sles", "15.7", SLE15, "580.65.06", "proprietary", (), suse("G06", ""), None),
    ("sles", "15.7", SLE15, "570.211.01", "open", (), suse("G06", kmp="-kmp-default"), None),
    ("sles", "15.7", SLE15, "595.91.07", "open", (), suse("G07"), None),
    ("opensuse-leap", "15.6", SLE15, "580.65.06", "open", (), suse("G06"), None),
    ("sles", "16.0", SLE16, "595.91.07", "open", (), suse("G07"), None),
    ("opensuse-leap", "16.0", SLE16, "595.91.07", "proprietary", (), suse("G07", ""), None),
]


class World(FakeNode):
    """A node with rpm and one kernel, whose repository offers what it is told."""

    def __init__(self, os_id: str, version: str, kernel: str, *gpus: PciGpu, **more: Any) -> None:
        manager = "zypper" if os_id in ("sles", "opensuse-leap") else "dnf"
        facts = NodeFacts(
            os_id=os_id,
            os_version=version,
            package_manager=manager,
            kernel=kernel,
            systemd=True,
            machine="x86_64",
            pci=gpus or (H100,),
            **more,
        )
        self.offers: dict[str, tuple[str, ...]] = {}
        self.streams: tuple[str, ...] = ()
        self.stream: str | None = None
        self.twice: tuple[str, ...] = ()
        self.unsolvable = ""
        self.kernels = [Kernel(kernel, image="/boot/x", bootable=True, running=True)]
        super().__init__(
            facts=facts,
            answers={
                "BridgesQuery": 0,
                "Kernels": lambda _: tuple(self.kernels),
                "AptQuery": lambda _: self.said(),
                "TransactionQuery": lambda _: Transaction(self.unsolvable),
                "LiveMigQuery": Live(),
                GpuClientsQuery(): (),
                "ServicesQuery": (),
            },
        )

    def said(self) -> Apt:
        return Apt(
            {n: Package(n, v, "x86_64", "hi") for n, v in self.installed.items()},
            {
                name: tuple(Offer(v, 500, ("nvidia",)) for v in versions)
                for name, versions in self.offers.items()
            },
            self.stream,
            self.streams,
            self.twice,
        )

    def offer(self, names: tuple[str, ...], *versions: str) -> None:
        for name in names:
            self.offers[name] = (*self.offers.get(name, ()), *versions)

    def headers(self) -> None:
        """Offer headers of the kernel."""
        release = self.kernels[0].release
        if release.endswith("-default"):
            self.offer(("kernel-default-devel",), f"{release.removesuffix('-default')}.1")
        else:
            self.offer(("kernel-devel", "kernel-devel-matched"), release.rpartition(".")[0])


def full(os_id: str, version: str) -> str:
    return f"{version}-1" if os_id in ("sles", "opensuse-leap") else f"3:{version}-1.el9"


def stocked(os_id: str, os_version: str, kernel: str, *gpus: PciGpu) -> World:
    """A node whose repository has every name that NVIDIA's repository for it has."""
    node = World(os_id, os_version, kernel, *gpus)
    node.headers()
    if os_id in ("sles", "opensuse-leap"):
        tools = ("nvidia-modprobe", "nvidia-persistenced")
        for generation, kmp, version in (
            ("G06", "-kmp-default", "570.211.01"),
            ("G06", "", "580.65.06"),
            ("G07", "", "595.91.07"),
        ):
            if os_version.startswith("16") and generation == "G06":
                continue
            names = {*suse(generation, kmp=kmp), *suse(generation, "", kmp)} - set(tools)
            node.offer(tuple(names), full(os_id, version))
            node.offer(tools, full(os_id, version))
    else:
        for version in ("595.91.07", "580.65.06", "570.211.01"):
            node.offer(ALL_RHEL, full(os_id, version))
    return node


@pytest.mark.parametrize(
    ("os_id", "os_version", "kernel", "version", "kind", "streams", "names", "stream"), TABLE
)
def test_each_distribution_gets_one_set_of_its_own_names(
    os_id: str,
    os_version: str,
    kernel: str,
    version: str,
    kind: str,
    streams: tuple[str, ...],
    names: tuple[str, ...],
    stream: str | None,
) -> None:
    node = stocked(os_id, os_version, kernel)
    node.streams = streams
    state = DriverInstalled.model_validate({"version": version, "module_type": kind})
    observed = state.probe(node)
    assert state.refuse(observed) is None
    wanted = state.desired(observed)
    assert wanted.packages == dict.fromkeys(sorted(names), full(os_id, version))
    assert wanted.held == tuple(sorted(names))
    assert (wanted.stream, wanted.pin_text) == (stream, None)
    assert not state.plan(wanted)
    text = "\n".join(step.script() for step in state.apply(observed, state.plan(observed)))
    assert "apt" not in text
    assert ("nvidia-driver.module" in text) is (stream is not None)


@pytest.mark.parametrize(
    ("os_id", "kernel"), [("rocky", EL9), ("rhel", EL10), ("amzn", AMZN), ("sles", SLE15)]
)
def test_headers_come_in_the_same_transaction(os_id: str, kernel: str) -> None:
    node = stocked(os_id, "9", kernel)
    state = DriverInstalled(version="580.65.06")
    observed = state.probe(node)
    texts = {step.label: step.script() for step in state.apply(observed, state.plan(observed))}
    devel = "kernel-default-devel" if os_id == "sles" else "kernel-devel"
    (fetched,) = [text for label, text in texts.items() if label.startswith("download the")]
    (installed,) = [text for label, text in texts.items() if label.startswith("install the")]
    for text in (fetched, installed):
        assert f" {devel}=" in text.partition("NAMES=")[2].partition(";")[0]
        assert ("kernel-devel-matched" in text) is (os_id != "sles")


def test_without_headers_the_package_is_named_as_the_distribution_calls_it() -> None:
    node = stocked("rocky", "9.6", EL9)
    del node.offers["kernel-devel"]
    why = DriverInstalled().refuse(DriverInstalled().probe(node))
    assert why is not None
    assert "kernel-devel-5.14.0-503.11.1.el9_5" in why
    node = stocked("sles", "15.7", SLE15)
    del node.offers["kernel-default-devel"]
    why = DriverInstalled().refuse(DriverInstalled().probe(node))
    assert why is not None
    assert "kernel-default-devel-6.4.0-150600.23.65" in why


def test_a_set_that_a_repository_has_in_part_only_is_refused() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.offers["kmod-nvidia-open-dkms"] = ("3:570.211.01-1.el9",)
    state = DriverInstalled(version="580.65.06", module_type="open")
    why = state.refuse(state.probe(node))
    assert why is not None
    assert "580.65.06" in why


def test_old_gpus_get_the_modules_that_drive_them() -> None:
    state = DriverInstalled(branch=580)
    observed = state.probe(stocked("rocky", "9.6", EL9, V100))
    assert set(state.desired(observed).packages) == set(RHEL_CLOSED)
    assert "580" in (DriverInstalled(branch=595).refuse(observed) or "")


def test_the_builds_of_a_lock_file_are_taken_and_no_others() -> None:
    node = stocked("rocky", "9.6", EL9)
    build = "3:580.65.06-2.el9"
    node.offer(("nvidia-driver-cuda",), build)
    state = DriverInstalled(version="580.65.06", locked={"nvidia-driver-cuda": build})
    assert state.desired(state.probe(node)).packages["nvidia-driver-cuda"] == build
    node.offers["nvidia-driver-cuda"] = ("3:580.65.06-1.el9",)
    why = state.refuse(state.probe(node))
    assert why is not None
    assert "dnf does not offer it" in why


# --- modules that are built already ------------------------------------------------------------


def precompiled(node: World, *kernels: str) -> None:
    for kernel in kernels:
        number = kernel.rpartition(".")[0].rpartition(".")[0]
        for o in ("", "-open"):
            node.offer((f"kmod-nvidia{o}-595.91.07-{number}",), "3:595.91.07-3.el9_5")


def test_built_modules_are_taken_only_when_every_kernel_has_them() -> None:
    node = stocked("rocky", "9.6", EL9)
    other = "5.14.0-427.el9_4.x86_64"
    node.kernels.append(Kernel(other, image="/boot/y", bootable=True, headers=True))
    precompiled(node, EL9)
    state = DriverInstalled()
    assert "kmod-nvidia-open-dkms" in state.desired(state.probe(node)).packages
    precompiled(node, other)
    observed = state.probe(node)
    names = set(state.desired(observed).packages)
    assert "kmod-nvidia-open-dkms" not in names
    assert {n for n in names if n.startswith("kmod")} == {
        "kmod-nvidia-open-595.91.07-5.14.0-427",
        "kmod-nvidia-open-595.91.07-5.14.0-503.11.1",
    }
    assert "prebuilt modules for every bootable kernel" in " ".join(state.plan(observed).notes)
    assert not [
        s for s in state.apply(observed, state.plan(observed)) if s.label.startswith("build")
    ]


def test_a_built_module_whose_file_is_gone_is_brought_back_by_its_package() -> None:
    node = stocked("rocky", "9.6", EL9)
    precompiled(node, EL9)
    state = DriverInstalled()
    first = state.probe(node)
    node.installed = dict(state.desired(first).packages)
    observed = state.probe(node)
    assert observed.built == {EL9: None}
    (step,) = [
        s for s in state.apply(observed, state.plan(observed)) if s.label.startswith("install the")
    ]
    assert "AGAIN=1" in step.script()


def test_built_modules_that_are_asked_for_and_lack_a_kernel_are_a_refusal_that_names_it() -> None:
    node = stocked("rocky", "9.6", EL9)
    state = DriverInstalled(precompiled=True)
    why = state.refuse(state.probe(node))
    assert why is not None
    assert EL9 in why
    assert "precompiled: false" in why


def test_open_modules_are_a_preference_where_the_gpus_need_none() -> None:
    def refusal(*gpus: PciGpu) -> str:
        node = stocked("rocky", "9.6", EL9, *gpus)
        number = EL9.rpartition(".")[0].rpartition(".")[0]
        node.offer((f"kmod-nvidia-595.91.07-{number}",), "3:595.91.07-3.el9_5")
        state = DriverInstalled(branch=595, precompiled=True)
        return state.refuse(state.probe(node)) or ""

    a100, b200 = (PciGpu("0000:00:00.0", one, "030200", None) for one in ("20b2", "2901"))
    for gpu, word, proprietary in ((a100, "preferred", True), (b200, "needed", False)):
        why = refusal(gpu)
        assert f"open modules are {word}; set " in why
        assert ("or module_type: proprietary" in why) is proprietary
        assert why.endswith("or precompiled: false")
        assert "branch: 595" not in why


def test_an_older_driver_is_not_chosen_for_its_built_modules() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.offer(("kmod-nvidia-open-580.65.06-5.14.0-503.11.1",), "3:580.65.06-3.el9_5")
    state = DriverInstalled()
    assert state.desired(state.probe(node)).library == "595.91.07"
    pinned = DriverInstalled(branch=580)
    assert "kmod-nvidia-open-dkms" not in pinned.desired(pinned.probe(node)).packages


def test_a_driver_that_is_built_by_dkms_stays_so() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.installed = dict.fromkeys(RHEL_OPEN, "3:595.91.07-1.el9")
    precompiled(node, EL9)
    state = DriverInstalled()
    assert set(state.desired(state.probe(node)).packages) == set(RHEL_OPEN)
    asked = DriverInstalled(precompiled=True)
    observed = asked.probe(node)
    assert "kmod-nvidia-open-dkms" not in asked.desired(observed).packages
    (step,) = [
        s for s in asked.apply(observed, asked.plan(observed)) if s.label.startswith("install the")
    ]
    assert "GO=kmod-nvidia-open-dkms;" in step.script()


def test_signed_modules_of_suse_fit_by_the_driver_in_their_version() -> None:
    node = stocked("sles", "15.7", SLE15)
    name = "nvidia-open-driver-G06-signed-cuda-kmp-default"
    build = "580.65.06_k6.4.0_150600.21-150600.3.85.1"
    node.offer((name,), "580.126.09_k6.4.0_150600.21-150600.3.85.1", build)
    state = DriverInstalled(branch=580)
    wanted = state.desired(state.probe(node))
    assert wanted.packages[name] == build
    assert "nvidia-open-driver-G06" not in wanted.packages


@pytest.mark.parametrize(
    ("kernel", "flavour"),
    [(SLE15, "default"), (SLE15.replace("default", "azure"), "azure")],
    ids=["default", "azure"],
)
def test_signed_modules_of_either_kind_are_taken_and_never_both(kernel: str, flavour: str) -> None:
    stem = "nvidia-open-driver-G06-signed"
    graphics, cuda = f"{stem}-kmp-{flavour}", f"{stem}-cuda-kmp-{flavour}"
    build = "580.65.06_k6.4.0_150600.21-150600.3.85.1"
    state = DriverInstalled(branch=580)
    node = stocked("sles", "15.7", kernel)
    # What fits another version is not a choice.
    node.offer((cuda,), "580.126.09_k6.4.0_150600.21-150600.3.85.1")
    node.offer((graphics,), build)
    wanted = state.desired(state.probe(node)).packages
    assert (wanted.get(graphics), cuda in wanted) == (build, False)
    node.installed |= wanted
    # With both at that version the one that is there stays, and on a fresh node CUDA's is taken.
    node.offer((cuda,), build)
    wanted = state.desired(state.probe(node)).packages
    assert (graphics in wanted, cuda in wanted) == (True, False)
    fresh = stocked("sles", "15.7", kernel)
    fresh.offer((graphics, cuda), build)
    wanted = state.desired(state.probe(fresh)).packages
    assert (graphics in wanted, cuda in wanted) == (False, True)


# --- the stream, what was interrupted, what is removed --------------------------------------


def test_a_stream_that_has_the_set_stays_and_another_is_replaced() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.streams = STREAMS
    state = DriverInstalled(version="580.65.06")
    node.stream = "open-dkms"
    assert state.desired(state.probe(node)).stream == "open-dkms"
    node.stream = "570-open"
    observed = state.probe(node)
    (step,) = [
        s for s in state.apply(observed, state.plan(observed)) if isinstance(s, ops.PutText)
    ][:1]
    assert step.path == "/etc/dnf/modules.d/nvidia-driver.module"
    assert "stream=580-open\n" in step.text


def test_what_a_killed_transaction_left_twice_is_settled_first() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.installed = dict.fromkeys(RHEL_OPEN, "3:580.65.06-1.el9")
    node.twice = ("nvidia-driver-cuda",)
    state = DriverInstalled(version="580.65.06")
    observed = state.probe(node)
    assert "broken" in state.plan(observed).fields
    labels = [
        s.label for s in state.apply(observed, state.plan(observed)) if isinstance(s, ops.Run)
    ]
    assert labels[0] == "finish the interrupted package installation"


@pytest.mark.parametrize(("os_id", "kernel"), [("rocky", EL9), ("sles", SLE15)])
def test_the_set_is_taken_away_with_the_nodes_own_manager(os_id: str, kernel: str) -> None:
    node = stocked(os_id, "9.6", kernel)
    node.installed = {"nvidia-persistenced": full(os_id, "580.65.06")}
    node.kernels = [replace(node.kernels[0], nvidia_version="580.65.06", nvidia_license="NVIDIA")]
    state = DriverInstalled(ensure="absent")
    observed = state.probe(node)
    steps = list(state.apply(observed, state.plan(observed)))
    assert [type(step) for step in steps] == [ops.RpmHold, ops.RpmRemove]
    check_contract(DriverInstalled(), node)


def test_a_distribution_whose_names_are_not_known_is_refused() -> None:
    node = World("photon", "5", "6.1.1-1.ph5")
    why = DriverInstalled().refuse(DriverInstalled().probe(node))
    assert why is not None
    assert "photon" in why


# --- the ask -------------------------------------------------------------------------------------

ROWS = """=rpm dnf
nvidia-driver-cuda|x86_64|3:580.65.06-1.el9
nvidia-persistenced|x86_64|3:580.65.06-1.el9
nvidia-persistenced|x86_64|3:580.178.04-1.el9
nvidia-container-toolkit|x86_64|1.18.0-1
=locks
# gpustate
nvidia-driver-cuda-3:580.65.06-1.el9.*

=stream
580-open
=offers
nvidia-driver-cuda|3:580.65.06-1.el9|cuda|x86_64
nvidia-driver-cuda|3:580.178.04-1.el9|cuda|x86_64
kernel-devel|0:5.14.0-503.el9|baseos|x86_64
=stream 580-open
=stream latest-dkms
"""


def test_one_answer_tells_packages_holds_streams_and_offers() -> None:
    said = AptQuery(()).parse(Answer(0, ROWS.encode()))
    assert said.packages["nvidia-driver-cuda"].held
    assert not said.packages["nvidia-persistenced"].held
    assert said.twice == ("nvidia-persistenced",)
    assert (said.stream, said.streams) == ("580-open", ("580-open", "latest-dkms"))
    assert [one.version for one in said.offers["nvidia-driver-cuda"]] == [
        "3:580.178.04-1.el9",
        "3:580.65.06-1.el9",
    ]
    assert said.offers["kernel-devel"][0].version == "5.14.0-503.el9"


@pytest.mark.parametrize(
    "text", ["=rpm dnf\n", "=rpm zypper\n\x00\xff", "=rpm dnf\n=offers\n||\n|"]
)
def test_a_torn_answer_is_an_empty_one(text: str) -> None:
    said = AptQuery(()).parse(Answer(0, text.encode("utf-8", "surrogateescape")))
    assert not said.packages
    assert not said.offers


# --- what the solver says before anything changes ------------------------------------------------

NO_DKMS = (
    "Error: \n Problem: conflicting requests\n"
    "  - nothing provides dkms >= 3.1.8 needed by kmod-nvidia-open-dkms-3:595.91.07-1.el9.noarch from cuda\n"
)


@pytest.mark.parametrize(
    ("os_id", "command"),
    [
        ("rocky", "dnf install epel-release && crb enable"),
        ("almalinux", "crb enable"),
        ("ol", "oracle-epel-release-el$(rpm -E %rhel)"),
        ("rhel", "codeready-builder-for-rhel-$(rpm -E %rhel)-$(arch)-rpms"),
    ],
)
def test_a_repository_without_dkms_is_refused_with_the_command_that_enables_epel(
    os_id: str, command: str
) -> None:
    node = stocked(os_id, "9.6", EL9)
    node.unsolvable = NO_DKMS
    state = DriverInstalled()
    why = state.refuse(state.probe(node)) or ""
    assert "nothing provides dkms >= 3.1.8 needed by kmod-nvidia-open-dkms" in why
    assert command in why
    assert state.forecast(node, "").refusal == why


def test_what_the_solver_says_is_whole_where_nobody_knows_it() -> None:
    node = stocked("sles", "15.7", SLE15)
    node.unsolvable = "Problem: the moon is in the way\n Solution 1: wait for it to set"
    state = DriverInstalled()
    assert node.unsolvable in (state.refuse(state.probe(node)) or "")


def test_what_dkms_packages_want_beside_dkms_is_not_in_epel() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.unsolvable = NO_DKMS.replace("dkms >= 3.1.8", "nvidia-kmod-common = 3:595.91.07")
    state = DriverInstalled()
    why = state.refuse(state.probe(node)) or ""
    assert (
        "nothing provides nvidia-kmod-common = 3:595.91.07 needed by kmod-nvidia-open-dkms" in why
    )
    assert "epel-release" not in why


def test_a_set_that_is_there_is_not_solved_again() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.unsolvable = NO_DKMS
    node.installed = dict.fromkeys(RHEL_OPEN, "3:595.91.07-1.el9")
    state = DriverInstalled()
    assert state.refuse(state.probe(node)) is None
    assert not [query for query in node.queries if type(query).__name__ == "TransactionQuery"]


# --- kernels of distributors ---------------------------------------------------------------------


def test_a_kernel_that_lacks_what_nvidia_modeset_needs_gets_its_further_modules() -> None:
    release = "6.12.20-23.97.amzn2023.x86_64"
    node = stocked("amzn", "2023", release)
    node.offer(("kernel6.12-devel", "kernel6.12-modules-extra"), release.rpartition(".")[0])
    node.kernels = [Kernel(release, image="/boot/x", bootable=True, running=True, headers=True)]
    state = DriverInstalled()
    extra = "kernel6.12-modules-extra="
    for lacks in (False, True):
        node.kernels = [replace(node.kernels[0], lacks_video=lacks)]
        observed = state.probe(node)
        text = "".join(step.script() for step in state.apply(observed, state.plan(observed)))
        assert (extra in text) is lacks
    # A driver that is there and cannot be loaded completely.
    node.installed = dict(state.desired(observed).packages)
    node.kernels = [
        replace(node.kernels[0], nvidia_version="595.91.07", nvidia_license="Dual MIT/GPL")
    ]
    observed = state.probe(node)
    steps = list(state.apply(observed, state.plan(observed)))
    assert [step.label for step in steps if "modules-extra" in step.label]


@pytest.mark.parametrize(
    ("os_id", "kernel", "words"),
    [
        ("rhel", EL9, "Red Hat's extensions and supplementary"),
        ("almalinux", EL9, "almalinux-release-nvidia-driver"),
        ("sles", SLE15, "SUSE has signed modules"),
        ("rocky", EL9, "turn Secure Boot off"),
    ],
)
def test_an_unsigned_module_is_refused_with_what_this_distribution_signs(
    os_id: str, kernel: str, words: str
) -> None:
    node = stocked(os_id, "9.6", kernel)
    state = DriverInstalled(precompiled=False)
    observed = replace(state.probe(node), secure_boot=SecureBoot(on=True, key="/k"))
    why = state.refuse(observed) or ""
    assert words in why
    assert "Ubuntu" not in why


def test_ready_modules_of_a_branch_that_nvidia_builds_none_for_name_those_who_do() -> None:
    node = stocked("rocky", "9.6", EL9)
    state = DriverInstalled(branch=595, precompiled=True)
    assert "almalinux-release-nvidia-driver" in (state.refuse(state.probe(node)) or "")
    older = DriverInstalled(branch=580, precompiled=True)
    assert "almalinux" not in (older.refuse(older.probe(node)) or "")


def test_a_distributors_modules_without_a_version_in_their_name_are_taken_and_kept() -> None:
    node = stocked("almalinux", "9.6", EL9)
    node.offer(("kmod-nvidia-open",), "3:595.91.07-2.el9")
    state = DriverInstalled()
    wanted = state.desired(state.probe(node)).packages
    assert "kmod-nvidia-open" in wanted
    assert "kmod-nvidia-open-dkms" not in wanted
    node.installed = dict(wanted)
    assert state.desired(state.probe(node)).packages == wanted
    # They are of the open kind, whatever a policy wants.
    closed = DriverInstalled(module_type="proprietary")
    names = closed.desired(closed.probe(node)).packages
    assert "kmod-nvidia-latest-dkms" in names
    assert "kmod-nvidia-open" not in names


def test_a_branch_without_the_kind_of_modules_names_one_that_has_it() -> None:
    node = stocked("rocky", "9.6", EL9)
    node.offer((*RHEL_OPEN, "nvidia-open"), "3:610.43.02-1.el9")
    state = DriverInstalled(branch=610, module_type="proprietary")
    why = state.refuse(state.probe(node)) or ""
    assert "set branch: 595 or module_type: open" in why


def test_modules_are_built_with_the_compiler_of_their_kernel(tmp_path: Path) -> None:
    """As on Oracle Linux 9, whose UEK 8 has this line in its configuration (NVIDIA driver installation guide r615)."""
    text = shell.load("build_module", "gpustate.states.driver").replace(
        "/lib/modules", f"{tmp_path}/lib"
    )
    text = text.replace("/opt/rh", f"{tmp_path}/rh")
    config, toolset = tmp_path / "lib/k/build/.config", tmp_path / "rh/gcc-toolset-14/root/usr/bin"
    config.parent.mkdir(parents=True)
    toolset.mkdir(parents=True)
    config.write_text('CONFIG_CC_VERSION_TEXT="gcc (GCC) 14.2.1 20250110 (Red Hat 14.2.1-7)"\n')
    for kernel, first in (("k", str(toolset)), ("other", "")):
        script = f'set -eu; {text}\ncompiler {kernel}; echo "$PATH"'
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(first or os.environ["PATH"])
