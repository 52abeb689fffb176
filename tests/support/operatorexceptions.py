"""The table."""

from operatordifferences import Wanted


def wanted(release: str) -> list[Wanted]:
    return []
