"""Bring the image of :mod:`container_image` to the runtime that a kubelet uses, and remove it.

    python3 -I -S -B pod_image.py import SOCKET
    python3 -I -S -B pod_image.py remove SOCKET
    python3 -I -S -B pod_image.py hook MESSAGE

``import`` prints one line ``gpustate-pod-image=`` with a JSON object: the image's name and the command line to run in it,
or ``error``. ``hook`` prints such a line with ``message``: the runtime's message with the program of the hook that failed in
a pod.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import os
import sys
import time

sys.path.insert(0, os.path.abspath(__file__).rpartition("/gpustate/")[0] or "/")

from gpustate.nodeside import container_image, container_validation, cri, cri_pod

MARK = "gpustate-pod-image="
NAME = "gpustate-validate-pod"
_IMPORT_S = 60.0


def bring(socket: str) -> dict[str, object]:
    """Build the image and let the runtime pull it; its name, and the command line to run in it.

    Raises:
        container_image.ImageError: it cannot be made.
        cri.CriError: it cannot be pulled.
    """
    image, command = container_image.make(f"{NAME}:1")
    ends = time.monotonic() + _IMPORT_S
    reference = cri_pod.pull(socket, NAME, container_image.parts(image), ends)
    return {"image": reference, "command": command}


def name_hook(message: str) -> str:
    """Add the program of a failed hook to the message about a pod; the device plugin's request is unknown."""
    ways = ("device", container_validation.request())
    named = (container_validation.with_hook(message, "", how) for how in ways)
    return next((text for text in named if text != message), message)


def main() -> int:
    """Entry point on the node."""
    verb, word = sys.argv[1:]
    if verb == "remove":
        cri_pod.clean(word, NAME)
        return 0
    if verb == "hook":
        sys.stdout.write(f"\n{MARK}{json.dumps({'message': name_hook(word)})}\n")
        return 0
    try:
        answer = bring(word)
    except (container_image.ImageError, cri.CriError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
