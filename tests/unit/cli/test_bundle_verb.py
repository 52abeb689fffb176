"""``gpustate bundle``: one line for whatever is wrong with its words."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "bundle: no policy; build a bundle: gpustate bundle POLICY --out FILE.tar"),
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
    done = gpustate("bundle", *words)
    assert done.status == 1
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not list(project.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--for", "debian12/x86_64", "--installed", "x"), "--installed is for distributions with"),
        (
            ("--for", "rocky9/x86_64"),
            "--sources FILE, in the format of /etc/apt, /etc/yum.repos.d or",
        ),
        (
            ("--for", "azl3/x86_64"),
            "unsupported distribution 'azl3/x86_64': no names of NVIDIA's packages; use a",
        ),
        (("--for", "rocky9"), "--for: 'rocky9' is not a distribution and machine"),
        (("--for", "rocky9/x86_64", "--installed", "none"), "none: "),
        (("--installed", "x", "-i", "h1"), "--installed needs --for"),
    ],
)
def test_what_is_installed_belongs_to_names_of_rpm_distributions(
    gpustate: Cli, project: Path, words: tuple[str, ...], said: str
) -> None:
    sources = project / "x.repo"
    sources.write_text("[x]\nbaseurl=file:///nowhere\n")
    more = () if "'rocky9' is" in said or "--sources FILE" in said else ("--sources", str(sources))
    done = gpustate("bundle", "driver", "--out", "x.tar", *words, *more)
    assert done.status == 1
    assert said in done.err
    assert done.err.count("\n") == 1
