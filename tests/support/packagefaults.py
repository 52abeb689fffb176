"""What goes wrong with packages on a node: each fault a small class that registers itself.

A state that installs packages gets them all: a fault is switched on, a whole apply runs, and what must
come of it is said by the fault. Faults of repositories are in :mod:`repositoryfaults`.

To add one: subclass :class:`Fault`, give it a ``group``, say what is ``expected``, and write ``on`` and
``off``. ``off`` may run on a node where the fault was consumed.
"""

from __future__ import annotations

import base64
import shlex
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from packageserver import PackageServer, package, packed, unpacked, write_script

from gpustate_lab.node import Node

#: What must come of an apply with the fault on.
REPAIRED = "repaired"  # exit 0, and all is as the policy wants it
UNTOUCHED = "untouched"  # refused, or failed and put back: everything is as it was before

#: The versions that a policy moves between.
DRIVER = ("580.65.06", "580.178.04")
TOOLKIT = ("1.17.8", "1.18.2")


@dataclass
class Target:
    """One node with what its next apply is to change.

    Args:
        node: the node.
        server: where its packages come from.
        sets: what the fault is about: ``driver``, ``toolkit`` or ``containerd``.
        driver, toolkit: the versions that are wanted next.
        editions: of the repositories; another one makes the node read the lists anew.
        default_runtime: whether containerd's default is to be NVIDIA's.
    """

    node: Node
    server: PackageServer
    sets: str = "driver"
    driver: str = DRIVER[0]
    toolkit: str = TOOLKIT[0]
    editions: Counter[str] = field(default_factory=Counter[str])
    default_runtime: bool = False

    def move_on(self, about: str) -> None:
        """Want something else of one of the three."""
        self.sets = about
        if about == "driver":
            self.driver = next(version for version in DRIVER if version != self.driver)
        elif about == "toolkit":
            self.toolkit = next(version for version in TOOLKIT if version != self.toolkit)
        else:
            self.default_runtime = not self.default_runtime

    @property
    def image(self) -> str:
        return self.node.image

    @property
    def repository(self) -> str:
        return self.server.repository(self.sets, self.image)

    @property
    def member(self) -> str:
        """A package of the set that others of it depend on."""
        return "nvidia-smi" if self.sets == "driver" else "nvidia-container-toolkit-base"

    @property
    def version(self) -> str:
        return f"{self.driver if self.sets == 'driver' else self.toolkit}-1"

    def deb(self, name: str = "", version: str = "") -> str:
        """File name of a package of the set that is wanted."""
        return f"{name or self.member}_{version or self.version}_amd64.deb"

    def run(self, command: str, *, check: bool = True) -> str:
        return self.node.run(command, check=check, timeout_s=120).stdout.strip()

    def write(self, path: str, text: str) -> None:
        data = base64.b64encode(text.encode()).decode()
        self.run(
            f"mkdir -p $(dirname {shlex.quote(path)}) && echo {data} | base64 -d >{shlex.quote(path)}"
        )

    def change(
        self, deb: str, edit: Callable[[Path], None], release: Mapping[str, str] | None = None
    ) -> None:
        """Publish the set anew with one package changed."""
        with unpacked(self.server.root / self.repository / deb) as root:
            edit(root)
            packages = {deb: packed(root)}
        self.server.publish(self.node.name, self.repository, packages=packages, release=release)
        self.editions[self.sets] += 1

    def forget_downloads(self) -> None:
        """Packages that apt has kept need no server."""
        self.run("rm -f /var/cache/apt/archives/*nvidia* /var/cache/apt/archives/libcuda*")

    def publish_well(self) -> None:
        """The repository is whole again, as a new edition."""
        self.server.clear(self.node.name)
        self.editions[self.sets] += 1

    def install(self, data: bytes, options: str = "") -> None:
        """Install a package past apt, as an administrator would; whether it works is not asked."""
        (self.node.root / "var/tmp/site.deb").write_bytes(data)
        self.run(f"dpkg {options} -i /var/tmp/site.deb; rm /var/tmp/site.deb", check=False)


