"""Where a private repository's user and password stand on a node: files of root's alone, each manager's own.

A password in the address of a source file is read by every user of the node, and shown by every tool that
prints sources. apt has ``auth.conf.d`` for it, dnf variables, zypper its credentials.

Surprising: apt sends a password over plain http only where the entry says ``http://`` itself.

Sources:
    apt_auth.conf(5): ``machine`` with host, port and path; dnf.conf(5), ``username``, ``password`` and variables
    in /etc/dnf/vars; zypper(8), URI parameter ``credentials`` and /etc/zypp/credentials.d.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpustate import Step, ops

_ADDRESS = re.compile(r"(?i)([a-z+]+)://([^/]+)(/.*)?")


@dataclass(frozen=True, slots=True)
class Login:
    """User and password of one repository."""

    user: str
    password: str = field(repr=False)


def split(address: str) -> tuple[str, str | None, str | None]:
    """An http address without its user and password, and those two as they are written there."""
    match = re.fullmatch(r"(?i)((?:mirror\+)?https?://)([^/@]*)@(.*)", address)
    if match is None:
        return address, None, None
    user, colon, password = match[2].partition(":")
    return match[1] + match[3], user, password if colon else None


def paths(name: str) -> tuple[str, ...]:
    """Every file that a repository's login may stand in."""
    return tuple(path for manager in ("apt", "dnf", "zypper") for path in _paths(manager, name))


def _paths(manager: str, name: str) -> tuple[str, ...]:
    if manager == "dnf":
        return tuple(f"/etc/dnf/vars/{variable(name, word)}" for word in ("username", "password"))
    if manager == "zypper":
        return (f"/etc/zypp/credentials.d/gpustate-{name}",)
    return (f"/etc/apt/auth.conf.d/gpustate-{name}.conf",)


def variable(name: str, word: str) -> str:
    """dnf's name of a variable of ours."""
    return f"gpustate_{name.replace('-', '_')}_{word}"


def files(manager: str, name: str, login: Login | None, uris: tuple[str, ...]) -> dict[str, str]:
    """The files of a login by path; none without one."""
    uris = tuple(uri for uri in uris if _ADDRESS.fullmatch(uri) and "http" in uri[:12].lower())
    if login is None or not uris:
        return {}
    paths = _paths(manager, name)
    if manager == "dnf":
        return dict(zip(paths, (f"{login.user}\n", f"{login.password}\n"), strict=True))
    if manager == "zypper":
        return {paths[0]: f"username={login.user}\npassword={login.password}\n"}
    text = "".join(
        f"machine {machine}\nlogin {login.user}\npassword {login.password}\n"
        for machine in dict.fromkeys(map(_machine, uris))
    )
    return {paths[0]: text}


def _machine(uri: str) -> str:
    scheme, _, address = uri.partition("://")
    return ("http://" if scheme.lower().endswith("http") else "") + address.rstrip("/")


def steps(name: str, have: Mapping[str, str], desired: Mapping[str, str]) -> Iterator[Step]:
    """Write what is wanted, remove what is not."""
    for path, text in desired.items():
        if have.get(path) != text:
            yield ops.PutText(path, text, mode=0o600, owner="root:root", secret=True)
    removed = [path for path in have if path not in desired]
    if removed:
        words = shlex.join(removed)
        yield ops.Run(
            f"for f in {words}; do rm -f $f; sync ${{f%/*}} 2>/dev/null || :; left_folders $f; done; effect removed",
            f"remove the login of {name}",
            timeout=30,
        )


def curl_configuration(manager: str, name: str) -> str:
    """sh that writes the login of dnf or zypper for curl into the file ``$c``."""
    escape = r's/[\\"]/\\&/g'
    if manager == "dnf":
        user, password = (f"sed '{escape}' {path}" for path in _paths("dnf", name))
    else:
        (path,) = _paths("zypper", name)
        user, password = (
            f"sed -n '{escape}; s/^{word}=//p' {path}" for word in ("username", "password")
        )
    return (
        f'c=$R/login.{name}; rm -f "$c"; '
        f'( umask 077; printf \'user = "%s:%s"\\n\' "$({user})" "$({password})" >"$c" )\n'
    )
