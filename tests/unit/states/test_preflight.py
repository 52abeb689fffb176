"""What keeps a node from being worked on, and what is repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from filestates import Seen, file_state
from pydantic import ValidationError

from gpustate import NodeFacts, PciGpu, ops
from gpustate.core.facts import NodeView
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.state import AnyState
from gpustate.formats.managed_images import IMAGES as KNOWN
from gpustate.formats.managed_images import MARKERS, recognise
from gpustate.plan import make
from gpustate.plan.make import Observations
from gpustate.states.driver import DriverInstalled
from gpustate.states.preflight import Observed, PreflightPassed
from gpustate.states.validator import NodeValidated
from gpustate.testing import FakeNode

STEPLESS = {"preflight": "it only looks and refuses"}
PARTLESS = {
    "preflight": (("applied", "seen damaged", "fixed", "removed"), "it only looks and refuses")
}

NOW_S = 1_790_000_000
GOOD = f"own=1\nmodules=1\nnow={NOW_S}\nwritten={NOW_S - 90}\nntp=1\n" + "".join(
    f"room={folder} 50000 /\n" for folder in ("/boot", "/usr", "/var")
)


def h100(count: int, driver: str | None = "nvidia") -> tuple[PciGpu, ...]:
    return tuple(PciGpu(f"0000:{n:02x}:00.0", "2330", "030200", driver) for n in range(count))


def facts(gpus: tuple[PciGpu, ...] = h100(8), **more: Any) -> NodeFacts:
    good = NodeFacts(
        os_id="debian",
        os_version="12",
        machine="x86_64",
        kernel="6.1.0-1",
        systemd=True,
        python3="/usr/bin/python3",
        package_manager="apt",
        pci=gpus,
    )
    return replace(good, **more)


def node(out: str = GOOD, of: NodeFacts | None = None) -> FakeNode:
    return FakeNode(facts=of or facts(), shell={"dpkg-query": (0, out)})


def refusal(state: PreflightPassed, one: FakeNode) -> str | None:
    return state.refuse(state.probe(one))


def short_of_room(state: PreflightPassed, one: FakeNode) -> str | None:
    """Why changes of the driver are refused."""
    policy = {one.name: one for one in (state, DriverInstalled(branch=580), NodeValidated())}
    found = list(state.conflicts(policy, facts(), state.probe(one)))
    assert {(conflict.state, conflict.with_changes) for conflict in found} <= {("driver", True)}
    return found[0].reason if found else None


def test_a_good_node_is_neither_refused_nor_changed() -> None:
    state = PreflightPassed(gpus="8xH100")
    observed = state.probe(node())
    assert state.refuse(observed) is None
    assert not state.plan(observed)
    assert state.plan(observed).notes == ()


@pytest.mark.parametrize(
    ("out", "of", "said"),
    [
        (
            GOOD,
            facts(os_id="fedora", os_version="42"),
            "unsupported distribution fedora42: use one of debian12",
        ),
        (GOOD, facts(os_id="", os_version=""), "unknown operating system"),
        (GOOD, facts(machine="riscv64"), "no driver for riscv64"),
        (GOOD, facts(systemd=False), "systemd is not running"),
        (GOOD, facts(package_manager=""), "apt-get is not installed"),
        (GOOD, facts(package_manager="dnf5"), "its dnf is dnf 5, which is unsupported"),
        (GOOD + "readonly=/usr\n", None, "/usr cannot be written"),
        (GOOD.replace(str(NOW_S), "1000"), None, "the clock shows 1970-01-01"),
        (GOOD.replace(f"written={NOW_S - 90}", f"written={NOW_S + 999_999}"), None, "set the time"),
        (GOOD + "dpkg=error: parsing file\n", None, "dpkg cannot read its database (error: pars"),
        (GOOD + "apt=Unmet dependencies.\n", None, "apt cannot work here (Unmet dependencies.)"),
        (GOOD, facts(()), "no NVIDIA GPU on PCI"),
        (GOOD, facts(h100(8, "vfio-pci")), "a virtual machine owns the GPU"),
    ],
)
def test_what_only_a_person_can_put_right_is_refused(
    out: str, of: NodeFacts | None, said: str
) -> None:
    assert said in (refusal(PreflightPassed(), node(out, of)) or "")


def test_what_apt_says_of_packages_left_half_way_is_no_reason_to_refuse() -> None:
    assert (
        refusal(PreflightPassed(), node(GOOD + "apt=Unmet dependencies.\npackage=iU |tzdata\n"))
        is None
    )


UNMET = (
    "apt=unmet nvidia-smi : Depends: libnvidia-ml1 (= 535.247.01-1) but it is not installed\n"
    "apt=unmet Depends: libnvidia-ml1 (>= 535)\n"
    "apt=Unmet dependencies. Try 'apt --fix-broken install'.\n"
)


def test_what_the_drivers_packages_miss_of_each_other_is_left_to_the_driver() -> None:
    fake = node(GOOD + UNMET)
    assert refusal(PreflightPassed(), fake) is None
    state = PreflightPassed()
    assert state.plan(state.probe(fake)).notes[0] == (
        "left to the state that installs it: nvidia-smi wants libnvidia-ml1 (= 535.247.01-1), "
        "nvidia-smi wants libnvidia-ml1 (>= 535)"
    )


def test_what_anything_else_misses_is_named_in_the_refusal() -> None:
    more = "apt=unmet vim : Depends: vim-common (= 2) but 1 is installed\n"
    reason = refusal(PreflightPassed(), node(GOOD + UNMET + more)) or ""
    assert "apt cannot work here (Unmet dependencies" in reason
    assert "vim wants vim-common (= 2)" in reason


def test_folders_on_filesystems_of_their_own_are_judged_alone() -> None:
    out = GOOD.replace("/boot 50000 /", "/boot 90 /boot").replace("/usr 50000", "/usr 2500")
    out = out.replace("/var 50000", "/var 2500")
    assert short_of_room(PreflightPassed(), node(out)) == (
        "/boot has 90 MiB free and needs 100 MiB: free disk space there (remove old kernels, "
        "du -xah /boot | sort -h | tail)"
    )
    assert short_of_room(PreflightPassed(boot_mib=90), node(out)) is None


@pytest.mark.parametrize("folder", ["/tmp", "/var/tmp", "/var/cache/apt", "/var/lib/gpustate"])
def test_folders_that_a_run_writes_to_are_judged_where_they_are_mounts(folder: str) -> None:
    words = f"{folder} has 9 MiB free and needs "
    own = node(f"{GOOD}room={folder} 9 {folder}\n")
    reason = short_of_room(PreflightPassed(), own) or ""
    assert reason.startswith(words)
    assert reason.endswith(f": free disk space there (du -xah {folder} | sort -h | tail)")
    assert short_of_room(PreflightPassed(), node(f"{GOOD}room={folder} 50000 /\n")) is None
    assert short_of_room(PreflightPassed(), node(f"{GOOD}room={folder} 9000 {folder}\n")) is None


def test_apt_that_cannot_write_is_refused_with_the_filesystem_that_is_full() -> None:
    apt = "apt=Write error - write (28: No space left on device)\n"
    full = f"{GOOD}{apt}room=/var/cache/apt 0 /var/cache/apt\n"
    reason = refusal(PreflightPassed(), node(full)) or ""
    assert reason.startswith("/var/cache/apt has 0 MiB free and needs 100 MiB")
    assert "apt cannot work here (Write error" in (
        refusal(PreflightPassed(), node(GOOD + apt)) or ""
    )


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (
            GOOD.replace("50000", "2599"),
            "/ has 2599 MiB free and needs 2600 MiB for /boot, /usr, /var",
        ),
        (GOOD + "inodes=/var\n", "inodes"),
    ],
)
def test_only_changes_are_refused_for_want_of_room(out: str, said: str) -> None:
    state = PreflightPassed()
    assert said in (short_of_room(state, node(out)) or "")
    assert refusal(state, node(out)) is None
    assert said in " ".join(state.plan(state.probe(node(out))).notes)


@pytest.mark.parametrize(
    ("rows", "old"),
    [("python=3.6\n", True), ("python=3.6\npython=3.11\n", False), ("python=3.13\n", False)],
)
def test_a_python_that_is_too_old_for_the_validator_is_named(rows: str, old: bool) -> None:
    state = PreflightPassed()
    notes = state.plan(state.probe(node(GOOD + rows))).notes
    assert any("python3 3.6: the validator needs 3.9" in note for note in notes) is old


@pytest.mark.parametrize(
    ("gpus", "there", "said"),
    [
        (8, 8, None),
        ("8", 8, None),
        ("8xH100", 8, None),
        ("H100,7", 8, None),
        (0, 0, None),
        ("none", 0, None),
        (None, 1, None),
        (8, 7, "8 GPUs wanted, 7 there (found: 7xH100)"),
        (0, 1, "0 GPUs wanted, 1 there"),
        ("8xH100", 7, "8 H100 wanted, 7 there"),
        ("8xA100", 8, "8 A100 wanted, 0 there"),
        ("8xH100", 9, "0 others wanted, 1 there"),
    ],
)
def test_gpus_on_pci_have_to_be_those_of_the_inventory(
    gpus: int | str | None, there: int, said: str | None
) -> None:
    found = refusal(PreflightPassed(gpus=gpus), node(of=facts(h100(there))))
    assert (found is None) if said is None else (said in (found or ""))


@pytest.mark.parametrize("bad", ["8xH1000", "x", "-1", "8 x", -1, ""])
def test_a_gpu_parameter_that_makes_no_sense_is_an_error(bad: int | str) -> None:
    with pytest.raises(ValidationError):
        PreflightPassed(gpus=bad)


def test_an_image_is_not_asked_for_gpus_or_an_init() -> None:
    state = PreflightPassed(gpus=8)
    observed = state.probe(node(GOOD, replace(facts((), systemd=False), image=True)))
    assert state.refuse(observed) is None
    assert state.plan(observed).notes == ()


def test_packages_left_half_way_are_configured_and_torn_ones_put_back() -> None:
    state = PreflightPassed()
    observed = state.probe(node(GOOD + "package=iF |tzdata\npackage=iHR|kmod\njournal=1\n"))
    plan = state.plan(observed)
    assert plan.fields == {"unsettled", "journal"}
    assert plan.disruption.word == "restart"
    (change,) = (change for change in plan.changes if change.field == "unsettled")
    assert change.why == "half-installed and half-configured by an interrupted installation"
    assert [note for note in plan.notes if "waits until" in note and "--configure -a" in note]
    (step,) = state.apply(observed, plan)
    assert isinstance(step, ops.Run)
    assert "dpkg --configure -a" in step.text
    assert "TORN=kmod\n" in step.text
    settled = state.plan(state.desired(observed))
    assert not settled
    assert not [note for note in settled.notes if "waits until" in note]


def test_packages_of_nvidia_are_left_to_the_states_that_own_them() -> None:
    state = PreflightPassed()
    observed = state.probe(
        node(
            GOOD
            + "package=iF |nvidia-kernel-open-dkms\npackage=iU |libcuda1\npackage=iU |zfs-dkms\n"
        )
    )
    assert not state.plan(observed)
    assert "nvidia-kernel-open-dkms" in state.plan(observed).notes[0]


def test_package_lists_that_a_power_cut_tore_are_read_again() -> None:
    state = PreflightPassed()
    observed = state.probe(
        node(
            GOOD
            + "apt=Splitting of clearsigned file /var/lib/apt/lists/_opt_nvidia_InRelease failed\n"
            "apt=Problem with MergeList /var/lib/apt/lists/a%2eb_Packages;reboot\n"
        )
    )
    assert state.refuse(observed) is None
    plan = state.plan(observed)
    assert plan.fields == {"torn_lists"}
    (step,) = state.apply(observed, plan)
    assert isinstance(step, ops.Run)
    assert observed.torn_lists == (
        "/var/lib/apt/lists/_opt_nvidia_InRelease",
        "/var/lib/apt/lists/a%2eb_Packages",
    )
    assert not state.plan(state.desired(observed))
    other = state.probe(node(GOOD + "apt=Unmet dependencies. Try something\n"))
    assert "apt cannot work here" in str(state.refuse(other))


def test_nothing_is_repaired_while_somebody_holds_the_package_lock() -> None:
    state = PreflightPassed()
    observed = state.probe(node(GOOD + "package=iU |tzdata\nlock=apt-get (process 77)\n"))
    assert not state.plan(observed)
    assert (
        state.plan(observed).warnings[0].startswith("apt-get (process 77) holds the package lock")
    )


def test_free_room_and_the_clock_do_not_make_a_saved_plan_stale() -> None:
    assert PreflightPassed.stable is not None
    assert not {"room", "clock_s", "last_write_s", "lock_holder"} & set(PreflightPassed.stable)


def test_secure_boot_and_missing_python_are_told_not_refused() -> None:
    state = PreflightPassed()
    observed = state.probe(node(GOOD + "secure_boot=  1\n", facts(python3="")))
    notes = " ".join(state.plan(observed).notes)
    assert state.refuse(observed) is None
    assert "Secure Boot is on" in notes
    assert "python3 is not installed" in notes


def test_taking_preflight_away_changes_nothing() -> None:
    state = PreflightPassed(ensure="absent")
    observed = state.probe(node(GOOD + "package=iF |tzdata\n", facts(())))
    assert state.refuse(observed) is None
    assert not state.plan(observed)
    assert list(state.apply(observed, state.plan(observed))) == []


@pytest.mark.parametrize("row", ["", "iH|", "iH|$(touch /x)", "iH|a b", "|x", "iHR|-o x", "²|x"])
def test_a_row_of_dpkg_that_is_none_is_left_out(row: str) -> None:
    """Its name would have become a word of a command."""
    observed = PreflightPassed().probe(node(f"{GOOD}package={row}\npackage=iHR|acme\n"))
    assert observed.unsettled == ("iHR acme",)


def test_numbers_that_are_none_are_zero() -> None:
    observed = PreflightPassed().probe(node("now=²\nwritten=x\nroom=/boot 9e9 /\n"))
    assert (observed.clock_s, observed.last_write_s, observed.room) == (0, 0, ())


IMAGES = yaml.safe_load((Path(__file__).parents[2] / "data/managed_images.yaml").read_text("utf-8"))


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image["name"])
def test_images_of_clouds_and_vendors_are_known_by_what_they_have(image: dict[str, Any]) -> None:
    release = image["os_release"]
    manager = "dnf" if release["ID"] == "amzn" else "apt"
    of = facts(os_id=release["ID"], os_version=release["VERSION_ID"], package_manager=manager)
    markers = "".join(f"marker={path}\n" for path in MARKERS if path in image["files"])
    state = PreflightPassed(gpus="8xH100")
    observed = state.probe(node(GOOD + markers, of))
    planned = _planned([state, _OTHER, _DRIVER], observed, of)
    refused, driver = planned["preflight"], planned["driver"]
    notes = " ".join(refused.plan.warnings)
    found = {
        "refused": refused.reason,
        "driver refused": driver.reason,
        "adopted": notes,
        "ordinary": "",
    }
    outcome = image["outcome"]
    assert image["says"] in found[outcome]
    assert (refused.outcome is Outcome.REFUSED) == (outcome == "refused")
    assert driver.outcome is {"refused": Outcome.NOT_RUN, "driver refused": Outcome.REFUSED}.get(
        outcome, Outcome.PENDING
    )
    assert bool(notes) == (outcome in ("adopted", "driver refused"))
    assert planned["other"].outcome is Outcome.PENDING
    removed = _DRIVER.model_copy(update={"ensure": "absent"})
    assert _planned([state, removed], observed, of)["driver"].outcome is not Outcome.REFUSED
    if outcome != "ordinary":
        systems = (observed.managed, of.distribution)
        tried = PreflightPassed(gpus="8xH100", other_systems=systems)
        results = _planned([tried, _DRIVER], observed, of)
        assert results["preflight"].outcome is Outcome.UNCHANGED
        assert results["driver"].outcome is Outcome.PENDING


_OTHER = file_state("other")()
_DRIVER = file_state("driver", needs=("preflight",), known_after=("repository",))()


def _planned(
    states: Sequence[AnyState], observed: Observed, of: NodeFacts
) -> dict[str, StateResult]:
    texts = {state.name: Seen("y") for state in states[1:]}
    view = NodeView("gpu1", (), {}, of)
    return make.make(states, Observations(view, {"preflight": observed, **texts}))


def test_a_driver_is_refused_there_also_while_its_repository_is_still_to_be_set() -> None:
    of = facts(os_id="ubuntu", os_version="24.04")
    state = PreflightPassed(gpus="8xH100")
    observed = state.probe(node(GOOD + "marker=/home/kubernetes/bin\n", of))
    planned = _planned([state, file_state("repository")(), _DRIVER], observed, of)
    assert planned["repository"].outcome is Outcome.PENDING
    assert planned["driver"].outcome is Outcome.REFUSED
    assert planned["driver"].reason.startswith("GKE node: GKE's DaemonSet installs a driver")


def test_every_known_image_is_in_the_recorded_table_and_on_its_page() -> None:
    page = (Path(__file__).parents[3] / "docs/managed-images.md").read_text("utf-8")
    recorded = [recognise(image["os_release"]["ID"], image["files"]) for image in IMAGES]
    assert {image.code for image in KNOWN} == {image.code for image in recorded if image}
    for image in KNOWN:
        assert f"| {image.name} |" in page
        assert f"`{image.code}`" in page
        assert not image.marker or f"`{image.marker}`" in page
