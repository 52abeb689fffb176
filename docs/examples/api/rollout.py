"""Apply a policy from a program: a canary node first, then all others.

    python docs/examples/api/rollout.py POLICY INVENTORY CANARY

Stops before the first change if the disruption of a plan exceeds a restart of services, and before the
other nodes if the canary fails.
"""

from __future__ import annotations

import sys

from gpustate import GpustateError, api


def report(event: api.Event) -> None:
    """Print a line for each important event."""
    if event.kind in ("started", "result", "rebooting", "finished"):
        print(f"{event.node}: {event.kind} {event.state} {event.text}".rstrip(), file=sys.stderr)


def roll_out(policy: str, inventory: str, canary: str) -> int:
    """Return the exit code of the first failed batch, else 0, or 2 if drift is left."""
    for limit in (canary, f"all:!{canary}"):
        planned = api.plan(policy, inventory, limit=limit)
        if not planned.ok:
            print(f"{limit}: planning failed: {planned.summary}")
            return planned.exit_code
        if planned.disruption > api.Disruption.RESTART:
            print(f"{limit}: disruption would be {planned.disruption.word}; nothing changed")
            return 5
        applied = api.apply(planned, inventory, limit=limit, events=report)
        print(f"{limit}: {len(applied.changed)} of {len(applied.nodes)} nodes changed")
        if not applied.ok:
            for node in applied.nodes:
                for state in node.outcomes(api.Outcome.FAILED):
                    print(f"{node.name}: {state.state}: {state.reason}\n{state.evidence}")
            return applied.exit_code
    left = api.drift(policy, inventory).drifted
    print(f"drift: {', '.join(left) or 'none'}")
    return 2 if left else 0


if __name__ == "__main__":
    try:
        sys.exit(roll_out(*sys.argv[1:]))
    except GpustateError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
