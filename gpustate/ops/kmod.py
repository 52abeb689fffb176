"""Steps for kernel modules that DKMS builds beside the NVIDIA driver.

A module of this kind is built against one driver and one RDMA stack. When either changes it has to be
rebuilt, and the kernel is who says so: it refuses the old one. So loading tries, builds anew where
the kernel refuses, tries again, and then says what the kernel said. Under Secure Boot each build is signed
(:mod:`gpustate.ops.modsign`).

Sources:
    dkms(8). NVIDIA/gds-nvidia-fs, src/dkms.conf; NVIDIA/gdrcopy, packages/dkms.conf.
"""

from __future__ import annotations

import shlex

from gpustate.formats import dkms
from gpustate.ops import modsign
from gpustate.ops.steps import Run

_q = shlex.quote

#: Defines ``unlinked FOLDER KERNEL``: by this link DKMS takes a module for installed, although its build is gone.
UNLINKED = 'unlinked() { for dl in "$1/kernel-$2-"*; do [ ! -L "$dl" ] || [ -e "$dl" ] || rm -f "$dl"; done; }\n'

#: The first word the compiler said, where the journal and a person look for it.
COMPLAIN = (
    "complain() { # make.log\n"
    '  k=$(sed -n "s/.* for kernel \\([^ ]*\\).*/\\1/p;q" "$1" 2>/dev/null) || return 0\n'
    f"  c=$(grep -m 1 -E '{dkms.CAUSE_ERE}' \"$1\") || c=$(grep -m 1 -F '***' \"$1\") || return 0\n"
    '  cp "$1" "$R/make.log.$k"; echo "DKMS build error for kernel $k: ${c##*/build/} (whole log: $R/make.log.$k)"\n'
    "}\n"
)
#: The same of every build that a package's script started, should the packages not come.
APT_FAILED = (
    COMPLAIN + ': >"$R/dkms.start"\n'
    'apt_failed() { for log in $(find /var/lib/dkms -path "*/build/make.log" -newer "$R/dkms.start"); do complain "$log"; done; }\n'
)

# DKMS builds over a module that is there only when told to forget it; killed in between, there is
# none on disk, which the next probe sees.
_BUILD = (
    modsign.BUILT
    + UNLINKED
    + "sign_made() { # kernel, folder of what DKMS made, the module that goes last\n"
    '  k=$1; set -- "$2"/*/module/*.ko* "$3"\n'
    '  for f do shift; f=${f##*/}; f=$(modinfo -k "$k" -n "${f%%.ko*}" 2>/dev/null) && set -- "$@" "$f"; done\n'
    '  [ $# = 0 ] || sign_built "$k" "$@"\n'
    "}\n"
    "built() { # module kernel\n"
    '  grep -qE "/$(printf %s "$1" | sed \'s/[-_]/[-_]/g\')\\.ko(\\.[a-z0-9]+)?:" "/lib/modules/$2/modules.dep"\n'
    "}\n"
    "complain() { # make.log of a source and version\n"
    '  l=/var/lib/dkms/$1/$2/build/make.log; [ -f "$l" ] || return 0\n'
    f"  c=$(grep -m 1 -E '{dkms.CAUSE_ERE}' \"$l\") || return 0\n"
    '  echo "DKMS build error for kernel $3: ${c##*/build/} (whole log: $l)"\n'
    "}\n"
    "build_anew() { # pattern of the source's name, version, kernel, module\n"
    '  n=; for d in /usr/src/$1-"$2"; do [ -e "$d/dkms.conf" ] && n=${d##*/} && n=${n%-"$2"} && break; done\n'
    '  [ -n "$n" ] || fail "no DKMS source of $4 $2 below /usr/src: install the package that brings it"\n'
    '  dkms remove "$n/$2" -k "$3" >"$R/dkms.log" 2>&1 || :\n'
    '  rm -rf "/var/lib/dkms/$n/$2/$3"; unlinked "/var/lib/dkms/$n" "$3"\n'
    '  dkms install --force "$n/$2" -k "$3" >>"$R/dkms.log" 2>&1 || { complain "$n" "$2" "$3"; tail -c 2000 "$R/dkms.log"; exit 1; }\n'
    '  depmod "$3"; built "$4" "$3" || fail "DKMS built $n $2 for $3, and there is no $4 in it"\n'
    '  sign_made "$3" "/var/lib/dkms/$n/$2/$3" "$4"\n'
    "}\n"
)

