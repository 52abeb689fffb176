"""``gpustate image bundle``: one line for whatever is wrong with its words."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "bundle: no policy; build a bundle: gpustate image bundle POLICY --out FILE.tar"),
        (("chek", "x.tar"), "bundle: 'chek' is neither a file nor a verb; did you mean 'check'"),
        (
            ("driver", "--out", "x.zip"),
            "--out x.zip: a bundle cannot be a .zip file; it would become a ",
        ),
        (("driver", "--out", "sub/x.tar.gz"), "name it sub/x.tar, or give the name of a directory"),
        (("driver",), "Missing option '--out'"),
    ],
)
def test_a_mistake_is_one_line_with_the_next_move(
    gpustate: Cli, project: Path, words: tuple[str, ...], said: str
) -> None:
    done = gpustate("image", "bundle", *words)
    assert done.status == 1
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not list(project.iterdir())
