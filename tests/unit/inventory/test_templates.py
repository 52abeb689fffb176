from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpustate.core.inventory import InventoryNode
from gpustate.errors import InventoryError
from gpustate.inventory import load
from gpustate.inventory.documents import EncryptedText
from gpustate.inventory.vault import Source, Vault

from .conftest import Write

DATA = Path(__file__).parents[2] / "data"


def node(write: Write, variables: str) -> InventoryNode:
    text = "".join(f"    {line}\n" for line in variables.splitlines())
    (found,) = load(write("hosts.yml", f"all:\n  hosts:\n    n1:\n  vars:\n{text}"))
    return found


def one(write: Write, variables: str) -> dict[str, object]:
    return dict(node(write, variables).vars)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("ansible_host: '{{ a }}'", "hosts.yml:5: n1: ansible_host: 'a' is undefined; set it for"),
        (
            "ansible_host: '{{ a }}'\na: '{{ b }}'",
            "hosts.yml:6: n1: ansible_host: 'b' is undefined",
        ),
        (
            "ansible_host: '{{ a }}'\na: '{{ ansible_host }}'",
            "hosts.yml:6: n1: ansible_host: refers to itself: ansible_host > a > ansible_host",
        ),
        ("ansible_user: '{{ a'", "ansible_user: '{{ a': unexpected end of template"),
        ("ansible_user: '{{ 1 | b64 }}'", "No filter named 'b64'"),
        ("ansible_user: '{{ 1 / 0 }}'", "ZeroDivisionError: division by zero"),
        ("ansible_user: '{{ 9 ** 9 ** 9 }}'", "'**' is not supported on these values"),
        ("ansible_user: \"{{ 'x' * 9999999999 }}\"", "'*' is not supported on these values"),
        ("ansible_user: \"{{ ''.__class__.__mro__ }}\"", "hosts.yml:5: n1: ansible_user: "),
        ("ansible_user: \"{{ lookup('file', 'id') }}\"", "lookup('file') is unsupported; use"),
        (
            "ansible_user: \"{{ lookup('pipe', 'exit 3') }}\"",
            "the command 'exit 3': failed with exit",
        ),
        (
            "ansible_user: 'ENC[AES256_GCM,data:x]'",
            "the value is encrypted with SOPS; decrypt it with",
        ),
        ("ansible_user: \"{{ lookup('env', 'NO_SUCH') }}\"", "variable 'NO_SUCH' is not set"),
        ("gpustate: {a: ['{{ b }}']}", "hosts.yml:5: n1: gpustate: 'b' is undefined"),
        ("gpustate_proc_root: '{{ b }}'", "hosts.yml:5: n1: gpustate_proc_root: 'b' is undefined"),
    ],
)
def test_a_template_that_is_needed_and_does_not_resolve_is_an_error(
    write: Write, variables: str, message: str
) -> None:
    with pytest.raises(InventoryError) as caught:
        one(write, variables)
    assert message in str(caught.value)


def test_a_template_nobody_needs_is_kept_as_written(write: Write) -> None:
    found = one(write, "a: '{{ ansible_facts.x }}'\nb: ['{{ c }}', 'd{{']\nc: 1")
    assert found == {"a": "{{ ansible_facts.x }}", "b": ["{{ c }}", "d{{"], "c": 1}


def test_the_environment_is_looked_up(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PASSWORD", "p{{x}}")
    found = one(
        write,
        "ansible_password: \"{{ lookup('env', 'GPU_PASSWORD') }}\"\n"
        "b: \"{{ lookup('ansible.builtin.env', 'NO_SUCH', default='d') }}\"",
    )
    assert found == {"ansible_password": "p{{x}}", "b": "d"}


def test_variables_a_node_shares_with_others_are_resolved_for_each(write: Write) -> None:
    write("group_vars/all.yml", "deep: {plain: [1], name: ['{{ inventory_hostname }}']}\n")
    first, second = load(write("hosts", "n1\nn2\n"))
    assert first.vars["deep"] == {"plain": [1], "name": ["n1"]}
    assert second.vars["deep"] == {"plain": [1], "name": ["n2"]}


VAULT = "!vault |\n      $ANSIBLE_VAULT;1.1;AES256\n      6162"


def test_an_encrypted_value_is_opaque_until_it_is_needed(write: Write) -> None:
    found = node(write, f"secret: {VAULT}\nansible_become_password: {VAULT}")
    assert type(found.vars["secret"]) is EncryptedText
    found = node(write, f"a: 1\nansible_password: {VAULT}")
    with pytest.raises(InventoryError) as caught:
        _ = found.connection.login_password
    assert str(caught.value).startswith(
        "hosts.yml:6: n1: ansible_password: the value is encrypted with Ansible Vault, and there is no"
        " password for it; pass --vault-password-file FILE"
    )
    found = node(write, f"secret: {VAULT}\nansible_password: '{{{{ secret }}}}'")
    with pytest.raises(InventoryError) as caught:
        _ = found.connection.login_password
    assert "hosts.yml:5: n1: secret: the value, which ansible_password needs, is encrypted" in str(
        caught.value
    )
    found = node(write, "gpustate: {a: !vault 'x'}")
    with pytest.raises(InventoryError, match="gpustate: the value is encrypted"):
        list(found.layers)
    with pytest.raises(InventoryError, match="gpustate: the value is encrypted"):
        _ = found.vars["gpustate"]


def test_a_password_source_that_cannot_be_read_is_named(write: Write) -> None:
    whole = json.dumps((DATA / "ansible-vault/value-1.1.txt").read_text("utf-8"))
    text = f"    secret: !vault {whole}\n    ansible_password: '{{{{ secret }}}}'\n"
    hosts = write("hosts.yml", f"all:\n  hosts:\n    n1:\n  vars:\n{text}")
    (found,) = load(hosts, vault=Vault((Source("default", "no/such"),)))
    with pytest.raises(InventoryError) as caught:
        _ = found.connection.login_password
    assert str(caught.value) == (
        "hosts.yml:5: n1: secret: the value, which ansible_password needs, cannot be decrypted: no/such: "
        "the vault password cannot be read: No such file or directory"
    )


def test_a_long_chain_of_references_is_an_error_not_a_crash(write: Write) -> None:
    chain = "".join(f"v{n}: '{{{{ v{n + 1} }}}}'\n" for n in range(2000))
    with pytest.raises(InventoryError, match="refers through more than 50 variables"):
        one(write, f"ansible_host: '{{{{ v0 }}}}'\n{chain}v2000: x")
