"""Operations of pyinfra's own, on nodes where they hold and where they do not.

Files are real ones; what the machine of the tests has not (packages, units, users) is in ``answers``, in the form
that the programs print.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DPKG = (
    "||/ Name   Version      Architecture Description\n"
    "+++-======-============-============-=================================\n"
    "ii  bash   5.2.15-2+b7  amd64        GNU Bourne Again SHell\n"
)
RPM = "bash 5.1.8-9.el9\n"
SOURCES = "##PYINFRA_FILE /etc/apt/sources.list\ndeb http://deb.debian.org/debian bookworm main\n\n"
PASSWD = "root:x:0:0:root:/root:/bin/bash|root|root||x\nops:x:1000:1000::/home/ops:/bin/bash|ops|ops||!\n"
GROUP = "root:x:0:\nops:x:1000:\n"
MODULES = "nf_conntrack 176128 1 nf_nat, Live 0x0000000000000000\n"
MOUNTS = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n30 21 8:2 / /data rw,relatime - ext4 /dev/sdb1 rw\n"
CRONTAB = "# pyinfra-name=backup\n5 * * * * /usr/local/bin/backup\n"
STAT = "user=root group=root mode={} atime=1 mtime=1 ctime=1 size=9 '{}'\n"
LINUX = {"uname -s": "Linux\n"}


@dataclass(frozen=True)
class Case:
    """One operation on a node where it holds, or does not."""

    operation: str
    arguments: dict[str, Any]
    drifted: bool
    answers: dict[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[Path], object] = lambda root: None
    execs: int = 1

    @property
    def id(self) -> str:
        return f"{self.operation}-{'drifted' if self.drifted else 'holds'}"


def case(
    operation: str,
    holds: dict[str, Any] | None,
    drifts: dict[str, Any] | None,
    answers: dict[str, str] | None = None,
    drift_answers: dict[str, str] | None = None,
    prepare: Callable[[Path], object] = lambda root: None,
) -> list[Case]:
    found = []
    if holds is not None:
        found.append(Case(operation, holds, False, answers or {}, prepare))
    if drifts is not None:
        said = drift_answers if drift_answers is not None else answers or {}
        found.append(Case(operation, drifts, True, said, prepare))
    return found


def hosts(root: Path) -> None:
    (root / "hosts").write_text("10.0.0.1 head\n# BEGIN\n10.0.0.9 block\n# END\n")
    (root / "hosts").chmod(0o644)


def text_file(root: Path) -> None:
    (root / "motd").write_text("hello\n")
    (root / "motd").chmod(0o644)
    (root / "motd.j2").write_text("{{ greeting }}\n")
    (root / "link").symlink_to(root / "motd")


def repository(root: Path) -> None:
    folder = root / "repository"
    (folder / ".git").mkdir(parents=True)


GIT = {
    "git config --local -l": "remote.origin.url=https://git.example/x\n",
    "git describe --all": "heads/main\n",
    "git tag": "v1\n",
    "git config --global -l": "user.name=ops\n",
}
ANY = {"greeting": "hello"}
CASES = [
    *case("apt.packages", {"packages": ["bash"]}, {"packages": ["bash", "jq"]}, {"dpkg -l": DPKG}),
    *case("apt.packages", {"packages": ["jq"], "present": False}, {"packages": ["bash"], "present": False}, {"dpkg -l": DPKG}),
    *case("apt.repo", {"src": "deb http://deb.debian.org/debian bookworm main"}, {"src": "deb https://x.example stable main", "filename": "x"}, {"##PYINFRA_FILE": SOURCES, "grep -e": ""}),
    *case("apt.key", {"src": "https://x.example/k.gpg"}, {"src": "https://x.example/other.gpg"}, {
        "test -e /etc/apt/keyrings/x.example-k.gpg": STAT.format("-rw-r--r--", "/etc/apt/keyrings/x.example-k.gpg"),
        "test -e /etc/apt/keyrings ": STAT.format("drwxr-xr-x", "/etc/apt/keyrings"), "command -v curl": "/usr/bin/curl\n"}),
    *case("apt.update", None, {"cache_time": 60}, {"update-success-stamp": STAT.format("-rw-r--r--", "/var/lib/apt/periodic/update-success-stamp")}),
    *case("dnf.packages", {"packages": ["bash"]}, {"packages": ["jq"]}, {"rpm --query": RPM, "dnf repoquery": ""}),
    *case("yum.packages", {"packages": ["bash"]}, {"packages": ["jq"]}, {"rpm --query": RPM, "yum": "", "repoquery": ""}),
    *case("files.put", {"src": {"$text": "hello\n"}, "dest": "{root}/motd", "mode": "644"}, {"src": {"$text": "other\n"}, "dest": "{root}/motd", "mode": "600"}, prepare=text_file),
    *case("files.put", None, {"src": {"$text": "hello\n"}, "dest": "{root}/new/motd", "user": "root"}, prepare=text_file),
    *case("files.template", {"src": "{root}/motd.j2", "dest": "{root}/motd", **ANY}, {"src": "{root}/motd.j2", "dest": "{root}/motd", "greeting": "bye"}, prepare=text_file),
    *case("files.line", {"path": "{root}/hosts", "line": "10.0.0.1 head"}, {"path": "{root}/hosts", "line": "10.0.0.2 tail"}, prepare=hosts),
    *case("files.line", None, {"path": "{root}/hosts", "line": "10.0.0.1.*", "replace": "10.0.0.3 head"}, prepare=hosts),
    *case("files.file", {"path": "{root}/hosts"}, {"path": "{root}/none", "mode": "600"}, prepare=hosts),
    *case("files.directory", {"path": "{root}"}, {"path": "{root}/a", "mode": "700"}),
    *case("files.link", {"path": "{root}/link", "target": "{root}/motd"}, {"path": "{root}/link", "target": "/etc/motd"}, prepare=text_file),
    *case("files.replace", {"path": "{root}/hosts", "text": "absent", "replace": "x"}, {"path": "{root}/hosts", "text": "head", "replace": "tail"}, prepare=hosts),
    *case("files.block", {"path": "{root}/hosts", "content": "10.0.0.9 block", "marker": "# {mark}"}, {"path": "{root}/hosts", "content": "10.0.0.8 block", "marker": "# {mark}"}, prepare=hosts),
    *case("systemd.service", {"service": "nginx", "enabled": True}, {"service": "nginx", "enabled": True}, {
        "SubState": "Id=nginx.service\nSubState=running\n", "UnitFileState": "Id=nginx.service\nUnitFileState=enabled\n"}, {
        "SubState": "Id=nginx.service\nSubState=dead\n", "UnitFileState": "Id=nginx.service\nUnitFileState=disabled\n"}),
    *case("systemd.daemon_reload", None, {}),
    *case("server.user", {"user": "ops", "shell": "/bin/bash", "ensure_home": False}, {"user": "bob", "ensure_home": False}, {"/etc/passwd": PASSWD, "/etc/group": GROUP, "command -v useradd": "/usr/sbin/useradd\n", **LINUX}),
    *case("server.group", {"group": "ops"}, {"group": "gpu", "gid": 990}, {"/etc/group": GROUP, **LINUX}),
    *case("server.sysctl", {"key": "vm.swappiness", "value": 10}, {"key": "vm.swappiness", "value": 60}, {"sysctl ": "vm.swappiness = 10\n"}),
    *case("server.modprobe", {"module": "nf_conntrack"}, {"module": "br_netfilter"}, {"/proc/modules": MODULES, **LINUX}),
    *case("server.hostname", {"hostname": "gpu1"}, {"hostname": "gpu2"}, {"uname -n": "gpu1\n", "hostnamectl": "/usr/bin/hostnamectl\n", **LINUX}),
    *case("server.mount", {"path": "/data"}, {"path": "/scratch", "device": "/dev/sdc1"}, {"mountinfo": MOUNTS, **LINUX}),
    *case("server.crontab", {"command": "/usr/local/bin/backup", "cron_name": "backup", "minute": 5}, {"command": "/usr/local/bin/backup", "cron_name": "backup", "minute": 6}, {"crontab -l": CRONTAB}),
    *case("server.shell", None, {"commands": ["echo one", "echo two"]}),
    *case("server.timezone", {"timezone": "Etc/UTC"}, {"timezone": "Europe/Berlin"}, {"/etc/localtime": "Etc/UTC\n", "timedatectl": "/usr/bin/timedatectl\n"}),
    *case("git.repo", {"src": "https://git.example/x", "dest": "{root}/repository", "pull": False}, {"src": "https://git.example/x", "dest": "{root}/repository", "branch": "next"}, GIT, prepare=repository),
    *case("git.config", {"key": "user.name", "value": "ops"}, {"key": "user.name", "value": "dev"}, GIT),
    *case("pip.packages", {"packages": ["requests"], "pip": "/opt/v/bin/pip"}, {"packages": ["httpx"], "pip": "/opt/v/bin/pip"}, {"pip freeze": "requests==2.32.3\n"}),
    *case("snap.package", {"packages": ["lxd"]}, {"packages": ["go"]}, {"snap list": "Name  Version  Rev  Tracking  Publisher  Notes\nlxd  5.21  1  latest/stable  canonical  -\n", "snap info lxd": "name: lxd\ntracking: latest/stable\ninstalled: 5.21 (1) 1MB -\n", "snap info go": "name: go\n"}),
    *case("npm.packages", {"packages": ["yarn"]}, {"packages": ["pnpm"]}, {"npm list": "/usr/lib\n└── yarn@1.22.22\n"}),
    *case("sysvinit.service", None, {"service": "rsyslog", "running": True}, {"status": "rsyslog=3\n"}),
]  # fmt: skip


def filled(value: Any, root: Path) -> Any:
    if isinstance(value, str):
        return value.replace("{root}", str(root))
    if isinstance(value, dict):
        return {key: filled(one, root) for key, one in value.items()}
    return value
