"""What the driver's steps run on a node, as sh.

Each fragment may be killed anywhere and run again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from gpustate import Step, ops
from gpustate.formats import dpkg, driverset, gpu_services, mps
from gpustate.ops import kmod
from gpustate.probes.kernels import DKMS_HALF, DKMS_WHOLE
from gpustate.states.driver.observed import IN_USE_PATH, STOPPED_PATH, UNINSTALLER

LOAD_ORDER = ("nvidia", "nvidia-uvm", "nvidia-modeset")
#: Whatever is loaded of these goes, dependents first.
UNLOAD_ORDER = (
    "gdrdrv",
    "nvidia_fs",
    "nv_peer_mem",
    "nvidia_peermem",
    "nvidia_vgpu_vfio",
    "nvidia_uvm",
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia",
)
#: Services that hold a GPU and may be stopped for a reload, in this order; started in reverse.
SERVICES = (
    *gpu_services.MONITORS,
    "nvidia-gridd.service",
    "nvidia-topologyd.service",
    "nvidia-mps.service",
    mps.UNIT,
    "nvidia-persistenced.service",
    "nvidia-imex.service",
    "nvidia-fabricmanager.service",
)

_HAVE = (
    DKMS_HALF
    + DKMS_WHOLE
    + 'sound() { [ -s "$1" ] && [ -n "$(modinfo -F license "$1" 2>/dev/null)" ]; }\n'
    "have() { # kernel: version and type of its nvidia module\n"
    "  p=$(grep -m1 -oE '^[^:]*/nvidia(-current[^/:]*|-tesla[^/:]*)?\\.ko(\\.[a-z0-9]+)?:' \"/lib/modules/$1/modules.dep\" 2>/dev/null) || return 0\n"
    '  p=${p%:}; case $p in /*) ;; *) p=/lib/modules/$1/$p;; esac; ! half "$1" "$p" && whole "$1" "$p" || return 0\n  p=$wd/$wb$we\n'
    '  case $(modinfo -F license "$p") in *GPL*) t=open;; *) t=proprietary;; esac\n'
    '  printf \'%s %s\' "$(modinfo -F version "$p")" "$t"\n'
    "}\n"
)

_CLEAR = kmod.clear(("nvidia*",))

# Modules that lie where DKMS installs them, and of which it has no record: it does not install over them, and the
# package whose script builds them stays half-configured. Told to, it takes them for somebody else's, and puts them
# back whenever it removes its own. So they go as soon as those that replace them are built.
_ADOPT = r"""
adopt() {
  ad_a=$(uname -m)
  dpkg-query -W -f '${db:Status-Status} ${Version}\n' '*nvidia*' 2>/dev/null | sed -n 's/^half-configured \([0-9]*:\)*//p' | sort -u | while read -r ad_v; do
    ad_v=${ad_v%-*}
    for ad_n in /usr/src/nvidia*-"$ad_v"/dkms.conf; do
      [ -r "$ad_n" ] || continue
      ad_n=${ad_n%/*}; ad_n=${ad_n##*/}; ad_n=${ad_n%-"$ad_v"}; ad_d=/var/lib/dkms/$ad_n
      for ad_k in /lib/modules/*/updates/dkms; do
        ad_o=$ad_k; ad_k=${ad_k%/updates/dkms}; ad_k=${ad_k##*/}
        set -- "$ad_o"/nvidia*.ko*; [ -e "$1" ] && [ -e "/lib/modules/$ad_k/build/Makefile" ] && [ ! -e "$ad_d/kernel-$ad_k-$ad_a" ] || continue
        echo "building the modules for $ad_k anew, of which DKMS has no record"
        dkms build "$ad_n/$ad_v" -k "$ad_k" </dev/null >"$R/dkms.log" 2>&1 || { complain "$ad_d/$ad_v/build/make.log"; tail -c 2000 "$R/dkms.log"; continue; }
        for ad_m in "$ad_d/$ad_v/$ad_k/$ad_a"/module/*.ko*; do ad_m=${ad_m##*/}; rm -f "$ad_o/${ad_m%%.ko*}".ko*; done
        dkms install "$ad_n/$ad_v" -k "$ad_k" </dev/null >"$R/dkms.log" 2>&1 || tail -c 2000 "$R/dkms.log"
      done
    done
  done
}
if command -v dkms >/dev/null; then ( adopt ); fi
"""

#: What comes before an installation; an interrupted run may have left what only can be replaced.
PRELUDE = _HAVE + kmod.COMPLAIN + _CLEAR
#: What comes before packages are configured.
_WHOLE = _CLEAR + kmod.COMPLAIN + _ADOPT

# DKMS keeps modules that it finds in its place and has no record of by that name: those of the set that is replaced,
# where open and proprietary ones have different names. It would put them back when the new ones leave.
ARCHIVES = r"""
archives() { for ar_d in /var/lib/dkms/nvidia*/original_module/*; do [ ! -d "$ar_d" ] || echo "$ar_d"; done; }
archives >"$R/archives"
forget_archives() { # kernel...: whose modules were those of the packages before
  for ar_k do for ar_d in /var/lib/dkms/nvidia*/original_module/"$ar_k"; do
    [ ! -d "$ar_d" ] || grep -qxF -e "$ar_d" "$R/archives" || rm -rf "$ar_d"
  done; done
}
"""

# A package's scripts remove the modules of all kernels before they build, and what fails to build in one version
# may fail in the other as well.
_KEEP = r"""
keep_modules() { # kernel...: copies of what DKMS has installed, until what replaces it is built
  for km_k do
    km_f=; for km_f in /lib/modules/"$km_k"/updates/dkms/nvidia*.ko*; do break; done; [ -f "$km_f" ] || continue
    rm -rf "$G/modules/$km_k"; mkdir -p "$G/modules/$km_k" && cp -p "${km_f%/*}"/nvidia*.ko* "$G/modules/$km_k/" || rm -rf "$G/modules/$km_k"
  done
}
modules_back() { # kernel...: where none is left, what was kept; says so
  for km_k do
    depmod "$km_k" || :; [ -z "$(have "$km_k")" ] || continue
    km_d=/lib/modules/$km_k/updates/dkms
    if [ -d "$G/modules/$km_k" ]; then mkdir -p "$km_d" && cp -p "$G/modules/$km_k"/* "$km_d/" && sync "$km_d"/nvidia*.ko* && depmod "$km_k" || :; fi
    km_h=$(have "$km_k")
    if [ -n "$km_h" ]; then echo "Kernel $km_k has the files of its module $km_h back; that could not be rebuilt either."
    else echo "No nvidia module is left for kernel $km_k, and what was there before could not be put back: its next boot has no driver."; fi
  done
  rm -rf "$G/modules"
}
"""

# A transaction that takes a package with it which is not part of the driver is not started.
_FOREIGN = (
    'foreign() { while read -r w n _; do [ "$w" = Remv ] || [ "$w" = Purg ] || continue\n'
    f"  dpkg-query -W -f '{dpkg.QUERY_FORMAT}' \"$n\" | grep -qE '{driverset.MEMBER_ERE}' || echo \"$n\"; done; }}\n"
)


def _words(install: dict[str, str], remove: tuple[str, ...]) -> str:
    words = [shlex.quote(f"{name}={version}") for name, version in install.items()]
    return " ".join([*words, *(shlex.quote(f"{name}-") for name in remove)])


def fetch(
    install: dict[str, str],
    remove: tuple[str, ...],
    also: tuple[str, ...],
    roll_back: tuple[str, ...],
) -> Step:
    """Have everything on the node before anything changes; stop when somebody else's would go.

    Args:
        install: name to version.
        remove: packages that leave in the same transaction.
        also: packages that are installed ahead of it.
        roll_back: files that are put back as they were before this run when it cannot be had.
    """
    words, more = _words(install, remove), " ".join(map(shlex.quote, also))
    return ops.Run(
        f"back() {{ roll_back {' '.join(map(shlex.quote, roll_back))}; exit 1; }}\n"
        # What an interrupted run left half-configured may be just what this replaces.
        + _WHOLE
        + "apt_ready || back\n"
        + _FOREIGN
        + f"set -- {words}\n"
        'apt_whole "$R/said" install -s --allow-downgrades --allow-change-held-packages "$@" '
        '|| { tail -n 25 "$R/said"; back; }\n'
        'gone=$(foreign <"$R/said")\n'
        '[ -z "$gone" ] || { echo "error: this would also remove" $gone "which is not part of the driver; '
        'remove it yourself first or choose another package set"; back; }\n'
        f'MAY_GO=1; apt_fetch {more} "$@" || back\neffect fetched',
        f"download the driver's {len(install)} packages and their dependencies",
        timeout=3600,
    )


def install(
    install: dict[str, str],
    remove: tuple[str, ...],
    *,
    again: bool = False,
    built: Mapping[str, str | None],
    own: tuple[str, ...] = (),
    roll_back: tuple[str, ...],
) -> Step:
    """The whole set in one transaction, or what was there before; says the compiler's first complaint.

    Args:
        install: name to version.
        remove: packages that leave in the same transaction.
        again: put the files back even where the version is right.
        built: kernel to the module it has now; rebuilt where the packages are put back.
        own: kernels whose module is one of the packages that are there.
        roll_back: files that go back with the packages.
    """
    words = ("--reinstall " if again else "") + _words(install, remove)
    kernels = shlex.join(kernel for kernel, have in built.items() if have)
    return ops.Run(
        PRELUDE + f"{_KEEP}{ARCHIVES}{kmod.APT_FAILED}keep_modules {kernels}\napt_ready\n"
        f'if apt_swap {words}; then rm -rf "$G/modules"; forget_archives {shlex.join(own)}; exit 0; fi\n'
        f'[ -n "$ROLLED" ] || {{ modules_back {kernels}; {which_run()}exit 1; }}\n'
        f"set +e\n{rebuild(built)}modules_back {kernels}\n{start_services()}roll_back {' '.join(map(shlex.quote, roll_back))}\nexit 1",
        f"install the driver's {len(install)} packages",
        timeout=3600,
    )


def uninstall() -> Step:
    """Have NVIDIA's installer take its driver away; what is loaded of it stays loaded.

    Its exit code is 0 whatever became of it, so that is looked at. Sources: NVIDIA/nvidia-installer
    590.48.01: nvidia-installer.c, backup.c (``uninstall_existing_driver``).
    """
    return ops.Run(
        f"u={UNINSTALLER}\n"
        '[ -x "$u" ] || { effect same; exit 0; }\n'
        'timeout -k 10 900 "$u" --silent >"$R/uninstall.log" 2>&1 </dev/null || code=$?\n'
        '[ ! -e "$u" ] || { tail -n 15 "$R/uninstall.log"; '
        'fail "$u --silent left itself behind (exit code ${code:-0}); see /var/log/nvidia-uninstall.log on the node"; }\n'
        "effect uninstalled",
        "uninstall the driver of NVIDIA's .run installer",
        timeout=960,
    )


def hold_all() -> Step:
    """Hold every installed package that belongs to the driver, as dpkg knows them now."""
    return ops.Run(
        f"set -- $(dpkg-query -W -f '{dpkg.QUERY_FORMAT}' | grep -E '{driverset.MEMBER_ERE}' "
        "| grep -vE '\\|(.c|.n).?$' | cut -d '|' -f 1 | sort -u)\n"
        "apt_wait\n"
        '[ $# = 0 ] || apt-mark hold "$@"\neffect held',
        "hold the driver's packages",
        timeout=120,
    )


def settle() -> Step:
    """Finish what an interrupted dpkg left."""
    return ops.Run(
        f"{_WHOLE}apt_ready\napt install -f\neffect configured",
        "finish the interrupted package installation",
        timeout=3600,
    )


#: Wants k, v and want set: kernel, version, and version with type.
BUILD = (
    'depmod "$k"; [ "$(have "$k")" != "$want" ] || { effect same; exit 0; }\n'
    'n=; for d in /usr/src/nvidia*-"$v"; do [ -e "$d/dkms.conf" ] && n=${d##*/} && n=${n%-"$v"} && break; done\n'
    '[ -n "$n" ] || fail "no DKMS source for $v below /usr/src; the package that brings it is not installed"\n'
    f'{kmod.UNLINKED}unlinked "/var/lib/dkms/$n" "$k"\n'
    'made() { dkms install "$n/$v" -k "$k" >"$R/dkms.log" 2>&1; }\n'
    # What DKMS takes for built and cannot install is rebuilt.
    't=/var/lib/dkms/$n/$v/$k; if ! made && ! { [ -d "$t" ] && rm -rf "$t" && made; }; then\n'
    '  complain "/var/lib/dkms/$n/$v/build/make.log"; tail -c 3000 "$R/dkms.log"; exit 1\n'
    "fi\n"
    'depmod "$k"\n'
    # DKMS may believe it is installed while the file is gone.
    'if [ "$(have "$k")" != "$want" ]; then dkms install --force "$n/$v" -k "$k" >>"$R/dkms.log" 2>&1 || :; depmod "$k"; fi\n'
    'if [ "$(have "$k")" != "$want" ]; then dkms remove "$n/$v" -k "$k" || :; dkms install --force "$n/$v" -k "$k"; depmod "$k"; fi\n'
    'got=$(have "$k"); [ "$got" = "$want" ] || fail "kernel $k has nvidia module ${got:-none} after the build, wanted $want"\n'
)


