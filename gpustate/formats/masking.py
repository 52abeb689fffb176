"""Mask secrets in all output: documents, messages, journals.

Two rules. A value known to be a secret (decrypted, printed by a command, a repository's password) is registered
once, and masked wherever it occurs. URLs lose user and password, known or not, including those of foreign
repositories on a node.

Short values are masked only as a whole: a secret ``1`` would hide every ``1`` of a plan. Keywords (``true``,
``present``) are never secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "(secret)"

_ADDRESS = re.compile(r"(?i)\b((?:https?|ftps?|mirror(?:\+https?)?|socks5h?)://)([^/@\s\"'<>?#]+)@")
_NAMED = re.compile(
    r"""(?ix) (?: pass(?:word|wd|phrase|code) | secret | token | credential | webhook | authorization | cookie
    | (?:api|access|private|secret|account|shared|signing|encryption|auth) [._-]? key | client[_-]?key[_-]?data
    | (?:^|[._-]) (?:signature|pass|pw|pwd|auth|sig|psk) | (?-i:[a-z](?:Pass|Pwd)) | ^x-[\w-]+-key
    ) (?: s | [._-]? (?:data|base64|value|stdin) )? $"""
)
_LEAST = 4
_DIGITS_LEAST = 8
_PLAIN_WORDS = frozenset(
    (
        *("true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default", "present"),
        *("absent", "root", "latest", "enabled", "disabled", "open", "proprietary"),
    )
)
#: Keys that identify documents, never user values.
_STRUCTURE = frozenset(
    (
        *("format", "id", "run", "created", "name", "state", "status", "outcome", "field"),
        *("fingerprint", "disruption", "worst", "verb", "layer"),
    )
)


class _Secrets:
    """The secrets of this process. Threads only add; the pattern is rebuilt when it is next needed."""

    def __init__(self) -> None:
        self.values: set[str] = set()
        self.readable: set[str] = set()
        self.pattern: re.Pattern[str] | None = None
        self.version = 0
        self.made_of = 0


_SECRETS = _Secrets()


def remember(value: object) -> None:
    """Register a secret: a text, or every text in a list or mapping."""
    if isinstance(value, Mapping):
        for item in value.values():
            remember(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            remember(item)
    elif isinstance(value, str):
        text = str(value)
        for form in (text, text.strip(), *_long_lines(text)):
            plain = not form.strip() or form == MASK or form.lower() in _PLAIN_WORDS
            if not plain and form not in _SECRETS.readable and form not in _SECRETS.values:
                _SECRETS.values.add(form)
                _SECRETS.version += 1


def keep_readable(words: Iterable[str]) -> None:
    """Never mask these words: documents without names of nodes and groups would be useless."""
    _SECRETS.readable.update(words)
    _SECRETS.values.difference_update(_SECRETS.readable)
    _SECRETS.version += 1


def _long_lines(text: str) -> Iterable[str]:
    """The lines of a multi-line secret, which is printed line by line."""
    lines = text.splitlines()
    return [line.strip() for line in lines if len(line.strip()) >= 8] if len(lines) > 1 else ()


def remember_parameters(data: object) -> None:
    """Register secrets by the names of parameters and variables, and passwords in URLs."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            # A variable of a container is a pair of name and value.
            name = data.get("name", key) if key == "value" else key
            if isinstance(value, str) and is_secret_name(str(name)):
                remember(value)
            else:
                remember_parameters(value)
    elif isinstance(data, list | tuple):
        for value in data:
            remember_parameters(value)
    elif isinstance(data, str) and "@" in data:
        for match in _ADDRESS.finditer(data):
            password = match[2].partition(":")[2] or match[2]
            remember(password)
            remember(unquoted(password))


def is_secret_name(name: str) -> bool:
    """Whether a parameter or variable is a secret by its name, and not the location of one."""
    return bool(_NAMED.search(name))


def unquoted(text: str) -> str:
    """Decode percent escapes in a part of a URL."""
    data = re.sub(
        rb"%([0-9a-fA-F]{2})",
        lambda match: bytes((int(match[1], 16),)),
        text.encode("utf-8", "surrogateescape"),
    )
    return data.decode("utf-8", "replace")


def forget_all() -> None:
    """Forget all secrets; for tests."""
    _SECRETS.values.clear()
    _SECRETS.readable.clear()
    _SECRETS.pattern = None
    _SECRETS.version += 1


def contains_secret(text: str) -> bool:
    """Whether a text contains a known secret."""
    pattern = _pattern()
    match = pattern.search(text.replace(MASK, "")) if pattern is not None else None
    return match is not None or text.strip() in _SECRETS.values


def mask(text: str) -> str:
    """Mask the secrets in a text; existing masks stay."""
    if "@" in text:
        text = _ADDRESS.sub(rf"\1{MASK}@", text)
    if not _SECRETS.values:
        return text
    if text in _SECRETS.values:
        return MASK
    pattern = _pattern()
    return text if pattern is None else pattern.sub(MASK, text)


