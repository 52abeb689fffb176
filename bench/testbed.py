"""Light nodes: a few sshd processes listen on many loopback addresses, each a node of its own.

Nothing outside the work folder is written, except an empty /run/sshd, which sshd insists on.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from bench import workload

_PER_PROCESS = 16
_TICKS = os.sysconf("SC_CLK_TCK")


class Testbed:
    """N nodes that are up.

    Args:
        work: an empty folder of the bench's own.
        count: of nodes.
    """

    def __init__(self, work: Path, count: int) -> None:
        self.work = work
        self.hosts = workload.hosts(count)
        self.sshd_port = _free_port()
        self.port = self.sshd_port  # the one that contenders dial
        self.round_trip_s = 0.0
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._proxy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Testbed:
        try:
            self._prepare()
            for start in range(0, len(self.hosts), _PER_PROCESS):
                self._start(start)
            self._wait(self.hosts[-1], self.sshd_port)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything that was started."""
        self.delay(0)
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()

    # --- nodes -------------------------------------------------------------------------

    def _prepare(self) -> None:
        bed = self.work / "bed"
        bed.mkdir(mode=0o700)
        (bed / "home").mkdir()
        (bed / "none").mkdir()
        (bed / "apt/archives/partial").mkdir(parents=True)
        os.makedirs("/run/sshd", exist_ok=True)
        for key in ("host", "user"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(bed / key)]
            subprocess.run(make, check=True)
        shutil.copy(bed / "user.pub", bed / "authorized_keys")
        # The package cache that slim images switch off; without it Ansible's apt reads for seconds.
        (bed / "apt.conf").write_text(f'Dir::Etc::Parts "{bed}/none";\nDir::Cache "{bed}/apt";\n')
        warm = {**os.environ, "APT_CONFIG": str(bed / "apt.conf")}
        subprocess.run(["apt-cache", "stats"], env=warm, stdout=subprocess.DEVNULL, check=False)
        workload.seed_sources(self.work)
        for host in self.hosts:
            workload.seed(workload.root(self.work, host))
        (self.work / "state").mkdir()
        self._write_known_hosts()

    def _write_known_hosts(self) -> None:
        bed = self.work / "bed"
        key = " ".join((bed / "host.pub").read_text().split()[:2])
        lines = (f"[{host}]:{self.port} {key}\n" for host in self.hosts)
        (bed / "known_hosts").write_text("".join(lines))

    def _start(self, start: int) -> None:
        bed = self.work / "bed"
        some = self.hosts[start : start + _PER_PROCESS]
        conf = [
            *(f"ListenAddress {host}:{self.sshd_port}" for host in some),
            f"HostKey {bed}/host",
            f"AuthorizedKeysFile {bed}/authorized_keys",
            "PidFile none",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PrintMotd no",
            "UseDNS no",
            "MaxStartups 1000:30:2000",
            "PerSourceMaxStartups none",
            "LogLevel VERBOSE",
            "Subsystem sftp internal-sftp",
            # HOME keeps somebody's .bashrc out of every exec.
            f"SetEnv HOME={bed}/home APT_CONFIG={bed}/apt.conf",
        ]
        file = bed / f"sshd{start}.conf"
        file.write_text("\n".join(conf) + "\n")
        program = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
        if program is None:
            raise SystemExit("bench: sshd is not installed (Debian: openssh-server)")
        self._daemons.append(
            subprocess.Popen([program, "-D", "-f", str(file), "-E", str(bed / f"sshd{start}.log")])
        )

    def _wait(self, host: str, port: int) -> None:
        for _ in range(200):
            try:
                socket.create_connection((host, port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"bench: nothing listens on {host}:{port}")

    # --- the way there -----------------------------------------------------------------

    def delay(self, round_trip_s: float) -> None:
        """Put a delaying proxy before all nodes, or remove it."""
        if self._proxy is not None:
            self._proxy.terminate()
            self._proxy.wait()
            self._proxy = None
        self.port, self.round_trip_s = self.sshd_port, round_trip_s
        if round_trip_s:
            self.port = _free_port()
            words = ["-m", "bench.delay", str(len(self.hosts)), str(self.port)]
            words += [str(self.sshd_port), str(round_trip_s / 2)]
            self._proxy = subprocess.Popen([sys.executable, *words], cwd=Path(__file__).parents[1])
            self._wait(self.hosts[-1], self.port)
        if self._daemons:
            self._write_known_hosts()

    # --- what it costs -----------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        """Connections that were let in and channels that were started so far, by sshd's word."""
        connections = channels = 0
        for log in (self.work / "bed").glob("*.log"):
            text = log.read_text(errors="replace")
            connections += text.count("Accepted publickey")
            channels += text.count("Starting session:")
        return connections, channels

    def cpu_s(self) -> float:
        """CPU time that the nodes have spent on connections that are over."""
        total = 0
        for daemon in self._daemons:
            stat = Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(int(word) for word in stat[11:15])
        return total / _TICKS


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
