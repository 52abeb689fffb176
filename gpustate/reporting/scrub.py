"""Mask secrets in foreign text: logs and configuration of other programs, whose secrets nobody has registered.

Known secrets are masked everywhere, see :mod:`gpustate.formats.masking`. Here names count as well: the value of
``password = ...``, ``token: ...``, ``--api-key ...``, credentials of HTTP, and private keys. What looks like a secret and
is none is masked too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpustate.formats.masking import MASK, is_secret_name, mask

_WORDS = (
    r"password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|client[_-]?key[_-]?data"
    r"|identitytoken|authorization|credentials?|\bauth|webhook"
)
#: A name, an equals sign or colon, and a value: in quotes or to the end of the word.
_SETTING = re.compile(
    rf"""(?ix)(?P<name>["']?[\w.-]*(?:{_WORDS})["']?[ \t]*[=:][ \t]*)
    (?P<value>"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|(?:(?:basic|bearer|negotiate)\s+)?[^\s"',;\]}}&]+)"""
)
_FLAG = re.compile(rf"(?i)(?P<name>--?[\w-]*(?:{_WORDS})\s+)(?P<value>[^\s-][^\s\"',;]*)")
_SCHEME = re.compile(r"(?i)\b(?P<name>(?:basic|bearer)\s+)(?P<value>[A-Za-z0-9+/=._~-]{8,})")
_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.S
)
#: What can follow such a name and tells nothing.
_PLAIN = frozenset(("true", "false", "none", "null", "yes", "no", "on", "off", "{", "[", "|", ">"))


def scrub(text: str) -> str:
    """Mask secrets."""
    text = _KEY.sub(MASK, mask(text))
    for pattern in (_SETTING, _FLAG, _SCHEME):
        text = pattern.sub(_replaced, text)
    return text


def scrub_data(data: Any) -> Any:
    """Mask secrets in plain data: in each text, and values whose key names a secret."""
    if isinstance(data, str):
        return scrub(data)
    if isinstance(data, Mapping):
        return {
            key: MASK if _is_secret(str(key), value) else scrub_data(value)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [scrub_data(one) for one in data]
    return data


def _is_secret(name: str, value: object) -> bool:
    return isinstance(value, str) and value.lower() not in ("", *_PLAIN) and is_secret_name(name)


def _replaced(found: re.Match[str]) -> str:
    value = found["value"]
    bare = value.strip("\"'")
    if not bare or bare.lower() in _PLAIN or bare == MASK:
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{found['name']}{quote}{MASK}{quote}"
