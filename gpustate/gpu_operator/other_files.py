"""Lines of values that a document takes from another file, or from an option of the command line.

Items know their line and not their file. So the lines of other files are numbered beyond any line of the
document's own file, and translated where a place is reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpustate.errors import PolicyError
from gpustate.gpu_operator.documents import Item

#: More than a file of the size limit has lines. The first block is that of the options, each other one that of a file.
_BLOCK = 1_000_000
_PLACE = re.compile(r"(.*):(\d+)", re.DOTALL)


@dataclass(slots=True)
class OtherFiles:
    """The other origins of a document's values.

    Args:
        file: the document's own.
        paths: of the others.
        options: those of the command line, one for each of their lines.
    """

    file: str
    paths: list[str] = field(default_factory=list[str])
    options: list[str] = field(default_factory=list[str])

    def __bool__(self) -> bool:
        return bool(self.paths or self.options)

    def number(self, place: str, lines: int = 1) -> int:
        """The number of a line, ``file:line``, or of an option whose text has some lines."""
        match = _PLACE.fullmatch(place)
        if place == self.file:
            return 1
        if match is None or place.startswith("--"):
            self.options += [place] * (lines + 1)
            return _BLOCK + len(self.options) - lines - 1
        return self._offset(match[1]) + int(match[2])

    def numbered(self, item: Item, path: str) -> Item:
        """An item of another file with the numbers of its lines."""
        return _moved(item, self._offset(path))

    def _offset(self, path: str) -> int:
        if path == self.file:
            return 0
        if path not in self.paths:
            self.paths.append(path)
        return _BLOCK * (self.paths.index(path) + 2)

    def resolved(self, file: str, line: int) -> tuple[str, int]:
        """The real file and line; an option and 0."""
        block, number = divmod(line, _BLOCK)
        if file != self.file or not 0 < block <= len(self.paths) + 1:
            return file, line
        return (self.options[number], 0) if block == 1 else (self.paths[block - 2], number)

    def place(self, text: str) -> str:
        """Translate ``file:line``."""
        return self._places(text) if self else text

    def text(self, text: str) -> str:
        """Translate every line in a message: ``file:3``, ``(line 3)``, ``lines 3-7``."""
        if not self:
            return text
        text = re.sub(r"\blines (\d+)-(\d+)", self._range, self._places(text))
        return re.sub(r"\bline (\d{7,})\b", lambda match: self._origin(int(match[1])), text)

    def error(self, error: PolicyError) -> PolicyError:
        """The same error at its real place."""
        if not self:
            return error
        place = self.place(error.place) if error.place else error.place
        fix = self.text(error.fix) if error.fix else error.fix
        return type(error)(self.text(error.message), place=place, fix=fix)

    def _places(self, text: str) -> str:
        return re.sub(
            re.escape(self.file) + r":(\d{7,})\b", lambda match: self._origin(int(match[1])), text
        )

    def _origin(self, line: int) -> str:
        file, number = self.resolved(self.file, line)
        return f"{file}:{number}" if number else file

    def _range(self, match: re.Match[str]) -> str:
        ends = [self.resolved(self.file, int(number)) for number in match.groups()]
        if ends[0][0] == ends[1][0] == self.file:
            return match[0]
        if ends[0][0] == ends[1][0]:
            file, number = ends[0]
            return f"lines {number}-{ends[1][1]} of {file}" if number else file
        return f"lines {ends[0][0]}:{ends[0][1]} to {ends[1][0]}:{ends[1][1]}"


def _moved(item: Item, offset: int) -> Item:
    value = item.value
    if not offset:
        return item
    if isinstance(value, dict):
        value = {key: _moved(child, offset) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_moved(child, offset) for child in value]
    return Item(value, item.line + offset)
