"""Parameters of a repository's state: what may be given, and what goes together."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from gpustate import State
from gpustate.core.parameter_errors import pattern, together
from gpustate.formats import aptsources, openpgp
from gpustate.formats.masking import remember, unquoted
from gpustate.states.repository import logins
from gpustate.states.repository.where import Repository


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
    unread: tuple[str, ...]  # others without package lists here: files of apt's, ids of rpm's
    apt: bool
    where: Repository
    manager: str = "apt"
    key_access: str = ""  # owner and mode of the key file, where they are not as written
    folder_access: str = ""  # modes of the folders above it, where they keep apt's own user out
    imported: bool = False  # the key is in rpm's database because of this state
    logins: tuple[tuple[str, str], ...] = ()  # files with user and password: path and text
    half_bundle: bool = False  # what came of a bundle is there, and nothing reads it
    offered: bool = False  # other repositories have the packages, and this one is not there


#: What is one word in apt's files.
_WORD = pattern(r"^[A-Za-z0-9_./+~:@-]+$", "a word without spaces and special characters")


#: What every one of the three files holds as it is: no blanks, no quote or comment ahead.
_LOGIN = r"^[!$-~][!-~]*$"
_LOGIN_WORDS = "a word without spaces and quotation marks that does not begin with #"


class RepositoryParameters(State[Observed]):
    """What both repositories share.

    Args:
        origin: ``vendor`` is NVIDIA's own, ``mirror`` an address of yours.
        url: address of the mirror, up to the folder that holds ``InRelease`` (flat) or ``dists``.
        username, password: of a private repository. The node keeps them in a file of root's alone: apt's
            ``auth.conf.d``, a variable of dnf, zypper's credentials; ``user:password@`` in ``url`` means the same.
        suite: of a repository for apt: ``/`` for a flat one (NVIDIA's are), else a name such as ``stable``.
        components: of a repository with suites.
        signed: ``nothing`` where a mirror has no signatures, for apt as well; else of a mirror for dnf or zypper, what is
            signed with the key: ``packages``, ``metadata`` or ``both``. Not given: as NVIDIA does it.
        key: the repository's armored public key: its text, an absolute path on the controller (read
            when the policy is built, so that a saved plan carries the key itself), or an http(s)
            address which the node reads; the last one wants ``fingerprint``.
        fingerprint: fingerprint of the key, 40 hexadecimal digits; checked before the key is used.
        exclusive: leave other sources of NVIDIA packages where they are and pin them away; without
            it such a node is refused.
        pin_priority: apt priority of this repository for its packages; dnf's and zypper's is fixed.
        refresh_days: read the package lists again when they are older; never, when not given.
        unless_offered: leave a node alone of which other repositories have the packages.
    """

    labels: ClassVar[Mapping[str, str]] = {
        "fingerprints": "trusted keys",
        "pin_text": "pin file",
        "key_access": "permissions of the key",
        "folder_access": "permissions of the key's folder",
        "imported": "key is imported into rpm",
        "logins": "logins of the repository",
        "half_bundle": "remove a half-unpacked bundle",
    }

    url: str | None = None
    username: Annotated[str, pattern(_LOGIN, _LOGIN_WORDS)] | None = None
    password: (
        Annotated[str, pattern(_LOGIN, _LOGIN_WORDS, json_schema_extra={"writeOnly": True})] | None
    ) = None
    suite: Annotated[str, _WORD] = "/"
    components: tuple[Annotated[str, _WORD], ...] = ()
    signed: Literal["packages", "metadata", "both", "nothing"] | None = None
    key: str | None = None
    fingerprint: str | None = None
    exclusive: bool = False
    pin_priority: Annotated[int, Field(ge=1, le=1000)] = 700
    refresh_days: Annotated[int, Field(ge=1)] | None = None
    unless_offered: bool = False

    @property
    @abstractmethod
    def source(self) -> str:
        """``vendor``, ``distribution`` or ``mirror``."""

    @model_validator(mode="after")
    def _login_apart(self) -> RepositoryParameters:
        """Take user and password out of addresses: they have parameters of their own."""
        for name in ("url", "key"):
            address, user, password = logins.split(getattr(self, name) or "")
            if user is None:
                continue
            login = {"username": unquoted(user), "password": unquoted(password or "")}
            for field, word in login.items():
                remember(word if field == "password" else None)
                if word and getattr(self, field) not in (None, word):
                    raise ValueError(f"{name} has another {field} than the parameter {field}")
                if word and not re.fullmatch(_LOGIN, word):
                    raise ValueError(f"{name}: its {field} has characters that apt cannot read")
            # The model is frozen for everybody else.
            fields = {key: word for key, word in login.items() if word}
            for field, word in ((name, address), *fields.items()):
                object.__setattr__(self, field, word)
            self.__pydantic_fields_set__.update(fields)
        return self

    @field_validator("password")
    @classmethod
    def _remembered(cls, value: str | None) -> str | None:
        remember(value)
        return value

    @property
    def login(self) -> logins.Login | None:
        """User and password, where the repository is private."""
        return logins.Login(self.username, self.password or "") if self.username else None

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
        elif re.fullmatch(r"[^\s:]*[./][^\s:]*", value):
            raise ValueError(
                f"{value} is a relative path; wanted an absolute one, the key's text, or an http(s) address"
            )
        openpgp.fingerprints(value)
        return value

    @together
    def _consistent(self) -> RepositoryParameters:
        if self.signed == "nothing" and (self.key or self.source != "mirror"):
            raise ValueError("signed: nothing belongs to an origin 'mirror' without key")
        if self.source == "mirror" and not (self.url and (self.key or self.signed == "nothing")):
            raise ValueError(
                "origin 'mirror' needs url and key; without signatures, signed: nothing"
            )
        if self.source != "mirror" and self.url:
            raise ValueError(f"url belongs to origin 'mirror', this is {self.source!r}")
        if (self.username or self.password) and self.source != "mirror":
            raise ValueError(
                f"username and password belong to origin 'mirror', this is {self.source!r}"
            )
        if self.username and not self.password:
            raise ValueError("a username needs a password; a token is the password of any username")
        if self.password and not self.username:
            raise ValueError("a password needs a username")
        if self.username and self.key and self.key.startswith("http"):
            host = aptsources.uri_host(self.url or "")
            if aptsources.uri_host(self.key) != host:
                raise ValueError(
                    f"key is on another host than url ({host}), which the password is for; give the key's text or file"
                )
        if self.source == "distribution" and self.key:
            raise ValueError("the distribution's own key is used; remove key")
        if self.key and self.key.startswith("http") and not self.fingerprint:
            raise ValueError("a key that the node fetches needs fingerprint")
        if self.key and self.fingerprint and not self.key.startswith("http"):
            have = openpgp.fingerprints(self.key)
            if self.fingerprint not in have:
                raise ValueError(
                    f"the key has fingerprint {', '.join(have)}, not {self.fingerprint}"
                )
        if self.suite.endswith("/") and self.components:
            raise ValueError("a flat repository (suite ending in '/') has no components")
        if not self.suite.endswith("/") and not self.components:
            raise ValueError(f"suite {self.suite!r} needs components, as [main]")
        return self
