"""The packages of the NVIDIA Container Toolkit, with NVIDIA's own programs in them.

The programs are built from NVIDIA's Go module (:mod:`gpustate_lab.programs`). Units, their settings and the
maintainer scripts are that module's files, unchanged. Two things differ from NVIDIA's packages:

- libnvidia-container is not built here: ``nvidia-container-cli`` fails with a message, so the legacy mode
  of the runtime injects nothing.
- ``nvidia-ctk`` and ``nvidia-cdi-hook`` are wrappers around ``nvidia-ctk.real`` and ``nvidia-cdi-hook.real``,
  named as NVIDIA's installer names its own wrappers. They prepare two hooks, see :data:`_WRAPPER`.

From 1.18 on, ``nvidia-container-toolkit`` depends on the tools of libnvidia-container at its own version; earlier
releases have a range, so apt alone does not keep the four packages at one version.

Sources:
    NVIDIA/nvidia-container-toolkit v1.17.8, v1.18.2, v1.20.1: packaging/debian, deployments.
    debhelper 12, autoscripts: what ``#DEBHELPER#`` becomes for units and for ``maintscript``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpustate import shell
from gpustate_lab.sim.deb import Entry, Link, Package, Program
from gpustate_lab.sim.driver_packages import LDCONFIG, LIBRARY_DIRECTORY
from gpustate_lab.sim.native import Builder

#: Files of NVIDIA's module that are packaged unchanged.
DATA = (
    *(f"packaging/debian/nvidia-container-toolkit*.{kind}" for kind in ("postinst", "postrm")),
    "packaging/debian/nvidia-container-toolkit-base.maintscript",
    "deployments/systemd/nvidia-cdi-refresh.*",
    "deployments/systemd/10-container-engines.conf",
    "deployments/udev/99-nvidia-cdi-refresh.rules",
)
REFRESH = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
#: Programs of the base package; the hook of the legacy mode is in the other.
BASE_PROGRAMS = (
    "nvidia-cdi-hook",
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-ctk",
)
LEGACY_HOOK = "nvidia-container-runtime-hook"

#: NVIDIA's last hook covers the container's own ``/proc/driver/nvidia/params``, which only the kernel
#: module can offer. ``showhardware.py`` binds the node's simulated one into the container before it, and
#: before ``update-ldcache``, which specifications of 1.17 end with. NVIDIA's runtime names
#: ``nvidia-ctk hook`` in a container's configuration, specifications name ``nvidia-cdi-hook``.
_WRAPPER = """\
#!/bin/sh
# gpustate lab: two hooks prepare what the kernel module shows in a container, see docs/lab.md.
case "@WORDS@" in
"@PREFIX@update-ldcache" | "@PREFIX@disable-device-node-modification")
    exec /usr/lib/gpustate-lab/showhardware.py /usr/bin/@NAME@.real "$@"
    ;;
esac
exec /usr/bin/@NAME@.real "$@"
"""
#: Program to the words that a hook's arguments begin with, as the shell has them, and what is before its name.
_WRAPPED = {"nvidia-cdi-hook": ("$1", ""), "nvidia-ctk": ("$1 $2", "hook ")}
_CLI = """\
#!/bin/sh
# gpustate lab: libnvidia-container is simulated.
case " $* " in
*" --version "* | *" -V "*)
    printf 'cli-version: %s\\nlib-version: %s\\nbuild revision: simulated\\n' @VERSION@ @VERSION@
    exit 0
    ;;
