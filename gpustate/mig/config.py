"""Read mig-parted configuration files of schema v1.

It is never laxer than mig-parted, and stricter about obvious mistakes: duplicate keys of an entry, two spellings of
one profile, a filter that matches no GPU. Of duplicate configurations the last one is used, as in mig-parted, with
a warning. Every error has its line and, if possible, a suggestion.

mig-parted applies all matching entries in order, so the last matching entry decides.

Sources:
    NVIDIA/mig-parted v0.15, api/spec/v1/spec.go, pkg/types/mig_config.go,
    cmd/nvidia-mig-parted/assert/assert.go (``WalkSelectedMigConfigForEachGPU``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats import yaml_events
from gpustate.formats.words import at, kind_of, listed, quote, suggest
from gpustate.mig.names import DeviceFilter, parse_device_filter, parse_device_name

VERSION = "v1"
_TOP = ("version", "mig-configs")
_ENTRY = ("device-filter", "devices", "mig-enabled", "mig-devices")
#: More instances of a profile than any GPU has; larger numbers are typos.
_MOST = 64
#: More GPUs than any node has.
_MOST_GPUS = 10_000
#: A MIG device in the name of a configuration.
_PROFILE = re.compile(r"\d+g\.\d+gb")
_RULES = yaml_events.Rules(
    PolicyError, depth=12, values=200_000, text_keys=True, last_key_counts=True, quoted_keys=True
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The desired layout of some GPUs of a node.

    Args:
        enabled: MIG mode.
        devices: number of MIG devices by name; empty for none.
        indices: GPU numbers in PCI order; ``None`` for all.
        filters: GPU models; empty for all.
        place: file and line.
    """

    enabled: bool
    devices: Mapping[str, int]
    indices: tuple[int, ...] | None = None
    filters: tuple[DeviceFilter, ...] = ()
    place: str = ""

    def matches(self, index: int, device_id: str, subsystem_id: str = "") -> bool:
        """Whether it applies to a GPU."""
        if self.indices is not None and index not in self.indices:
            return False
        kinds = (device_filter.matches(device_id, subsystem_id) for device_filter in self.filters)
        return not self.filters or any(kinds)


