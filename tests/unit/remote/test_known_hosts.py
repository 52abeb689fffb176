"""Host keys: the same answers as ssh-keygen's, from plain, hashed and bracketed lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest

from gpustate.errors import UsageError
from gpustate.remote.known_hosts import KnownHosts


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Public keys by name, as their files have them."""
    made: dict[str, str] = {}
    for name, kind in (("one", "ed25519"), ("two", "ed25519"), ("three", "ecdsa")):
        file = tmp_path / name
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(file)], check=True)
        made[name] = " ".join((tmp_path / f"{name}.pub").read_text().split()[:2])
    return made


def _write(folder: Path, *lines: str) -> tuple[str, ...]:
    file = folder / "known_hosts"
    file.write_text("".join(f"{line}\n" for line in lines))
    return (str(file), str(folder / "none"))


def _types(known: KnownHosts, name: str) -> dict[str, str]:
    found = known.keys_of(name).lookup(name)
    return {} if found is None else {kind: key.get_base64() for kind, key in found.items()}


def test_a_host_has_the_keys_of_its_lines_and_no_others(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    files = _write(
        tmp_path,
        "# a comment",
        "",
        f"node1,10.0.0.1 {keys['one']} somebody@here",
        f"node1 {keys['three']}",
        f"[node1]:2222 {keys['two']}",
    )
    known = KnownHosts(files)
    for name in ("node1", "10.0.0.1"):
        assert _types(known, name)["ssh-ed25519"] == keys["one"].split()[1]
    assert "ecdsa-sha2-nistp256" in _types(known, "node1")
    assert "ecdsa-sha2-nistp256" not in _types(known, "10.0.0.1")
    assert _types(known, "[node1]:2222") == {"ssh-ed25519": keys["two"].split()[1]}
    assert _types(known, "node2") == {}


def test_hashed_names_are_found_as_ssh_keygen_hashes_them(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    files = _write(tmp_path, f"node1 {keys['one']}", f"[node2]:2222 {keys['two']}")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", files[0]], check=True, capture_output=True)
    assert "node1" not in Path(files[0]).read_text()
    known = KnownHosts(files)
    assert _types(known, "node1") == {"ssh-ed25519": keys["one"].split()[1]}
    assert _types(known, "[node2]:2222") == {"ssh-ed25519": keys["two"].split()[1]}
    assert _types(known, "node2") == {}


def test_the_first_of_two_keys_of_one_kind_counts_and_damaged_lines_do_not(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    files = _write(
        tmp_path,
        "node1 ssh-ed25519 ????",
        "node1",
        "|1|bad|worse ssh-ed25519 AAAA",
        "node1 ssh-unheard-of AAAA",
        f"node1 {keys['one']}",
        f"node1 {keys['two']}",
    )
    assert _types(KnownHosts(files), "node1") == {"ssh-ed25519": keys["one"].split()[1]}


def test_a_new_key_is_written_down_and_known_from_then_on(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    files = _write(tmp_path)
    known = KnownHosts(files)
    known.add("[node1]:2222", paramiko.PKey.from_path(str(tmp_path / "one")))
    assert _types(known, "[node1]:2222") == {"ssh-ed25519": keys["one"].split()[1]}
    assert _types(KnownHosts(files), "[node1]:2222") == _types(known, "[node1]:2222")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"folder: is a directory"):
        KnownHosts((str(tmp_path / "folder"),))
