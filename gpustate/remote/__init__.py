"""The way to nodes: the only room that knows pyinfra, paramiko and gevent.

Importing it patches the standard library for gevent, which must come before anything opens a
socket: the command line imports it first, a library user imports it on purpose.
"""

from gevent import monkey

# Threads stay real for the standard library's own users when gpustate is embedded late; what has to
# be cooperative are sockets, select, time and the locks paramiko builds on.
if not monkey.is_module_patched("socket"):
    monkey.patch_all(subprocess=True, signal=False)
