"""The name of the user at the controller."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """The user's name; that of a user without an entry in passwd(5), as in most pods, is the uid."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError: Python before 3.13
        return str(os.getuid())
