"""Types of parameters that several states have: text of a pattern, with what is wanted in words."""

from __future__ import annotations

from typing import Annotated

from gpustate.core.parameter_errors import pattern

_NAME = "a name of letters, digits, dots, hyphens and underscores"
_PATH = "an absolute path"

AbsolutePath = Annotated[str, pattern(r"^/[A-Za-z0-9_./+@:-]+$", _PATH)]
#: A path that sh takes without quotes wherever it stands.
PlainPath = Annotated[str, pattern(r"^/[A-Za-z0-9._/-]+$", _PATH)]
OptionalPath = Annotated[str, pattern(r"^(/[A-Za-z0-9._-]+)*$", f"{_PATH}, or an empty text")]
PlainName = Annotated[str, pattern(r"^[A-Za-z0-9._-]+$", _NAME)]
OptionalName = Annotated[str, pattern(r"^[A-Za-z0-9._-]*$", _NAME)]
FileName = Annotated[str, pattern(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", _NAME)]
ServiceName = Annotated[
    str, pattern(r"^[A-Za-z0-9@_.:-]+\.service$", "the name of a unit, with .service at its end")
]
HostName = Annotated[str, pattern(r"^[A-Za-z0-9.:_-]*$", "the name or address of a host")]
DottedVersion = Annotated[str, pattern(r"^[0-9]+(\.[0-9]+)+$", "a version such as 4.6.0")]
PackageVersion = Annotated[str, pattern(r"^[0-9][0-9A-Za-z.+~:-]*$", "a version such as 1.18.0-1")]
OptionalVersion = Annotated[
    str, pattern(r"^([0-9][0-9A-Za-z.+~-]*)?$", "a version such as 2.5, or an empty text")
]
