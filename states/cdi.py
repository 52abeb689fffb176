"""The node has one CDI specification of its GPUs, and it is true, now and after every boot.

A container runtime that injects GPUs by CDI believes the specification: when it names a library of
the driver before, or a device node that has moved, containers fail to start, or start without a
GPU. So its content is judged against the loaded driver, not its age.

There is one place, /var/run/cdi/nvidia.yaml, which is on tmpfs: it has to be written again at every
boot. nvidia-container-toolkit 1.18 and later bring nvidia-cdi-refresh.service for that; for earlier
ones this state brings a unit of its own. Hand-written guides put the file into /etc/cdi, where it
survives a reboot and is wrong afterwards: such a copy is removed when nvidia-ctk made it and it
defines the same devices; anything else in /etc/cdi is left alone.

Surprising: nvidia-cdi-refresh.path fires when a driver package is installed, while the old module
is still loaded, and nothing fires when the new one is loaded; nor does it fire on MIG changes.

Sources:
    NVIDIA/nvidia-container-toolkit: deployments/systemd, cmd/nvidia-ctk/cdi/generate.
    NVIDIA/nvidia-container-toolkit#1828, #1895: stale device numbers and copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from gpustate import Disruption, Node, Plan, ProbeError, State, Step, diff, ops
from gpustate.text import cdi
from gpustate.text.numbers import hexadecimal, whole

SPEC_PATH = "/var/run/cdi/nvidia.yaml"
ENV_PATH = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
TOOLKIT_UNITS = ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
OUR_UNIT = "gpustate-cdi-refresh.service"
OUR_UNIT_PATH = f"/etc/systemd/system/{OUR_UNIT}"
OUR_UNIT_TEXT = f"""# Written by gpustate (state cdi); changes are undone by the next apply.
[Unit]
Description=Write the CDI specification of the NVIDIA GPUs
ConditionPathExists=/usr/bin/nvidia-ctk
After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service
Before=containerd.service crio.service docker.service kubelet.service
StartLimitIntervalSec=120
StartLimitBurst=5

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStartPre=-/usr/bin/nvidia-smi -L
ExecStartPre=/bin/mkdir -p /var/run/cdi
ExecStart=/usr/bin/nvidia-ctk cdi generate --output={SPEC_PATH}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""

# The specification, what it names and does not exist, and what is there instead. One stat and one
# grep, whatever the number of GPUs; the rest are builtins.
_SCRIPT = rf"""
for u in {" ".join(TOOLKIT_UNITS)} {OUR_UNIT}; do
  for d in /etc/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
    [ -e "$d/$u" ] || continue
    echo "unit=$u $(systemctl is-enabled "$u" 2>/dev/null)"; break
  done
done
[ -x /usr/bin/nvidia-ctk ] && echo ctk=1
[ ! -e /var/run/cdi ] || [ -d /var/run/cdi ] || echo blocked=/var/run/cdi is no folder
[ -L {SPEC_PATH} ] || [ ! -d {SPEC_PATH} ] || echo blocked={SPEC_PATH} is a folder
for g in "$PROC"/driver/nvidia/gpus/*/information; do
  [ -r "$g" ] || continue
  m=; i=; while IFS=':' read -r k v; do
    case $k in 'Device Minor'*) m=${{v##*[!0-9]}} ;; 'GPU UUID'*) i=${{v##*[!A-Za-z0-9?-]}} ;; esac
  done <"$g"
  echo "gpu=$m $i"
done
for g in "$PROC"/driver/nvidia/capabilities/gpu*/mig; do
  [ -d "$g" ] || continue
  n=${{g%/mig}}; n=${{n##*/gpu}}; echo "mig=$n"
  for c in "$g"/gi*/ci*/access; do
    [ -r "$c" ] || continue
    for a in "${{c%/ci*}}/access" "$c"; do
      while IFS=': ' read -r k v; do [ "$k" = DeviceFileMinor ] && echo "mig=$n $v"; done <"$a"
    done
  done
done
set --; for f in /dev/nvidia* /dev/nvidia-caps/* /dev/dri/*; do [ -c "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] || stat -c 'node=%n %t %T' "$@"
set --; for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -f "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] && exit 0
l=$(grep -lE 'nvidia\.com/gpu' "$@"); [ -n "$l" ] || exit 0
grep -hoE '"?(hostPath|path)"?: *"?/[^",]+' $l | while IFS= read -r p; do p=${{p#*/}}; echo "/${{p%% }}"; done | sort -u |
  while IFS= read -r p; do [ -e "$p" ] || echo "missing=$p"; done
for f in $l; do printf 'spec=%s %s\n' "$f" "$(wc -c <"$f")"; head -c 400000 "$f"; echo; done
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is said about the GPUs, where, and who says it again after a boot."""

    stale: tuple[str, ...] = ()  # in which ways the specification is wrong
    present: bool = False
    leftovers: tuple[str, ...] = ()  # generated copies elsewhere with devices of the same names
    refresh: tuple[str, ...] = ()  # units that write it at boot and are enabled
    unit_text: str | None = None  # our own unit
    toolkit_units: tuple[str, ...] = ()  # those of the toolkit that exist
    masked: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # files with devices of the same names that somebody wrote
    redirected: str = ""  # the toolkit's refresh is told to do something else
    driver_version: str = ""  # loaded; empty when none is
    gpus: int = 0
    ctk: bool = False
    blocked: str = ""  # what stands where the specification belongs, in words
    image: bool = False  # a root to be baked: only the next boot counts


