"""What goes wrong with repositories and with the room on a disk; see :mod:`packagefaults`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from packagefaults import REPAIRED, UNTOUCHED, Fault, Target
from packageserver import Answer, date

# --- the repository's index ------------------------------------------------------------------------


class _Index(Fault):
    """The node has to read the lists anew, and cannot."""

    group = "repository"

    def on(self, target: Target) -> None:
        target.editions[target.sets] += 1
        self.spoil(target)

    def spoil(self, target: Target) -> None:
        raise NotImplementedError

    def rule(self, target: Target, pattern: str, answer: Answer) -> None:
        target.server.shelf(target.node.name).rules.append((pattern, answer))

    def off(self, target: Target) -> None:
        target.server.clear(target.node.name)


class IndexCorrupted(_Index):
    """The index is not the one that was signed."""

    says = r"Hash Sum mismatch|unexpected size"

    def spoil(self, target: Target) -> None:
        for name in ("Packages", "Packages.gz"):
            path = f"{target.repository}/{name}"
            body = (target.server.root / path).read_bytes()
            target.server.shelf(target.node.name).files[path] = body[:-40] + bytes(40)


class IndexCorruptedOnAFreshNode(IndexCorrupted):
    """As above, where nothing was there before."""

    fresh = True


class ReleaseExpired(_Index):
    """The mirror is kept up to date no longer (Valid-Until)."""

    says = r"is expired"
    move = "no longer updated"

    def spoil(self, target: Target) -> None:
        release = {"Date": date(-72), "Valid-Until": date(-24)}
        target.server.publish(target.node.name, target.repository, release=release)


class ReleaseFromTheFuture(_Index):
    """The node's clock is slow, or the publisher's is fast."""

    says = r"is not valid yet"
    move = "clock"

    def spoil(self, target: Target) -> None:
        target.server.publish(target.node.name, target.repository, release={"Date": date(30)})


class SignedByAStranger(_Index):
    """The repository is signed with a key that the policy does not name."""

    says = r"NO_PUBKEY|Missing key|not signed|verification failed"
    move = "key and fingerprint"

    def spoil(self, target: Target) -> None:
        stranger = target.server.stranger()
        target.server.publish(target.node.name, target.repository, key=stranger)


class NotSigned(_Index):
    """There is no signature at all."""

    says = r"not signed"
    move = "key and fingerprint"

    def spoil(self, target: Target) -> None:
        self.rule(target, r"/(InRelease|Release\.gpg)$", Answer(404))


class NoRepository(_Index):
    """There is nothing at the address."""

    says = r"404|does not have a Release file"
    move = "correct its address"

    def spoil(self, target: Target) -> None:
        self.rule(target, rf"^{re.escape(target.repository)}/", Answer(404))


class Unreachable(_Index):
    """The server closes every connection."""

    says = r"server closed|Connection|reading from server|Undetermined"
    move = "can reach the repository"

    def spoil(self, target: Target) -> None:
        self.rule(target, rf"^{re.escape(target.repository)}/", Answer(0))


class AnotherLabel(_Index):
    """A repository at another address calls itself something else: nothing has to be accepted."""

    expected = REPAIRED

    def spoil(self, target: Target) -> None:
        target.server.publish(
            target.node.name, target.repository, release={"Label": "another", "Origin": "another"}
        )

    def off(self, target: Target) -> None:
        target.publish_well()


class IndexMovedOn(_Index):
    """The mirror was updated after the node read its lists: they are read again."""

    expected = REPAIRED
    release: ClassVar[Mapping[str, str]] = {}

    def on(self, target: Target) -> None:
        def edit(root: Path) -> None:
            (root / "usr/share").mkdir(parents=True, exist_ok=True)
            (root / "usr/share/site").write_text("built again\n")

        target.forget_downloads()
        target.change(target.deb(), edit, self.release)
        target.editions[target.sets] -= 1

    def check(self, target: Target) -> None:
        assert target.run("cat /usr/share/site") == "built again"

    def off(self, target: Target) -> None:
        target.publish_well()


class LabelChanged(IndexMovedOn):
    """As above, and it calls itself something else than when its lists were first read."""

    expected = UNTOUCHED
    says = r"changed its 'Label' value"
    move = "--allow-releaseinfo-change"
    release: ClassVar[Mapping[str, str]] = {"Label": "another"}

    def check(self, target: Target) -> None:
        """Nothing of it was taken."""


class NeedsWhatIsNotThere(_Index):
    """A package of the set depends on one that no repository has."""

    says = r"unmet dependencies|generated breaks|Unable to|impossible situation"
    move = "a missing package prevents it"

    def spoil(self, target: Target) -> None:
        name = re.escape(target.member)
        version = re.escape(target.version)
        stanza = rf"(Package: {name}\nVersion: {version}\n(?:.*\n)*?)(Depends: |Description: )"

        def edit(index: str) -> str:
            def add(found: re.Match[str]) -> str:
                if found.group(2) == "Depends: ":
                    return f"{found.group(1)}Depends: site-nowhere, "
                return f"{found.group(1)}Depends: site-nowhere\nDescription: "

            changed, count = re.subn(stanza, add, index, count=1)
            assert count == 1
            return changed

        target.server.publish(target.node.name, target.repository, edit=edit)

    def off(self, target: Target) -> None:
        target.publish_well()


class TooBigForTheDisk(_Index):
    """The packages need more room than /usr has."""

    says = r"/usr has \d+ MiB free, and the packages need \d+ MiB"
    move = "free disk space"

    def spoil(self, target: Target) -> None:
        def edit(index: str) -> str:
            name, version = re.escape(target.member), re.escape(target.version)
            head = rf"(Package: {name}\nVersion: {version}\n)"
            changed, count = re.subn(head, r"\g<1>Installed-Size: 900000000\n", index)
            assert count == 1
            return changed

        target.server.publish(target.node.name, target.repository, edit=edit)

    def off(self, target: Target) -> None:
        target.publish_well()


# --- packages on their way ---------------------------------------------------------------------------


class _Download(Fault):
    """A package cannot be had."""

    group = "download"
    answer: ClassVar[Answer]

    def on(self, target: Target) -> None:
        target.forget_downloads()
        rules = target.server.shelf(target.node.name).rules
        rules.append((rf"/{re.escape(target.deb())}$", self.answer))

    def off(self, target: Target) -> None:
        target.server.clear(target.node.name)


class PackageGone(_Download):
    """The index names a package that the mirror has deleted."""

    says = r"404"
    move = "update the mirror"
    answer = Answer(404)


class PackageCutShort(_Download):
    """The connection breaks in the middle of a package, every time."""

    says = r"closed|Connection|reading from server|unexpected size|Hash Sum|Undetermined"
    answer = Answer(sent=300)


class PackageDamaged(_Download):
    """A package has other bytes than the index says, and as many."""

    says = r"Hash Sum mismatch"

    def on(self, target: Target) -> None:
        super().on(target)
        path = f"{target.repository}/{target.deb()}"
        body = (target.server.root / path).read_bytes()
        target.server.shelf(target.node.name).files[path] = body[:-100] + bytes(100)

    answer = Answer()


class PackageTruncated(_Download):
    """A package is shorter in the mirror than the index says."""

    says = r"unexpected size|Hash Sum mismatch"
    answer = Answer(body=b"!<arch>\n")


class ServerStopsInTheMiddle(_Download):
    """The server dies after the first two packages."""

    says = r"closed|Connection|reading from server|Undetermined"
    move = "can reach the repository"

    def on(self, target: Target) -> None:
        super().on(target)
        shelf = target.server.shelf(target.node.name)
        shelf.rules[:] = [(r"\.deb$|Release$", Answer(0, after=2))]

    answer = Answer()


class ServerStalls(_Download):
    """The server takes the connection and sends nothing."""

    says = r"timed out|closed|Connection|reading from server"
    move = "can reach the repository"
    answer = Answer(0, wait_s=6)

    def on(self, target: Target) -> None:
        super().on(target)
        target.write(
            "/etc/apt/apt.conf.d/99site", 'Acquire::http::Timeout "2";\nAcquire::Retries "0";\n'
        )

    def off(self, target: Target) -> None:
        super().off(target)
        target.run("rm -f /etc/apt/apt.conf.d/99site")


# --- room on disks -------------------------------------------------------------------------------


class _Disk(Fault):
    """A small filesystem lies over a folder; what was there before is in it, if ``copied``."""

    group = "disk"
    says = r"No space left on device|enough free space|cannot be kept|has [0-9]+ MiB free"
    move = "free disk space"
    folder: ClassVar[str]
    size: ClassVar[str] = "64k"
    copied: ClassVar[bool] = False
    fill: ClassVar[bool] = True

    def on(self, target: Target) -> None:
        copy = "cp -a {0}/. /run/site-disk/; " if self.copied else ""
        fill = "dd if=/dev/zero of=/run/site-disk/filled bs=1k 2>/dev/null; " if self.fill else ""
        target.run(
            f"mkdir -p /run/site-disk {self.folder}; mount -t tmpfs -o size={self.size} site /run/site-disk; "
            + copy.format(self.folder)
            + fill
            + f"mount --move /run/site-disk {self.folder} || {{ mount --bind /run/site-disk {self.folder}; umount -l /run/site-disk; }}"
        )

    def off(self, target: Target) -> None:
        target.run(f"umount -l {self.folder}; rmdir /run/site-disk")


class ArchivesFull(_Disk):
    """There is no room for what is downloaded."""

    folder = "/var/cache/apt/archives"

    def on(self, target: Target) -> None:
        super().on(target)
        target.run("mkdir -p /var/cache/apt/archives/partial", check=False)


class UsrFullWhileUnpacking(_Disk):
    """A filesystem below /usr fills up in the middle of the transaction."""

    folder = "/usr/lib/firmware"
    sets = ("driver",)
    copied = True
    size = "256k"


class BootFull(_Disk):
    """/boot has no room for an initramfs."""

    folder = "/boot"
    copied = True
    size = "1m"
    says = r"/boot has 0 MiB free"


class StateFolderFull(_Disk):
    """gpustate's own folder has no room."""

    folder = "/var/lib/gpustate"
    copied = True
    size = "4m"
    says = r"room|space|full|written"
    move = ""


class UsrReadOnly(Fault):
    """/usr was mounted read-only after an error of the disk."""

    group = "disk"
    says = r"preflight: /usr cannot be written"
    move = "mount them read-write"

    def on(self, target: Target) -> None:
        target.run("mount --bind /usr /usr; mount -o remount,ro,bind /usr")

    def off(self, target: Target) -> None:
        target.run("umount -l /usr")
