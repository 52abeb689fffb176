"""modprobe.d files as data: blacklisted modules, install commands and options.

kmod reads every ``*.conf`` of its folders in the order of their base names, whatever folder they
are in, and a base name found twice only from the folder named first. Of two ``install`` lines for
one module the first one read decides, which is why a file called ``aaa.conf`` can undo ours; options
of one module are strung together, and the kernel takes a parameter's last value, so ``zz.conf`` can too.
Module names may be written with ``-`` or ``_``; both mean the same module.

Sources:
    modprobe.d(5): commands, continuation lines, order of folders.
    kmod, libkmod/libkmod-module.c, ``kmod_module_probe_insert_module`` (what a blacklist holds for);
    kmod, libkmod/libkmod-config.c, ``kmod_config_parse`` and ``kmod_module_get_install_commands``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpustate import shell

#: Folders that modprobe reads, the one that wins first.
FOLDERS = (
    *("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d"),
    *("/usr/lib/modprobe.d", "/lib/modprobe.d"),
)

_LINES = shell.load("modprobe_lines", "gpustate.formats")
_NOTHING = frozenset(
    {"/bin/true", "/bin/false", "/usr/bin/true", "/usr/bin/false", "true", "false", ":"}
)


def normal(name: str) -> str:
    """Normalised module name: ``nova-core`` is ``nova_core``."""
    return name.replace("-", "_")


@dataclass(frozen=True, slots=True)
class ModprobeConfig:
    """Parsed modprobe.d lines; module names with underscores."""

    blacklist: frozenset[str] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    install: Mapping[str, str] = field(default_factory=dict[str, str])
    off: frozenset[str] = frozenset()  # alias NAME off

    def blocks(self, module: str) -> bool:
        """Whether the module is not loaded even when requested by name."""
        name = normal(module)
        return name in self.off or is_nothing(self.install.get(name, "modprobe"))


def is_nothing(install_command: str) -> bool:
    """Whether an ``install`` command loads nothing."""
    words = install_command.split()
    return bool(words) and words[0] in _NOTHING


def parse(text: str) -> ModprobeConfig:
    """Read one file; lines kmod would ignore are ignored here too."""
    blacklist: set[str] = set()
    off: set[str] = set()
    options: dict[str, str] = {}
    install: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split(None, 2)
        if len(words) < 2 or words[0].startswith("#"):
            continue
        command, name = words[0], normal(words[1])
        arguments = words[2].strip() if len(words) == 3 else ""
        match command:
            case "blacklist":
                blacklist.add(name)
            case "alias" if arguments == "off":
                off.add(name)
            case "options" if arguments:
                options[name] = f"{options[name]} {arguments}" if name in options else arguments
            case "install" if arguments:
                install.setdefault(name, arguments)
            case _:
                pass
    return ModprobeConfig(frozenset(blacklist), options, install, frozenset(off))


def merge(files: Mapping[str, str]) -> ModprobeConfig:
    """Merge several files, by path, like kmod."""
    by_name: dict[str, str] = {}
    for folder in reversed(FOLDERS):
        for path, text in files.items():
            if path.rpartition("/")[0] == folder:
                by_name[path.rpartition("/")[2]] = text
    merged = ModprobeConfig()
    for name in sorted(by_name):
        config = parse(by_name[name])
        options = dict(merged.options)
        for module, text in config.options.items():
            options[module] = f"{options[module]} {text}" if module in options else text
        merged = ModprobeConfig(
            merged.blacklist | config.blacklist,
            options,
            {**config.install, **merged.install},
            merged.off | config.off,
        )
    return merged


def option_values(options: str) -> dict[str, str]:
    """Read ``a=1 b="x y" c`` as the kernel does: quotes group, a bare name is ``1``."""
    values: dict[str, str] = {}
    word, quoted = "", False
    for char in options + " ":
        if char == '"':
            quoted = not quoted
        elif char.isspace() and not quoted:
            if word:
                key, equals, value = word.partition("=")
                values[normal(key)] = value if equals else "1"
            word = ""
        else:
            word += char
    return values


def lines(pattern: str) -> str:
    """Sh that prints ``modprobe=FILE:NUMBER:LINE`` for lines that begin with an extended regular expression."""
    files = " ".join(f"{folder}/*.conf" for folder in FOLDERS)
    return shell.fill(_LINES, FILES=files, ERE=pattern)


def read(rows: Iterable[str]) -> Iterator[tuple[str, ModprobeConfig]]:
    """``FILE:NUMBER`` and the parsed line, in kmod's order; rows are ``FILE:NUMBER:LINE``."""
    complete = [parts for row in rows if len(parts := row.split(":", 2)) == 3]
    for path, number, line in sorted(complete, key=lambda row: row[0].rpartition("/")[2]):
        yield f"{path}:{number}", parse(line)


def given_after(
    rows: Iterable[str], name: str, module: str, parameter: str
) -> tuple[str, str] | None:
    """The line that overrides a module's parameter in a file read after the named one, and its value."""
    override = None
    for place, config in read(rows):
        values = option_values(config.options.get(normal(module), ""))
        if place.rpartition(":")[0].rpartition("/")[2] > name and normal(parameter) in values:
            value = values[normal(parameter)]
            override = f"{place} (options {normal(module)} {parameter}={value})", value
    return override


def left_out(rows: Sequence[str], named: Sequence[str]) -> dict[str, str]:
    """Modules that are blacklisted at boot although modules-load.d names them, with the blacklisting line.

    ``blacklist`` applies to a module requested by udev or modules-load.d, not to a dependency of another one. The
    first of ``named`` is a dependency of all others, so it is loaded with any of them.
    """
    off = {normal(name): _blacklisting(rows, name) for name in named}
    places_by_name = {name: place for name, place in off.items() if place}
    first, *dependents = off
    if any(not off[name] and not blocking(rows, name) for name in dependents):
        places_by_name.pop(first, None)
    return places_by_name


def _blacklisting(rows: Sequence[str], module: str) -> str:
    name = normal(module)
    places = (place for place, config in read(rows) if name in config.blacklist)
    return next((f"{place} (blacklist {name})" for place in places), "")


def blocking(rows: Iterable[str], module: str) -> str:
    """File, number and text of the line that blocks loading a module in any way; empty if there is none."""
    name = normal(module)
    for place, config in read(rows):
        if name in config.off:
            return f"{place} (alias {name} off)"
        if name in config.install:
            command = config.install[name]
            loads = "modprobe" in command or "insmod" in command or not is_nothing(command)
            return "" if loads else f"{place} (install {name} {command})"
    return ""
