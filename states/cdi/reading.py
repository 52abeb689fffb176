"""What a node says about its CDI specification, and the fragment that asks for it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate import ProbeError, shell
from gpustate.core.file_queries import ODD, FileStat
from gpustate.formats import cdi, driverset
from gpustate.formats.drivernames import TOOLKIT_NAMES
from gpustate.formats.numbers import hexadecimal, parse_uint
from gpustate.formats.quarantine import Quarantine
from gpustate.probes import cdi_driver_files, file_owners

SPEC_PATH = cdi.SPEC_PATH
SPEC_FOLDER = posixpath.dirname(SPEC_PATH)
ENV_PATH = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
TOOLKIT_UNITS = ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
OUR_UNIT = "gpustate-cdi-refresh.service"
OUR_UNIT_PATH = f"/etc/systemd/system/{OUR_UNIT}"

SCRIPT = (
    ODD
    + file_owners.SCRIPT
    + shell.load(
        "reading", "gpustate.states.cdi", UNITS=" ".join((*TOOLKIT_UNITS, OUR_UNIT)), SPEC=SPEC_PATH
    )
    + cdi_driver_files.SCRIPT
    + 'for f in $specs; do printf \'spec=%s %s\\n\' "$f" "$(wc -c <"$f")"; head -c 400000 "$f"; echo; done\n'
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What is said about the GPUs, where, and who says it again after a boot."""

    stale: tuple[str, ...] = ()  # in which ways the specification is wrong
    present: bool = False
    access: tuple[
        str, ...
    ] = ()  # the folder and the file that not all can read, with owner and mode
    leftovers: tuple[str, ...] = ()  # generated copies elsewhere with devices of the same names
    refresh: tuple[str, ...] = ()  # units that write it at boot and are enabled
    failed: tuple[str, ...] = ()  # units of the toolkit that watch files, and do so no more
    unit_text: str | None = None  # our own unit
    dropins: dict[str, str] = field(default_factory=dict[str, str])  # by path: units leave GPUs out
    program: str = "none"  # what they run; see leave_out
    toolkit_units: tuple[str, ...] = ()  # those of the toolkit that exist
    masked: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # files with devices of the same names that somebody wrote
    redirected: str = ""  # the toolkit's refresh is told to do something else
    driver_version: str = ""  # loaded; empty when none is
    gpus: int = 0
    held: tuple[str, ...] = ()  # of these, in quarantine
    python: bool = False
    proc: str = "/proc"
    ctk: bool = False
    #: Device nodes missing of GPUs that were open since the driver was loaded.
    nodeless: tuple[str, ...] = ()
    #: Files of packages that ours names and that are missing: path to package.
    lost: dict[str, str] = field(default_factory=dict[str, str])
    image: bool = False  # a root to be baked: only the next boot counts


