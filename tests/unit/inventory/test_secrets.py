"""No message about an inventory quotes what may be a secret: messages are copied into tickets and logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate import inventory
from gpustate.errors import InventoryError
from gpustate.inventory.secrets import HIDDEN, line_shown, quote_value

SECRET = "hunter2"


def error_of(folder: Path, files: dict[str, str], name: str = "hosts.ini") -> str:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    with pytest.raises(InventoryError) as caught:
        inventory.load(str(folder / name))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f'gpu1 ansible_password="{SECRET}\n', "hosts.ini:1"),
        (f"gpu1 ansible_password=x {SECRET}\n", "hosts.ini:1"),
        (f"gpu1 ansible_become_pass=my {SECRET} word\n", "hosts.ini:1"),
        (f"gpu1\n[all:vars]\nansible_password {SECRET}\n", "hosts.ini:3"),
        (f"[all:children]\nvault_password = {SECRET}\n", "hosts.ini:2"),
        (f'gpu1 ansible_ssh_common_args="-o \'ProxyCommand=sshpass -p {SECRET}"\n', "hosts.ini:1"),
        (f'gpu1 ansible_ssh_common_args="-o ProxyCommand=sshpass {SECRET} -W"\n', "hosts.ini:1"),
    ],
)
def test_a_line_with_a_mistake_is_told_without_its_values(
    text: str, place: str, tmp_path: Path
) -> None:
    said = error_of(tmp_path, {"hosts.ini": text})
    assert SECRET not in said
    assert place in said


@pytest.mark.parametrize(
    "variables",
    [
        'ansible_port: "{{ vault_port }}"\nvault_port: hunter2\n',
        'ansible_user: "{{ vault_user }}"\nvault_user: -hunter2\n',
        'ansible_host: "{{ the_secret }}"\nthe_secret: -hunter2\n',
        'ansible_become: "{{ api_key }}"\napi_key: hunter2\n',
        'ansible_port: "{{ {}[my_token] + 1 }}"\nmy_token: hunter2\n',
        "ansible_password: [hunter2]\n",
        "ansible_password: \"{{ 'hunter2' | nosuchfilter }}\"\n",
        "ansible_password: !!int hunter2\n",
        "ansible_port: \"{{ lookup('env', 'GPUSTATE_TEST_SECRET') }}\"\n",
    ],
)
def test_a_value_that_may_be_a_secret_is_not_quoted(
    variables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSTATE_TEST_SECRET", SECRET)
    said = error_of(tmp_path, {"hosts.ini": "gpu1\n", "group_vars/all.yml": variables})
    assert SECRET not in said
    assert "group_vars/all.yml" in said


def test_a_file_called_after_a_secret_is_one_whatever_its_variables_are_called(
    tmp_path: Path,
) -> None:
    files = {"hosts.ini": "gpu1\n", "group_vars/all/vault.yml": "ansible_port: hunter2\n"}
    said = error_of(tmp_path, files)
    assert SECRET not in said
    assert HIDDEN in said


def test_what_is_no_secret_is_quoted_still(tmp_path: Path) -> None:
    files = {"hosts.ini": "gpu1\n", "group_vars/all.yml": "ansible_port: ssh\n"}
    assert "ansible_port is 'ssh', wanted a port" in error_of(tmp_path, files)
    assert "'gpu2' after 'gpu1'" in error_of(tmp_path, {"hosts.ini": "gpu1 gpu2\n"})
    assert quote_value("x", "ansible_user", "/home/passerby/hosts.ini:1") == "'x'"
    assert line_shown("gpu1 ansible_user='x") == "'gpu1 ansible_user=...'"