class Fault:
    """One thing that goes wrong."""

    group: ClassVar[str]
    expected: ClassVar[str] = UNTOUCHED
    #: What the node's reason must match, and its next move.
    says: ClassVar[str] = ""
    move: ClassVar[str] = "then apply again"
    #: The sets it can be about; a fault of apt's own is the same for all.
    sets: ClassVar[tuple[str, ...]] = ("driver", "toolkit")
    #: It starts from a node that gpustate has never seen.
    fresh: ClassVar[bool] = False

    @abstractmethod
    def on(self, target: Target) -> None:
        """Break it."""

    @abstractmethod
    def off(self, target: Target) -> None:
        """Mend it, as a person would."""

    def check(self, target: Target) -> None:
        """What else must hold after the apply with the fault on."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__name__.startswith("_"):
            FAULTS[cls.__name__] = cls()


FAULTS: dict[str, Fault] = {}


# --- somebody else is at work ------------------------------------------------------------------

_HOLD = """import fcntl, time
file = open({path!r}, "w")
fcntl.lockf(file, fcntl.LOCK_EX)
open("/run/site-locked", "w").close()
time.sleep({seconds})
"""


class _Lock(Fault):
    group = "locks"
    says = r"package lock is held by python3 \(process \d+\), and was not let go for 2 s"
    path: ClassVar[str] = "/var/lib/dpkg/lock-frontend"
    seconds: ClassVar[int] = 300

    def on(self, target: Target) -> None:
        if self.expected == UNTOUCHED:
            target.write("/etc/apt/apt.conf.d/99site", 'DPkg::Lock::Timeout "2";\n')
        target.write("/run/site-lock.py", _HOLD.format(path=self.path, seconds=self.seconds))
        target.run(
            "rm -f /run/site-locked; systemd-run -q --collect --unit=site-lock python3 /run/site-lock.py; "
            "while [ ! -e /run/site-locked ]; do sleep 0.1; done"
        )

    def off(self, target: Target) -> None:
        target.run("systemctl stop site-lock", check=False)
        target.run("rm -f /etc/apt/apt.conf.d/99site /run/site-lock.py")


class DpkgLockHeld(_Lock):
    """An upgrade of somebody else runs on and on."""


class DpkgDatabaseLockHeld(_Lock):
    """A dpkg without apt runs on and on."""

    path = "/var/lib/dpkg/lock"


class ArchivesLockHeld(_Lock):
    """Somebody downloads; apt itself does not wait for that."""

    path = "/var/cache/apt/archives/lock"


class ListsLockHeld(_Lock):
    """apt-daily reads the lists; apt itself does not wait for that."""

    path = "/var/lib/apt/lists/lock"


class DpkgLockHeldForAWhile(_Lock):
    """Unattended upgrades end after some seconds: waited for."""

    expected = REPAIRED
    seconds = 4


# --- dpkg's database ---------------------------------------------------------------------------


class HalfConfigured(Fault):
    """An installation of somebody else was interrupted."""

    group = "database"
    expected = REPAIRED

    def on(self, target: Target) -> None:
        target.run("touch /run/site-bad")
        target.install(package("site-tool", postinst="[ ! -e /run/site-bad ]"))
        assert target.run("dpkg --audit")
        target.run("rm /run/site-bad")

    def check(self, target: Target) -> None:
        assert target.run("dpkg-query -W -f '${Status}' site-tool") == "install ok installed"

    def off(self, target: Target) -> None:
        target.run("dpkg --purge site-tool")


class CannotBeConfigured(Fault):
    """A package of somebody else cannot be configured, and stops every transaction of apt."""

    group = "database"
    says = (
        r"preflight: .*installed half-way, and not to be finished without removing others: site-tool \(installed site-tool "
        r"package post-installation script subprocess returned error exit status 1\)"
    )
    move = "dpkg --configure -a"

    def on(self, target: Target) -> None:
        target.install(package("site-tool", postinst="exit 1"))

    def off(self, target: Target) -> None:
        target.run("dpkg --purge site-tool")


class NeedsReinstallation(Fault):
    """A package of the set was being unpacked when the power went."""

    group = "database"
    expected = REPAIRED

    def on(self, target: Target) -> None:
        status = rf"/^Package: {target.member}$/,/^$/s/^Status: .*/Status: hold reinstreq half-installed/"
        target.run(f"sed -i '{status}' /var/lib/dpkg/status")

    def off(self, target: Target) -> None:
        pass


class NeedsReinstallationWithoutArchive(Fault):
    """As above, of somebody else's, and no repository has it."""

    group = "database"
    says = r"preflight: .*The package site-tool needs to be reinstalled, but I can't find an archive for it"
    move = "dpkg --remove --force-remove-reinstreq site-tool"

    def on(self, target: Target) -> None:
        target.install(package("site-tool"))
        target.run(
            "sed -i '/^Package: site-tool$/,/^$/s/^Status: .*/Status: install reinstreq half-installed/' "
            "/var/lib/dpkg/status"
        )

    def off(self, target: Target) -> None:
        target.run("dpkg --purge --force-remove-reinstreq site-tool")