#: The same for modules that come with a package: they only have to be found.
LOOK = (
    'depmod "$k"; got=$(have "$k"); [ "$got" = "$want" ] || '
    'fail "kernel $k has nvidia module ${got:-none} from its package, expected $want"\n'
)


def rebuild(built: Mapping[str, str | None]) -> str:
    """Build modules anew after the packages went back, as far as that works."""
    return "".join(
        f"( k={shlex.quote(kernel)}; v={shlex.quote(have.partition(' ')[0])}; want={shlex.quote(have)}\n{BUILD}) || :\n"
        for kernel, have in built.items()
        if have is not None
    )


def build(kernel: str, want: str) -> Step:
    """Build and install the module for one kernel with DKMS; say the compiler's first complaint."""
    version = want.partition(" ")[0]
    k, v = shlex.quote(kernel), shlex.quote(version)
    return ops.Run(
        _CLEAR
        + _HAVE
        + kmod.COMPLAIN
        + f"k={k}; v={v}; want={shlex.quote(want)}\n"
        + BUILD
        + "effect built",
        f"build the nvidia module for {kernel}",
        timeout=3600,
    )


def note_services() -> Step:
    """Write down which services hold the GPUs, before new libraries break them."""
    return ops.Run(
        f"if [ -d /run/systemd/system ]; then\n{_NOTE}fi\neffect noted",
        "record the services that use the driver",
        timeout=60,
        running=True,
    )