@dataclass(frozen=True, slots=True)
class Config:
    """One named configuration.

    Args:
        name: its key in ``mig-configs``.
        entries: in order.
        place: file and line.
        warnings: about duplicates in the file.
        siblings: all configurations of its file by name.
    """

    name: str
    entries: tuple[Entry, ...]
    place: str = ""
    warnings: tuple[str, ...] = ()
    siblings: Mapping[str, Config] = field(
        default_factory=dict[str, "Config"], compare=False, repr=False
    )

    def entry_for(self, index: int, device_id: str, subsystem_id: str = "") -> Entry | None:
        """The entry for a GPU; ``None`` if there is none."""
        matching = [e for e in self.entries if e.matches(index, device_id, subsystem_id)]
        return matching[-1] if matching else None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """All configurations of a file, in its order."""

    path: str
    configs: Mapping[str, Config]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all configurations."""
        return tuple(warning for config in self.configs.values() for warning in config.warnings)

    def config(self, name: str | None = None) -> Config:
        """The configuration of a name; without a name, the only one.

        Raises:
            PolicyError: unknown name, or a name is required.
        """
        if name is None:
            if len(self.configs) == 1:
                return self.config(next(iter(self.configs)))
            raise PolicyError(
                f"has {len(self.configs)} configurations", place=self.path, fix=self._hint("")
            )
        config = self.configs.get(name)
        if config is None:
            raise PolicyError(
                f"no configuration {quote(name)}", place=self.path, fix=self._hint(name)
            )
        return replace(config, siblings=self.configs)

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.configs, 3) or self._with_profiles_of(name)[:3]
        if near:
            return f"did you mean {' or '.join(near)}"
        return f"select one of {listed([*self.configs], 12)}"

    def _with_profiles_of(self, name: str) -> list[str]:
        """The configurations with profiles that a name consists of, those with most of them and fewest others first."""
        profiles = set(_PROFILE.findall(name))

        def likeness(config: Config) -> tuple[int, int]:
            devices = [set(entry.devices) for entry in config.entries]
            return max((len(profiles & names), -len(names - profiles)) for names in devices)

        near = [config for config in self.configs.values() if likeness(config)[0]]
        return [config.name for config in sorted(near, key=likeness, reverse=True)]


def read(text: str, path: str) -> ConfigFile:
    """Read the text of a file.

    Raises:
        PolicyError: with the line.
    """
    parsed = yaml_events.documents(text, path, _RULES)
    if not parsed or parsed[0].data is None:
        raise PolicyError("is empty, wanted version and mig-configs", place=path)
    return _Reader(path, parsed[0].lines).file(parsed[0].data, parsed[0].line)


@dataclass(frozen=True, slots=True)
class _Reader:
    path: str
    lines: yaml_events.Lines

    def fail(self, why: str, line: int, fix: str | None = None) -> NoReturn:
        raise PolicyError(why, place=at(self.path, line), fix=fix)

    def key_line(self, owner: JsonView, key: str, otherwise: int) -> int:
        return self.lines.of_keys.get(id(owner), {}).get(key, otherwise)

    def closed(self, owner: Any, keys: tuple[str, ...], line: int, title: str) -> Json:
        """A mapping with only known keys."""
        if not isinstance(owner, dict):
            self.fail(f"{title} is {kind_of(owner)}, wanted a mapping", line)
        for key in owner:
            if key not in keys:
                hint = suggest(key, keys, f"supported keys: {', '.join(keys)}")
                self.fail(f"unknown key {quote(key)}", self.key_line(owner, key, line), hint)
        return owner

    def file(self, data: Any, line: int) -> ConfigFile:
        top = self.closed(data, _TOP, line, "the file")
        if "version" not in top:
            self.fail("lacks version", line, f"add version: {VERSION}")
        if top["version"] != VERSION:
            where = self.key_line(top, "version", line)
            self.fail(f"version {quote(top['version'])} is unsupported, wanted {VERSION}", where)
        configs = top.get("mig-configs")
        self.only_repeated(configs)
        where = self.key_line(top, "mig-configs", line)
        if not isinstance(configs, dict) or not configs:
            self.fail("mig-configs needs at least one configuration", where)
        parsed_configs = {name: self.config(configs, name, where) for name in configs}
        return ConfigFile(self.path, parsed_configs)

    def config(self, configs: Json, name: str, otherwise: int) -> Config:
        line = self.key_line(configs, name, otherwise)
        entries = configs[name]
        if not isinstance(entries, list) or not entries:
            self.fail(f"{name} needs a list of at least one entry", line)
        lines = self.lines.of_items.get(id(entries), [line] * len(entries))
        parsed = tuple(self.entry(e, where) for e, where in zip(entries, lines, strict=True))
        earlier = [str(n) for key, n, _ in self.lines.repeated.get(id(configs), ()) if key == name]
        warning = f"{at(self.path, line)}: {quote(name)} is a duplicate of line {', '.join(earlier)}; the last one is used"
        return Config(name, parsed, at(self.path, line), (warning,) if earlier else ())

    def only_repeated(self, configs: Any) -> None:
        """Refuse duplicate keys, except names of configurations."""
        for owner, keys in self.lines.repeated.items():
            if owner != id(configs):
                key, line, _ = keys[0]
                last = self.lines.of_keys[owner][key]
                self.fail(f"the key {quote(key)} is a duplicate of line {line}", last)

    def entry(self, data: Any, line: int) -> Entry:
        entry = self.closed(data, _ENTRY, line, "an entry")
        for key in ("devices", "mig-enabled"):
            if key not in entry:
                self.fail(f"the entry lacks {key}", line)
        enabled = entry["mig-enabled"]
        if not isinstance(enabled, bool):
            where = self.key_line(entry, "mig-enabled", line)
            self.fail(f"mig-enabled is {kind_of(enabled)}, wanted true or false", where)
        devices = self.devices(entry, line)
        if enabled and devices is None:
            self.fail(
                "mig-enabled: true needs mig-devices", line, "for no devices write mig-devices: {}"
            )
        if not enabled and devices:
            where = self.key_line(entry, "mig-devices", line)
            self.fail(
                "mig-devices and mig-enabled: false are mutually exclusive",
                where,
                "remove one of them",
            )
        return Entry(
            enabled,
            devices or {},
            self.indices(entry, line),
            self.filters(entry, line),
            at(self.path, line),
        )

    def indices(self, entry: Json, otherwise: int) -> tuple[int, ...] | None:
        value, line = entry["devices"], self.key_line(entry, "devices", otherwise)
        if value == "all":
            return None
        if not isinstance(value, list):
            self.fail(f"devices is {quote(value)}, wanted all or a list of GPU numbers", line)
        for gpu in value:
            if not isinstance(gpu, int) or isinstance(gpu, bool) or not 0 <= gpu < _MOST_GPUS:
                self.fail(f"{quote(gpu)} is not a GPU number, wanted 0, 1 and so on", line)
        return tuple(sorted(set(value)))

    def filters(self, entry: Json, otherwise: int) -> tuple[DeviceFilter, ...]:
        value = entry.get("device-filter")
        line = self.key_line(entry, "device-filter", otherwise)
        if value in (None, ""):
            return ()
        device_filters: list[DeviceFilter] = []
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str):
                hint = 'put it in quotes: "0x233010DE"'
                self.fail(f"device-filter contains {kind_of(item)}, wanted text", line, hint)
            try:
                device_filters.append(parse_device_filter(item))
            except ValueError as error:
                self.fail(f"device-filter {quote(item)}: {error}", line)
        return tuple(device_filters)

    def devices(self, entry: Json, otherwise: int) -> dict[str, int] | None:
        value = entry.get("mig-devices")
        if value is None:
            return None
        line = self.key_line(entry, "mig-devices", otherwise)
        if not isinstance(value, dict):
            self.fail(f"mig-devices is {kind_of(value)}, wanted profiles and counts", line)
        counts: dict[str, int] = {}
        for key, count in value.items():
            where = self.key_line(value, key, line)
            try:
                name = str(parse_device_name(key))
            except ValueError as error:
                self.fail(f"{quote(key)}: {error}", where, self.suggest(key))
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST:
                self.fail(f"{key}: {quote(count)} is not a count, wanted 0 to {_MOST}", where)
            if name in counts:
                self.fail(f"{quote(key)} is a duplicate of a profile above", where)
            counts[name] = count
        if counts and not any(counts.values()):
            self.fail(
                "every count in mig-devices is 0", line, "for no devices write mig-devices: {}"
            )
        return {name: count for name, count in counts.items() if count}

    def suggest(self, key: str) -> str | None:
        """Suggest a profile; names of configurations have a dot instead of the plus."""
        for text in (key.replace(".me", "+me").replace(".gfx", "+gfx"), key.lower(), key.strip()):
            try:
                return f"did you mean {parse_device_name(text)}"
            except ValueError:
                continue
        return None
