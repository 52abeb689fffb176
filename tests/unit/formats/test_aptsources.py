"""apt's sources in both formats, its pins, and what it says it would install."""

from __future__ import annotations

import pytest

from gpustate.formats import aptsources
from gpustate.formats.aptsources import Offer, Source

ONE_LINE = """\
# deb http://old.example.com/debian bookworm main
deb http://archive.example.com/debian bookworm main contrib
deb-src http://archive.example.com/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/cuda.gpg] https://nvidia.example.com/repos/debian12/x86_64/ /  # CUDA
deb cdrom:[Debian GNU/Linux 12.0 _Bookworm_]/ bookworm main
nonsense
"""
DEB822 = """\
# comment
Types: deb deb-src
URIs: http://archive.example.com/debian http://second.example.com/debian/
Suites: trixie trixie-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 AAAA
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://off.example.com
Suites: /
Enabled: no

Types: deb-src
URIs: http://source.example.com
Suites: /
"""


def test_one_line_entries_keep_file_line_and_options() -> None:
    found = aptsources.parse_sources({"/etc/apt/sources.list": ONE_LINE})
    assert found == (
        Source(
            "/etc/apt/sources.list",
            "http://archive.example.com/debian",
            "bookworm",
            ("main", "contrib"),
            line=2,
        ),
        Source(
            "/etc/apt/sources.list",
            "https://nvidia.example.com/repos/debian12/x86_64",
            "/",
            (),
            "/usr/share/keyrings/cuda.gpg",
            ("amd64",),
            4,
        ),
        Source(
            "/etc/apt/sources.list",
            "cdrom:[Debian GNU/Linux 12.0 _Bookworm_]",
            "bookworm",
            ("main",),
            line=5,
        ),
    )


def test_deb822_gives_one_entry_for_each_uri_and_suite() -> None:
    found = aptsources.parse_sources({"x.sources": DEB822})
    assert [source.key for source in found] == [
        ("http://archive.example.com/debian", "trixie"),
        ("http://archive.example.com/debian", "trixie-updates"),
        ("http://second.example.com/debian", "trixie"),
        ("http://second.example.com/debian", "trixie-updates"),
    ]
    assert found[0].line == 2
    assert "AAAA" in found[0].signed_by


def test_what_is_rendered_reads_back_the_same() -> None:
    text = aptsources.render_deb822(
        uri="http://a.example.com/x/", suite="stable", components=("main",), signed_by="/k.asc"
    )
    (source,) = aptsources.parse_sources({"x.sources": text})
    assert source == Source("x.sources", "http://a.example.com/x", "stable", ("main",), "/k.asc")


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("file:/srv/nv", "_srv_nv"),
        ("http://10.0.0.1:8080/mirror/debian12/", "10.0.0.1:8080_mirror_debian12"),
        # As apt 2.6 has it on a Debian 12 node.
        (
            "https://developer.example.com/compute/cuda/repos/debian12/x86_64",
            "developer.example.com_compute_cuda_repos_debian12_x86%5f64",
        ),
        ("https://user:secret@host.example.com/a", "host.example.com_a"),
    ],
)
def test_lists_are_named_as_apt_names_them(uri: str, name: str) -> None:
    assert aptsources.list_name(uri) == name


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("https://user:secret@host.example.com:8443/a", "host.example.com"),
        ("file:/srv", ""),
        ("cdrom:[x]", ""),
    ],
)
def test_a_pin_tells_hosts_apart(uri: str, host: str) -> None:
    assert aptsources.uri_host(uri) == host


POLICY = """\
nvidia-driver-cuda:
  Installed: 580.65.06-1
  Candidate: 580.82.07-1
  Version table:
     580.82.07-1 1000
        500 file:/srv/nv  Packages
        500 http://other.example.com/x  Packages
 *** 580.65.06-1 700
        500 file:/srv/nv  Packages
        100 /var/lib/dpkg/status
nvidia-foreign:
  Installed: 1.2
  Candidate: (none)
  Version table:
 *** 1.2 -1
        100 /var/lib/dpkg/status
"""


def test_policy_tells_offered_versions_from_installed_ones() -> None:
    assert aptsources.parse_policy(POLICY) == {
        "nvidia-driver-cuda": (
            Offer(
                "580.82.07-1",
                1000,
                ("file:/srv/nv  Packages", "http://other.example.com/x  Packages"),
            ),
            Offer("580.65.06-1", 700, ("file:/srv/nv  Packages",)),
        ),
        "nvidia-foreign": (Offer("1.2", -1),),
    }
