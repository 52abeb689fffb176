"""Mask secrets in foreign text: logs and configuration of other programs, whose secrets nobody has registered.

Known secrets are masked everywhere, see :mod:`gpustate.formats.masking`. Here the place of a value counts as well:

- what authenticates by its form: private keys, JSON Web Tokens, logins and queries of URLs, random path segments;
- tables that hold credentials, as HTTP headers, with everything below them;
- values of names that end in ``password``, ``token`` and the like, as files and logs write them: quoted, bare, a
  list, a block, on the next line, after a flag, or in a pair of ``name`` and ``value``.

What looks like a secret and is none is masked too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gpustate.formats.masking import MASK, is_secret_name, mask, mask_data

#: A text without any of these has no secret that is recognized.
_HINT = re.compile(
    r"(?i)pass|pwd|pw\b|secret|token|key|auth|cred|hook|cookie|sig|psk|header|://|eyJ|@|basic|-u"
)
_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.S
)
_WEB_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?")
_SCHEME = re.compile(r"(?i)\b((?:basic|bearer)\s+)[A-Za-z0-9+/=._~-]{8,}")
_URL = re.compile(r"""(?i)\b[a-z][a-z0-9+.-]*://[^\s"'<>`]+""")
_URL_PARTS = (
    (re.compile(r"(://)[^/@?#]*:[^/@?#]*(?=@)"), 1),
    (re.compile(r"([?&;][\w.~%-]+=)(?!\(secret\))[^&;#\\]+"), 1),
    (re.compile(r"(?i)(://hooks?\.[^/]+/|webhook\w*/).+"), 1),
    (re.compile(r"(/)(?=[^/?]*[a-z])(?=[^/?]*[A-Z])(?=[^/?]*\d)[\w=+-]{20,}(?=[/?#]|$)"), 1),
)
#: A login without a scheme, as of a proxy; not the tag and digest of an image.
_LOGIN = re.compile(r"""(?<![\w/:.@%+~-])[\w.%+~-]+:[^\s/@"':,]+@(?!sha\d+:)(?=[\w.-])""")
_FLAG = re.compile(
    r"""(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)(?:[ \t]+|["'],\s*["'])(?P<value>[^\s"',;-][^\s"',;]*)"""
)
_USER_FLAG = re.compile(r"""(?<!\S)((?:-u|--user|--proxy-user)[ \t=]+)[^\s:"'/]+:[^\s"']+""")
#: A name and what separates it from its value. In a document inside a line of a log, quotes are escaped.
_SETTING = re.compile(
    r"""(?P<key>(?<![\w.-])(?P<quote>\\*["']?)-*(?P<name>[A-Za-z_][\w.-]*)(?P=quote))[ \t]*(?::=|=>|=(?!=)|:)[ \t]*"""
)
_PAIR = re.compile(
    r"""(?ix) \bname\\*["']?\s*[:=]\s*\\*["']?(?P<name>[\w.-]+)\\*["']?[\s,]+
    (?P<key>\\*["']?value\\*["']?)[ \t]*[:=][ \t]*"""
)
_SECTION = re.compile(r"""(?m)^[ \t]*\[+[^\]\n]*?["']?(?P<name>[\w-]+)["']?\]+[ \t]*$""")
#: Keys of such tables in data, where ``headers`` are those of kernels, and in texts.
_KEYS = frozenset(("httpheaders", "auth", "auths", "credentials"))
_TABLES = _KEYS | {"header", "headers", "http_headers"}
_WHOLE_LINE = re.compile(r"(?i)(?:cookie|authorization)$")
_UNQUOTED = re.compile(
    r"""(?i)(?:(?:basic|bearer|negotiate)\s+)?(?:[^\s"',;\]})&\\]|[,;](?!\s|[\w.-]+[=:]))+"""
)
_QUOTED = re.compile(r'"""|\'\'\'|(\\*)(["\'])')
_OPENING = re.compile(r"(?:map)?[\[{]")
_BRACKETS = re.compile(r"""\\*["']|[\[\]{}]""")
_MAPPING = re.compile(r"""(?:-[ \t]+)?["']?[\w./-]+["']?[ \t]*(?::(?:[ \t]|$)|=)""")
#: What can follow such a name and tells nothing.
_PLAIN = frozenset(
    ("true", "false", "none", "null", "nil", "<nil>", "yes", "no", "on", "off", "|", ">", "", MASK)
)


def scrub(text: str) -> str:
    """Mask secrets."""
    return _scrub(mask(text))


@lru_cache(maxsize=2048)  # nodes of a fleet have the same texts
def _scrub(text: str) -> str:
    if not _HINT.search(text):
        return text
    text = _WEB_TOKEN.sub(MASK, _KEY.sub(MASK, text))
    text = _USER_FLAG.sub(rf"\1{MASK}", _LOGIN.sub(f"{MASK}@", _URL.sub(_url, text)))
    text = _values(_FLAG.sub(_flag, text), _PAIR)
    parts, everything, at = [], False, 0
    for section in _SECTION.finditer(text):
        parts += [_values(text[at : section.start()], _SETTING, everything), section[0]]
        everything, at = section["name"].lower() in _TABLES, section.end()
    parts.append(_values(text[at:], _SETTING, everything))
    return _SCHEME.sub(rf"\1{MASK}", "".join(parts))


