"""The table of supported systems in README.md and docs/support.md. ``python tests/support/supporttable.py`` writes it.

It stands between two marks, and is made from :mod:`gpustate.support`.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpustate import support

TOP = Path(__file__).parents[2]
PAGES = (TOP / "README.md", TOP / "docs/support.md")
_MARKED = re.compile(r"(?<=<!-- support: from gpustate/support.py -->\n).*?(?=<!-- end -->)", re.S)


def written(text: str) -> str:
    """A page with the table of today.

    Raises:
        ValueError: it does not have the marks once.
    """
    page, count = _MARKED.subn(lambda _: f"\n{support.markdown()}\n", text)
    if count != 1:
        raise ValueError("the marks of the table are not there once")
    return page


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text("utf-8")), encoding="utf-8")
