"""An image of programs that lie on a validated node, made and imported there without a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gpupods import VALIDATOR

from gpustate_lab.node import Node

_MAKE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from gpustate.nodeside import container_image
reference, files, links, programs = json.loads(sys.argv[2])
libraries = {}
for program in programs:
    libraries |= container_image.libraries(os.path.realpath(program), [])
files = libraries | {name: os.path.realpath(place) for name, place in files.items()}
with open("/run/gpustate-test-image.tar", "wb") as file:
    file.write(container_image.archive(reference, files, links, []))
"""


def import_image(
    node: Node,
    reference: str,
    files: Mapping[str, str],
    *,
    links: Mapping[str, str],
    programs: Sequence[str],
) -> None:
    """Make an image and hand it to the kubelet's containerd.

    Args:
        files: path in the image to path on the node.
        links: path in the image to target.
        programs: their libraries come with them.
    """
    what = json.dumps([reference, files, links, programs])
    node.run(["python3", "-ISB", "-c", _MAKE, VALIDATOR, what])
    node.run(
        "ctr -n k8s.io images import /run/gpustate-test-image.tar; rm /run/gpustate-test-image.tar"
    )