def start_services() -> str:
    """Start what was stopped, and forget about it."""
    return (
        f"if [ -r {STOPPED_PATH} ]; then\n"
        '  while read -r u; do systemctl reset-failed "$u" 2>/dev/null || :; systemctl start "$u" || echo "still stopped: $u"; done <'
        f"{STOPPED_PATH}\n"
        f"  rm -f {STOPPED_PATH}\n"
        "fi\n"
    )


def which_run() -> str:
    """Say which of the services that were noted run; the note stays for the next apply."""
    return f"[ ! -r {STOPPED_PATH} ] || which_run <{STOPPED_PATH}\n"


# Written down before anything stops, in the order they are to start: whoever comes after a kill
# starts them.
_NOTE = (
    f'[ -e {STOPPED_PATH} ] || {{ l=; for u in {" ".join(SERVICES)}; do systemctl is-active -q "$u" && l="$u\n$l"; done\n'
    f'  printf "%s" "$l" >{STOPPED_PATH}.new; sync {STOPPED_PATH}.new; mv -f {STOPPED_PATH}.new {STOPPED_PATH}; }}\n'
)


def _stop_services() -> str:
    return (
        f"if [ -d /run/systemd/system ]; then\n{_NOTE}"
        f'for u in {" ".join(SERVICES)}; do ! systemctl is-active -q "$u" || systemctl stop "$u"; done\n'
        "fi\n"
    )


