"""What arrives in part is not run, not even its front half."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

from gpustate.remote import batch


def run(packed: bytes, length: int) -> subprocess.CompletedProcess[bytes]:
    """What a node runs, with the input it got."""
    return subprocess.run(
        ["sh", "-c", batch.command_line(length)], input=packed, capture_output=True, check=False
    )


def test_a_script_is_run_only_if_all_of_it_arrived(tmp_path: Path) -> None:
    # Stored, not compressed: its front half would unpack and do harm.
    script = f"touch {tmp_path}/begun\n" + "# filler\n" * 9000 + f"rm -rf {tmp_path}/precious\n"
    packed = gzip.compress(script.encode(), 0)
    (tmp_path / "precious").mkdir()
    for cut in (20, 4000, len(packed) // 2, len(packed) - 20, len(packed) - 1):
        assert run(packed[:cut], len(packed)).returncode != 0
        assert not (tmp_path / "begun").exists()
    assert (tmp_path / "precious").is_dir()
    assert run(packed, len(packed)).returncode == 0
    assert (tmp_path / "begun").exists()
