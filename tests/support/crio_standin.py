#!/usr/bin/python3
"""A stand-in for CRI-O: reads its files as CRI-O does, refuses what CRI-O refuses, and serves nothing.

No package of CRI-O is at hand for these tests. What is simulated, and from where it is known:

- main file, then every file below the drop-in folder, sorted by name; a later key wins, the table of a
  runtime replaces an earlier one of that name: cri-o/cri-o pkg/config/config.go, ``UpdateFromPath`` and
  ``UpdateFromDropInFile``; crio.conf.d(5);
- ``config`` prints the outcome, a setting with its default value as a comment, and all runtimes as comments or
  none (``RuntimesEqual``), each with every key: internal/criocli/config.go, pkg/config/template.go of 1.34.0, whose
  sentences are left out;
- a default runtime that is not defined, or whose program is not there, keeps it from starting; another
  runtime's program that is not there is left out: pkg/config/config.go, ``ValidateRuntimes``;
- its socket answers Version, Status and RuntimeConfig of the CRI while it runs; SIGHUP is not looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import tomllib
from typing import Any

#: Sections in the order of the template, with what is printed of each: those keys that tests touch, and some more.
DEFAULTS: dict[str, Any] = {
    "crio": {
        "root": "/var/lib/containers/storage",
        "log_dir": "/var/log/crio/pods",
        "version_file": "/var/run/crio/version",
        "internal_wipe": True,
        "api": {
            "listen": "/var/run/crio/crio.sock",
            "stream_address": "127.0.0.1",
            "stream_port": "0",
        },
        "runtime": {
            "default_runtime": "crun",
            "decryption_keys_path": "/etc/crio/keys/",
            "conmon": "",
            "default_env": [],
            "cgroup_manager": "systemd",
            "default_capabilities": ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "KILL"],
            "hooks_dir": ["/usr/share/containers/oci/hooks.d"],
            "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"],
            "pids_limit": -1,
            "log_level": "info",
        },
        "image": {"default_transport": "docker://", "pause_image": "registry.k8s.io/pause:3.10.1"},
        "network": {"network_dir": "/etc/cni/net.d/", "plugin_dirs": ["/opt/cni/bin/"]},
        "metrics": {"enable_metrics": False, "metrics_port": 9090},
        "tracing": {"enable_tracing": False},
        "nri": {"enable_nri": True},
        "stats": {"stats_collection_period": 0},
    }
}
#: Of ``[crio.runtime]``, what the template has behind runtimes and workloads.
BEHIND = {"hostnetwork_disable_selinux": True, "disable_hostport_mapping": False}
#: A runtime's keys, each of them printed whatever the file says, and what a file need not say.
RUNTIME: dict[str, Any] = {
    "runtime_path": "",
    "runtime_type": "",
    "runtime_root": "",
    "inherit_default_runtime": False,
    "runtime_config_path": "",
    "container_min_memory": "",
    "monitor_path": "",
    "monitor_cgroup": "",
    "monitor_exec_cgroup": "",
    "monitor_env": [],
    "allowed_annotations": [],
    "privileged_without_host_devices": False,
}
BUILT_IN: dict[str, Any] = {
    "runtime_type": "oci",
    "runtime_root": "/run/crun",
    "container_min_memory": "500KiB",
    "monitor_cgroup": "system.slice",
    "monitor_env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    "allowed_annotations": ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"],
}
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
    built_in = {"runtimes": {"crun": BUILT_IN}, **BEHIND}
    config = merge((), DEFAULTS, {"crio": {"runtime": built_in}})
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


def line(key: str, value: Any, mark: str) -> None:
    """One setting; every line of a list is a comment where it is the default one."""
    if isinstance(value, list):
        items = "".join(f"{mark}\t{shown(item)},\n" for item in value)
        print(f"{mark}{key} = [\n{items}{mark}]\n")
    elif isinstance(value, dict):
        inside = ",".join(f"{shown(k)} = {shown(v)}" for k, v in value.items())
        print(f"{mark}{key} = {{{inside}}}\n")
    else:
        print(
            f"# What {key} is about, in a sentence of the template.\n{mark}{key} = {shown(value)}\n"
        )


def runtimes(tables: dict[str, dict[str, Any]]) -> None:
    """All of them are comments, or none: one that was added uncomments the built-in one."""
    print("# What a table of a runtime has, in many sentences; of which this is the example:")
    print('#[crio.runtime.runtimes.runtime-handler]\n#  runtime_path = "/path/to/the/executable"\n')
    mark = "# " if tables == {"crun": BUILT_IN} else ""
    for name, table in sorted(tables.items()):
        print(f"{mark}[crio.runtime.runtimes.{name}]")
        for key, default in RUNTIME.items():
            value = table.get(key, default)
            if isinstance(value, list):
                items = "".join(f"{mark}\t{shown(item)},\n" for item in value)
                print(
                    f"{mark}{key} = [\n{items}{mark}]"
                    if value
                    else mark
                    if key == "monitor_env"
                    else ""
                )
            else:
                print(f"{mark}{key} = {shown(value)}")
        print()
    print("# What a workload is. Example:\n# [crio.runtime.workloads.workload-type]")
    print(
        '# activation_annotation = "io.crio/workload"\n# Where:\n# The workload name is workload-type.'
    )


def write(config: dict[str, Any]) -> None:
    """Print it as ``crio config`` does: a setting that has its default value is a comment."""
    print("# The CRI-O configuration file, in a sentence of the template.\n[crio]\n")
    for key, value in config["crio"].items():
        if not isinstance(value, dict):
            line(key, value, "# " if DEFAULTS["crio"].get(key) == value else "")
    for section, table in config["crio"].items():
        if not isinstance(table, dict):
            continue
        print(f"# What the table crio.{section} is about.\n[crio.{section}]\n")
        default = DEFAULTS["crio"].get(section, {})
        for key, value in table.items():
            if key not in ("runtimes", "workloads", *BEHIND):
                line(key, value, "# " if default.get(key) == value else "")
        if section == "runtime":
            runtimes(table["runtimes"])
            for name, load in table.get("workloads", {}).items():
                print(f"[crio.runtime.workloads.{name}]")
                for key, value in load.items():
                    line(key, value, "")
            for key, value in BEHIND.items():
                line(key, table[key], "# " if table[key] == value else "")


def frame(kind: int, flags: int, payload: bytes) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", 1 if kind != 4 else 0) + payload


def bits(number: int, value: bytes) -> bytes:
    size = (
        bytes([len(value) & 127 | 128, len(value) >> 7])
        if len(value) > 127
        else bytes([len(value)])
    )
    return bytes([number << 3 | 2]) + size + value


def answer(method: str, config: dict[str, Any]) -> bytes:
    """A message of runtime.v1: what CRI-O says of itself, with the handlers that it has (from 1.31 on)."""
    if method == "Version":
        return bits(2, b"cri-o") + bits(3, b"1.34.0") + bits(4, b"v1")
    if method == "RuntimeConfig":
        return bits(1, b"")  # systemd is 0
    ready = bits(1, bits(1, b"RuntimeReady") + b"\x10\x01") + bits(1, bits(1, b"NetworkReady"))
    names = sorted(config["crio"]["runtime"]["runtimes"])
    return bits(1, ready) + b"".join(bits(3, bits(1, name.encode())) for name in names)


def talk(listening: socket.socket, config: dict[str, Any]) -> None:
    """gRPC for one call a connection, of a client that sends all at once."""
    while True:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            asked = connection.recv(65536)
            method = (
                asked.partition(b"RuntimeService/")[2].split(b"\0")[0].decode("ascii", "replace")
            )
            if method:
                body = answer(method, config)
                data = b"\0" + struct.pack(">I", len(body)) + body
                trailers = b"\x40\x0bgrpc-status\x010"
                head = frame(4, 0, b"") + frame(1, 4, b"\x88") + frame(0, 0, data)
                connection.sendall(head + frame(1, 5, trailers))
                connection.recv(1024)


def serve(config: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(SOCKET), exist_ok=True)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SOCKET)
    listening.listen()
    threading.Thread(target=talk, args=(listening, config), daemon=True).start()
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
            print("crio version 1.34.0\nVersion:        1.34.0")
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
        write(config)
        return
    if words:
        fail(f"unknown command {words[0]}")
    validate(config)
    serve(config)


if __name__ == "__main__":
    main()