def mask_data(data: Any) -> Any:
    """Mask the secrets in plain data; returns the same object if there are none."""
    return _masked_data(data) if _needs_masking(data) else data


def _needs_masking(data: Any) -> bool:
    """Whether plain data may contain a secret: a fast check, as nearly all data contain none."""
    secrets, pattern = _SECRETS.values, _pattern()
    stack = [data]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is str:
            if ("@" in item and "://" in item) or (
                secrets and (item in secrets or (pattern is not None and pattern.search(item)))
            ):
                return True
        elif kind is dict:
            stack.extend(item)
            stack.extend(item.values())
        elif kind is list or kind is tuple:
            stack.extend(item)
        elif isinstance(item, Mapping):
            stack.extend(item)
            stack.extend(item.values())
    return False


def _masked_data(data: Any) -> Any:
    if isinstance(data, str):
        return mask(data)
    if isinstance(data, Mapping):
        return {
            _masked_key(key): value
            if key in _STRUCTURE and isinstance(value, str)
            else _masked_data(value)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        items = map(_masked_data, data)
        return tuple(items) if isinstance(data, tuple) else list(items)
    return data


def _masked_key(key: Any) -> Any:
    """Mask a key, which may be a user's value such as a file name."""
    return mask(key) if isinstance(key, str) and (len(key) >= 8 or "@" in key) else key


def _pattern() -> re.Pattern[str] | None:
    """Matches every known secret that is long enough to be looked for inside a text, and the mask itself."""
    secrets = _SECRETS
    if secrets.version != secrets.made_of:
        secrets.made_of = secrets.version
        values = secrets.values.copy()
        words = {form for value in values if _is_long(value) for form in _forms(value)}
        parts = [re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word))]
        secrets.pattern = re.compile("|".join([re.escape(MASK), *parts])) if parts else None
    return secrets.pattern


def _is_long(value: str) -> bool:
    return len(value) >= (_DIGITS_LEAST if value.isdigit() else _LEAST)


def _forms(value: str) -> Iterable[str]:
    """A secret in its forms: plain, and escaped for URLs, JSON, HTML and messages."""
    quoted = "".join(
        char
        if re.fullmatch(r"[A-Za-z0-9_.~-]", char)
        else "".join(f"%{b:02X}" for b in char.encode("utf-8", "replace"))
        for char in value
    )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    html = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return (
        value,
        quoted,
        escaped,
        html,
        html.replace('"', "&quot;").replace("'", "&#x27;"),
        repr(value)[1:-1],
    )


def without_secrets(data: Any, removed: list[str], above: str = "") -> Any:
    """Plain data without the keys whose value contains a secret.

    Args:
        data: plain data.
        removed: filled with the paths of these keys.
        above: the path of the data.
    """
    if isinstance(data, Mapping):
        cleaned: dict[Any, Any] = {}
        for key, value in data.items():
            path = f"{above}.{key}" if above else str(key)
            listed = isinstance(value, list | tuple) and any(
                isinstance(item, str) and mask(item) != item for item in value
            )
            if listed or (isinstance(value, str) and mask(value) != value):
                removed.append(mask(path))
            else:
                cleaned[key] = without_secrets(value, removed, path)
        return cleaned
    if isinstance(data, list | tuple):
        return [without_secrets(item, removed, f"{above}[{at}]") for at, item in enumerate(data)]
    return data


def missing_secrets(data: Any, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths of masks in plain data; items of a list of states are identified by name."""
    if isinstance(data, str):
        return [above] if MASK in data else []
    rows: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, Mapping):
        rows = data.items()
    elif isinstance(data, list | tuple):
        rows = ((_title(item, at), item) for at, item in enumerate(data))
    return [
        path
        for key, item in rows
        for path in ([(*above, key)] if MASK in str(key) else missing_secrets(item, (*above, key)))
    ]


def with_secrets(data: Any, original: Any) -> Any:
    """Replace masks with the values of the original at the same place, if these have the same mask."""
    if isinstance(data, str):
        return (
            original
            if MASK in data and isinstance(original, str) and mask(original) == data
            else data
        )
    if isinstance(data, Mapping) and isinstance(original, Mapping):
        original_keys = {mask(str(key)): key for key in original}
        return {
            original_keys.get(key, key) if MASK in str(key) else key: (
                with_secrets(value, original[original_keys[key]]) if key in original_keys else value
            )
            for key, value in data.items()
        }
    if isinstance(data, list) and isinstance(original, list | tuple):
        by_title = {_title(item, at): item for at, item in enumerate(original)}
        return [with_secrets(item, by_title.get(_title(item, at))) for at, item in enumerate(data)]
    return data


def _title(item: Any, at: int) -> str | int:
    return str(item["state"]) if isinstance(item, Mapping) and "state" in item else at
