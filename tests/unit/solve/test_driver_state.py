"""The driver's state with a lock and with kinds of branches: which set it wants of what apt offers."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import PciGpu, PolicyError
from gpustate.core.policy import build
from gpustate.states.driver import DriverInstalled, Observed
from gpustate.states.driver.observed import SecureBoot

VERSIONS = ("610.57.04-1", "595.91.07-1", "580.178.04-1", "580.178.04-2", "580.65.06-1")
NAMES: tuple[str, ...] = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1")
LOCKED: dict[str, str] = dict.fromkeys(NAMES, "580.178.04-1")


def observed(installed: str = "", **offers: tuple[str, ...]) -> Observed:
    return Observed(
        packages=dict.fromkeys(NAMES, installed) if installed else {},
        held=(),
        broken=(),
        headers={},
        built={},
        loaded=None,
        modules=(),
        library=None,
        pin_text=None,
        options_text=None,
        autoload_text=None,
        parameters={},
        stopped=(),
        manager="apt",
        os_id="debian",
        running="6.1.0-18-amd64",
        default_kernel=None,
        gpus=(PciGpu("0000:01:00.0", "2330", "030200", None),),
        offers={
            **dict.fromkeys(NAMES, VERSIONS),
            **{n.replace("_", "-"): v for n, v in offers.items()},
        },
        holders=(),
        in_use=None,
        secure_boot=SecureBoot(),
        build_errors={},
        known_parameters=(),
        installer=False,
        operator=False,
    )


def locked(**more: Any) -> DriverInstalled:
    return DriverInstalled(version="580.178.04", module_type="open", locked=LOCKED, **more)


def test_locked_packages_are_wanted_in_exactly_these_builds() -> None:
    unlocked = DriverInstalled(version="580.178.04").desired(observed())
    assert set(unlocked.packages.values()) == {"580.178.04-2"}
    assert locked().desired(observed()).packages == LOCKED


def test_apt_is_asked_about_every_locked_package() -> None:
    (_, names), _ = locked().names_to_query()
    assert set(LOCKED) <= set(names)


def test_a_locked_build_that_is_gone_is_refused_with_the_next_move() -> None:
    why = locked().refuse(observed(libcuda1=("580.178.04-2",)))
    assert why == (
        "libcuda1 580.178.04-1 is pinned by a lock file or a rollback, and apt does not offer it; "
        "offer it again, or update the lock file: gpustate driver solve --update"
    )
    offered = dict.fromkeys(LOCKED, ("580.178.04-2",))
    assert all(
        f"{name} {version}" in (locked().refuse(observed("", **offered)) or "")
        for name, version in LOCKED.items()
    )


def test_a_locked_build_that_is_installed_needs_no_offer() -> None:
    node = observed("580.178.04-1", libcuda1=("580.178.04-2",))
    assert locked().refuse(node) is None
    assert locked().desired(node).packages == LOCKED


@pytest.mark.parametrize(
    ("version", "installed", "wanted"),
    [
        ("latest", "", "610.57.04"),
        ("latest-lts", "", "580.178.04"),
        ("latest-production", "", "595.91.07"),
        ("latest-new-feature", "", "610.57.04"),
        ("latest-lts", "580.65.06-1", "580.65.06"),
        ("latest", "580.65.06-1", "580.65.06"),
        ("latest-lts", "595.91.07-1", "580.178.04"),
    ],
)
def test_a_kind_of_branch_takes_the_newest_and_keeps_what_is_there(
    version: str, installed: str, wanted: str
) -> None:
    assert DriverInstalled(version=version).desired(observed(installed)).library == wanted


@pytest.mark.parametrize(
    "parameters",
    [
        {"version": "latest-lst"},
        {"version": "580.65.06", "locked": LOCKED},
        {"locked": LOCKED},
        {"version": "latest", "locked": LOCKED},
        {"version": "580.178.04", "locked": {"libcuda1; reboot": "580.178.04-1"}},
        {"version": "580.178.04", "locked": {"libcuda1": "580.178.04-1; reboot"}},
        {"version": "580.178.04", "locked": {"bash": "5.2"}},
        {"version": "580.178.04", "locked": ["libcuda1"]},
    ],
)
def test_what_goes_not_together_is_an_error_before_any_node(parameters: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=r"^driver: (version|locked)"):
        build(DriverInstalled, parameters)
