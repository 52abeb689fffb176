"""Reader of Prometheus' text exposition format, strict as Prometheus is.

Sources:
    Prometheus documentation, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.errors import ProbeError
from gpustate.formats.words import quote

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\[\\"n])*)"[ \t]*')
_LAST = re.compile(r"[ \t]*+\}")
_NUMBER = re.compile(
    r"[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf(?:inity)?)|nan", re.I | re.A
)
_STAMP = re.compile(r"-?[0-9]{1,19}")
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a metric with its labels and its value now."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    line: int = 0


def parse(text: str, place: str) -> tuple[Sample, ...]:
    """Read the samples; comments, HELP and TYPE are skipped.

    Raises:
        ProbeError: a line for which Prometheus would refuse all metrics, or a duplicate series.
    """
    samples: list[Sample] = []
    first_lines: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
    # Not splitlines(): a label may contain characters that Python treats as line breaks.
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(" \t\r")
        if not stripped or stripped.startswith("#"):
            continue
        sample = _sample(stripped, f"{place}:{number}", number)
        first = first_lines.setdefault((sample.name, frozenset(sample.labels.items())), number)
        if first != number:
            raise ProbeError(
                f"duplicate sample {sample.name} with the same labels, first in line {first}",
                place=f"{place}:{number}",
            )
        samples.append(sample)
    return tuple(samples)


def _sample(line: str, place: str, number: int) -> Sample:
    name = _NAME.match(line)
    if name is None:
        raise ProbeError(
            f"{quote(line)} is not a line of Prometheus' text format",
            place=place,
            fix="pass the output of http://NODE:9400/metrics",
        )
    tail = line[name.end() :].lstrip(" \t")
    labels: dict[str, str] = {}
    if tail.startswith("{"):
        labels, tail = _labels(tail, place)
    words = re.split(r"[ \t]+", tail.strip(" \t"))
    if not 1 <= len(words) <= 2 or _NUMBER.fullmatch(words[0]) is None:
        raise ProbeError(f"{name[0]} has a value that is not a number: {quote(tail)}", place=place)
    if len(words) == 2 and _STAMP.fullmatch(words[1]) is None:
        raise ProbeError(f"{quote(words[1])} is not a time in milliseconds", place=place)
    return Sample(name[0], float(words[0]), labels, number)


def _labels(text: str, place: str) -> tuple[dict[str, str], str]:
    labels: dict[str, str] = {}
    at = 1
    while True:
        match = _LABEL.match(text, at)
        if match is not None:
            if match[1] in labels:
                raise ProbeError(f"duplicate label {match[1]}", place=place)
            labels[match[1]] = re.sub(r"\\.", lambda escape: _ESCAPED[escape[0]], match[2])
            at = match.end()
        last = _LAST.match(text, at)
        if last is not None:
            return labels, text[last.end() :]
        if match is None or text[at : at + 1] != ",":
            raise ProbeError(f"invalid labels at {quote(text[at : at + 80])}", place=place)
        at += 1
