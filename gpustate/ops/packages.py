"""The sh functions that work with dpkg and apt; part of :mod:`gpustate.ops.library`.

An installation is made in three moves, so that it is done as a whole or not at all: everything is
downloaded and checked (``apt_fetch``), nothing of which changes a package; everything is installed in
one transaction (``apt_swap``); and where that fails in the middle, what was there before is installed
again and what came is purged. What is replaced is kept for a rollback (``apt_keep``). A library of one version beside a module of another breaks every
program on the node, and a package that cannot be configured stops every later use of apt, unattended
upgrades among them.

Surprising: ``DPkg::Lock::Timeout`` waits for dpkg's locks only; those of the package lists and of the
archives make apt fail at once, so all four are waited for here. A hook that fails after everything is
installed makes apt fail as well: what is installed decides, not the exit status.

Sources:
    apt.conf(5), apt-get(8), dpkg(1); apt 2.6 and 3.0: apt-pkg/contrib/fileutl.cc (``GetLock``),
    apt-pkg/deb/dpkgpm.cc (hooks).
"""

from gpustate import shell

#: Defines ``unmet``: what installed packages want and do not have, with its version where only one will do.
UNMET = shell.load("unmet", "gpustate.ops")
#: The same for probes, which ask apt once for each ``APT_KEY``.
UNMET_KEPT = UNMET + 'checked() { kept apt-check "$APT_KEY" apt_check; }\n'
#: Packages of the driver and of what stands on it, by name.
OURS = (
    r"nvidia|^(lib)?cuda|^lib(nvcuvid1|nvoptix1|nvsdm|xnvctrl)|^datacenter-gpu-manager|^nvlsm$|-dkms$"
    r"|^(lib)?gdr(copy|api)|^gds-tools|^libcufile"
)
#: MiB that replaced packages may take up, and that have to be free to keep one.
KEPT_LIMIT, KEPT_ROOM = 2048, 4096
PACKAGES = (
    UNMET
    + shell.load("packages", "gpustate.ops", ours=OURS)
    + shell.load("apt_keep", "gpustate.ops", KEEP_LIMIT=str(KEPT_LIMIT), KEEP_ROOM=str(KEPT_ROOM))
)
