"""Simulated: reads and edits /etc/nvidia-container-runtime/config.toml.

The file is edited line by line, so comments stay; values keep the type that the key has by default.
"""

from __future__ import annotations

import os
import re

PATH = os.environ.get("NVIDIA_CTK_CONFIG_FILE_PATH", "/etc/nvidia-container-runtime/config.toml")
DEFAULT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""
_TABLES = (
    "nvidia-container-cli",
    "nvidia-container-runtime-hook",
    "nvidia-container-runtime",
    "nvidia-ctk",
    "features",
)


def current(path: str = PATH) -> str:
    """Return the text of the file, or the default when there is none."""
    if not os.path.exists(path):
        return DEFAULT
    with open(path, encoding="utf-8") as handle:
        return handle.read()


def get(key: str, path: str = PATH) -> str | None:
    """Return a value as it is written, without quotes."""
    table, name = split(key)
    inside = ""
    for line in current(path).splitlines():
        if line.startswith("["):
            inside = line.strip().strip("[]")
        matched = re.match(rf"{re.escape(name)}\s*=\s*(.*)", line)
        if matched and inside == table:
            return matched[1].strip().strip('"')
    return None


def split(key: str) -> tuple[str, str]:
    """``nvidia-container-runtime.modes.cdi.default-kind`` to its table and its name."""
    table, _, name = key.rpartition(".")
    return table, name


def edited(text: str, key: str, value: str) -> str:
    """Set one key; a commented one is taken over, a missing one is added to its table.

    Raises:
        ValueError: no table of that name can exist.
    """
    table, name = split(key)
    if table and not table.startswith(_TABLES):
        raise ValueError(f"invalid config option: {key}")
    lines, inside, last = text.splitlines(), "", None
    for number, line in enumerate(lines):
        if line.startswith("["):
            inside = line.strip().strip("[]")
        if inside == table:
            last = number if line.strip() or last is None else last
            matched = re.match(rf"#?{re.escape(name)}\s*=\s*(.*)", line)
            if matched:
                lines[number] = f"{name} = {_typed(value, matched[1])}"
                return "\n".join(lines) + "\n"
    if last is None:
        lines += ["", f"[{table}]"]
        last = len(lines) - 1
    lines.insert(last + 1, f"{name} = {_typed(value, '')}")
    return "\n".join(lines) + "\n"


def _typed(value: str, before: str) -> str:
    if before.startswith("["):
        return "[" + ", ".join(f'"{item}"' for item in value.split(",") if item) + "]"
    if value in ("true", "false") or (value.isdigit() and not before.startswith('"')):
        return value
    return f'"{value}"'
