"""What a node says about Secure Boot, and the fragment that asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.formats import certificates, keyed
from gpustate.formats.certificates import Certificate, Listed
from gpustate.ops.modsign import CERTIFICATE_PATH, DEFAULTS, FOLDER

CONF_PATH = "/etc/dkms/framework.conf.d/gpustate.conf"
#: A password that was made and is not handed over yet; on no disk.
PASSWORD_PATH = "/run/gpustate/mok-password"
NONE, QUEUED, ENROLLED = "none", "queued", "enrolled"
#: Programs that make and enrol a key; their packages have the same names.
TOOLS = ("openssl", "mokutil")


@dataclass(frozen=True, slots=True)
class Firmware:
    """Keys of a node.

    Args:
        on: Secure Boot is on.
        own: both files of our own pair are there, and only root can read the private one.
        lacks: programs that are not there.
        certificate: what DKMS signs with as it is set up now; ``None``: there is no such pair.
        ours: the certificate of our own pair.
        enrolled, queued: lists of the firmware.
        keyring: keys that the kernel has, their identifier to their name.
        untold: the password of a queued enrolment was not handed over.
        prebuilt: kernels for which Ubuntu offers modules that it has signed.
        brought: packages came along with the state.
    """

    on: bool = False
    own: bool = False
    lacks: tuple[str, ...] = ()
    certificate: Certificate | None = None
    ours: Certificate | None = None
    enrolled: tuple[Listed, ...] = ()
    queued: tuple[Listed, ...] = ()
    keyring: Mapping[str, str] | None = None
    untold: bool = False
    prebuilt: tuple[str, ...] = ()
    brought: bool = False

    def enrolment(self, certificate: Certificate | None) -> str:
        """How far the enrolment of a certificate is."""
        if certificate is None:
            return NONE
        if certificate.key_id and certificate.key_id in (self.keyring or {}):
            return ENROLLED
        if any(key.fingerprint == certificate.fingerprint for key in self.enrolled):
            return ENROLLED
        waits = any(key.fingerprint == certificate.fingerprint for key in self.queued)
        return QUEUED if waits and not self.untold else NONE

    def trusts(self, signer: str | None, serial: str | None) -> bool:
        """The firmware or the kernel has the key that a module is signed with."""
        if signer is None:
            return False
        serials = {key.serial for key in self.enrolled}
        return certificates.digits(serial or "") in serials - {""} or signer in set(
            (self.keyring or {}).values()
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """Keys and signatures of a node; the fields from ``on`` on are facts that decide."""

    tools: bool  # openssl and mokutil
    brought: bool  # by this state
    own: bool
    conf_text: str | None
    signed: dict[str, bool]  # kernel: the firmware knows who signed its nvidia module, or will
    enrolment: str
    on: bool
    certificate: Certificate | None  # what is or is to be enrolled
    lacks: tuple[str, ...]
    others_wait: bool  # a foreign key waits to be enrolled
    modules: dict[str, str]  # kernel: folder of modules that DKMS built
    unsigned: dict[str, str]  # kernel: who signed a module that nobody knows
    prebuilt: bool  # Ubuntu offers signed modules for every kernel that can boot
    manager: str
    image: bool


@dataclass(frozen=True, slots=True)
class FirmwareQuery(Query[Firmware]):
    """Everything :class:`Firmware` holds; next to nothing where Secure Boot is off."""

    def script(self) -> str:
        pairs = " ".join(f"{name} {key}" for name, key in DEFAULTS.items())
        words = {"PASSWORD": PASSWORD_PATH, "FOLDER": FOLDER, "PAIRS": pairs}
        return shell.load("firmware", "gpustate.states.secure_boot", **words)

    def parse(self, answer: Answer) -> Firmware:
        parts = re.split(r"^=(\w+)\n", answer.text, flags=re.MULTILINE)
        lists = dict(zip(parts[1::2], parts[2::2], strict=True))
        head, *pairs = re.split(r"^certificate=", parts[0], flags=re.MULTILINE)
        keys = keyed.lists(head)
        by_path: dict[str, Certificate] = {}
        for text in pairs:
            first, _, body = text.partition("\n")
            path, _, private = first.rpartition("|")
            certificate = certificates.parse_openssl(body, path, private=private == "1")
            if certificate is not None:
                by_path[path] = certificate
        ubuntu = keys.get("id") == ["ubuntu"]
        path = keyed.first(keys, "conf") or [*DEFAULTS][0 if ubuntu else 1]
        signing = by_path.get(path)
        return Firmware(
            on="on" in keys,
            own=keys.get("own") in (["600"], ["400"]),
            lacks=tuple(keys.get("lacks", ())),
            certificate=signing if signing is not None and signing.private else None,
            ours=by_path.get(CERTIFICATE_PATH),
            enrolled=certificates.parse_mokutil(lists.get("enrolled", "")),
            queued=certificates.parse_mokutil(lists.get("queued", "")),
            keyring=certificates.parse_keys(lists.get("keyring", "")),
            untold="untold" in keys,
            prebuilt=tuple(lists.get("prebuilt", "").split()),
            brought="brought" in keys,
        )

    def placeholder(self) -> Firmware:
        return Firmware()