def split(text: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Rows of ``key=value``, and behind them whole specifications by path."""
    keys: dict[str, list[str]] = {}
    specs: dict[str, str] = {}
    data = text.encode("utf-8", "surrogatepass")
    while data:
        row, _, data = data.partition(b"\n")
        key, _, value = row.decode("utf-8", "replace").partition("=")
        if key != "spec":
            keys.setdefault(key, []).append(value.strip())
            continue
        path, _, size = value.rpartition(" ")
        if parse_uint(size) is None:
            raise ProbeError(f"the listing of CDI specifications is torn at {value!r}")
        length = min(parse_uint(size) or 0, 400_000)
        specs[path] = data[:length].decode("utf-8", "replace")
        data = data[length + 1 :]
    return keys, specs


def access(stats: Mapping[str, FileStat]) -> tuple[str, ...]:
    """The folder and the file that not all users can read, or that others can write."""
    wrong: list[str] = []
    folder, spec = stats.get(SPEC_FOLDER), stats.get(SPEC_PATH)
    if folder is not None and folder.kind == "dir" and folder.mode & 0o555 != 0o555:
        wrong.append(f"{SPEC_FOLDER}: mode {folder.mode:04o}")
    if spec is not None and (reason := spec.otherwise()):
        wrong.append(f"{SPEC_PATH}: {reason}")
    return tuple(wrong)


def world(version: str, keys: dict[str, list[str]], held: Quarantine) -> cdi.World:
    """The node that a specification is compared with."""
    caps: dict[int, set[int]] = {}
    for row in keys.get("mig", []):
        gpu, _, cap = row.partition(" ")
        minor, number = parse_uint(gpu), parse_uint(cap)
        if minor is not None:
            caps.setdefault(minor, set()).update([] if number is None else [number])
    gpus: list[cdi.Gpu] = []
    for row in keys.get("gpu", []):
        first, uuid, address = (*row.split(" "), "", "")[:3]
        minor = parse_uint(first)
        if minor is not None:
            uuid = "" if "?" in uuid else uuid
            gpus.append(cdi.Gpu(minor, uuid, held.holds(uuid, address.lower())))
    nodes = (
        (row[0], hexadecimal(row[1]), hexadecimal(row[2]))
        for row in map(str.split, keys.get("node", []))
        if len(row) == 3
    )
    return cdi.World(
        driver_version=version,
        gpus=tuple(gpus),
        mig_caps={gpu: frozenset(minors) for gpu, minors in caps.items()},
        nodes={path: (a, b) for path, a, b in nodes if a is not None and b is not None},
        missing=frozenset(keys.get("missing", [])),
        driver_files=tuple(keys.get("there", [])),
    )


def lost(spec: str, keys: dict[str, list[str]]) -> dict[str, str]:
    """Files of the driver's and the toolkit's packages that a specification names and that are missing, and whose."""
    owners = file_owners.parse(keys.get("owned", []))
    missing = {path: owners[path] for path in keys.get("missing", []) if path in owners}
    if not missing:
        return {}
    try:
        named = cdi.parse(spec).host_paths
    except ProbeError:
        return {}
    return {
        path: package
        for path, package in missing.items()
        if path in named and (package in TOOLKIT_NAMES or driverset.may_be_member(package))
    }


def judged(
    specs: dict[str, str], world: cdi.World
) -> tuple[tuple[str, ...], bool, tuple[str, ...], tuple[str, ...]]:
    """Ways in which ours is stale, whether it is there, generated copies, and others' files."""
    stale: tuple[str, ...] = ()
    copies: list[str] = []
    foreign: list[str] = []
    names: set[str] = set(cdi.expected_names(world))
    for path, text in sorted(specs.items(), key=lambda item: item[0] != SPEC_PATH):
        try:
            spec = cdi.parse(text, place=path)
        except ProbeError as error:
            if path == SPEC_PATH:
                stale = (error.message,)
            continue
        if path == SPEC_PATH:
            stale = cdi.judge(spec, world)
            names.update(spec.devices)
        elif spec.kind == cdi.KIND and names & set(spec.devices):
            (copies if spec.generated else foreign).append(path)
    return stale, SPEC_PATH in specs, tuple(copies), tuple(foreign)


#: Settings of the refresh that change where it looks or what it writes, and their values that do not.
_HARMLESS = {
    "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": ("", SPEC_PATH, "/run/cdi/nvidia.yaml"),
    **dict.fromkeys(
        (
            # Read by create-device-nodes, and by generate.
            *("NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT"),
            *("NVIDIA_CTK_DRIVER_ROOT", "NVIDIA_CTK_DEV_ROOT"),
        ),
        ("", "/"),
    ),
    "NVIDIA_CTK_CDI_GENERATE_VENDOR": ("", "nvidia.com"),
    "NVIDIA_CTK_CDI_GENERATE_CLASS": ("", "gpu"),
    "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS": ("", "all"),
    "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE": ("", "false"),
}


def redirected(env: str) -> str:
    """The first setting that makes the toolkit's refresh write elsewhere or look elsewhere.

    Source: NVIDIA/nvidia-container-toolkit v1.20.1, cmd/nvidia-ctk/cdi/generate/generate.go.
    """
    for line in env.splitlines():
        name, _, value = line.strip().partition("=")
        value = re.sub(r"^(['\"])(.*)\1$", r"\2", value.strip())
        if value not in _HARMLESS.get(name.strip(), (value,)):
            return f"{name.strip()}={value}"
    return ""