#: Processes with a GPU's device file open, in the real /proc: ``pid|command|cgroup``.
_HOLDERS = r"""holders() {
  for p in $(find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h\n' 2>/dev/null | sort -u); do
    p=${p%/fd}; c=; { read -r c <"$p/comm"; } 2>/dev/null || continue
    g=; while read -r l; do g=$l; done <"$p/cgroup"
    printf '%s|%s|%s\n' "${p#/proc/}" "$c" "${g##*/}"
  done
}
"""


def _unload() -> str:
    return (
        _HOLDERS
        + 'busy() { mkdir -p /run/gpustate; echo "$1" >'
        + f'{IN_USE_PATH}; start_again; fail "$1"; }}\n'
        + "start_again() {\n"
        + start_services()
        + ":\n}\n"
        + _stop_services()
        + 'h=$(holders); [ -z "$h" ] || { start_again; fail "the GPUs are in use by" $h; }\n'
        + f"for m in {' '.join(UNLOAD_ORDER)}; do\n"
        '  module_loaded "$m" || continue; was="$was $m"\n'
        '  rmmod "$m" || busy "$m cannot be unloaded though no process holds a GPU"\n'
        "done\n"
    )


def reload(want: str) -> Step:
    """Unload every NVIDIA module and load the ones on disk, with the known services stopped."""
    load = "\n".join(f"modprobe {module}" for module in LOAD_ORDER)
    return ops.Run(
        _HAVE + f'want={shlex.quote(want)}; k=$(uname -r); was=; got=$(have "$k")\n'
        '[ "$got" = "$want" ] || fail "the running kernel $k has nvidia module ${got:-none} on '
        'disk, expected $want; not unloading"\n'
        + _unload()
        + load
        + '\nfor m in $was; do case $m in nvidia|nvidia_uvm|nvidia_modeset) ;; *) modprobe "$m" || echo "$m does not load again";; esac; done\n'
        "start_again\neffect reloaded",
        "reload the nvidia modules",
        timeout=600,
        running=True,
    )