esac
echo "nvidia-container-cli: simulated by gpustate lab: libnvidia-container needs the nvidia module; use mode cdi or jit-cdi" >&2
exit 1
"""
#: Folder of the units in each version.
_UNIT_DIRECTORIES = {"1.18.2": "etc/systemd/system", "1.20.1": "usr/lib/systemd/system"}
_OLD_NAMES = "nvidia-container-runtime (<= 3.5.0-1)"
_RELATIONS = {
    "Breaks": (_OLD_NAMES, "nvidia-container-runtime-hook"),
    "Replaces": (_OLD_NAMES, "nvidia-container-runtime-hook"),
}


def module_of(version: str) -> str:
    """Return the pinned Go module of a toolkit version, for :func:`gpustate_lab.programs.provide`."""
    return f"container-toolkit-{version}"


def packages(
    version: str, builder: Builder, programs: Mapping[str, Path], data: Mapping[str, Path]
) -> list[Package]:
    """Return the four packages of one toolkit version.

    Args:
        programs: NVIDIA's programs of that version, by name.
        data: NVIDIA's units, settings and maintainer scripts (:data:`DATA`), by name.
    """
    release = f"{version}-1"
    tools = "libnvidia-container-tools"
    exact = _numbers(version) >= (1, 18)
    return [
        Package(
            name="nvidia-container-toolkit",
            version=release,
            summary="NVIDIA container toolkit",
            section="utils",
            files={f"usr/bin/{LEGACY_HOOK}": Program(programs[LEGACY_HOOK])},
            depends=(
                f"nvidia-container-toolkit-base (= {release})",
                f"{tools} ({'=' if exact else '>='} {release})",
                f"{tools} (<< 2.0.0)",
            ),
            relations=_RELATIONS,
            scripts={
                script: data[f"nvidia-container-toolkit.{script}"].read_text(encoding="utf-8")
                for script in ("postinst", "postrm")
            },
        ),
        _base(version, programs, data),
        Package(
            name=tools,
            version=release,
            summary="NVIDIA container command line tool",
            section="utils",
            files={"usr/bin/nvidia-container-cli": Program(shell.fill(_CLI, VERSION=version))},
            depends=(f"libnvidia-container1 (>= {release})", "libnvidia-container1 (<< 2.0.0)"),
        ),
        _library(version, release, builder),
    ]


def _base(version: str, programs: Mapping[str, Path], data: Mapping[str, Path]) -> Package:
    files: dict[str, Entry] = {f"usr/bin/{name}": Program(programs[name]) for name in BASE_PROGRAMS}
    for name, (words, prefix) in _WRAPPED.items():
        text = shell.fill(_WRAPPER, WORDS=words, PREFIX=prefix, NAME=name)
        files[f"usr/bin/{name}"] = Program(text)
        files[f"usr/bin/{name}.real"] = Program(programs[name])
    units = _UNIT_DIRECTORIES.get(version)
    if units:
        places = {
            **dict.fromkeys(REFRESH, units),
            "nvidia-cdi-refresh.env": "etc/nvidia-container-toolkit",
            "10-container-engines.conf": f"{units}/nvidia-cdi-refresh.service.d",
            "99-nvidia-cdi-refresh.rules": "usr/lib/udev/rules.d",
        }
        files |= {f"{place}/{name}": data[name] for name, place in places.items() if name in data}
    return Package(
        name="nvidia-container-toolkit-base",
        version=f"{version}-1",
        summary="NVIDIA container toolkit, base",
        section="utils",
        files=files,
        relations=_RELATIONS,
        scripts=_base_scripts(version, data),
    )


def _base_scripts(version: str, data: Mapping[str, Path]) -> dict[str, str]:
    name = "nvidia-container-toolkit-base"
    postinst = data[f"{name}.postinst"].read_text(encoding="utf-8")
    if f"{name}.maintscript" not in data:
        return {"postinst": postinst}
    maintscript = data[f"{name}.maintscript"]
    # debhelper enables units below /usr/lib; those of 1.18 are enabled by the script above.
    moved = "".join(
        f'dpkg-maintscript-helper {line} -- "$@"\n'
        for line in maintscript.read_text().replace("@VERSION@", f"{version}-1").splitlines()
    )
    head = "#!/bin/sh\nset -e\n"
    return {
        "preinst": head + moved,
        "postinst": postinst.replace("#DEBHELPER#", moved + _ENABLE),
        "prerm": head + _STOP + moved,
        "postrm": head + _RELOAD + moved + _PURGE,
    }


_ENABLE = shell.load("toolkit_enable", "gpustate_lab.sim")
_STOP = """\
if [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop nvidia-cdi-refresh.path nvidia-cdi-refresh.service >/dev/null || true
fi
"""
_RELOAD = """\
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
"""
_PURGE = shell.load("toolkit_purge", "gpustate_lab.sim")


def _library(version: str, release: str, builder: Builder) -> Package:
    built = builder.stub_library(
        "libnvidia-container.so.1", f"libnvidia-container.so.{version}", "gpustate_lab_container"
    )
    return Package(
        name="libnvidia-container1",
        version=release,
        summary="NVIDIA container library",
        section="libs",
        files={
            f"{LIBRARY_DIRECTORY}/libnvidia-container.so.{version}": built,
            f"{LIBRARY_DIRECTORY}/libnvidia-container.so.1": Link(
                f"libnvidia-container.so.{version}"
            ),
        },
        triggers=LDCONFIG,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
