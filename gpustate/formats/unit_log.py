"""Find the log line that explains why a service does not run.

A service that cannot start logs specific errors before systemd's generic ones, often in several lines, of which
the last is the most relevant. A service whose unit redirects its output to a file, such as NVIDIA's dcgm-exporter,
has only systemd's lines in the journal; so do Fabric Manager and IMEX, which have their own log files.

Surprising: slurmd says twice that it failed after it has said why. containerd's unit has modprobe load overlay and goes on without it; where it is built in or in
use already, that complains at every start. A plugin it does without has an error at level=info, so a line of a
lower level than warning tells only where there is no other. Of a service that says when it is ready, Started
comes after its words; of others it is the first line of a start.

Sources:
    systemd 252 and 257: the sentences of its own about a unit (Starting, Started, Main process exited,
    Failed with result). systemd.exec(5): StandardOutput=append:PATH.
    NVIDIA IMEX guide and Fabric Manager user guide: LOG_FILE_NAME of the file that option -c names.
"""

from __future__ import annotations

from gpustate import shell

#: Reads ``journalctl -o cat`` of one unit; prints the line of its last start, or systemd's where there is none.
TELLING = r"""awk '/^Starting / { b = i = e = ""; s = 1; next } /^Started / { if (!s) b = i = e = ""; s = 0; next }
      tolower($0) !~ /error|fail|fatal|unable to|cannot|mismatch|in use|invalid/ || /^Failed to start|Failed with result|^modprobe: FATAL: Module overlay|slurmd initialization failed|cannot create .* context for/ { next }
      /process exited, code=/ { e = $0; next }
      /level"?[=:]"?(info|debug|trace)/ { i = $0; next } { b = $0 } END { print b != "" ? b : i != "" ? i : e }'"""

#: Defines ``unit_says UNIT``: what it has said since its last start, in its journal and in its file. ``patience`` is in seconds.
UNIT_SAYS = shell.load("unit_says", "gpustate.formats")
