#!/usr/bin/python3
"""A stand-in for CRI-O: reads its files as CRI-O does, refuses what CRI-O refuses, and serves nothing.

No package of CRI-O is at hand for these tests. What is simulated, and from where it is known:

- main file, then every file below the drop-in folder, sorted by name; a later key wins, the table of a
  runtime replaces an earlier one of that name: cri-o/cri-o pkg/config/config.go, ``UpdateFromPath`` and
  ``UpdateFromDropInFile``; crio.conf.d(5);
- ``config`` prints the outcome, defaults as comments: internal/criocli/config.go, pkg/config/template.go;
- a default runtime that is not defined, or whose program is not there, keeps it from starting; another
  runtime's program that is not there is left out: pkg/config/config.go, ``ValidateRuntimes``;
- its socket is there while it runs; SIGHUP is not looked at.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tomllib
from typing import Any

DEFAULTS: dict[str, Any] = {
    "crio": {
        "log_dir": "/var/log/crio/pods",
        "runtime": {"default_runtime": "crun", "cgroup_manager": "systemd", "pids_limit": -1},
        "image": {"pause_image": "registry.k8s.io/pause:3.10"},
        "network": {"network_dir": "/etc/cni/net.d/"},
    }
}
BUILT_IN = {"runtime_type": "oci", "runtime_root": "/run/crun", "runtime_path": ""}
SOCKET = "/var/run/crio/crio.sock"


def fail(text: str) -> None:
    print(f'time="2026-01-01" level=fatal msg={json.dumps(text)}', file=sys.stderr)
    sys.exit(1)


def merge(path: tuple[str, ...], to: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    whole = dict(to)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict) and len(path) < 3:
            whole[key] = merge((*path, key), whole[key], value)
        else:
            whole[key] = value
    return whole


def load(main: str | None, folder: str) -> dict[str, Any]:
    config = merge((), DEFAULTS, {"crio": {"runtime": {"runtimes": {"crun": BUILT_IN}}}})
    paths = [main] if main else []
    for parent, folders, names in sorted(os.walk(folder)):
        folders.sort()
        paths += [os.path.join(parent, name) for name in sorted(names)]
    for path in paths:
        try:
            with open(path, "rb") as handle:
                config = merge((), config, tomllib.load(handle))
        except (OSError, ValueError) as error:
            fail(f"update config from drop-in file: unable to decode configuration {path}: {error}")
    return config


def validate(config: dict[str, Any]) -> None:
    runtime = config["crio"]["runtime"]
    default = runtime["default_runtime"]
    if default not in runtime["runtimes"]:
        fail(f"validating runtime config: default_runtime {default!r} is not in runtimes")
    for name, table in list(runtime["runtimes"].items()):
        program = table.get("runtime_path") or shutil.which(name) or ""
        if table.get("runtime_type", "oci") not in ("", "oci", "vm", "pod"):
            fail(f"runtime {name}: invalid runtime_type {table['runtime_type']!r}")
        if not os.access(program, os.X_OK):
            if name == default:
                fail(f"invalid runtime_path for runtime {name!r}: {program!r} is not there")
            del runtime["runtimes"][name]


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value)


def write(config: dict[str, Any], default: dict[str, Any], path: tuple[str, ...] = ()) -> None:
    if path and any(not isinstance(value, dict) for value in config.values()):
        print(f"[{'.'.join(path)}]")
    for key, value in config.items():
        if not isinstance(value, dict):
            mark = "# " if default.get(key) == value else ""
            print(f"{mark}{key} = {shown(value)}")
    for key, value in config.items():
        if isinstance(value, dict):
            write(value, default.get(key, {}), (*path, key))


def serve() -> None:
    os.makedirs(os.path.dirname(SOCKET), exist_ok=True)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SOCKET)
    listening.listen()
    notify = os.environ.get("NOTIFY_SOCKET")
    if notify:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.connect(notify.replace("@", "\0", 1))
            ready.send(b"READY=1")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.sigwait([signal.SIGTERM])
    os.unlink(SOCKET)


def main() -> None:
    words = sys.argv[1:]
    path: str | None = "/etc/crio/crio.conf" if os.path.exists("/etc/crio/crio.conf") else None
    folder = "/etc/crio/crio.conf.d"
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        if name in ("--version", "-v"):
            print("crio version 1.31.2\nVersion: 1.31.2")
            return
        value = value or words.pop(0)
        if name in ("--config", "-c"):
            path = value
        elif name in ("--config-dir", "-d"):
            folder = value
        else:
            fail(f"flag provided but not defined: {name}")
    if words[:1] == ["status"]:
        if "--help" not in words:
            with socket.socket(socket.AF_UNIX) as there:
                there.connect(SOCKET)
        return
    config = load(path, folder)
    if words[:1] == ["config"]:
        write(config, DEFAULTS)
        return
    if words:
        fail(f"unknown command {words[0]}")
    validate(config)
    serve()


if __name__ == "__main__":
    main()
