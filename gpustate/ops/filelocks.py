"""The sh functions that name who holds a lock on a file; part of :mod:`gpustate.ops.library`.

Surprising: the shell reads a file byte by byte, and the kernel skips lines of /proc/locks where locks come and go
meanwhile. So it is read at once, by cat.

Sources:
    proc(5): /proc/locks, /proc/pid/comm.
"""

from gpustate import shell

FILE_LOCKS = shell.load("filelocks", "gpustate.ops")
