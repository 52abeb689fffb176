"""Which builds of DKMS were killed, by what ``dkms status`` prints: real sh, recorded output.

Sources:
    dkms 3.0.10 and 3.2.2 with Debian's own packages (tests/node/test_debian_archive.py), 2026-11-30;
    dkms 2: linux-surface/linux-surface#573; "Missing some built": dkms 3.0.10, dkms.in.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate import shell

KERNEL = "6.1.0-43-amd64"
BUILT = {
    "proprietary modules of Debian": (
        "nvidia-current/535.309.01",
        "nvidia-current/535.309.01, 6.1.0-43-amd64, x86_64: installed\n",
    ),
    "open modules of Debian": (
        "nvidia-current-open/550.163.01",
        "nvidia-current-open/550.163.01, 6.1.0-43-amd64, x86_64: installed\n",
    ),
    "another version is installed": (
        "nvidia-current/535.309.01",
        "nvidia-current/535.309.01, 6.1.0-43-amd64, x86_64: built\n",
    ),
    "a file differs": (
        "nvidia/580.65.06",
        "nvidia/580.65.06, 6.1.0-43-amd64, x86_64: installed "
        "(WARNING! Diff between built and installed module!)\n",
    ),
    "as dkms 2 prints it": (
        "nvidia/460.91.03",
        "nvidia, 460.91.03, 6.1.0-43-amd64, x86_64: installed\n",
    ),
}
HALF = {
    "added only": ("nvidia-current/535.309.01", "nvidia-current/535.309.01: added\n"),
    "another kernel": (
        "nvidia-current/535.309.01",
        "nvidia-current/535.309.01, 6.1.0-42-amd64, x86_64: installed\n",
    ),
    "open modules alone are built": (
        "nvidia-current/550.163.01",
        "nvidia-current-open/550.163.01, 6.1.0-43-amd64, x86_64: installed\n",
    ),
    "modules are missing": (
        "nvidia-current/535.309.01",
        "nvidia-current/535.309.01, 6.1.0-43-amd64, x86_64: installed "
        "(WARNING! Missing some built modules!)\n",
    ),
}


def is_half_built(folder: Path, module: str, status: str) -> bool:
    source = folder / module / "source"
    source.mkdir(parents=True)
    (source / "dkms.conf").write_text('PACKAGE_NAME="x"\n')
    (folder / "status").write_text(status)
    script = (
        f"dkms() {{ [ \"$*\" = 'status -m {module.replace('/', ' -v ')}' ] && cat {folder}/status; }}\n"
        f"dk_of=; {shell.load('kmod_clear', 'gpustate.ops')}\nhalf_built {folder}/{module} {KERNEL} x86_64"
    )
    return subprocess.run(["sh", "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", BUILT)
def test_a_build_that_dkms_names_is_left(name: str, tmp_path: Path) -> None:
    assert not is_half_built(tmp_path, *BUILT[name])


@pytest.mark.parametrize("name", HALF)
def test_a_build_that_dkms_does_not_name_was_killed(name: str, tmp_path: Path) -> None:
    assert is_half_built(tmp_path, *HALF[name])
