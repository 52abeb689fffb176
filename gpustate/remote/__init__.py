"""The way to nodes: the only room that knows paramiko.

Nodes are worked on in threads, which is what paramiko is made for; nothing is patched at import.
pyinfra is loaded when a node is given to one of its operations, see :mod:`gpustate.remote.connector`.
"""

import logging
import sys

# paramiko logs a traceback for every peer that hangs up early; what it raises says it in one line.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

if "paramiko" not in sys.modules and "invoke" not in sys.modules:
    # Half of paramiko's import is invoke, for "Match exec" in an ssh_config alone: ssh.py gives it
    # back where a configuration has that.
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
