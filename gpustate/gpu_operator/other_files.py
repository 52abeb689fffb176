"""Lines of values that a document takes from another file.

Items know their line and not their file. So the lines of other files are numbered beyond any line of the
document's own file, and translated where a place is reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpustate.errors import PolicyError
from gpustate.gpu_operator.documents import Item

#: More than a file of the size limit has lines.
_FAR = 10_000_000


@dataclass(slots=True)
class OtherFiles:
    """The other files that a document's values come from.

    Args:
        file: the document's own.
        paths: of the others.
    """

    file: str
    paths: list[str] = field(default_factory=list[str])

    def numbered(self, item: Item, path: str) -> Item:
        """An item of another file with the numbers of its lines."""
        if path == self.file:
            return item
        if path not in self.paths:
            self.paths.append(path)
        return _moved(item, _FAR * (self.paths.index(path) + 1))

    def resolved(self, file: str, line: int) -> tuple[str, int]:
        """The real file and line."""
        number = line // _FAR
        if file != self.file or not 0 < number <= len(self.paths):
            return file, line
        return self.paths[number - 1], line % _FAR

    def place(self, text: str) -> str:
        """Translate ``file:line``."""
        return self._places(text) if self.paths else text

    def text(self, text: str) -> str:
        """Translate every line in a message: ``file:3``, ``(line 3)``, ``lines 3-7``."""
        if not self.paths:
            return text
        text = re.sub(r"\blines (\d+)-(\d+)", self._range, self._places(text))
        return re.sub(r"\bline (\d{8,})\b", lambda found: self._told(int(found[1])), text)

    def error(self, error: PolicyError) -> PolicyError:
        """The same error at its real place."""
        if not self.paths:
            return error
        place = self.place(error.place) if error.place else error.place
        fix = self.text(error.fix) if error.fix else error.fix
        return type(error)(self.text(error.message), place=place, fix=fix)

    def _places(self, text: str) -> str:
        return re.sub(
            re.escape(self.file) + r":(\d{8,})\b", lambda found: self._told(int(found[1])), text
        )

    def _told(self, line: int) -> str:
        file, number = self.resolved(self.file, line)
        return f"{file}:{number}"

    def _range(self, found: re.Match[str]) -> str:
        ends = [self.resolved(self.file, int(number)) for number in found.groups()]
        if ends[0][0] == ends[1][0] == self.file:
            return found[0]
        if ends[0][0] == ends[1][0]:
            return f"lines {ends[0][1]}-{ends[1][1]} of {ends[0][0]}"
        return f"lines {ends[0][0]}:{ends[0][1]} to {ends[1][0]}:{ends[1][1]}"


def _moved(item: Item, offset: int) -> Item:
    value = item.value
    if isinstance(value, dict):
        value = {key: _moved(child, offset) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_moved(child, offset) for child in value]
    return Item(value, item.line + offset)
