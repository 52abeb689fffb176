"""Of a build log of hundreds of lines, the one that a person wants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpustate.formats import dkms

DATA = Path(__file__).parents[2] / "data/dkms"
CASES = {
    "struct_member": (
        "6.8.0-31-generic",
        "nvidia-drm/nvidia-drm-drv.c:748:6: error: 'struct drm_driver' has no member named 'dumb_destroy'",
    ),
    "no_compiler": ("6.5.0-41-generic", "/bin/sh: 1: x86_64-linux-gnu-gcc-12: not found"),
    "modpost": (
        "6.6.15-amd64",
        "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol '__rcu_read_lock'",
    ),
    "old_compiler": (
        "6.8.0-48-generic",
        "cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
    ),
    "no_space": ("6.1.0-18-amd64", "ld: error: final link failed: No space left on device"),
    "out_of_memory": ("6.1.0-18-amd64", "gcc: fatal error: Killed signal terminated program cc1"),
    "lab": (
        "5.10.0-28-lab",
        "nvidia.c:23:54: error: too few arguments to function ‘nv_pin_user_pages’",
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_first_error_of_a_log_is_its_cause(name: str) -> None:
    text = (DATA / f"{name}.log").read_text()
    assert (dkms.log_kernel(text), dkms.first_error(text)) == CASES[name]


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_a_node_sends_of_a_log_gives_the_same_answer(name: str) -> None:
    text = (DATA / f"{name}.log").read_text()
    sent = [line for line in text.splitlines() if re.search(dkms.INTERESTING_ERE, line)]
    assert (dkms.log_kernel("\n".join(sent)), dkms.first_error("\n".join(sent))) == CASES[name]


def test_every_log_of_the_data_has_a_case() -> None:
    assert {path.stem for path in DATA.glob("*.log")} == set(CASES)


def test_a_log_without_an_error_has_none() -> None:
    assert dkms.first_error("make[1]: Entering directory\n") is None
    assert dkms.log_kernel("") is None
