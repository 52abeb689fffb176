"""What a state observed, as it will be once its plan is carried out."""

from __future__ import annotations

from collections.abc import Mapping

from gpustate.core.outcome import Outcome, StateResult

_UNCHANGED = (Outcome.REFUSED, Outcome.FAILED, Outcome.NOT_RUN)


class PlannedObservation:
    """Fields of an observation as they will be; unknown while the state's plan is.

    Args:
        observed: what the probe read; ``None`` where it could not be probed yet.
        result: the state's place in the plan.

    Attributes:
        observed: what the probe read.
        unchanged: nothing of the state is changed, whatever the policy says.
        known: the plan of the state is known; it does not wait for other states.
        chosen: facts that a plan has chosen already, although it waits.
    """

    def __init__(self, observed: object, result: StateResult | None) -> None:
        self.observed = observed
        self.unchanged = result is not None and result.outcome in _UNCHANGED
        planned = result is not None and not self.unchanged
        self._changes: Mapping[str, object] = (
            {c.field: c.after for c in result.plan.changes} if result and planned else {}
        )
        self.known = result is not None and not result.known_after
        self.chosen: Mapping[str, object] = result.plan.facts if result is not None else {}

    def value(self, field: str) -> object:
        """What a field will be; ``None`` while that is unknown.

        Raises:
            AttributeError: the observation has no such field.
        """
        current = self.current(field)
        if not self.known:
            return None
        return self._changes.get(field, current)

    def version(self, field: str) -> object:
        """The version that a field will be, or the first of several packages; ``none`` without one, ``None`` while unknown.

        Raises:
            AttributeError: the observation has no such field.
        """
        value = self.value(field)
        version = next(iter(value.values()), None) if isinstance(value, Mapping) else value
        return (version or "none") if self.known else None

    def current(self, field: str) -> object:
        """Current value of a field that the plan never changes: of the hardware, or of foreign packages.

        Raises:
            AttributeError: the observation has no such field.
        """
        return None if self.observed is None else getattr(self.observed, field)


__all__ = ["PlannedObservation"]
