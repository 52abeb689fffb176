"""Packages that a state brings with all they need, so that it can take exactly those away again.

apt forgets for whom a dependency came. So the names of what an installation will bring are written
down before it starts (/var/lib/gpustate/brought/STATE), and a removal takes those that nobody else
needs by then. What is installed already is never in the list.

apt takes the newest of what a package needs, also where that needs one version and no other: an older
release of a set cannot be had by naming its first package. So the others are named too.

None of these packages may bring a driver: an installation that would install or move one is stopped
before anything changes.

Sources:
    apt-get(8): the lines ``Inst``, ``Remv`` and ``Purg`` of a simulation. deb-control(5), deb-substvars(5):
    ``Depends`` with ``(= version)``.
"""

from __future__ import annotations

import shlex

from gpustate.ops import kmod
from gpustate.ops.steps import Run
from gpustate.text import driverset

FOLDER = "/var/lib/gpustate/brought"

#: What is needed at one version only, and what is offered at the very version of the package that needs it.
TOGETHER = r"""
needs() { # name=version
  apt-cache show "$1" 2>/dev/null | sed -nE 's/^(Pre-)?Depends: //p' | tr ',' '\n' | sed -E 's/^ +//; s/ +$//'
}
together() { # name=version...: these, and all that has to come at a version of its own
  t=$*; a=
  while [ -n "$t" ]; do
    n=; for w in $t; do
      case " $a " in *" ${w%%=*}="*) continue;; esac; a="$a $w"
      case $w in *=*) ;; *) continue;; esac
      n="$n $(needs "$w" | sed -nE 's/^([a-z0-9][a-z0-9.+-]+)(:any)? \(= ([^)]+)\)$/\1=\3/p' | tr '\n' ' ')"
      for d in $(needs "$w" | sed -nE 's/^([a-z0-9][a-z0-9.+-]+)(:any)?( \(>= [^)]+\))?$/\1/p'); do
        apt-cache show "$d=${w#*=}" 2>/dev/null | grep -qxF "Version: ${w#*=}" && n="$n $d=${w#*=}"
      done
    done; t=$(echo $n)
  done
  echo $a
}
"""


def record_path(owner: str) -> str:
    """Where the names are written down."""
    return f"{FOLDER}/{owner}"


def bring(
    owner: str,
    packages: tuple[tuple[str, str], ...],
    *,
    hold: bool = False,
    dkms: tuple[str, ...] = (),
    together: bool = False,
) -> Run:
    """Install packages at exact versions, in one transaction, and note what came.

    Args:
        owner: state that answers for them.
        packages: name and version; an empty version takes the candidate.
        hold: hold the named ones afterwards.
        dkms: what DKMS calls the sources among them; half-done builds of those are cleared first.
        together: what they need at one version only is installed, and held, at that version.
    """
    words = " ".join(shlex.quote(f"{n}={v}" if v else n) for n, v in packages)
    names = " ".join(shlex.quote(name) for name, _ in packages)
    label = ", ".join(f"{n}={v}" if v else n for n, v in packages)
    record = record_path(owner)
    lines = [
        f"{kmod.clear(dkms)}l={record}; mkdir -p {FOLDER}; apt_ready",
        f"{TOGETHER}set -- $(together {words})" if together else f"set -- {words}",
        'apt install -s --allow-downgrades --allow-change-held-packages "$@" >"$R/simulated" 2>&1 '
        '|| { tail -n 15 "$R/simulated"; exit 1; }',
        "d=$(sed -n 's/^Inst \\([^ ]*\\) \\(\\[[^]]*\\] \\)\\{0,1\\}(\\([^ ]*\\).*/\\1|x|\\3|/p' \"$R/simulated\" "
        f"| grep -E '{driverset.MEMBER_ERE}' | cut -d '|' -f 1,3 | tr '|\\n' '  ') || :",
        '[ -z "$d" ] || fail "error: this would install or move the driver (${d% }), which is not this state\'s; '
        'name packages that bring none (cuda-toolkit-X-Y, not cuda), or change the driver with the state driver"',
        '{ [ ! -e "$l" ] || cat "$l"; sed -n \'s/^Inst \\([^ ]*\\) (.*/\\1/p\' "$R/simulated"; } | sort -u >"$l.new"',
        'sync "$l.new"; mv -f "$l.new" "$l"',
        'apt_fetch "$@" && apt_swap "$@" || exit 1',
    ]
    if hold:
        names = '$(for w do echo "${w%%=*}"; done)' if together else names
        lines.append(f"apt_wait; apt-mark hold {names}")
    return Run("\n".join(lines), f"install {label} and what it needs", timeout=3600)


def take_back(owner: str, roots: tuple[str, ...]) -> Run:
    """Purge what a state brought; what somebody else needs by now stays.

    Args:
        owner: state that brought it.
        roots: packages that have to go; when something else needs one, nothing is removed.
    """
    record = record_path(owner)
    wanted = " ".join(map(shlex.quote, roots))
    return Run(
        f"l={record}; apt_ready\n"
        "there() { dpkg-query -W -f '${Package} ${db:Status-Status}\\n' \"$@\" 2>/dev/null | sed -n 's/ installed$//p; s/ half-.*//p; s/ unpacked$//p'; }\n"
        f'set -- {wanted}; [ ! -e "$l" ] || set -- "$@" $(cat "$l")\n'
        '[ $# = 0 ] || set -- $(there "$@" | sort -u)\n'
        "if [ $# -gt 0 ]; then\n"
        '  printf "%s\\n" "$@" | sort -u >"$R/mine"\n'
        '  also() { apt -s purge --allow-change-held-packages "$@" 2>/dev/null | sed -nE \'s/^(Remv|Purg) ([^ :]*).*/\\2/p\' | sort -u | comm -23 - "$R/mine"; }\n'
        '  if [ -n "$(also "$@")" ]; then\n'
        "    go=; for p do\n"
        '      w=$(also "$p" | tr "\\n" " "); [ -n "$w" ] || { go="$go $p"; continue; }\n'
        f'      case " {" ".join(roots)} " in *" $p "*) fail "error: $p cannot be removed, ${{w% }} needs it; remove that first" ;; esac\n'
        '      echo "$p stays: ${w% } needs it"\n'
        "    done; set -- $go\n"
        "  fi\n"
        '  [ $# = 0 ] || apt purge --allow-change-held-packages "$@"\n'
        'fi\nrm -f "$l"; rmdir "${l%/*}" 2>/dev/null || :; effect removed',
        f"remove {', '.join(roots) or 'the packages'} and what came with it",
        timeout=1800,
    )