class DpkgInterrupted(Fault):
    """dpkg was killed while it wrote its database: its journal is there."""

    group = "database"
    expected = REPAIRED

    def on(self, target: Target) -> None:
        target.run(
            "dpkg-query -s hostname | sed 's/^Status: .*/Status: install ok unpacked/' >/var/lib/dpkg/updates/0001; "
            "echo >>/var/lib/dpkg/updates/0001"
        )

    def check(self, target: Target) -> None:
        assert target.run("ls /var/lib/dpkg/updates") == ""

    def off(self, target: Target) -> None:
        pass


class _Status(Fault):
    group = "database"
    says = r"preflight: dpkg cannot read its database \(.*/var/lib/dpkg/status"
    move = "replace /var/lib/dpkg/status with"
    damage: ClassVar[str]

    def on(self, target: Target) -> None:
        target.run(f"cp -p /var/lib/dpkg/status /var/tmp/status; {self.damage}")

    def off(self, target: Target) -> None:
        target.run("mv /var/tmp/status /var/lib/dpkg/status")


class StatusCorrupted(_Status):
    """A line of dpkg's database is garbage."""

    damage = "sed -i '200s/.*/garbage/' /var/lib/dpkg/status"


class StatusEmpty(_Status):
    """dpkg's database is empty, as after a crash of the filesystem: not a node without packages."""

    damage = ": >/var/lib/dpkg/status"


class UnmetDependencies(Fault):
    """Somebody forced a package onto the node, and apt does nothing while that is so."""

    group = "database"
    says = r"preflight: apt cannot work here \(Unmet dependencies"
    move = "apt-get check"

    def on(self, target: Target) -> None:
        target.install(
            package("site-tool", control="Depends: site-nowhere\n"), options="--force-depends"
        )

    def off(self, target: Target) -> None:
        target.run("dpkg --purge site-tool")


class ListCorrupted(Fault):
    """A package list of somebody else's repository is garbage."""

    group = "database"
    expected = REPAIRED
    files = "*_lab_*_Packages"

    def on(self, target: Target) -> None:
        target.run(
            f"for f in /var/lib/apt/lists/{self.files}; do head -c 3000 /dev/urandom >$f; done; "
            "rm -f /var/cache/apt/*.bin; ! apt-get check -qq 2>/dev/null"
        )

    def check(self, target: Target) -> None:
        assert target.run(f"grep -h ^Package: /var/lib/apt/lists/{self.files}")

    def off(self, target: Target) -> None:
        pass


class ReleaseTorn(ListCorrupted):
    """The driver's own repository: its signed list is zeros, as a power cut leaves it."""

    files = "*_InRelease"

    def on(self, target: Target) -> None:
        target.run(
            f"for f in /var/lib/apt/lists/{self.files}; do "
            "n=$(stat -c %s $f); head -c $n /dev/zero >$f; done; "
            "rm -f /var/cache/apt/*.bin; ! apt-get check -qq 2>/dev/null"
        )

    def check(self, target: Target) -> None:
        assert target.run(f"grep -h ^SHA256: /var/lib/apt/lists/{self.files}")


# --- policy of somebody else ---------------------------------------------------------------------


class PinForbids(Fault):
    """A pin of the site keeps the wanted version away."""

    group = "policy"
    says = r"driver: apt offers driver .*, and a pin in /etc/apt/preferences.d/00site forbids it"
    move = "remove that pin"
    sets = ("driver",)

    def on(self, target: Target) -> None:
        names = "libcuda1 nvidia-smi nvidia-driver-cuda nvidia-kernel-open-dkms"
        pin = f"Package: {names}\nPin: version {target.version.partition('-')[0]}*\nPin-Priority: -1\n"
        target.write("/etc/apt/preferences.d/00site", pin)

    def off(self, target: Target) -> None:
        target.run("rm -f /etc/apt/preferences.d/00site")


