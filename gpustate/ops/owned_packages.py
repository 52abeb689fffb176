"""Packages that a state brings with all they need, so that it can take exactly those away again.

A package manager forgets for whom a dependency came. So the names of what an installation will bring are written
down before it starts (/var/lib/gpustate/brought/STATE), and a removal takes those that nobody else
needs by then. What is installed already is never in the list. What stays because it is needed goes over into
the lists of the other states that brought something, so that the last one takes it.

apt takes the newest of what a package needs, also where that needs one version and no other: an older
release of a set cannot be had by naming its first package. So the others are named too.

None of these packages may bring a driver: an installation that would install or move one is stopped
before anything changes.

Sources:
    apt-get(8): the lines ``Inst``, ``Remv`` and ``Purg`` of a simulation. dnf(8): the table of a
    transaction; zypper(8), ``--xmlout``: its summary; rpm(8): what ``-e --test`` says is needed. deb-control(5), deb-substvars(5): ``Depends`` with ``(= version)``.
"""

from __future__ import annotations

import shlex

from gpustate import shell
from gpustate.formats import driverset
from gpustate.formats.rpm import is_rpm
from gpustate.ops import kmod
from gpustate.ops.rpm import transaction
from gpustate.ops.steps import Run

FOLDER = "/var/lib/gpustate/brought"
_DRIVER = (
    '[ -z "$d" ] || fail "error: this would install or move the driver (${d% }), which is not this state\'s; '
    'name packages that bring none (cuda-toolkit-X-Y, not cuda), or change the driver with the state driver"'
)

#: sh: what stays is in the lists of the others from now on.
_HAND_ON = shell.fill(shell.load("hand_on", "gpustate.ops"), FOLDER=FOLDER)
#: sh: "new" or "moved", name and version of each package that a transaction of dnf or zypper brings.
_COMING = shell.load("rpm_coming", "gpustate.ops")
#: sh: leaves in "$@" what nobody outside of it needs. rpm names the capability, not the package that has it.
_KEPT = shell.load("rpm_kept", "gpustate.ops")

#: What is needed at one version only, and what is offered at the very version of the package that needs it.
TOGETHER = shell.load("apt_together", "gpustate.ops")


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
    manager: str = "apt",
) -> Run:
    """Install packages at exact versions, in one transaction, and note what came.

    Args:
        owner: state that answers for them.
        packages: name and version; an empty version takes the candidate.
        hold: hold the named ones afterwards.
        dkms: what DKMS calls the sources among them; half-done builds of those are cleared first.
        together: what they need at one version only is installed, and held, at that version (apt).
        manager: the node's package manager.
    """
    label = ", ".join(f"{n}={v}" if v else n for n, v in packages)
    record = record_path(owner)
    if is_rpm(manager):
        script = _rpm_bring(record, packages, hold, manager)
    else:
        script = _apt_bring(record, packages, hold, together)
    text = kmod.clear(dkms) + script
    return Run(text, f"install {label} and its dependencies", timeout=3600)


def _apt_bring(
    record: str, packages: tuple[tuple[str, str], ...], hold: bool, together: bool
) -> str:
    words = " ".join(shlex.quote(f"{n}={v}" if v else n) for n, v in packages)
    names = " ".join(shlex.quote(name) for name, _ in packages)
    lines = [
        f"record={record}; mkdir -p {FOLDER}; apt_ready",
        f"{TOGETHER}set -- $(together {words})" if together else f"set -- {words}",
        'apt install -s --allow-downgrades --allow-change-held-packages "$@" >"$R/simulated" 2>&1 '
        '|| { tail -n 15 "$R/simulated"; exit 1; }',
        "d=$(sed -n 's/^Inst \\([^ ]*\\) \\(\\[[^]]*\\] \\)\\{0,1\\}(\\([^ ]*\\).*/\\1|x|\\3|/p' \"$R/simulated\" "
        f"| grep -E '{driverset.MEMBER_ERE}' | cut -d '|' -f 1,3 | tr '|\\n' '  ') || :",
        _DRIVER,
        '{ [ ! -e "$record" ] || cat "$record"; sed -n \'s/^Inst \\([^ ]*\\) (.*/\\1/p\' "$R/simulated"; } | sort -u >"$record.new"',
        'sync "$record.new"; mv -f "$record.new" "$record"',
        'apt_fetch "$@" && apt_swap "$@" || exit 1',
    ]
    if hold:
        names = '$(for w do echo "${w%%=*}"; done)' if together else names
        lines.append(f"apt_wait; apt-mark hold {names}")
    return "\n".join(lines)


# The functions of the library are free with short names: what has to outlive them has a long one.
def _rpm_bring(record: str, packages: tuple[tuple[str, str], ...], hold: bool, manager: str) -> str:
    lines = [
        f"record={record}; mkdir -p {FOLDER}",
        transaction(manager, packages),
        f"{'rpm_can_hold && ' if hold else ''}rpm_fetch || exit 1",
        f'{_COMING}coming >"$R/coming"',
        # SUSE puts the kernel that a module was built for behind the version.
        'd=$(awk \'{ v = $3; sub(/_k[0-9][^-]*/, "", v); print $2 "|x|" v "|" }\' "$R/coming" '
        f"| grep -E '{driverset.MEMBER_ERE}' | cut -d '|' -f 1,3 | tr '|\\n' '  ') || :",
        _DRIVER,
        '{ [ ! -e "$record" ] || cat "$record"; sed -n \'s/^new \\([^ ]*\\) .*/\\1/p\' "$R/coming"; } | sort -u >"$record.new"',
        'sync "$record.new"; mv -f "$record.new" "$record"',
        "rpm_swap || exit 1",
    ]
    if hold:
        lines.append(f"rpm_hold hold {shlex.join(name for name, _ in packages)}")
    return "\n".join(lines)


def take_back(owner: str, roots: tuple[str, ...], *, manager: str = "apt") -> Run:
    """Purge packages that a state installed; those that other packages need by now stay.

    Args:
        owner: state that brought it.
        roots: packages that have to go; when something else needs one, nothing is removed.
        manager: the node's package manager.
    """
    label = f"remove {', '.join(roots) or 'the packages'} and their dependencies"
    script = _rpm_take_back if is_rpm(manager) else _apt_take_back
    return Run(script(record_path(owner), roots, manager), label, timeout=1800)


def _rpm_take_back(record: str, roots: tuple[str, ...], manager: str) -> str:
    named = shlex.join(roots)
    return (
        f'PM={manager}; record={record}; rpm_wait\nset -- {named}; [ ! -e "$record" ] || set -- "$@" $(cat "$record")\n'
        'set -- $(for p do if rpm -q "$p" >/dev/null 2>&1; then echo "$p"; fi; done | sort -u)\n'
        f"{_HAND_ON}{shell.fill(_KEPT, ROOTS=' '.join(roots))}"
        '[ $# = 0 ] || rpm_remove "$@" || exit 1\n'
        f"{f'rpm_hold release {named}' if roots else ':'}\n"
        'rm -f "$record"; rmdir "${record%/*}" 2>/dev/null || :; effect removed'
    )


def _apt_take_back(record: str, roots: tuple[str, ...], _: str) -> str:
    words = " ".join(map(shlex.quote, roots))
    text = shell.load("apt_take_back", "gpustate.ops")
    text = shell.fill(text, WANTED=words, ROOTS=" ".join(roots))
    return f"record={record}; apt_ready\n{_HAND_ON}{text}"
