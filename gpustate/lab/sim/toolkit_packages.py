"""The simulated NVIDIA Container Toolkit packages.

``nvidia-container-toolkit`` ties only its base to one exact version; the two library packages are
given by a range, as in the real repository, so apt alone does not keep the four in step.

Sources:
    NVIDIA/nvidia-container-toolkit 1.17.8 and 1.18.2, packaging/debian: names, relations, units.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpustate.lab.sim.deb import Entry, Link, Package, Program
from gpustate.lab.sim.driver_packages import LDCONFIG, LIBRARY_DIRECTORY
from gpustate.lab.sim.native import PAYLOAD, Builder

VERSIONS = ("1.17.8", "1.18.2")
#: Units for refreshing the CDI specification came with this version.
REFRESH_UNITS_FROM = (1, 18)
SHARED = "usr/lib/nvidia-container-toolkit"
REFRESH = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")


def packages(version: str, builder: Builder) -> list[Package]:
    """Return the four packages of one toolkit version."""
    release = f"{version}-1"
    shared = {
        f"{SHARED}/{name}": PAYLOAD / "toolkit" / name
        for name in ("cdispec.py", "toolkitconfig.py")
    }
    return [
        Package(
            name="nvidia-container-toolkit",
            version=release,
            summary="NVIDIA container toolkit",
            section="utils",
            files={
                "usr/bin/nvidia-container-runtime-hook": Program(
                    _HOOK.replace("@VERSION@", version)
                ),
                "usr/bin/nvidia-container-toolkit": Link("nvidia-container-runtime-hook"),
            },
            depends=(
                f"nvidia-container-toolkit-base (= {release})",
                *_range("libnvidia-container-tools", release),
            ),
        ),
        _base(version, shared),
        Package(
            name="libnvidia-container-tools",
            version=release,
            summary="NVIDIA container command line tool",
            section="utils",
            files={"usr/bin/nvidia-container-cli": _program("nvidia_container_cli.py", version)},
            depends=_range("libnvidia-container1", release),
        ),
        _library(version, release, builder),
    ]


def _base(version: str, shared: Mapping[str, Entry]) -> Package:
    files: dict[str, Entry] = {
        "usr/bin/nvidia-ctk": _program("nvidia_ctk.py", version),
        "usr/bin/nvidia-cdi-hook": _program("nvidia_cdi_hook.py", version),
        "usr/bin/nvidia-container-runtime": _program("nvidia_container_runtime.py", version),
        **shared,
    }
    scripts = {"postinst": _POSTINST}
    if tuple(int(part) for part in version.split("."))[:2] >= REFRESH_UNITS_FROM:
        files |= {f"etc/systemd/system/{unit}": PAYLOAD / "toolkit" / unit for unit in REFRESH}
        files["usr/lib/systemd/system-preset/90-nvidia-container-toolkit.preset"] = "".join(
            f"enable {unit}\n" for unit in REFRESH
        )
        scripts = {"postinst": _POSTINST + _POSTINST_UNITS, "prerm": _PRERM_UNITS}
    return Package(
        name="nvidia-container-toolkit-base",
        version=f"{version}-1",
        summary="NVIDIA container toolkit, base",
        section="utils",
        files=files,
        scripts=scripts,
    )


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


def _range(name: str, release: str) -> tuple[str, str]:
    return f"{name} (>= {release})", f"{name} (<< 2.0.0)"


def _program(name: str, version: str) -> Program:
    text = (PAYLOAD / "toolkit" / name).read_text(encoding="utf-8")
    return Program(text.replace("@VERSION@", version))


_HOOK = """\
#!/bin/sh
# Simulated nvidia-container-runtime-hook: the runtime injects devices by itself (jit-cdi).
case ${1-} in
-version | --version) echo "NVIDIA Container Runtime Hook version @VERSION@" ;;
esac
"""

_POSTINST = """\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
if [ ! -e /etc/nvidia-container-runtime/config.toml ]; then
    nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
fi
"""

_POSTINST_UNITS = """\
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    systemctl enable nvidia-cdi-refresh.path nvidia-cdi-refresh.service || true
    systemctl restart nvidia-cdi-refresh.path || true
    systemctl restart nvidia-cdi-refresh.service || true
else
    systemctl enable nvidia-cdi-refresh.path nvidia-cdi-refresh.service || true
fi
"""

_PRERM_UNITS = """\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
    systemctl disable nvidia-cdi-refresh.path nvidia-cdi-refresh.service || true
    if [ -d /run/systemd/system ]; then
        systemctl stop nvidia-cdi-refresh.path nvidia-cdi-refresh.service || true
    fi
fi
"""