def first_load(want: str) -> Step:
    """At the first boot of an image: the modules that were built for it are loaded, where GPUs are."""
    load = "\n".join(
        f"module_loaded {module.replace('-', '_')} || modprobe {module}" for module in LOAD_ORDER
    )
    return ops.Run(
        'n=; for d in "$SYS"/bus/pci/devices/*; do v=; c=; { read -r v <"$d/vendor" && read -r c <"$d/class"; } 2>/dev/null || continue\n'
        "  case $v$c in 0x10de0x0300*|0x10de0x0302*) n=1; break;; esac; done\n"
        '[ -n "$n" ] || { echo "no NVIDIA GPU on PCI: nothing to load"; effect same; exit 0; }\n'
        + load
        + f'\nv=; read -r v <"$SYS/module/nvidia/version"; [ "$v" = {shlex.quote(want.partition(" ")[0])} ] || '
        f'fail "driver $v is loaded, and {want} is installed"\neffect loaded',
        "load the nvidia modules",
        timeout=300,
        running=True,
    )


def unload() -> Step:
    """Unload every NVIDIA module; the services that held it stay stopped, for their driver goes."""
    return ops.Run(
        "was=\n" + _unload() + f"rm -f {STOPPED_PATH}\neffect unloaded",
        "unload the nvidia modules",
        timeout=600,
        running=True,
    )


def restart_stopped() -> Step:
    """Start the services that an interrupted reload left stopped."""
    return ops.Run(start_services() + "effect started", "restart the stopped services", timeout=300)
