"""Everything in this folder needs nodes, so nobody can forget the marker."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests as those that need nodes."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.node)
