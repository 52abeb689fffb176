"""Reading package lists beside foreign sources that cannot be read: real sh, apt's words as apt 2.6 and 3.0 print them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate import ops

_DEAD = "E: Failed to fetch http://dead.example/ppa/dists/noble/InRelease  Could not resolve 'dead.example'"
_LACKS = "E: The repository 'http://dead.example/ppa noble Release' does not have a Release file."
_SOME = "E: Some index files failed to download. They have been ignored, or old ones used instead."
_OWN = (
    "E: Failed to fetch http://archive.example/ubuntu/dists/noble/InRelease  Connection timed out"
)
_MALFORMED = "E: Malformed entry 1 in list file /etc/apt/sources.list.d/x.list (URI)"


@pytest.mark.parametrize(
    ("said", "hosts", "passes"),
    [
        ("", ("archive.example",), True),
        (f"{_DEAD}\n{_SOME}", ("archive.example",), True),
        (f"W: A warning of http://dead.example/ppa\n{_LACKS}", ("archive.example",), True),
        (f"{_DEAD}\n{_OWN}\n{_SOME}", ("archive.example",), False),
        (_OWN, ("other.example", "archive.example"), False),
        (_OWN.replace("http://", "http://user:word@"), ("archive.example",), False),
        (_OWN.replace("example/", "example:8080/"), ("archive.example",), False),
        (_OWN.replace("archive.", "my.archive."), ("archive.example",), True),
        (_MALFORMED, ("archive.example",), False),
        (_DEAD, (), False),
    ],
)
def test_errors_of_foreign_sources_do_not_count(
    tmp_path: Path, said: str, hosts: tuple[str, ...], passes: bool
) -> None:
    stub = f"apt() {{ cat <<'E'\nHit:1 http://archive.example/ubuntu noble InRelease\n{said}\nE\n[ -z '{bool(said) or ''}' ]; }}\n"
    text = f"{ops.LIBRARY}\n{stub}apt_wait() {{ :; }}\napt_lists_kept() {{ echo kept; }}\n"
    done = subprocess.run(
        ["sh", "-c", text + ops.AptUpdate(hosts=hosts).script()],
        env={"PATH": "/usr/bin:/bin", "R": str(tmp_path), "G": str(tmp_path), "PROC": "/proc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0, "kept" in done.stdout) == (passes, passes), done
    assert said in done.stdout, "it is in the step's log"
