from __future__ import annotations

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory import load

from .conftest import Write


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("group_vars/all.yml", "- a\n", "group_vars/all.yml: contains a list, wanted a mapping"),
        ("group_vars/all.yml", "a: 1\n\tb: 2\n", "group_vars/all.yml:2: is not YAML"),
        ("group_vars/all/x.json", "{", "group_vars/all/x.json:1: is not JSON"),
        ("host_vars/n1.yml", "5: 1\n", "host_vars/n1.yml:1: a variable's name is '5'"),
    ],
)
def test_a_bad_file_is_an_error_with_its_place(
    write: Write, path: str, text: str, message: str
) -> None:
    source = write("hosts", "n1\n")
    write(path, text)
    with pytest.raises(InventoryError) as caught:
        load(source)
    assert str(caught.value).startswith(message)


def test_a_variable_remembers_the_file_and_line(write: Write) -> None:
    source = write("inv/hosts", "[gpu]\nn1 a=1\n")
    write("inv/group_vars/gpu.yml", "# x\nb: 1\n")
    write("inv/host_vars/n1/z.yml", "a: 2\n")
    (node,) = load(source)
    assert node.vars == {"a": 2, "b": 1}
    assert node.origins == {"a": "inv/host_vars/n1/z.yml:1", "b": "inv/group_vars/gpu.yml:2"}


def test_a_file_that_comes_second_is_noted(write: Write) -> None:
    source = write("hosts", "n1\n")
    write("group_vars/all", "a: 1\n")
    write("group_vars/all.yml", "a: 2\n")
    inventory = load(source)
    assert inventory.nodes[0].vars == {"a": 1}
    assert inventory.notes == ("group_vars/all.yml is not read: all takes precedence",)


def test_a_file_encrypted_as_a_whole_is_noted_and_named_when_something_is_missing(
    write: Write,
) -> None:
    source = write("hosts", "n1\n")
    write("group_vars/all/vault.yml", "$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    (note,) = load(source).notes
    assert note.startswith(
        "group_vars/all/vault.yml is encrypted with Ansible Vault and was not read; pass --vault-"
    )
    write("group_vars/all/vars.yml", 'ansible_password: "{{ vault_password }}"\n')
    with pytest.raises(InventoryError) as caught:
        load(source)
    assert str(caught.value).startswith(
        "group_vars/all/vars.yml:1: n1: ansible_password: 'vault_password' is undefined; it may be"
        " in group_vars/all/vault.yml, which is encrypted: pass --vault-password-file FILE"
    )


def test_a_priority_in_group_vars_has_no_effect_and_a_note(write: Write) -> None:
    source = write("hosts", "[a]\nn1\n[b]\nn1\n")
    write("group_vars/a.yml", "ansible_group_priority: 10\nwho: a\n")
    write("group_vars/b.yml", "who: b\n")
    inventory = load(source)
    assert inventory.nodes[0].vars["who"] == "b"
    assert inventory.notes == (
        "group_vars/a.yml:1: ansible_group_priority is used only in the inventory itself",
    )
