"""Import the image of :mod:`container_image` into the containerd that a kubelet uses, and remove it.

    python3 -I -S -B pod_image.py import REFERENCE
    python3 -I -S -B pod_image.py remove REFERENCE
    python3 -I -S -B pod_image.py hook MESSAGE

``import`` prints one line ``gpustate-pod-image=`` with a JSON object: the command line to run in it, or ``error``.
``hook`` prints such a line with ``message``: the runtime's message with the program of the hook that failed in a pod.

Surprising: removing the reference alone leaves the image. containerd's CRI plugin adds a reference by digest
and one by image id, so every reference of that digest is removed.

Standard library only, Python 3.9.

Sources:
    containerd, cmd/ctr (images import, ls, rm --sync); internal/cri/server/images/image_pull.go,
    createImageReference.
"""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.abspath(__file__).rpartition("/gpustate/")[0] or "/")

from gpustate.nodeside import container_image, container_validation

MARK = "gpustate-pod-image="
#: The containerd namespace of a kubelet's images.
CTR = ("ctr", "--address", container_validation.CONTAINERD_SOCKET, "--namespace", "k8s.io")
_IMPORT_S = 60.0


def bring(reference: str) -> list[str]:
    """Build the image and import it; return the command line to run in it.

    Raises:
        container_image.ImageError: it cannot be made.
        container_validation.CommandError: it cannot be imported.
    """
    image, command = container_image.make(reference)
    container_validation.run([*CTR, "images", "import", "-"], _IMPORT_S, image)
    return command


def references(listing: str, reference: str) -> list[str]:
    """References of an image's digest in the output of ``ctr images ls``."""
    rows = [line.split() for line in listing.splitlines()[1:]]
    digests = {row[2] for row in rows if len(row) > 2 and row[0] == reference}
    return [row[0] for row in rows if len(row) > 2 and row[2] in digests]


def remove(reference: str) -> None:
    """Remove the image with all its references."""
    found = references(container_validation.attempt([*CTR, "images", "ls"]), reference)
    if found:
        container_validation.attempt([*CTR, "images", "rm", "--sync", *found])


def name_hook(message: str) -> str:
    """Add the program of a failed hook to the message about a pod; the device plugin's request is unknown."""
    ways = ("device", container_validation.request())
    named = (container_validation.with_hook(message, "", how) for how in ways)
    return next((text for text in named if text != message), message)


def main() -> int:
    """Entry point on the node."""
    verb, reference = sys.argv[1:]
    if verb == "remove":
        remove(reference)
        return 0
    if verb == "hook":
        sys.stdout.write(f"\n{MARK}{json.dumps({'message': name_hook(reference)})}\n")
        return 0
    try:
        answer: dict[str, object] = {"command": bring(reference)}
    except (container_image.ImageError, container_validation.CommandError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