def scrub_texts(data: Any) -> Any:
    """Mask secrets in each text of plain data."""
    return _scrub_texts(mask_data(data))


def _scrub_texts(data: Any) -> Any:
    if isinstance(data, str):
        return _scrub(data)
    if isinstance(data, Mapping):
        return {key: _scrub_texts(value) for key, value in data.items()}
    return [_scrub_texts(item) for item in data] if isinstance(data, list | tuple) else data


def scrub_data(data: Any, name: str = "") -> Any:
    """Mask secrets in plain data: in each text, and values by their name."""
    if isinstance(data, str):
        secret = is_secret_name(name) or name.lower() in _KEYS
        return MASK if secret and data.lower() not in _PLAIN else scrub(data)
    if isinstance(data, Mapping):
        table = name if name.lower() in _KEYS else ""
        pair = str(data.get("name", "")) if "value" in data else ""
        return {
            key: scrub_data(value, table or (pair if key == "value" else str(key)))
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [scrub_data(item, name) for item in data]
    return data


def _url(match: re.Match[str]) -> str:
    url = match[0]
    for pattern, group in _URL_PARTS:
        url = pattern.sub(rf"\{group}{MASK}", url)
    return url


def _flag(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or match["value"].lower() in _PLAIN:
        return match[0]
    return match[0][: match.start("value") - match.start()] + MASK


def _values(text: str, pattern: re.Pattern[str], everything: bool = False) -> str:
    """Mask the values of names that are secrets, or of every name."""
    parts, at = [], 0
    while match := pattern.search(text, at):
        start, name = match.end(), match["name"]
        table = everything or not _TABLES.isdisjoint(name.lower().split("."))
        parts.append(text[at:start])
        at = start
        if table or is_secret_name(name):
            value, at = _value(text, match, table)
            parts.append(value)
    parts.append(text[at:])
    return "".join(parts)


def _value(text: str, match: re.Match[str], table: bool) -> tuple[str, int]:
    """Return what replaces a value, and where it ends."""
    start = match.end()
    if text.startswith(MASK, start):
        return MASK, start + len(MASK)
    line = text.rfind("\n", 0, match.start("key")) + 1
    before = text[line : match.start("key")]
    end_of_line = (text.find("\n", start) + 1 or len(text) + 1) - 1
    first = text[start:end_of_line].strip()
    leading = before.strip() in ("", "-", "export")
    if leading and (not first or re.fullmatch(r"[|>][+-]?\d?", first)):
        return _block(text, start, end_of_line, len(before), table)
    if opening := _OPENING.match(text, start):
        end = _closing(text, opening.end() - 1, end_of_line)
        return f"{opening[0]}{MASK}{text[end - 1] if text[end - 1] in ']}' else ''}", end
    if quote := _QUOTED.match(text, start):
        pattern = re.escape(quote[0]) if len(quote[0]) == 3 else rf"(?<!\\){re.escape(quote[0])}"
        if quote[0] == "'" or quote[1]:
            pattern = re.escape(quote[0])
        closing = re.compile(pattern).search(text, quote.end())
        stop, end = (closing.start(), closing.end()) if closing else (end_of_line, end_of_line)
        plain = text[quote.end() : stop].strip().lower() in _PLAIN
        return (text[start:end] if plain else f"{quote[0]}{MASK}{quote[0]}"), end
    end = start
    spaced = text[start - 1] in " \t"
    if _WHOLE_LINE.search(match["name"]):
        end = start + len(re.split(r"""["'\\]""", text[start:end_of_line], maxsplit=1)[0])
    elif leading:
        end = end_of_line if spaced else start + len((text[start:end_of_line].split() or [""])[0])
    elif unquoted := _UNQUOTED.match(text, start):
        end = unquoted.end()
    value = text[start:end]
    return (value if value.strip().lower() in _PLAIN else MASK), end


def _block(text: str, start: int, end_of_line: int, indent: int, table: bool) -> tuple[str, int]:
    """The indented lines below a name; a mapping has names of its own."""
    end = end_of_line + 1
    lines: list[str] = []
    for line in text[end:].splitlines(keepends=True) if end <= len(text) else ():
        depth = len(line) - len(line.lstrip())
        if (
            line.strip()
            and depth <= indent
            and not (depth == indent and line.startswith("-", depth))
        ):
            break
        lines.append(line)
    body = "".join(lines)
    inner = body.lstrip()
    marked = bool(text[start:end_of_line].strip())
    if not inner:
        return "", start
    if not marked and _MAPPING.match(inner.splitlines()[0]):
        if not table:
            return "", start
        return text[start:end] + _values(body, _SETTING, True), end + len(body)
    margin = body[: len(body) - len(inner)] + ("- " if inner.startswith("- ") else "")
    return f"{text[start:end]}{margin}{MASK}\n", end + len(body)


def _closing(text: str, at: int, otherwise: int) -> int:
    """Where the bracket at a position is closed; brackets in quotes do not count."""
    depth, quote = 0, ""
    for token in _BRACKETS.finditer(text, at):
        word = token[0]
        if quote:
            quote = "" if word == quote else quote
        elif word[-1] in "\"'":
            quote = word
        else:
            depth += 1 if word in "[{" else -1
            if not depth:
                return token.end()
    return otherwise
