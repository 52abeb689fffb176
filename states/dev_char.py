"""Every NVIDIA device node has its link below /dev/char, now and after the next boot.

runc before 1.1.7 names devices to systemd by /dev/char/MAJOR:MINOR, and leaves out those that have no such link;
systemd before 240 ignores their names. udev makes the links for devices that the kernel announces, and NVIDIA's are
not among them. A container then gets its GPUs, and loses them at the next ``systemctl daemon-reload``, when systemd writes
its device cgroup again. Newer ones need no links, and so this state changes nothing there.

The links are made here and now; a udev rule makes them whenever the module is loaded. The rule is the one
NVIDIA gives, at the place and under the name it gives, so one that is there already is left alone.

Surprising: the links do not help a container whose GPUs were injected by a hook (mode ``legacy``), for
runc was never told of them. Such containers are found, and named in the plan: they lose their GPUs at any
daemon-reload, also at one that a package makes while it is installed. A step of gpustate that would make
one fails instead.

Sources:
    NVIDIA/nvidia-container-toolkit#48 and discussion #1133; 1.18.2, cmd/nvidia-ctk/system/create-dev-char-symlinks,
    existing.go: ``nodeIsBlocked``.
    :mod:`gpustate.formats.device_links`: which versions need the links.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.formats.device_links import links_needed, program_versions
from gpustate.formats.numbers import hexadecimal
from gpustate.ops.daemon_seen import read_rows
from gpustate.ops.reloads import GPU_SCOPES

RULE_NAME = "71-nvidia-dev-char.rules"
RULE_PATH = f"/etc/udev/rules.d/{RULE_NAME}"
RULE_TEXT = """# Written by gpustate (state dev-char); changes are undone by the next apply.
ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"
"""
_ELSEWHERE = (f"/usr/lib/udev/rules.d/{RULE_NAME}", f"/lib/udev/rules.d/{RULE_NAME}")

_NODES = shell.load("dev_char_nodes", "gpustate.states")
_SCRIPT = GPU_SCOPES + _NODES + shell.load("dev_char_probe", "gpustate.states")
_LINK = _NODES + shell.load("dev_char_link", "gpustate.states")


@dataclass(frozen=True, slots=True)
class Observed:
    """The links, the rule, and who would suffer.

    Args:
        missing: device nodes without their link, as ``195:0 /dev/nvidia0``.
        rule_text: our udev rule.
        rule_elsewhere: the same foreign rule; empty where there is none.
        exposed: containers that lose their GPUs at a daemon-reload.
        programs: low-level runtimes and systemd, with their versions.
        image: a root to be baked: only the next boot counts.
    """

    missing: tuple[str, ...] = ()
    rule_text: str | None = None
    rule_elsewhere: str = ""
    exposed: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    image: bool = False


class DevCharLinksPresent(State[Observed]):
    """Every NVIDIA device node has its link below /dev/char where containers need it, and gets it again when the module is loaded.

    Args:
        links: ``auto``: only where runc is older than 1.1.7 or systemd older than 240; ``always``: everywhere.

    Disruption:
        ``NONE``: running containers are not touched.
    """

    name: ClassVar[str] = "dev-char"
    labels: ClassVar[Mapping[str, str]] = {"missing": "devices without a link in /dev/char"}
    needs: ClassVar[tuple[str, ...]] = ("preflight", "driver")
    after: ClassVar[tuple[str, ...]] = ("persistenced",)
    # What others do to systemd then finds the links.
    before: ClassVar[tuple[str, ...]] = ("validator",)
    # MIG devices bring device nodes of their own.
    known_after: ClassVar[tuple[str, ...]] = ("driver", "mig")
    worst: ClassVar[Disruption] = Disruption.NONE
    stable: ClassVar[tuple[str, ...] | None] = ("missing", "rule_text", "rule_elsewhere")

    links: Literal["auto", "always"] = "auto"

    def _unneeded(self, observed: Observed) -> bool:
        return self.links == "auto" and not self.absent and not links_needed(observed.programs)

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        rule = node.own_text(RULE_PATH)
        texts = [node.read_text(path) for path in _ELSEWHERE]
        output = node.shell(_SCRIPT).stdout
        rows = read_rows(output.encode(), "the device nodes", ())
        links = {
            number: posixpath.normpath(posixpath.join("/dev/char", target))
            for number, target in rows.pairs("link").items()
        }
        missing: list[str] = []
        for row in rows.keys.get("node", ()):
            if len(row.split()) != 3:
                continue
            path, major, minor = row.split()
            number = f"{hexadecimal(major)}:{hexadecimal(minor)}"
            if links.get(number) != path:
                missing.append(f"{number} {path}")
        rules = [path for path, text in zip(_ELSEWHERE, texts, strict=True) if _is_rule(text)]
        return Observed(
            missing=tuple(sorted(missing)) if facts.systemd else (),
            rule_text=rule,
            rule_elsewhere=rules[0] if rules else "",
            exposed=rows.keys.get("exposed", ()),
            programs=program_versions("\n".join(rows.keys.get("program", ()))),
            image=not facts.systemd,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            is_own = observed.rule_text == RULE_TEXT
            return replace(observed, rule_text=None if is_own else observed.rule_text)
        if self._unneeded(observed):
            return observed
        good = _is_rule(observed.rule_text) or (
            observed.rule_elsewhere and observed.rule_text is None
        )
        return replace(observed, missing=(), rule_text=observed.rule_text if good else RULE_TEXT)

    def plan(self, observed: Observed) -> Plan:
        notes: list[str] = []
        if observed.exposed:
            notes.append(
                f"{', '.join(observed.exposed)} would lose {'its' if len(observed.exposed) == 1 else 'their'} "
                "GPUs at a systemctl daemon-reload; recreate with CDI, or under the handler in "
                "mode cdi"
            )
        if self._unneeded(observed):
            notes.append(f"not needed here: {', '.join(observed.programs)}")
        if self.absent and observed.rule_text == RULE_TEXT:
            notes.append("the links stay until the next boot: running containers may need them")
        return diff(
            observed,
            self.desired(observed),
            why={}
            if self.absent
            else {
                "missing": "runc omits devices without a link",
                "rule_text": "creates the links whenever the module is loaded",
            },
            paths={"rule_text": RULE_PATH},
            notes=tuple(notes),
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "rule_text" in plan.fields:
            text = self.desired(observed).rule_text
            if text is None:
                yield ops.RestoreOriginal(RULE_PATH, own=True)
            else:
                yield ops.PutText(RULE_PATH, text, mode=0o644)
        if "missing" in plan.fields:
            yield ops.RunLive(_LINK, "create the links to NVIDIA's devices in /dev/char", 60)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent and not self._unneeded(observed):
            # Nobody may have asked for a GPU yet, and then there are no device nodes.
            query = "timeout -k 5 60 nvidia-smi -L >/dev/null 2>&1 || :\n"
            yield ops.RunLive(
                query + _LINK, "create the links to NVIDIA's devices in /dev/char", 90
            )


def _is_rule(text: str | None) -> bool:
    """Whether a file has the rule, whatever else it says."""
    for line in (text or "").splitlines():
        if not line.lstrip().startswith("#") and "create-dev-char-symlinks" in line:
            return "drivers/nvidia" in line
    return False
