"""Read and set keys of the NVIDIA container toolkit's ``config.toml``, and keep every other byte.

The file ships with its defaults written down and the unset ones as comments (``#debug = "..."``). Setting
a key replaces its comment, and unsetting it restores a comment. The toolkit ignores unknown keys, so a typo
would go unnoticed until a container lacks its GPU: unknown keys are refused here.

Sources:
    NVIDIA/nvidia-container-toolkit, internal/config/config.go and features.go (1.17 to 1.20).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError, ProbeError
from gpustate.formats.toml_scan import (
    Comment,
    Scan,
    Statement,
    line_break,
    parse,
    render_key,
    render_value,
    scan,
)

CONFIG_PATH = "/etc/nvidia-container-runtime/config.toml"

Value = bool | str | list[str]

_CLI = "nvidia-container-cli."
_RUNTIME = "nvidia-container-runtime."

#: Dotted key to the type of its value.
KEYS: Mapping[str, type[bool] | type[str] | type[list[str]]] = {
    "disable-require": bool,
    "swarm-resource": str,
    "accept-nvidia-visible-devices-envvar-when-unprivileged": bool,
    "accept-nvidia-visible-devices-as-volume-mounts": bool,
    "supported-driver-capabilities": str,
    _CLI + "root": str,
    _CLI + "path": str,
    _CLI + "environment": list,
    _CLI + "debug": str,
    _CLI + "ldcache": str,
    _CLI + "load-kmods": bool,
    _CLI + "no-cgroups": bool,
    _CLI + "user": str,
    _CLI + "ldconfig": str,
    _RUNTIME + "debug": str,
    _RUNTIME + "log-level": str,
    _RUNTIME + "runtimes": list,
    _RUNTIME + "mode": str,
    _RUNTIME + "modes.cdi.default-kind": str,
    _RUNTIME + "modes.cdi.annotation-prefixes": list,
    _RUNTIME + "modes.cdi.spec-dirs": list,
    _RUNTIME + "modes.csv.mount-spec-path": str,
    _RUNTIME + "modes.legacy.cuda-compat-mode": str,
    _RUNTIME + "modes.jit-cdi.nvcdi-feature-flags": list,
    _RUNTIME + "modes.jit-cdi.nvcdi-disable-hooks": list,
    "nvidia-container-runtime-hook.path": str,
    "nvidia-container-runtime-hook.skip-mode-detection": bool,
    "nvidia-ctk.path": str,
    "features.allow-cuda-compat-libs-from-container": bool,
    "features.allow-ldconfig-from-container": bool,
    "features.allow-unknown-oci-spec-fields": bool,
    "features.disable-cuda-compat-lib-hook": bool,
    "features.disable-imex-channel-creation": bool,
    "features.ignore-imex-channel-requests": bool,
    "features.no-additional-gids-for-device-nodes": bool,
}

_CHOICES: Mapping[str, tuple[str, ...]] = {
    _RUNTIME + "mode": ("auto", "legacy", "cdi", "jit-cdi", "csv"),
    _RUNTIME + "modes.legacy.cuda-compat-mode": ("disabled", "hook", "ldconfig", "mount"),
}
_TYPE_NAMES = {bool: "true or false", str: "a string", list: "a list of strings"}


def check_key(key: str, value: object) -> None:
    """Raise unless the toolkit has this key and the value is of its type.

    Raises:
        PolicyError: with the nearest key, the type, or the choices.
    """
    kind = KEYS.get(key)
    if kind is None:
        near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.0)
        raise PolicyError(
            f"the container toolkit has no key {key!r} in its config.toml",
            fix=f"did you mean {near[0]}?",
        )
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if not (is_list if kind is list else isinstance(value, kind)):
        raise PolicyError(f"{key} is {value!r}, wanted {_TYPE_NAMES[kind]}")
    choices = _CHOICES.get(key)
    if choices and value not in choices:
        raise PolicyError(f"{key} is {value!r}, wanted one of {', '.join(choices)}")


def read_keys(text: str, path: str = CONFIG_PATH) -> Json:
    """Return all values by dotted key, including unknown keys.

    Raises:
        ProbeError: not TOML; names file and line.
    """
    return dict(_flat((), parse(text, path)))


def harmful(text: str, *, docker: bool) -> Iterator[str]:
    """Settings that break a way in which containers get their GPUs, each with the fix; none of a file that is not TOML.

    Sources:
        NVIDIA/nvidia-container-toolkit, cmd/nvidia-container-runtime-hook/hook_config.go: only the modes auto and
        legacy pass; its issues 381, 85 (no-cgroups), 1246 (mode cdi); moby/moby#50228: docker 29 tries CDI first.

    Args:
        text: of the file.
        docker: the node has docker, whose option ``--gpus`` calls NVIDIA's hook.
    """
    try:
        keys = read_keys(text)
    except ProbeError:
        return
    mode = keys.get(f"{_RUNTIME}mode", "auto")
    if keys.get(f"{_CLI}no-cgroups") is True and (docker or mode == "legacy"):
        yield (
            f"{CONFIG_PATH}: no-cgroups = true: containers of docker run --gpus, and of mode legacy, fail with 'Failed to initialize NVML: "
            f"Unknown Error'; unless docker is rootless, set {_CLI}no-cgroups to false in config of the state container-toolkit"
        )
    if docker and mode not in ("auto", "legacy"):
        yield (
            f"{CONFIG_PATH}: mode = {mode}: NVIDIA's hook refuses docker run --gpus (docker before 29); where that is used, keep mode auto, "
            "or use --runtime=nvidia"
        )


def set_keys(text: str, desired: Mapping[str, Value | None], path: str = CONFIG_PATH) -> str:
    """Return ``text`` with keys set.

    Args:
        text: the file; empty if there is none.
        desired: values by dotted key; ``None`` unsets it.
        path: for messages.

    Raises:
        PolicyError: an unknown key, or a value of the wrong type.
        ProbeError: the file is not TOML, or an inline table prevents the edit.
    """
    expected = read_keys(text, path)
    for key, value in desired.items():
        check_key(key, value if value is not None else _any_value(key))
        if value is None:
            if key in expected:
                text = _unset(text, tuple(key.split(".")))
            expected.pop(key, None)
        elif expected.get(key) != value:
            text = _set(text, tuple(key.split(".")), value)
            expected[key] = list(value) if isinstance(value, list | tuple) else value
    _prove(text, expected, path)
    return text


def _prove(text: str, expected: JsonView, path: str) -> None:
    try:
        same = read_keys(text, path) == expected
    except ProbeError:
        same = False
    if not same:
        raise ProbeError(
            "a key cannot be set without changing others",
            place=path,
            fix="write its table as a [header], not inline",
        )


def _any_value(key: str) -> object:
    """Return a valid value, to check only the name of a key to unset."""
    if key in _CHOICES:
        return _CHOICES[key][0]
    kind = KEYS.get(key)
    return kind() if kind is not None else None


def _set(text: str, key: tuple[str, ...], value: Value) -> str:
    parsed = scan(text)
    current = parsed.find(key)
    rendered = render_value(value)
    if current is not None:
        return text[: current.value_start] + rendered + text[current.value_end :]
    newline = line_break(text)
    section = key[:-1]
    line = f"{render_key(key[-1:])} = {rendered}"
    place = _commented(parsed, section, key[-1])
    if place is not None:
        indent = place.text[: len(place.text) - len(place.text.lstrip())]
        tail = text[place.start + len(place.text) : place.end]
        return text[: place.start] + indent + line + tail + text[place.end :]
    header = parsed.header(section)
    if header is None and section:
        lead = "" if not text or text.endswith("\n") else newline
        gap = newline if text else ""
        return f"{text}{lead}{gap}[{render_key(section)}]{newline}{line}{newline}"
    inside = [s for s in parsed.statements if s.kind == "key" and s.section == section]
    last = inside[-1] if inside else header
    if last is None:
        return line + newline + text
    indent = text[last.start : last.key_start]
    if text[last.end - 1] == "\n":
        return text[: last.end] + indent + line + newline + text[last.end :]
    return text[: last.end] + newline + indent + line


def _unset(text: str, key: tuple[str, ...]) -> str:
    current = scan(text).find(key)
    if current is None:
        return text
    # Every line of a multi-line value becomes a comment.
    lines = text[current.key_start : current.end].removesuffix("\n").split("\n")
    commented = "\n".join("#" + line for line in lines)
    tail = "\n" if text[current.start : current.end].endswith("\n") else ""
    return text[: current.key_start] + commented + tail + text[current.end :]


def _commented(parsed: Scan, section: tuple[str, ...], name: str) -> Comment | None:
    """Return the line of ``section`` that has the key as a comment, on one line."""
    pattern = re.compile(rf"\s*#\s*{re.escape(name)}\s*=\s*(.+)")
    start, end = _extent(parsed, section)
    for comment in parsed.comments:
        written = pattern.fullmatch(comment.text)
        if start <= comment.start < end and written and _is_value(written.group(1)):
            return comment
    return None


def _is_value(written: str) -> bool:
    """Whether a comment contains a complete value, unlike the first line of a list."""
    try:
        parse(f"k = {written}", "")
    except ProbeError:
        return False
    return True


def _extent(parsed: Scan, section: tuple[str, ...]) -> tuple[int, int]:
    """Return where the lines of a section begin and end."""
    headers: list[Statement] = [s for s in parsed.statements if s.kind != "key"]
    ends = [*(s.end for s in parsed.statements), *(c.end for c in parsed.comments)]
    big = max(ends, default=0)
    if not section:
        return 0, headers[0].start if headers else big
    for at, header in enumerate(headers):
        if header.kind == "table" and header.path == section:
            return header.end, headers[at + 1].start if at + 1 < len(headers) else big
    return 0, 0


def _flat(path: tuple[str, ...], table: JsonView) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat += _flat((*path, key), value)
        else:
            flat.append((".".join((*path, key)), value))
    return flat
