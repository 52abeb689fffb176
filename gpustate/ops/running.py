"""The sh functions that start again what a failed installation has stopped; part of :mod:`gpustate.ops.library`.

A package stops its service before it is replaced, and many (Fabric Manager's among them) do not start it
afterwards. Where an installation fails and goes back, nothing else would. Only services whose unit came with a
package that was touched are started, with those that systemd stopped along with them: a job of somebody's that has
ended meanwhile is left alone.

What does not start is told with ``still stopped:``, which the controller puts into the state's reason.
"""

from gpustate import shell

RUNNING = shell.load("running", "gpustate.ops")
