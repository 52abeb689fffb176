"""Connections to nodes: the only package that imports paramiko.

Each node has a thread, which suits paramiko; nothing is patched at import.
"""

import logging
import sys

# paramiko logs a traceback for every peer that disconnects early; its exception is enough.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

if "paramiko" not in sys.modules and "invoke" not in sys.modules:
    # Half of paramiko's import time is invoke, which only "Match exec" in an ssh_config needs: ssh.py
    # imports it for a configuration that has one.
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