class HeldByTheSite(Fault):
    """Somebody holds a package of the set at the version that is there: the policy decides."""

    group = "policy"
    expected = REPAIRED

    def on(self, target: Target) -> None:
        target.run(f"apt-mark hold {target.member}")

    def off(self, target: Target) -> None:
        pass


class SomebodyNeedsTheOldVersion(Fault):
    """The transaction would take a package of the site with it."""

    group = "policy"
    says = r"site-monitor|generated breaks|Unable to satisfy"
    move = "remove it yourself|apt-mark showhold"

    def on(self, target: Target) -> None:
        there = target.run(f"dpkg-query -W -f '${{Version}}' {target.member}")
        target.install(package("site-monitor", control=f"Depends: {target.member} (= {there})\n"))
        target.run("apt-mark hold site-monitor")

    def off(self, target: Target) -> None:
        target.run("dpkg --purge site-monitor")


# --- the transaction itself ----------------------------------------------------------------------


class _Hook(Fault):
    group = "transaction"
    text: ClassVar[str]

    def on(self, target: Target) -> None:
        target.write("/etc/apt/apt.conf.d/99site", self.text)

    def off(self, target: Target) -> None:
        target.run("rm -f /etc/apt/apt.conf.d/99site")


class HookFailsBefore(_Hook):
    """A hook of the site (etckeeper, apt-listchanges) fails before anything is unpacked."""

    says = r"Problem executing scripts|Failure running|exit 1"
    text = 'DPkg::Pre-Install-Pkgs {"exit 1";};\n'


class HookFailsAfter(_Hook):
    """A hook of the site fails when all is installed: no failure of the installation."""

    expected = REPAIRED
    text = 'DPkg::Post-Invoke {"exit 1";};\n'


class ConffileChanged(Fault):
    """A configuration file of a package of the set was edited here: kept, and nobody is asked."""

    group = "transaction"
    expected = REPAIRED
    sets = ("driver",)
    path: ClassVar[str] = "/etc/modprobe.d/nvidia-blacklists-nouveau.conf"

    def on(self, target: Target) -> None:
        target.run(f"echo '# the site' >>{self.path}")

        def edit(root: Path) -> None:
            (root / self.path.lstrip("/")).write_text("# another edition\nblacklist nouveau\n")

        target.change(target.deb("nvidia-kernel-support"), edit)

    def check(self, target: Target) -> None:
        assert target.run(f"tail -n 1 {self.path}") == "# the site"

    def off(self, target: Target) -> None:
        target.publish_well()
        target.run(f"sed -i '/# the site/d' {self.path}")


class _Script(Fault):
    group = "transaction"
    says = r"subprocess returned error exit status 1|error processing|script subprocess"
    script: ClassVar[str]

    def on(self, target: Target) -> None:
        def edit(root: Path) -> None:
            write_script(root / "DEBIAN" / self.script, "echo in the way of the site >&2; exit 1")

        target.change(target.deb(), edit)

    def off(self, target: Target) -> None:
        target.publish_well()


class PostinstFails(_Script):
    """One package of the set cannot be configured."""

    script = "postinst"


class PreinstFails(_Script):
    """One package of the set cannot be unpacked, when others already are."""

    script = "preinst"


class PostinstFailsOnAFreshNode(_Script):
    """Nothing was there before, and nothing may be there after."""

    script = "postinst"
    fresh = True


class FileOfSomebodyElse(Fault):
    """A file that a package of the set brings belongs to a package of the site."""

    group = "transaction"
    says = r"trying to overwrite '/opt/site/file', which is also in package site-files"
    move = "remove that package"

    def on(self, target: Target) -> None:
        target.install(package("site-files", file="/opt/site/file"))

        def edit(root: Path) -> None:
            (root / "opt/site").mkdir(parents=True)
            (root / "opt/site/file").write_text("theirs\n")

        target.change(target.deb(), edit)

    def off(self, target: Target) -> None:
        target.publish_well()
        target.run("dpkg --purge site-files")


class FileOfSomebodyElseOnAFreshNode(FileOfSomebodyElse):
    """As above, where nothing was there before."""

    fresh = True


class RuntimeRefusesToStart(Fault):
    """containerd does not start with the new file."""

    group = "runtime"
    sets = ("containerd",)
    says = "containerd.service did not come up"
    move = "journalctl -u containerd.service"

    def on(self, target: Target) -> None:
        target.node.fault("containerd", on=True)

    def off(self, target: Target) -> None:
        target.node.fault("containerd", on=False)
