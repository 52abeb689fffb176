"""Parameters of a repository's state: what may be given, and what goes together."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gpustate import State
from gpustate.states.repository.where import Repository
from gpustate.text import openpgp


@dataclass(frozen=True, slots=True)
class Observed:
    """The files of one repository, and what else on the node offers the same packages."""

    sources_text: str | None
    key_text: str | None
    fingerprints: tuple[str, ...]  # primary keys in the key file
    pin_text: str | None
    lists_read: bool  # this repository's package lists are there, read with these files
    foreign: tuple[str, ...]  # other sources of NVIDIA packages: file:line: address
    conflicts: tuple[str, ...]  # entries for the same address with another key
    cdroms: tuple[str, ...]  # enabled cdrom entries: apt may ask for a disc
    unread: tuple[str, ...]  # files of others whose repositories have no package lists here
    apt: bool
    where: Repository
    manager: str = "apt"
    key_access: str = ""  # owner and mode of the key file, where they are not as written
    folder_access: str = ""  # modes of the folders above it, where they keep apt's own user out
    imported: bool = False  # the key is in rpm's database because of this state
    half_bundle: bool = False  # what came of a bundle is there, and nothing reads it


#: What is one word in apt's files.
_WORD = r"^[A-Za-z0-9_./+~:@-]+$"


class RepositoryParameters(State[Observed]):
    """What both repositories share.

    Args:
        origin: ``vendor`` is NVIDIA's own, ``mirror`` an address of yours.
        url: address of the mirror, up to the folder that holds ``InRelease`` (flat) or ``dists``.
        suite: of a repository for apt: ``/`` for a flat one (NVIDIA's are), else a name such as ``stable``.
        components: of a repository with suites.
        signed: of a mirror for dnf or zypper, what is signed with the key: ``packages``, ``metadata`` or
            ``both``. Not given: as NVIDIA does it.
        key: the repository's armored public key: its text, an absolute path on the controller (read
            when the policy is built, so that a saved plan carries the key itself), or an http(s)
            address which the node reads; the last one wants ``fingerprint``.
        fingerprint: fingerprint of the key, 40 hexadecimal digits; checked before the key is used.
        exclusive: leave other sources of NVIDIA packages where they are and pin them away; without
            it such a node is refused.
        pin_priority: apt priority of this repository for its packages; dnf's and zypper's is fixed.
        refresh_days: read the package lists again when they are older; never, when not given.
    """

    url: str | None = None
    suite: Annotated[str, Field(pattern=_WORD)] = "/"
    components: tuple[Annotated[str, Field(pattern=_WORD)], ...] = ()
    signed: Literal["packages", "metadata", "both"] | None = None
    key: str | None = None
    fingerprint: str | None = None
    exclusive: bool = False
    pin_priority: Annotated[int, Field(ge=1, le=1000)] = 700
    refresh_days: Annotated[int, Field(ge=1)] | None = None

    @property
    @abstractmethod
    def source(self) -> str:
        """``vendor``, ``distribution`` or ``mirror``."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"(https?|file|mirror)(://|:/)\S+", value):
            raise ValueError("must be an http, https or file address")
        return value

    @field_validator("fingerprint")
    @classmethod
    def _digits(cls, value: str | None) -> str | None:
        plain = None if value is None else re.sub(r"[\s:]", "", value).upper()
        if plain is not None and not re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", plain):
            raise ValueError("must have 40 hexadecimal digits; a short key id does not pin a key")
        return plain

    @field_validator("key")
    @classmethod
    def _key_text(cls, value: str | None) -> str | None:
        if value is None or re.fullmatch(r"https?://\S+", value):
            return value
        if value.startswith("/"):
            try:
                with open(value, encoding="utf-8") as file:
                    value = file.read()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"the key file cannot be read ({error})") from None
        openpgp.fingerprints(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RepositoryParameters:
        if self.source == "mirror" and (not self.url or not self.key):
            raise ValueError("origin 'mirror' wants url and key")
        if self.source != "mirror" and self.url:
            raise ValueError(f"url belongs to origin 'mirror', this is {self.source!r}")
        if self.source == "distribution" and self.key:
            raise ValueError("the distribution's own key is used; leave key away")
        if self.key and self.key.startswith("http") and not self.fingerprint:
            raise ValueError("a key that the node fetches wants fingerprint")
        if self.key and self.fingerprint and not self.key.startswith("http"):
            have = openpgp.fingerprints(self.key)
            if self.fingerprint not in have:
                raise ValueError(
                    f"the key has fingerprint {', '.join(have)}, not {self.fingerprint}"
                )
        if self.suite.endswith("/") and self.components:
            raise ValueError("a flat repository (suite ending in '/') has no components")
        if not self.suite.endswith("/") and not self.components:
            raise ValueError(f"suite {self.suite!r} wants components, as ['main']")
        return self
