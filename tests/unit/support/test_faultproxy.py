"""Cutting a stream into SSH packets, and naming what a run was about."""

from __future__ import annotations

import struct

from faultbed import phase_of
from faultproxy import Cutter
from hypothesis import given
from hypothesis import strategies as st


def plain(kind: int, size: int = 12) -> bytes:
    """A packet before keys are exchanged."""
    return struct.pack(">IBB", size, 4, kind) + bytes(size - 2)


def coded(size: int) -> bytes:
    """A packet after that: its length in the clear, and the code behind it."""
    return struct.pack(">I", size) + bytes([255]) * size + bytes([238]) * 32


PACKETS = [
    b"SSH-2.0-OpenSSH_9.2p1\r\n",
    plain(20, 900),
    plain(31),
    plain(21),
    *map(coded, (16, 48, 32720, 16)),
]


@given(st.lists(st.integers(0, sum(map(len, PACKETS))), max_size=12))
def test_packets_come_out_whole_however_the_stream_was_cut(cuts: list[int]) -> None:
    stream, cutter, found = b"".join(PACKETS), Cutter(), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        found += cutter.feed(stream[start:end])
    assert found == PACKETS


def test_lines_ahead_of_the_banner_are_messages_of_their_own() -> None:
    lines = [b"be welcome\n", PACKETS[0], PACKETS[1]]
    assert Cutter().feed(b"".join(lines)) == lines


def test_half_a_packet_is_kept_until_it_is_whole() -> None:
    cutter = Cutter()
    assert cutter.feed(PACKETS[0] + PACKETS[1][:50]) == [PACKETS[0]]
    assert cutter.feed(PACKETS[1][50:]) == [PACKETS[1]]


def test_phases_follow_the_events_of_a_run() -> None:
    kinds = ["connecting", "probing", "started", "step", "step", "verifying", "probing", "started"]
    events = [(float(at), kind) for at, kind in enumerate(kinds)]
    named = [phase_of(at + 0.5, events, 9) for at in range(len(kinds))]
    assert named == [
        "login",
        "probe",
        "upload1",
        "follow1",
        "follow1",
        "verify1",
        "verify1",
        "upload2",
    ]
    assert phase_of(0.5, events, 3) == "kex"
