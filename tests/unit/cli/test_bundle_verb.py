"""``gpustate image bundle``: one line for whatever is wrong with its words."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chek", "x.tar"), "image bundle: no verb 'chek'; did you mean 'check'"),
        (("policy.yml",), "image bundle: no verb 'policy.yml'; verbs: check, make; see: "),
        (
            ("make", "driver", "--out", "x.zip"),
            "--out x.zip: a bundle cannot be a .zip file; it would become a ",
        ),
        (
            ("make", "driver", "--out", "sub/x.tar.gz"),
            "name it sub/x.tar, or give the name of a directory",
        ),
        (("make", "driver"), "Missing option '--out'"),
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
