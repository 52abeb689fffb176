"""Ansible Vault, judged by files that ansible-vault made (see the README beside them)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpustate.core.inventory import Inventory
from gpustate.errors import InventoryError
from gpustate.formats.masking import mask
from gpustate.inventory import commands, load
from gpustate.inventory.vault import Source, Vault, sources

from .conftest import Write

DATA = Path(__file__).parents[2] / "data" / "ansible-vault"
PASSWORD, PROD = "correct horse", "prod-password"


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def asking(*passwords: str) -> Vault:
    """A vault whose sources are answered by a person, in order."""
    rest = list(passwords)
    labels = ["default", "prod", "other"][: len(passwords)]
    return Vault([Source(label) for label in labels], lambda _: rest.pop(0))


@pytest.mark.parametrize(
    ("name", "vault", "clear"),
    [
        ("value-1.1.txt", asking(PASSWORD), "S3cr3t-vault-value"),
        ("value-1.2-prod.txt", asking(PROD), "S3cr3t-prod-väl {{ x }}"),
        # The id of the value decides which password is tried first; the others follow.
        ("value-1.2-prod.txt", Vault([Source("a"), Source("prod")], {"prod": PROD}.__getitem__), "S3cr3t-prod-väl {{ x }}"),
        ("value-1.1.txt", asking("wrong", PASSWORD), "S3cr3t-vault-value"),
    ],
)  # fmt: skip
def test_what_ansible_vault_encrypted_is_read(name: str, vault: Vault, clear: str) -> None:
    assert vault.decrypt(text(name), "x") == clear


@pytest.mark.parametrize(
    ("encrypted", "message"),
    [
        (text("value-1.1.txt"), "f.yml:3: cannot be decrypted: wrong password, tried those of default"),
        (text("value-1.2-prod.txt"), "wrong password (its vault id is 'prod')"),
        (text("value-1.1.txt")[:-30], "f.yml:3: "),
        ("$ANSIBLE_VAULT;1.1;AES256\n6162", "is truncated or was modified"),
        ("$ANSIBLE_VAULT;1.0;AES\n6162", "format '1.0', wanted 1.1 or 1.2"),
        ("$ANSIBLE_VAULT;1.1;TWOFISH\n6162", "cipher 'TWOFISH', wanted AES256"),
        ("plain", "its first line is not $ANSIBLE_VAULT"),
    ],
)  # fmt: skip
def test_what_cannot_be_decrypted_is_one_error_with_its_place(encrypted: str, message: str) -> None:
    with pytest.raises(InventoryError) as caught:
        asking("hunter2").decrypt(encrypted, "f.yml:3")
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_passwords_come_from_files_programs_and_people_in_ansible_s_order(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("pw", f"{PASSWORD}\n")
    write("tool", f"#!/bin/sh\necho {PROD}\n", executable=True)
    write("keys-client.sh", '#!/bin/sh\necho "$1 $2"\n', executable=True)
    found = sources(
        ["prod@tool", "asked@prompt"], ["pw"], query=True, environment={"ANSIBLE_VAULT_IDENTITY_LIST": "x@y"}
    )  # fmt: skip
    assert found == (Source("x", "y"), Source("prod", "tool"), Source("asked"), Source("default", "pw"), Source("default"))  # fmt: skip
    env = {"ANSIBLE_VAULT_PASSWORD_FILE": "pw"}
    assert sources([], [], query=False, environment=env) == (Source("default", "pw"),)
    assert Vault([Source("d", "pw")]).decrypt(text("value-1.1.txt"), "x") == "S3cr3t-vault-value"
    assert Vault([Source("d", "tool")])._password(Source("d", "tool")) == PROD.encode()
    assert Vault()._password(Source("eu", "keys-client.sh")) == b"--vault-id eu"
    for path, message in (("none", "No such file"), ("empty", "contains no password")):
        write("empty", "\n")
        with pytest.raises(InventoryError, match=message):
            Vault()._password(Source("d", path))
    with pytest.raises(InventoryError, match="stdin is not a terminal; pass a file or a program"):
        Vault()._password(Source("d"))


INVENTORY = """
all:
  hosts:
    n1:
  vars:
    ansible_become: true
    ansible_become_password: "{{ vault_become }}"
    unused: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      6162
"""


def loaded(write: Write, vault: Vault) -> Inventory:
    source = write("hosts.yml", INVENTORY)
    write("group_vars/all/vault.yml", text("vars-1.1.yml"))
    return load(source, vault=vault)


def test_a_file_encrypted_as_a_whole_is_read_and_what_is_not_needed_never_decrypted(
    write: Write,
) -> None:
    (node,) = found = loaded(write, asking(PASSWORD))
    assert found.notes == ()
    assert node.connection.sudo_password == "S3cr3t-file-value"
    assert node.vars["vault_user"] == "ops"
    assert [layer.value for layer in node.layers] == [
        {"driver-repository": {"url": "https://mirror.example/x"}}
    ]
    # "unused" is damaged, and an error only for who looks at it.
    assert "unused" in node.vars
    assert mask("sudo said S3cr3t-file-value") == "sudo said (secret)"


def test_without_a_password_everything_works_that_needs_none(write: Write) -> None:
    value = json.dumps(text("value-1.1.txt"))
    write(
        "hosts.yml",
        f"all: {{hosts: {{n1: }}, vars: {{plain: 1, other: !vault {value},"
        f" gpustate: {{driver-repository: {{password: !vault {value}}}}}}}}}",
    )
    (node,) = load("hosts.yml")
    assert node.vars["plain"] == 1
    assert node.connection.login_password is None
    (node,) = load("hosts.yml", vault=asking(PASSWORD))
    (layer,) = node.layers
    assert layer.value == {"driver-repository": {"password": "S3cr3t-vault-value"}}


def test_a_command_gives_a_variable_once_when_it_is_needed_and_as_a_secret(write: Write) -> None:
    commands.forget()
    source = write(
        "hosts.yml",
        """
        all:
          hosts:
            n1:
            n2:
          vars:
            ansible_password: "{{ lookup('pipe', 'echo ran >> log; echo S3cr3t-of-a-store') }}"
            never: "{{ lookup('pipe', 'echo never >> log') }}"
        """,
    )
    first, second = load(source)
    assert not Path("log").exists()
    assert (
        first.connection.login_password == second.connection.login_password == "S3cr3t-of-a-store"
    )
    assert Path("log").read_text(encoding="utf-8") == "ran\n"
    assert mask("it was S3cr3t-of-a-store") == "it was (secret)"
