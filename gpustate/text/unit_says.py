"""Which line of a service's journal says why it does not run.

A service that cannot start says so in its own words before systemd tells in general ones that it has
ended, and often in several lines, of which the last is the one that gives up.

Sources:
    systemd 252 and 257: the sentences of its own about a unit (Starting, Started, Main process exited,
    Failed with result).
"""

from __future__ import annotations

#: Reads ``journalctl -o cat`` of one unit; prints the line of its last start, or systemd's where there is none.
TELLING = r"""awk '/^Start(ing|ed) / { b = e = ""; next }
      tolower($0) !~ /error|fail|fatal|unable to|cannot|mismatch|in use|invalid/ || /^Failed to start|Failed with result/ { next }
      /process exited, code=/ { e = $0; next } { b = $0 } END { print b == "" ? e : b }'"""
