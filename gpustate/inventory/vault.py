"""Decrypt Ansible Vault values in an inventory, with the same passwords as Ansible.

Format 1.1 and 1.2 (with a vault id), cipher AES256. Passwords come from files, from programs that print one, or
from a prompt, and are read when first needed. Only needed values are decrypted. Of several passwords the one with
the value's vault id is tried first, as in Ansible.

Sources:
    Ansible, "Protecting sensitive data with Ansible vault": vault ids, password files and client scripts,
    "Ansible Vault payload format 1.1 - 1.2": the digest of the cipher text is checked before anything else.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.errors import InventoryError
from gpustate.formats.masking import remember
from gpustate.formats.words import quote
from gpustate.inventory import executable
from gpustate.inventory.files import read_text

HEADER = "$ANSIBLE_VAULT;"
HINT = (
    "pass --vault-password-file FILE, --vault-id LABEL@FILE or --ask-vault-pass, or set"
    " ANSIBLE_VAULT_PASSWORD_FILE"
)
_DEFAULT = "default"
_ITERATIONS = 10_000
_BLOCK_BITS = 128


class NotEncryptedError(ValueError):
    """Invalid encrypted text."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of one password.

    Args:
        label: its vault id.
        path: of a file, or of a program that prints it; empty for a prompt.
    """

    label: str
    path: str = ""


def sources(
    ids: Iterable[str], files: Iterable[str], *, query: bool, environment: Mapping[str, str]
) -> tuple[Source, ...]:
    """Password sources from Ansible's options and variables."""
    listed = [
        word.strip() for word in environment.get("ANSIBLE_VAULT_IDENTITY_LIST", "").split(",")
    ]
    named = [word for word in (*listed, *ids) if word]
    parsed: list[Source] = []
    for word in named:
        label, at, source = word.rpartition("@")
        parsed.append(
            Source(label if at and label else _DEFAULT, "" if source == "prompt" else source)
        )
    paths = list(files)
    if not paths and (path := environment.get("ANSIBLE_VAULT_PASSWORD_FILE", "")):
        paths.append(path)
    parsed += (Source(_DEFAULT, path) for path in paths)
    if query:
        parsed.append(Source(_DEFAULT))
    return tuple(dict.fromkeys(parsed))


@dataclass(slots=True)
class Vault:
    """The passwords of one run, and the values decrypted with them.

    Args:
        sources: in the order they are tried.
        query: prompts for the password of a vault id; ``None`` without a terminal.
    """

    sources: Sequence[Source] = ()
    query: Callable[[str], str] | None = None
    _passwords: dict[Source, bytes] = field(default_factory=dict[Source, bytes], repr=False)
    _texts: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def usable(self) -> bool:
        """Whether there is a password source that may be used without an unannounced prompt."""
        return bool(self.sources)

    def decrypt(self, text: str, place: str) -> str:
        """Decrypt a value or file, and register the clear text as a secret.

        Raises:
            InventoryError: no password, a wrong password, or invalid text.
        """
        with self._lock:
            clear = self._texts.get(text)
            if clear is None:
                clear = self._texts[text] = self._decrypt(text, place)
            return clear

    def _decrypt(self, text: str, place: str) -> str:
        if not self.sources and self.query is not None:
            self.sources = (Source(_DEFAULT),)
        if not self.sources:
            raise InventoryError(
                "is encrypted with Ansible Vault, and there is no password for it",
                place=place,
                fix=HINT,
            )
        try:
            label, salt, digest, data = _parts(text)
        except NotEncryptedError as error:
            raise InventoryError(f"is not valid Ansible Vault text: {error}", place=place) from None
        order = sorted(self.sources, key=lambda source: source.label != label)
        for source in order:
            clear = _opened(self._password(source), salt, digest, data)
            if clear is None:
                continue
            try:
                return clear.decode("utf-8")
            except UnicodeDecodeError:
                raise InventoryError("is not UTF-8 after decryption", place=place) from None
        tried = ", ".join(dict.fromkeys(source.label for source in order))
        vault_id = f" (its vault id is {quote(label)})" if label else ""
        raise InventoryError(
            f"cannot be decrypted: wrong password{vault_id}, tried those of {tried}",
            place=place,
            fix=f"check the password: ansible-vault view {place.rpartition(':')[0] or place}",
        )

    def _password(self, source: Source) -> bytes:
        password = self._passwords.get(source)
        if password is None:
            word = self._prompt(source.label) if not source.path else _from_file(source)
            if not word:
                raise InventoryError("contains no password", place=source.path or source.label)
            remember(word)
            password = self._passwords[source] = word.encode("utf-8", "surrogateescape")
        return password

    def _prompt(self, label: str) -> str:
        if self.query is None:
            raise InventoryError(
                f"cannot prompt for the vault password of {quote(label)}: stdin is not a terminal",
                fix="pass a file or a program that prints it: --vault-password-file FILE",
            )
        return self.query(label)


def _from_file(source: Source) -> str:
    """Read a password from a file or a program, stripped."""
    path = os.path.expanduser(source.path)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InventoryError(
            f"the vault password cannot be read: {error.strerror}", place=source.path
        ) from error
    if stat.S_ISREG(mode) and os.access(path, os.X_OK):
        client = os.path.splitext(os.path.basename(path))[0].endswith("-client")
        return executable.run(path, *(("--vault-id", source.label) if client else ())).strip()
    return read_text(path).strip()


def _parts(text: str) -> tuple[str, bytes, bytes, bytes]:
    """Vault id, salt, digest and encrypted bytes."""
    header, _, body = text.strip().partition("\n")
    words = [word.strip() for word in header.split(";")]
    if words[0] != "$ANSIBLE_VAULT" or len(words) < 3:
        raise NotEncryptedError("its first line is not $ANSIBLE_VAULT;VERSION;CIPHER")
    if words[1] not in ("1.1", "1.2"):
        raise NotEncryptedError(f"format {quote(words[1])}, wanted 1.1 or 1.2")
    if words[2] != "AES256":
        raise NotEncryptedError(f"cipher {quote(words[2])}, wanted AES256")
    try:
        inner = bytes.fromhex("".join(body.split()))
        salt, digest, data = (bytes.fromhex(part.decode("ascii")) for part in inner.split(b"\n", 2))
    except (ValueError, UnicodeDecodeError):
        raise NotEncryptedError("it is truncated or was modified") from None
    return (words[3] if len(words) > 3 else ""), salt, digest, data


def _opened(password: bytes, salt: bytes, digest: bytes, data: bytes) -> bytes | None:
    """The decrypted bytes; ``None`` if the password is wrong."""
    keys = hashlib.pbkdf2_hmac("sha256", password, salt, _ITERATIONS, 80)
    if not hmac.compare_digest(hmac.digest(keys[32:64], data, "sha256"), digest):
        return None
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    decryptor = Cipher(algorithms.AES(keys[:32]), modes.CTR(keys[64:80])).decryptor()
    padded = decryptor.update(data) + decryptor.finalize()
    unpadder = PKCS7(_BLOCK_BITS).unpadder()
    try:
        return unpadder.update(padded) + unpadder.finalize()
    except ValueError:
        return None
