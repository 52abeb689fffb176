"""The way to nodes: the only room that knows pyinfra and paramiko.

Importing it patches the standard library for gevent, which must come before anything opens a
socket: the command line imports it first, a library user imports it on purpose.
"""

import logging

from gevent import monkey

if not monkey.is_module_patched("socket"):
    monkey.patch_all(subprocess=True, signal=False)

# paramiko logs a traceback for every peer that hangs up early; what it raises says it in one line.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False