class CdiSpecification(State[Observed]):
    """The CDI specification agrees with the driver and the GPUs, and is written at every boot.

    Disruption:
        ``NONE``: containers that run keep the devices they have; new ones get the right ones.

    Raises:
        StepFailed: nvidia-ctk cannot write a specification, for example because the driver's
            libraries and its module differ in version.
    """

    name: ClassVar[str] = "cdi"
    needs: ClassVar[tuple[str, ...]] = ("preflight", "driver", "container-toolkit")
    after: ClassVar[tuple[str, ...]] = ("persistenced",)
    known_after: ClassVar[tuple[str, ...]] = ("driver", "container-toolkit", "mig")
    worst: ClassVar[Disruption] = Disruption.NONE

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        version = cdi.driver_version(node.read_text("/proc/driver/nvidia/version"))
        env, unit_text = node.read_text(ENV_PATH), node.read_text(OUR_UNIT_PATH)
        keys, specs = _split(node.shell(_SCRIPT).stdout)
        rows = dict((row + " ").split(" ")[:2] for row in keys.get("unit", []))
        units = {unit: rows[unit] for unit in rows if unit in (*TOOLKIT_UNITS, OUR_UNIT)}
        world = _world(version, keys)
        stale, present, leftovers, foreign = _judged(specs, world)
        return Observed(
            stale=stale if facts.systemd else (),
            present=present,
            leftovers=leftovers,
            refresh=tuple(unit for unit, state in units.items() if state.startswith("enabled")),
            unit_text=unit_text,
            toolkit_units=tuple(unit for unit in TOOLKIT_UNITS if unit in units),
            masked=tuple(unit for unit, state in units.items() if state.startswith("masked")),
            foreign=foreign,
            redirected=_redirected(env or ""),
            driver_version=version,
            gpus=len(world.gpus),
            ctk="ctk" in keys,
            blocked=keys.get("blocked", [""])[0],
            image=not facts.systemd,
        )

    def desired(self, seen: Observed) -> Observed:
        if self.absent:
            return replace(seen, stale=(), present=False, refresh=(), unit_text=None)
        ours = not seen.toolkit_units
        return replace(
            seen,
            stale=(),
            present=seen.present or not seen.image,
            leftovers=(),
            refresh=(OUR_UNIT,) if ours else seen.toolkit_units,
            unit_text=OUR_UNIT_TEXT if ours else None,
        )

    def refuse(self, seen: Observed) -> str | None:
        if self.absent:
            return None
        if not seen.ctk:
            return "nvidia-ctk is not installed: put container-toolkit into the policy"
        if seen.masked:
            unit = seen.masked[0]
            return f"{unit} is masked, so nothing writes the specification at boot: systemctl unmask {unit}"
        if seen.blocked:
            return f"{seen.blocked}, and the specification belongs there: move it away"
        if seen.redirected:
            return (
                f"{ENV_PATH} sets {seen.redirected}: the specification would be wrong after a boot; "
                "remove that line"
            )
        if seen.foreign:
            return (
                f"{', '.join(seen.foreign)} defines GPUs of the same names and was not written by nvidia-ctk "
                "alone: remove it, or rename its devices"
            )
        if not seen.image and not (seen.driver_version and seen.gpus):
            return (
                "no GPU to describe: the nvidia module is not loaded or drives none; "
                "put driver into the policy, or see nvidia-smi"
            )
        return None

    def plan(self, seen: Observed) -> Plan:
        return diff(
            seen,
            self.desired(seen),
            why={}
            if self.absent
            else {
                "stale": f"driver {seen.driver_version} is loaded" if seen.driver_version else "",
                "present": "on tmpfs: written anew at every boot",
                "leftovers": "left by nvidia-ctk in a second place, never refreshed",
                "refresh": "writes the specification at boot",
            },
            paths={"unit_text": OUR_UNIT_PATH},
        )

    def apply(self, seen: Observed, plan: Plan) -> Iterator[Step]:
        after = self.desired(seen)
        if "leftovers" in plan.fields:
            for path in seen.leftovers:
                yield ops.RemoveFile(path)
                yield ops.ForgetOriginal(path)
        yield from self._units(seen, after, plan)
        if self.absent:
            if "present" in plan.fields or "stale" in plan.fields:
                yield ops.RemoveFile(SPEC_PATH)
                yield ops.ForgetOriginal(SPEC_PATH)
        elif plan.fields & {"stale", "present"}:
            yield ops.Run(_GENERATE, f"write {SPEC_PATH} with nvidia-ctk", 180)

    def first_boot(self, seen: Observed) -> Iterator[Step]:
        if not self.absent:
            unless = 'set -- "$PROC"/driver/nvidia/gpus/*; [ -e "$1" ] || { echo "no GPU to describe"; effect same; exit 0; }'
            text = unless + _GENERATE
            yield ops.Run(text, f"write {SPEC_PATH} with nvidia-ctk", 180, running=True)

    def _units(self, seen: Observed, after: Observed, plan: Plan) -> Iterator[Step]:
        gone = [unit for unit in seen.refresh if unit not in after.refresh]
        if "refresh" in plan.fields:
            for unit in gone:
                yield ops.DisableUnit(unit)
        if "unit_text" in plan.fields:
            if after.unit_text is None:
                yield ops.RemoveFile(OUR_UNIT_PATH)
                yield ops.ForgetOriginal(OUR_UNIT_PATH)
            else:
                yield ops.PutText(OUR_UNIT_PATH, after.unit_text, mode=0o644)
        if "refresh" in plan.fields:
            for unit in after.refresh:
                if unit not in seen.refresh:
                    # Starting the service would write the specification a second time.
                    yield ops.EnableUnit(unit, now=unit.endswith(".path") and not seen.image)


