#!/usr/lib/gpustate-lab/python -SB
"""Simulated ``modprobe``, ``rmmod``, ``insmod`` and ``lsmod``, selected by the name of the program.

The real modprobe resolves names, dependencies, options, blacklists and install commands with
``--show-depends``; only the insertion is simulated. So the messages about missing modules are real.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import os
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import modules
from labnode import KMOD, PROC, kernel, kmod, locked

#: Options that are passed to the real modprobe.
REAL = ("-D", "--show-depends", "-c", "--showconfig", "-V", "--version", "-h", "--help", "-S")
REAL_PREFIXES = (
    "--set-version",
    "--dump-modversions",
    "--show-",
    "--resolve-alias",
    "-R",
    "-d",
    "--dirname",
)
LONG = {
    "--remove": "r", "--dry-run": "n", "--show": "n", "--verbose": "v", "--quiet": "q", "--all": "a",
    "--use-blacklist": "b", "--ignore-install": "i", "--remove-holders": "H", "--first-time": "F",
    "--syslog": "s", "--force": "f", "--wait": "w", "--ignore-remove": "I",
}  # fmt: skip


class ToolError(Exception):
    """An error with one line for stderr and exit code 1."""


def main() -> int:
    name = os.path.basename(sys.argv[0])
    tools = {"modprobe": modprobe, "rmmod": rmmod, "insmod": insmod, "lsmod": lsmod}
    if name == "kmodtool.py":
        name = sys.argv.pop(1)
    try:
        return tools[name](sys.argv[1:])
    except ToolError as failure:
        print(failure, file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1


def plain(name: str) -> str:
    """Return the module name as in the kernel, with underscores."""
    return name.replace("-", "_")


def modprobe(arguments: list[str]) -> int:
    if any(one in REAL or one.startswith(REAL_PREFIXES) for one in arguments):
        os.execv(KMOD, ["modprobe", *arguments])
    flags, names = set(), []
    for one in arguments:
        if one in LONG:
            flags.add(LONG[one])
        elif one.startswith("-") and len(one) > 1 and not one.startswith("--"):
            flags.update(one[1:])
        elif one.startswith("--"):
            os.execv(KMOD, ["modprobe", *arguments])  # it knows how to refuse it
        else:
            names.append(one)
    if not names:
        os.execv(KMOD, ["modprobe", *arguments])
    if "r" in flags:
        return max(_unload(name, flags) for name in names)
    if "a" in flags:
        return max(_load(name, [], flags) for name in names)
    return _load(names[0], names[1:], flags)


def _load(name: str, options: list[str], flags: set[str]) -> int:
    asked = [f"-{flag}" for flag in "biq" if flag in flags]
    resolved = kmod("modprobe", "-S", kernel(), *asked, "--show-depends", name, *options)
    if resolved.returncode != 0:
        sys.stderr.write(resolved.stderr)
        return resolved.returncode
    for line in resolved.stdout.splitlines():
        verb, _, rest = line.strip().partition(" ")
        if verb == "install":
            _announce(line, flags)
            if "n" not in flags:
                _command(verb, rest, name, options)
        elif verb == "insmod":
            path, *given = shlex.split(rest)
            _insert(path, given, line, flags)
    return 0


def _command(verb: str, command: str, name: str, options: list[str]) -> None:
    """Run a command of modprobe's configuration, which may run modprobe: without the lock."""
    environment = {**os.environ, "CMDLINE_OPTS": " ".join(options), "MODPROBE_MODULE": name}
    code = subprocess.run(["/bin/sh", "-c", command], check=False, env=environment).returncode
    if code:
        raise ToolError(f"modprobe: ERROR: ../libkmod/libkmod-module.c:1047 command_do() Error running {verb} command '{command}' for module {name}: retcode {code}\n"
                        f"modprobe: ERROR: could not {'insert' if verb == 'install' else verb} '{plain(name)}': Invalid argument")  # fmt: skip


def _insert(path: str, options: list[str], line: str, flags: set[str]) -> None:
    module = plain(os.path.basename(path).split(".ko")[0])
    with locked():
        # A file may have another name than its module, as Debian's nvidia-current.ko.
        if modules.modinfo(path).get("name", [module])[0] in modules.loaded():
            return
        _announce(line, flags)
        if "n" in flags:
            return
        try:
            modules.insert(path, options)
        except modules.LoadError as error:
            raise ToolError(f"modprobe: ERROR: could not insert '{module}': {error}") from error


def _announce(line: str, flags: set[str]) -> None:
    if "v" in flags or "D" in flags:
        print(line.rstrip())


def _unload(name: str, flags: set[str]) -> int:
    if not flags & set("iIn"):
        for line in kmod("modprobe", "-c").stdout.splitlines():
            verb, _, rest = line.partition(" ")
            module, _, command = rest.partition(" ")
            if verb == "remove" and module == plain(name):
                _command(verb, command, name, [])
                return 0
    with locked():
        return _remove(name, flags)


def _remove(name: str, flags: set[str]) -> int:
    module = plain(name)
    if module not in modules.loaded():
        found = kmod("modprobe", "-S", kernel(), "-q", "--show-depends", name)
        if found.returncode != 0 and "q" not in flags:
            raise ToolError(f"modprobe: FATAL: Module {name} not found.")
        return 0
    if "H" in flags:
        for user in modules.users(module):
            _remove(user, flags)
    if modules.use_count(module):
        raise ToolError(f"modprobe: FATAL: Module {module} is in use.")
    depends = modules.loaded()[module]["depends"]
    _announce(f"rmmod {module}", flags)
    if "n" not in flags:
        modules.remove(module)
        for other in depends:  # modprobe -r takes what nothing needs any more
            if other in modules.loaded() and not modules.use_count(other):
                _remove(other, flags)
    return 0


def rmmod(arguments: list[str]) -> int:
    code = 0
    with locked():
        for name in [one for one in arguments if not one.startswith("-")]:
            module = plain(name)
            trouble = None
            if module not in modules.loaded():
                trouble = f"Module {module} is not currently loaded"
            elif modules.users(module):
                trouble = f"Module {module} is in use by: {' '.join(modules.users(module))}"
            elif modules.use_count(module):
                trouble = f"Module {module} is in use"
            if trouble:
                print(f"rmmod: ERROR: {trouble}", file=sys.stderr)
                code = 1
            else:
                modules.remove(module)
    return code


def insmod(arguments: list[str]) -> int:
    if not arguments:
        raise ToolError("insmod: ERROR: missing filename.")
    path, *options = arguments
    if not os.path.exists(path):
        raise ToolError(f"insmod: ERROR: could not load module {path}: No such file or directory")
    with locked():
        try:
            modules.insert(path, options)
        except modules.LoadError as error:
            raise ToolError(f"insmod: ERROR: could not insert module {path}: {error}") from error
    return 0


def lsmod(_arguments: list[str]) -> int:
    with locked():
        modules.refresh()  # processes that held a GPU may have ended since
    print("Module                  Size  Used by")
    for line in (PROC / "modules").read_text().splitlines():
        name, size, count, users, *_ = line.split()
        print(f"{name:<19} {size:>8}  {count} {users.rstrip(',').replace('-', '')}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