# A build that was killed leaves its folder: DKMS then neither takes the module for built nor builds
# over it, or misses a module in it, and the package whose script builds it cannot be configured any more. Without
# its source DKMS knows nothing of a build, and may say nothing of others; then what lies there decides. Beside the
# versions DKMS keeps modules that were there before it, and nobody can make those again.
_CLEAR = (
    UNLINKED
    + r"""
half_built() { # folder of a source and version, kernel, architecture
  if [ -r "$1/source/dkms.conf" ]; then
    [ "$dk_of" = "$1" ] || { dk_of=$1; dk_v=${1##*/}; dk_n=${1%/*}; dk_n=${dk_n##*/}; dk_said=$(dkms status -m "$dk_n" -v "$dk_v" 2>/dev/null) || :; }
    if [ -n "$dk_said" ]; then
      ! printf '%s\n' "$dk_said" | grep -vF 'Missing some built' | grep -qF -e "$dk_n/$dk_v, $2, " -e "$dk_n, $dk_v, $2, "; return
    fi
  fi
  [ -s "$1/$2/$3/log/make.log" ] || return 0
  for dk_m in "$1/$2/$3"/module/*.ko*; do [ ! -s "$dk_m" ] || return 1; done
}
clear_dkms() { # patterns of names that DKMS has for sources
  dk_of=; dk_a=$(uname -m)
  for dk_p do for dk_f in /var/lib/dkms/$dk_p/*/*/"$dk_a"; do
    dk_k=${dk_f%/*}; dk_d=${dk_k%/*}
    [ -d "$dk_f" ] || continue
    case ${dk_d##*/}/${dk_k##*/} in original_module/*|*/build|*/source) continue ;; esac
    half_built "$dk_d" "${dk_k##*/}" "$dk_a" || continue
    echo "removing the half-done build in $dk_k"; rm -rf "$dk_k"
    unlinked "${dk_d%/*}" "${dk_k##*/}"
  done; done
}
"""
)


def clear(names: tuple[str, ...]) -> str:
    """sh that removes what a killed build of these DKMS packages left; nothing where there is no DKMS."""
    words = " ".join(map(shlex.quote, names))
    return (
        f"if command -v dkms >/dev/null; then ({_CLEAR}clear_dkms {words} ); fi\n" if names else ""
    )


def rebuild(source: str, version: str, kernel: str, module: str) -> Run:
    """Build a module anew for one kernel.

    Args:
        source: shell pattern of the name DKMS has for the source: ``nvidia*``.
        version: of the source.
        kernel: release.
        module: one that has to be there afterwards.
    """
    words = f"{source} {_q(version)} {_q(kernel)} {_q(module)}"
    # The pattern must reach the function unexpanded.
    words = f"'{source}'" + words[len(source) :]
    return Run(
        f"{_BUILD}build_anew {words}\neffect built", f"build {module} for {kernel}", timeout=3600
    )


def load(source: str, version: str, module: str) -> Run:
    """Load a module; where the kernel refuses the build that is there, rebuild it and try again."""
    under = _q(module.replace("-", "_"))
    return Run(
        f"{_BUILD}if module_loaded {under}; then effect same; exit 0; fi\n"
        # Its package may have had it built where DKMS does not sign.
        f'sign_made "$(uname -r)" /nonexistent {_q(module)}\n'
        f"said=$(modprobe {_q(module)} 2>&1) || {{\n"
        f'  echo "$said; building it anew"; build_anew \'{source}\' {_q(version)} "$(uname -r)" {_q(module)}\n'
        f'  said=$(modprobe {_q(module)} 2>&1) || fail "$said (rebuilt for the driver that is loaded; see dmesg)"\n'
        "}\neffect loaded",
        f"load {module}",
        timeout=3600,
        running=True,
    )


def unload(module: str, what: str) -> Run:
    """Unload a module that its users may still hold, and say how to end that.

    Args:
        module: name.
        what: who uses it, for the message.
    """
    under = _q(module.replace("-", "_"))
    return Run(
        f"if module_loaded {under}; then modprobe -r {under} || rmmod {under} || "
        f'fail "{module} is in use by {what}; stop it and apply again"; effect unloaded; else '
        "effect same; fi",
        f"unload {module}",
        timeout=60,
        running=True,
    )
