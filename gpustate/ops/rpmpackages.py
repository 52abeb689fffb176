"""The sh functions that work with rpm, dnf and zypper; part of :mod:`gpustate.ops.library`.

They make the same promises as those for apt (:mod:`gpustate.ops.packages`): wait for whoever is at work and
name him, download everything before anything changes, one transaction, and where that fails in the middle,
what was there before is installed again and what came is removed. What is not named may not leave.

Surprising: a package whose ``%pre`` fails is left out, and dnf installs the rest of the transaction; zypper
goes package by package, and stops where one fails. So what is installed decides, not the exit status alone. A lock
of versionlock or zypper would forbid our own move as well, so the program works under a copy of the locks
without those of the packages it is to move; the node's own locks are never open in between.

Sources:
    dnf(8), dnf.conf(5) (``pluginconfpath``); dnf 4.14, dnf/lock.py (pid files); dnf-plugins-core,
    versionlock; zypper(8) (exit codes, ``ZYPP_LOCK_TIMEOUT``); libzypp, zypp.conf (``locksfile.path``,
    ``ZYPP_CONF``); rpm(8): a transaction holds .rpm.lock for writing.
"""

from gpustate import shell

RPM_PACKAGES = shell.load("rpmpackages", "gpustate.ops")
