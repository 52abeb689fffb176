"""Types of documents whose fields other programs define: objects of Kubernetes, values of the GPU Operator, JSON.

A document of gpustate's own is a dataclass or a TypedDict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
#: One that is only read.
JsonView = Mapping[str, Any]
