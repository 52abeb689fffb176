"""Write the repodata of a bundle's repository of rpm packages, for dnf and zypper.

``primary.xml.gz`` and ``repomd.xml`` consist of the packages' upstream elements, so no other program is
needed. ``filelists`` and ``other`` are left out; dnf and zypper need neither.

Sources:
    createrepo_c, src/xml_dump_repomd.c and src/xml_dump_primary.c; libsolv, ext/repo_rpmmd.c.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence

from gpustate.bundle.manifest import REPOMD
from gpustate.bundle.rpmupstream import RpmBuild

PRIMARY = "repodata/primary.xml.gz"
_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<metadata xmlns="http://linux.duke.edu/metadata/common" '
    'xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="{count}">\n'
)


def build_indexes(builds: Sequence[RpmBuild], date: int) -> dict[str, bytes]:
    """Build the repodata files of some packages, by name; the same bytes for the same packages.

    Args:
        builds: the packages, whose files are next to the repodata.
        date: timestamp of the repodata, in seconds.
    """
    rows = sorted(build.indexed() for build in builds)
    text = _HEAD.format(count=len(rows)).encode() + b"\n".join(rows) + b"\n</metadata>\n"
    packed = gzip.compress(text, 9, mtime=0)
    repomd = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<repomd xmlns="http://linux.duke.edu/metadata/repo" '
        'xmlns:rpm="http://linux.duke.edu/metadata/rpm">\n'
        f"<revision>{date}</revision>\n"
        '<data type="primary">\n'
        f'<checksum type="sha256">{hashlib.sha256(packed).hexdigest()}</checksum>\n'
        f'<open-checksum type="sha256">{hashlib.sha256(text).hexdigest()}</open-checksum>\n'
        f'<location href="{PRIMARY}"/>\n'
        f"<timestamp>{date}</timestamp>\n"
        f"<size>{len(packed)}</size>\n<open-size>{len(text)}</open-size>\n"
        "</data>\n</repomd>\n"
    ).encode()
    return {REPOMD: repomd, PRIMARY: packed}