# A file in the folder itself would be read by runtimes before it is complete, and twice.
_GENERATE = f"""
nvidia-smi -L >/dev/null 2>&1 || :
nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules >/dev/null 2>&1 || :
folder /var/run/cdi
t=$(mktemp -d /run/gpustate-cdi.XXXXXXXX)
trap 'rm -rf "$t"' EXIT
nvidia-ctk cdi generate --output="$t/nvidia.yaml"
[ -s "$t/nvidia.yaml" ] || fail "nvidia-ctk wrote no specification"
chmod 0644 "$t/nvidia.yaml"
mv -fT "$t/nvidia.yaml" {SPEC_PATH}
effect generated
"""


def _split(text: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Rows of ``key=value``, and behind them whole specifications by path."""
    keys: dict[str, list[str]] = {}
    specs: dict[str, str] = {}
    rest = text.encode("utf-8", "surrogatepass")
    while rest:
        row, _, rest = rest.partition(b"\n")
        key, _, value = row.decode("utf-8", "replace").partition("=")
        if key != "spec":
            keys.setdefault(key, []).append(value.strip())
            continue
        path, _, size = value.rpartition(" ")
        if whole(size) is None:
            raise ProbeError(f"the listing of CDI specifications is torn at {value!r}")
        length = min(whole(size) or 0, 400_000)
        specs[path] = rest[:length].decode("utf-8", "replace")
        rest = rest[length + 1 :]
    return keys, specs


def _world(version: str, keys: dict[str, list[str]]) -> cdi.World:
    caps: dict[int, set[int]] = {}
    for row in keys.get("mig", []):
        gpu, _, cap = row.partition(" ")
        minor, number = whole(gpu), whole(cap)
        if minor is not None:
            caps.setdefault(minor, set()).update([] if number is None else [number])
    gpus = (row.partition(" ") for row in keys.get("gpu", []))
    nodes = (
        (row[0], hexadecimal(row[1]), hexadecimal(row[2]))
        for row in map(str.split, keys.get("node", []))
        if len(row) == 3
    )
    return cdi.World(
        driver_version=version,
        gpus=tuple(
            cdi.Gpu(whole(minor) or 0, "" if "?" in uuid else uuid)
            for minor, _, uuid in gpus
            if whole(minor) is not None
        ),
        mig_caps={gpu: frozenset(minors) for gpu, minors in caps.items()},
        nodes={path: (a, b) for path, a, b in nodes if a is not None and b is not None},
        missing=frozenset(keys.get("missing", [])),
    )


def _judged(
    specs: dict[str, str], world: cdi.World
) -> tuple[tuple[str, ...], bool, tuple[str, ...], tuple[str, ...]]:
    """Ways in which ours is stale, whether it is there, generated copies, and others' files."""
    stale: tuple[str, ...] = ()
    leftovers: list[str] = []
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
            (leftovers if spec.generated else foreign).append(path)
    return stale, SPEC_PATH in specs, tuple(leftovers), tuple(foreign)


def _redirected(env: str) -> str:
    """The first setting that makes the toolkit's refresh write elsewhere or look elsewhere."""
    for line in env.splitlines():
        name, _, value = line.strip().partition("=")
        value = re.sub(r"^(['\"])(.*)\1$", r"\2", value.strip())
        right = {"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": ("", SPEC_PATH, "/run/cdi/nvidia.yaml")}
        root = dict.fromkeys(("NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT"), ("", "/"))
        if value not in {**right, **root}.get(name.strip(), (value,)):
            return f"{name.strip()}={value}"
    return ""
