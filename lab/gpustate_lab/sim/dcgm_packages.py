"""The simulated packages of DCGM and dcgm-exporter, with names and relations of NVIDIA's CUDA repository.

DCGM 4 is a core with the service and a package for each CUDA major; the package of DCGM 3 and older
conflicts with it. The exporter has versions of its own.

Sources:
    NVIDIA/DCGM, cmake/packaging.cmake, scripts/deb/postinst, config-files/systemd (names, relations,
    user, unit); NVIDIA/dcgm-exporter, packaging/config-files/systemd.
"""

from __future__ import annotations

from importlib import resources

from gpustate_lab.sim.deb import Entry, Package, Program
from gpustate_lab.sim.driver_packages import UNIT_DIRECTORY
from gpustate_lab.sim.native import PAYLOAD
from gpustate_lab.sim.units import unit_scripts

#: DCGM and the exporter that was released with it.
VERSIONS = {"4.5.3": "4.8.2", "4.6.0": "4.8.3"}
OLD_VERSION = "3.3.9"
CUDA_MAJORS = (11, 12, 13)
OLD = "datacenter-gpu-manager"
PREFIX = f"{OLD}-4"
UNIT = "nvidia-dcgm.service"
EXPORTER_UNIT = "nvidia-dcgm-exporter.service"


def packages() -> list[Package]:
    """Return every version of all of them."""
    found = [_old()]
    for version, exporter in VERSIONS.items():
        found += [*_set(version), _exporter(exporter)]
    return found


def _text(name: str, version: str) -> str:
    return (PAYLOAD / "dcgm" / name).read_text(encoding="utf-8").replace("@VERSION@", version)


def _engine(version: str) -> dict[str, Entry]:
    return {
        "usr/bin/nv-hostengine": Program(_text("nv_hostengine.py", version)),
        "usr/bin/dcgmi": Program(_text("dcgmi", version)),
        f"{UNIT_DIRECTORY}/{UNIT}": _text(UNIT, version),
    }


def _old() -> Package:
    return Package(
        name=OLD,
        version=f"1:{OLD_VERSION}",
        summary="NVIDIA data center GPU manager",
        files=_engine(OLD_VERSION),
        scripts=unit_scripts(UNIT, enable=False, user=True),
    )


def _set(version: str) -> list[Package]:
    release = f"1:{version}-1"
    core = Package(
        name=f"{PREFIX}-core",
        version=release,
        summary="NVIDIA data center GPU manager, service",
        files=_engine(version),
        depends=("passwd",),
        relations={"Conflicts": (OLD,), "Replaces": (OLD,)},
        scripts=unit_scripts(UNIT, enable=False, user=True),
    )
    plugin = f"usr/libexec/datacenter-gpu-manager-4/plugins/cuda{{}}/{{}}-{version}.txt"
    closed = f"{PREFIX}-proprietary"
    found = [
        core,
        Package(
            name=closed,
            version=release,
            summary="NVIDIA data center GPU manager, closed modules",
            files={f"usr/lib/gpustate-lab-dcgm/profiling-{version}.txt": "simulated\n"},
            depends=(f"{PREFIX}-core (= {release})",),
        ),
    ]
    for major in CUDA_MAJORS:
        found += [
            Package(
                name=f"{PREFIX}-cuda{major}",
                version=release,
                summary=f"NVIDIA data center GPU manager, diagnostics for CUDA {major}",
                files={plugin.format(major, "diagnostic"): "simulated\n"},
                depends=(f"{PREFIX}-core (= {release})",),
                relations={"Provides": (PREFIX,)},
            ),
            Package(
                name=f"{closed}-cuda{major}",
                version=release,
                summary=f"NVIDIA data center GPU manager, closed diagnostics for CUDA {major}",
                files={plugin.format(major, "eud"): "simulated\n"},
                depends=(f"{closed} (= {release})",),
            ),
        ]
    return found


def _exporter(version: str) -> Package:
    reader = (resources.files("gpustate.formats") / "go_csv.py").read_text("utf-8")
    fields = (resources.files("gpustate.formats.dcgm") / "fields.csv").read_text("utf-8")
    return Package(
        name="datacenter-gpu-manager-exporter",
        version=f"{version}-1",
        summary="NVIDIA dcgm-exporter",
        files={
            "usr/bin/dcgm-exporter": Program(_text("dcgm_exporter.py", version)),
            "etc/dcgm-exporter/default-counters.csv": _text("default-counters.csv", version),
            "usr/share/gpustate-lab-dcgm/fields.csv": fields,
            "usr/share/gpustate-lab-dcgm/go_csv.py": reader,
            f"{UNIT_DIRECTORY}/{EXPORTER_UNIT}": _text(EXPORTER_UNIT, version),
        },
        depends=(f"{PREFIX}-core (>= 1:4)",),
        scripts=unit_scripts(EXPORTER_UNIT, enable=False, user=False),
    )
