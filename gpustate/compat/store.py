"""Load rules: the data shipped with gpustate, or a folder.

A folder contains ``*.yaml`` files and ``SHA256SUMS`` in the format of sha256sum(1). Every file must be listed with
its sum, and nothing else may be in the folder: partly changed data is refused as a whole. ``DIR#sha256=SUM`` pins
``SHA256SUMS`` itself, and with it everything.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from gpustate.compat import reading
from gpustate.compat.rules import Rule, RuleSet
from gpustate.errors import RefusedError, UsageError
from gpustate.files import TextFiles
from gpustate.formats.words import quote

#: The variable with a folder, or a folder and the sum of its SHA256SUMS: DIR#sha256=SUM.
VARIABLE = "GPUSTATE_COMPAT"
SUMS = "SHA256SUMS"
BUILT_IN = "built in"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9][A-Za-z0-9._-]*\.yaml)")
_PIN = re.compile(r"(?P<folder>.+?)#sha256=(?P<sum>[0-9a-fA-F]{64})")
_FILES = TextFiles("rules file", UsageError, 8)


def load(where: str | None = None) -> RuleSet:
    """The rules of a folder, of the folder that ``GPUSTATE_COMPAT`` names, or the built-in ones.

    Raises:
        UsageError: a file that cannot be read or is invalid, with its line.
        RefusedError: a file that does not match SHA256SUMS.
    """
    return _load(where or os.environ.get(VARIABLE) or "")


def load_named() -> None:
    """Load the rules of the folder that ``GPUSTATE_COMPAT`` names, so that errors in them come before any node is
    reached; the built-in ones are loaded where they are needed.

    Raises:
        UsageError, RefusedError: as :func:`load`.
    """
    if os.environ.get(VARIABLE):
        load()


@cache
def _load(where: str) -> RuleSet:
    if where:
        pinned = _PIN.fullmatch(where)
        if pinned is None and "#sha256" in where:
            raise UsageError(
                f"{quote(where)} is a malformed pin",
                fix="write DIR#sha256=SUM, with the 64 hexadecimal digits of: sha256sum SHA256SUMS",
            )
        folder = pinned["folder"] if pinned else where
        return assemble(*_folder(folder, pinned["sum"].lower() if pinned else ""), folder)
    data = resources.files("gpustate.compat") / "data"
    texts = {file.name: file.read_text("utf-8") for file in data.iterdir() if file.is_file()}
    return assemble(texts, texts.pop(SUMS, ""), BUILT_IN)


def _folder(folder: str, digest: str) -> tuple[dict[str, str], str]:
    """Texts of a folder's YAML files by name, and of its sums."""
    if not os.path.isdir(folder):
        raise UsageError("is not a folder", place=folder, fix="pass the folder with the rules")
    sums = _FILES.text(os.path.join(folder, SUMS))
    actual = hashlib.sha256(sums.encode()).hexdigest()
    if digest and actual != digest:
        raise RefusedError(
            f"has the sum {actual}, but {digest} is pinned",
            place=os.path.join(folder, SUMS),
            fix="use the pinned data, or pin this sum",
        )
    names = sorted(path.name for path in Path(folder).iterdir() if path.name != SUMS)
    return {name: _FILES.text(os.path.join(folder, name)) for name in names}, sums


def assemble(texts: Mapping[str, str], sums: str, origin: str) -> RuleSet:
    """Parse rules of files after checking their sums.

    Raises:
        UsageError, RefusedError: as :func:`load`.
    """
    at = "" if origin == BUILT_IN else f"{origin.rstrip('/')}/"
    listed = _sums(sums, at + SUMS)
    for name in sorted({*texts, *listed}):
        place = at + name
        if name not in texts:
            raise RefusedError(f"is listed in {SUMS}, but missing", place=place)
        if name not in listed:
            raise RefusedError(f"is not listed in {SUMS}", place=place, fix="sha256sum *.yaml")
        if hashlib.sha256(texts[name].encode()).hexdigest() != listed[name]:
            raise RefusedError(
                f"is not the file that {SUMS} lists (its SHA-256 differs)",
                place=place,
                fix=f"use the published data, or update {SUMS}: sha256sum *.yaml >{SUMS}",
            )
    rules: dict[str, Rule] = {}
    for name in sorted(texts):
        for rule in reading.read(texts[name], at + name):
            if rule.id in rules:
                first = rules[rule.id].place
                raise UsageError(
                    f"rule {rule.id} is defined twice, first in {first}", place=rule.place
                )
            rules[rule.id] = rule
    return RuleSet(rules, hashlib.sha256(sums.encode()).hexdigest(), origin)


def _sums(text: str, path: str) -> dict[str, str]:
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums:
            why = "lists a file twice" if match else "is not a line of sha256sum"
            raise UsageError(f"{quote(line)} {why}", place=f"{path}:{number}")
        sums[match[2]] = match[1]
    if not sums:
        raise UsageError("lists no file", place=path, fix="sha256sum *.yaml >SHA256SUMS")
    return sums
