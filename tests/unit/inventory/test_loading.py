from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory import files, load

from .conftest import Write


def test_a_list_takes_users_ports_and_ranges() -> None:
    inventory = load("gpu1, ubuntu@gpu[2:3]:2222,,[2001:db8::1]:22")
    found = [(n.name, n.connection.user, n.connection.port) for n in inventory]
    assert found == [
        ("gpu1", None, None),
        ("gpu2", "ubuntu", 2222),
        ("gpu3", "ubuntu", 2222),
        ("2001:db8::1", None, 22),
    ]
    assert inventory.nodes[0].groups == ("ungrouped",)
    assert len(load("gpu1,")) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "the inventory is empty; pass a file, a directory, or 'node,'"),
        (",", "inventory list ',': contains no node"),
        ("gpu1", "gpu1: no such file or directory; if this is a node, write 'gpu1,'"),
        ("@gpu1,", "'@gpu1': the connector @gpu1 is not supported"),
        ("gpu1:x,", "'x' in 'gpu1:x' is not a port"),
        ("\0", "no such file or directory"),
        ("x" * 5000, "no such file or directory"),
    ],
)
def test_a_source_that_is_nothing_is_an_error(write: Write, source: str, message: str) -> None:
    with pytest.raises(InventoryError) as caught:
        load(source)
    assert message in str(caught.value)


def test_a_file_may_have_a_comma_in_its_name(write: Write) -> None:
    assert [node.name for node in load(write("a,b", "n1\n"))] == ["n1"]


def test_a_file_that_is_no_text_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in [
        (b"n1\nn2 a=\xff\n", "hosts:2: is not UTF-8 (byte 0xff at offset 8)"),
        (b"\x7fELF\0\0", "hosts: is a binary file (a zero byte at offset 4), wanted text"),
        (b"", "hosts: is empty, wanted nodes"),
        (
            b"$ANSIBLE_VAULT;1.1;AES256\n61",
            "hosts: is encrypted with Ansible Vault, and there is no password",
        ),
        (os.urandom(1 << 20).replace(b"\0", b"\1"), "hosts"),
    ]:
        with open("hosts", "wb") as file:
            file.write(data)
        with pytest.raises(InventoryError) as caught:
            load("hosts")
        assert str(caught.value).startswith(message)
        assert len(str(caught.value)) < 300
    monkeypatch.setattr(files, "LIMIT_MIB", 0)
    with pytest.raises(InventoryError, match="hosts: is larger than 0 MiB"):
        load(write("hosts", "n1\n"))


def test_a_byte_order_mark_is_no_part_of_the_first_name(write: Write) -> None:
    assert [node.name for node in load(write("hosts", "\ufeffn1\n"))] == ["n1"]


def test_one_long_line_of_noise_is_refused_quickly_and_briefly(write: Write) -> None:
    for name, text in [("hosts", "[" * 10_000_000), ("a.yml", "{" * 10_000_000)]:
        begun = time.process_time()
        with pytest.raises(InventoryError) as caught:
            load(write(name, text))
        assert time.process_time() - begun < 5
        assert len(str(caught.value)) < 300


def test_an_unreadable_file_of_a_directory_is_an_error_not_a_warning(write: Write) -> None:
    write("inv/a.ini", "n1\n")
    write("inv/b.yml", "- x\n")
    with pytest.raises(InventoryError, match=r"inv/b\.yml: contains a list"):
        load("inv")


def test_a_directory_without_nodes_is_an_error(write: Write) -> None:
    write("inv/README.md", "nothing\n")
    with pytest.raises(InventoryError, match="inv: contains no node"):
        load("inv")


def test_a_toml_inventory_is_refused(write: Write) -> None:
    with pytest.raises(
        InventoryError, match="TOML inventories are unsupported; convert it to YAML"
    ):
        load(write("hosts.toml", "[gpu]\n"))


def test_nodes_nobody_asked_for_may_be_out_of_reach(write: Write) -> None:
    source = write(
        "hosts", "[gpu]\ng1\n[win]\nw1 ansible_connection=winrm\nw2 ansible_host={{nope}}\n"
    )
    assert [node.name for node in load(source, limit="gpu")] == ["g1"]
    assert [node.name for node in load(source, exclude="win")] == ["g1"]
    with pytest.raises(InventoryError, match="w1: ansible_connection is 'winrm'"):
        load(source)


def test_five_thousand_nodes_take_about_a_second(write: Write) -> None:
    lines = [
        f"gpu-{n:04d} ansible_host=10.0.{n // 256}.{n % 256} rack=r{n // 40}" for n in range(5000)
    ]
    source = write("hosts", "[gpu]\n" + "\n".join(lines) + "\n")
    write("group_vars/gpu.yml", "bmc: '{{ inventory_hostname }}-bmc'\nansible_user: ops\n")
    begun = time.process_time()
    inventory = load(source)
    # Measured 0.3 s; the bound is for a machine that is busy with something else.
    assert time.process_time() - begun < 3
    assert len(inventory) == 5000
    assert inventory.nodes[4999].vars["bmc"] == "gpu-4999-bmc"


def test_links_in_a_circle_are_one_error(write: Write) -> None:
    hosts = Path(write("inv/hosts", "n1\n"))
    for inner, other in (("a", "b"), ("b", "a")):
        (hosts.parent / inner).mkdir()
        for name in ("one", "two"):
            (hosts.parent / inner / name).symlink_to(f"../{other}", target_is_directory=True)
    with pytest.raises(InventoryError, match="is a link to a directory above it"):
        load(str(hosts.parent))


@pytest.mark.parametrize("folder", [".", "group_vars/all", "sub"])
def test_a_link_to_a_directory_above_is_one_error(write: Write, folder: str) -> None:
    hosts = Path(write("inv/hosts", "n1\n"))
    for inner in ("sub", "group_vars/all"):
        (hosts.parent / inner).mkdir(parents=True, exist_ok=True)
    for name in ("one", "two"):
        (hosts.parent / folder / name).symlink_to((hosts.parent / folder).resolve())
    with pytest.raises(InventoryError, match=r"one: is a link to a directory above it$"):
        load(str(hosts.parent))


def test_a_pipe_that_nobody_writes_to_is_one_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hosts")
    with pytest.raises(InventoryError, match="is neither a file nor a link to one"):
        load(str(tmp_path / "hosts"))
