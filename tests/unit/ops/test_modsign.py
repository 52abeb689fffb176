"""Signing what DKMS built, by the real sh; the kernel's sign-file and modinfo are stood in for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpustate.ops import modsign

MAGIC = b"~Module signature appended~\n"
# Behind the module: a text in place of the signature, twelve bytes that end with its length, a line.
SIGN_FILE = f"""#!{sys.executable}
import subprocess, sys
said = subprocess.run(["openssl", "x509", "-inform", "DER", "-in", sys.argv[3], "-noout", "-serial"], capture_output=True)
serial = said.stdout.strip().partition(b"=")[2]
with open(sys.argv[4], "ab") as module:
    module.write(serial + bytes(8) + len(serial).to_bytes(4, "big") + {MAGIC!r})
"""
MODINFO = f"""#!{sys.executable}
import sys
said = open(sys.argv[3], "rb").read()
if said.endswith({MAGIC!r}):
    print(said[len("module"):-40].decode())
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in (("sign-file", SIGN_FILE), ("modinfo", MODINFO)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    made = (
        "openssl req -new -x509 -nodes -newkey rsa:2048 -subj /CN=us -keyout k -outform DER -out c"
    )
    subprocess.run(made.split(), cwd=tmp_path, check=True, capture_output=True)
    boot = tmp_path / "sys/firmware/efi/efivars/SecureBoot-1"
    boot.parent.mkdir(parents=True)
    boot.write_bytes(b"\6\0\0\0\1")
    for name in ("nvidia-uvm.ko", "nvidia.ko"):
        (tmp_path / name).write_bytes(b"module")
    return tmp_path


def run(place: Path) -> list[str]:
    """Names of what was signed in this call, in order."""
    text = modsign.BUILT.replace("/etc/dkms/framework.conf ", f"{place}/framework.conf ").replace(
        "/usr/bin/kmodsign", f"{place}/bin/sign-file"
    )
    call = f"set -e; PATH={place}/bin:$PATH; SYS={place}/sys\n{text}sign_built none {place}/nvidia-uvm.ko {place}/nvidia.ko"
    done = subprocess.run(["sh", "-c", call], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return [line.rpartition("/")[2] for line in done.stdout.splitlines()]


def key_is_set(place: Path) -> None:
    (place / "framework.conf").write_text(
        f'mok_signing_key="{place}/k"\nmok_certificate="{place}/c"\n'
    )


def test_modules_are_signed_once_in_order_with_the_key_that_dkms_is_set_up_with(
    place: Path,
) -> None:
    key_is_set(place)
    assert run(place) == ["nvidia-uvm.ko", "nvidia.ko"]
    first = (place / "nvidia.ko").read_bytes()
    assert first.startswith(b"module")
    assert run(place) == []
    assert (place / "nvidia.ko").read_bytes() == first


def test_a_signature_of_somebody_else_goes_before_ours_comes(place: Path) -> None:
    key_is_set(place)
    run(place)
    ours = (place / "nvidia.ko").read_bytes()
    (place / "nvidia.ko").write_bytes(b"module77" + bytes(11) + b"\2" + MAGIC)
    assert run(place) == ["nvidia.ko"]
    assert (place / "nvidia.ko").read_bytes() == ours


def test_nothing_is_signed_without_a_key_or_with_secure_boot_off(place: Path) -> None:
    assert run(place) == []
    key_is_set(place)
    (place / "sys/firmware/efi/efivars/SecureBoot-1").write_bytes(b"\6\0\0\0\0")
    assert run(place) == []
    assert (place / "nvidia.ko").read_bytes() == b"module"
