"""Keep ``nouveau`` and ``nova_core`` off nodes that run the NVIDIA driver.

Either of them takes a GPU at boot, and ``nvidia.ko`` then cannot bind to it. Three places decide
that: modprobe.d (later loads), the running kernel (now) and the initramfs of every kernel that can
boot (the next boot). A node where only one of them is right looks repaired until it reboots, so
all three are read and settled.

The initramfs is judged by its content, not by what ought to have been built into it. Listing one
takes seconds, so the result is kept under /var/lib/gpustate/cache for as long as the image keeps
its inode, size and times. A torn image counts as one to rebuild: it would not boot anyway.

Surprising: ``nova_core``, the successor of nouveau in recent kernels, binds Turing and later GPUs
where only nouveau is blacklisted. And ``blacklist`` alone does not keep a module out that is asked
for by name (/etc/modules, /etc/initramfs-tools/modules), hence the ``install`` lines and the hook
that takes the modules out of every initramfs.

Sources:
    modprobe.d(5), initramfs-tools(7), dracut.conf(5).
    NVIDIA/nvidia-installer, misc.c, ``disable_nouveau``.
    kubernetes-sigs/image-builder#1468 (initramfs), NVIDIA/k8s-driver-manager#37 (why the console
    is not unbound by force).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.core.planned import PlannedObservation
from gpustate.formats import modprobe

MODULES = ("nouveau", "nova_core", "nova_drm", "nova")
UNLOAD_ORDER = ("nova_drm", "nova", "nova_core", "nouveau")

CONF_PATH = "/etc/modprobe.d/gpustate-nouveau.conf"
HOOK_PATH = "/etc/initramfs-tools/hooks/gpustate-nouveau"
DRACUT_PATH = "/etc/dracut.conf.d/gpustate-nouveau.conf"

CONF_TEXT = (
    "# Written by gpustate (state nouveau); changes are undone by the next apply.\n"
    + "".join(f"blacklist {name}\ninstall {name} /bin/false\n" for name in MODULES)
    + "options nouveau modeset=0\n"
)
HOOK_TEXT = shell.program("nouveau_hook", "gpustate.states")
DRACUT_TEXT = (
    "# Written by gpustate (state nouveau); changes are undone by the next apply.\n"
    f'omit_drivers+=" {" ".join(MODULES)} "\n'
)

CLEAN = "clean"

# One line an image: kernel|path|modules found|1 when our modprobe.d file is inside. 'unreadable'
# stands for an image that is torn, 'no-tool' for one that nothing here can list.
_IMAGES = shell.load("initramfs_images", "gpustate.shell")

_NAMED = (
    "grep -sHE -D skip '^[[:space:]]*(install[[:space:]]+)?(nouveau|nova([-_](core|drm))?)([[:space:]]|$)' "
    "/etc/modules /etc/modules-load.d/*.conf /etc/initramfs-tools/modules "
    + " ".join(f"{folder}/*.conf" for folder in modprobe.FOLDERS)
    + " || :"
)

_TOOLS = (
    "[ -d /etc/initramfs-tools ] && command -v mkinitramfs >/dev/null && echo initramfs-tools; "
    "command -v dracut >/dev/null && echo dracut; "
    f"[ -x {HOOK_PATH} ] && echo executable; :"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """The three places, as one node has them."""

    conf_text: str | None = None  # None: the file does not exist
    hook_text: str | None = None
    hook_executable: bool = False
    dracut_text: str | None = None
    loaded: tuple[str, ...] = ()  # of MODULES, in the kernel that runs
    bound: tuple[str, ...] = ()  # PCI addresses of the GPUs that one of them drives
    initramfs: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # kernel: modules found, or clean
    ours_in_initramfs: tuple[str, ...] = ()  # kernels whose initramfs holds our modprobe.d file
    tools: tuple[str, ...] = ()  # initramfs-tools, dracut
    running: bool = True  # False in an image: nothing is said about a kernel that runs
    named: tuple[str, ...] = ()  # files that ask for one of them by name
    overriding: tuple[str, ...] = ()  # files whose install line is read before ours
    unlisted: tuple[str, ...] = ()  # images that nothing on the node can list
    kernel_arguments: tuple[str, ...] = ()  # those that concern the modules


class NouveauBlacklisted(State[Observed]):
    """``nouveau`` and ``nova_core`` are not loaded now and will not be at the next boot.

    Unloading is tried without force first; the node reboots only when a module stays in use.

    Args:
        reboot_timeout_s: how long the node may take to come back from a reboot, in seconds.

    Disruption:
        ``REBOOT`` while one of the modules is loaded or drives a GPU, otherwise ``NONE``.

    Raises:
        StepFailed: an initramfs cannot be built; nothing is unloaded then.
    """

    name: ClassVar[str] = "nouveau"
    labels: ClassVar[Mapping[str, str]] = {
        "hook_executable": "initramfs hook is executable",
        "loaded": "loaded modules",
        "bound": "GPUs driven by them",
        "initramfs": "modules in the initramfs",
        "ours_in_initramfs": "initramfs with gpustate's modprobe.d file",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    before: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.REBOOT

    reboot_timeout_s: int = 900

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        return {"nouveau_loaded": bool(planned.value("loaded")) if planned.known else None}

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        conf_text, hook_text = node.own_text(CONF_PATH), node.own_text(HOOK_PATH)
        dracut_text, cmdline = node.own_text(DRACUT_PATH), node.read_text("/proc/cmdline")
        loaded = node.modules()
        images = _parse_images(node.shell(_IMAGES).stdout)
        tools = node.shell(_TOOLS, assume="initramfs-tools\n").stdout.split()
        named, overriding = _parse_named(node.shell(_NAMED).stdout)
        running = facts.systemd
        return Observed(
            conf_text=conf_text,
            hook_text=hook_text,
            hook_executable="executable" in tools,
            dracut_text=dracut_text,
            loaded=tuple(name for name in MODULES if name in loaded) if running else (),
            bound=tuple(gpu.address for gpu in facts.gpus if _is_ours(gpu.driver))
            if running
            else (),
            initramfs={kernel: state or CLEAN for kernel, state, _ in images if state != "no-tool"},
            ours_in_initramfs=tuple(kernel for kernel, _, marked in images if marked),
            tools=tuple(tool for tool in tools if tool != "executable"),
            running=running,
            named=named,
            overriding=overriding,
            unlisted=tuple(kernel for kernel, state, _ in images if state == "no-tool"),
            kernel_arguments=tuple(
                word for word in (cmdline or "").split() if "nouveau" in word or "nova" in word
            ),
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(
                observed,
                conf_text=None,
                hook_text=None,
                hook_executable=False,
                dracut_text=None,
                ours_in_initramfs=(),
            )
        debian, dracut = "initramfs-tools" in observed.tools, "dracut" in observed.tools
        return replace(
            observed,
            conf_text=CONF_TEXT,
            hook_text=HOOK_TEXT if debian else None,
            hook_executable=debian,
            dracut_text=DRACUT_TEXT if dracut else None,
            loaded=(),
            bound=(),
            initramfs=dict.fromkeys(observed.initramfs, CLEAN),
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            return None
        if observed.unlisted:
            return (
                f"the initramfs of {', '.join(observed.unlisted)} cannot be listed: neither "
                "lsinitramfs nor lsinitrd is installed; install initramfs-tools-core or dracut"
            )
        if observed.overriding:
            return (
                f"{', '.join(observed.overriding)} has an install line that is read before "
                f"{CONF_PATH} and still loads the module; remove that line"
            )
        if _holding(observed) and not observed.tools:
            return (
                f"the initramfs of {', '.join(_holding(observed))} must be rebuilt, and neither "
                "initramfs-tools nor dracut is installed; install the one it was built with"
            )
        if observed.bound and not observed.loaded:
            return (
                f"{', '.join(observed.bound)}: driven by nouveau, which is built into this "
                "kernel; boot with nouveau.modeset=0, or use a kernel that has it as a module"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        in_use = "a program keeps nouveau from being unloaded"
        return diff(
            observed,
            self.desired(observed),
            costs={"loaded": Disruption.REBOOT, "bound": Disruption.REBOOT},
            conditions={"loaded": in_use, "bound": in_use},
            why={
                "initramfs": "modules in an initramfs are loaded at the next boot, before "
                "modprobe.d on the disk is read",
                "ours_in_initramfs": "rebuilt without gpustate's modprobe.d file",
            },
            paths={"conf_text": CONF_PATH, "hook_text": HOOK_PATH, "dracut_text": DRACUT_PATH},
            notes=tuple(self._notes(observed)),
        )

    def _notes(self, observed: Observed) -> Iterator[str]:
        if self.absent:
            return
        for path in observed.named:
            yield f"{path} requests the module by name; the install line in {CONF_PATH} blocks it"
        wrong = [
            word
            for word in observed.kernel_arguments
            if word in ("nouveau.modeset=1", "nouveau.modeset=2")
        ]
        if wrong:
            yield (
                f"the kernel command line has {' '.join(wrong)}; it has no effect while nouveau "
                "is disabled"
            )
        if observed.running and not observed.loaded and observed.conf_text != CONF_TEXT:
            yield "nouveau is not loaded here: no reboot"

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        yield from self._files(plan)
        # Images come after the files that shape them, and before the unload: a node that loses
        # power in between boots without the modules.
        kernels = _holding(observed) if "initramfs" in plan.fields else []
        if "ours_in_initramfs" in plan.fields:
            kernels += [k for k in observed.ours_in_initramfs if k not in kernels]
        if kernels:
            yield ops.RebuildInitramfs(tuple(kernels))
        further = tuple(kernel for kernel in observed.initramfs if kernel not in kernels)
        if self.absent and further and plan.fields & {"conf_text", "hook_text", "dracut_text"}:
            yield _built_meanwhile(further)
        if plan.fields & {"loaded", "bound"}:
            yield ops.UnloadModules(UNLOAD_ORDER)
            yield ops.Reboot(
                f"{', '.join(observed.loaded)} is in use", timeout=self.reboot_timeout_s
            )

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent:
            # The boot itself is the test of what was baked.
            yield ops.RunLive(
                f"for m in {' '.join(UNLOAD_ORDER)}; do if module_loaded $m; then modprobe -r $m || rmmod $m || "
                'fail "$m was loaded at boot and is in use: see lsinitramfs of the kernel that runs"; fi; done\n'
                "effect unloaded",
                "check that nouveau is not loaded",
            )

    def _files(self, plan: Plan) -> Iterator[Step]:
        texts = {
            "conf_text": (CONF_PATH, 0o644),
            "hook_text": (HOOK_PATH, 0o755),
            "dracut_text": (DRACUT_PATH, 0o644),
        }
        after = {change.field: change.after for change in plan.changes}
        # A hook that lost its execute bit has the right text.
        if after.get("hook_executable"):
            after.setdefault("hook_text", HOOK_TEXT)
        for name, (path, mode) in texts.items():
            if name in after:
                text = after[name]
                yield ops.put_own(path, None if text is None else str(text), mode=mode)


def _built_meanwhile(kernels: tuple[str, ...]) -> Step:
    """What earlier steps of the run removed (the driver's packages) may have had images built, with our files."""
    lines = [
        'list() { if command -v lsinitramfs >/dev/null; then timeout -k 2 120 lsinitramfs "$1"; '
        'else timeout -k 2 120 lsinitrd "$1"; fi 2>/dev/null; }',
        "ours() {",
        '  for i in "/boot/initrd.img-$1" "/boot/initramfs-$1.img" "/boot/initrd-$1" /boot/*/"$1"/initrd; do',
        '    [ "$i" -nt "$R/library" ] || continue',
        f'    case $(list "$i") in *modprobe.d/{CONF_PATH.rpartition("/")[2]}*) return 0 ;; esac',
        "  done; return 1",
        "}",
    ]
    for kernel in kernels:
        rebuild = ops.RebuildInitramfs((kernel,)).script()
        lines.append(f"if ours {shlex.quote(kernel)}; then\n{rebuild}\nfi")
    title = "rebuild the initramfs built with gpustate's files in this run"
    return ops.Run("\n".join([*lines, "effect looked"]), title, timeout=900)


def _holding(observed: Observed) -> list[str]:
    """Kernels whose initramfs has to be rebuilt."""
    return [kernel for kernel, state in observed.initramfs.items() if state != CLEAN]


def _is_ours(driver: str | None) -> bool:
    # The PCI driver of nova_core has been called NovaCore and nova-core.
    name = (driver or "").lower().replace("-", "").replace("_", "")
    return name in ("nouveau", "novacore", "nova")


def _parse_images(text: str) -> list[tuple[str, str, bool]]:
    """Kernel, modules found (with underscores), and whether our file is inside."""
    images: list[tuple[str, str, bool]] = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 4:
            images.append(
                (
                    parts[0],
                    modprobe.normal(parts[2]) if parts[2] != "no-tool" else parts[2],
                    parts[3] == "1",
                )
            )
    return images


def _parse_named(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files that ask for a module by name, and those whose install line beats ours."""
    named: dict[str, None] = {}
    overriding: dict[str, None] = {}
    for row in text.splitlines():
        path, _, line = row.partition(":")
        if "/modprobe.d/" not in path:
            named[path] = None
            continue
        install = modprobe.parse(line).install
        loads = any(
            name in MODULES and not modprobe.is_nothing(how) for name, how in install.items()
        )
        if loads and path.rpartition("/")[2] < CONF_PATH.rpartition("/")[2]:
            overriding[path] = None
    return tuple(named), tuple(overriding)
