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
        unchanged: nothing of the state is changed, whatever the policy says.
    """

    def __init__(self, observed: object, result: StateResult | None) -> None:
        self._observed = observed
        self.unchanged = result is not None and result.outcome in _UNCHANGED
        planned = result is not None and not self.unchanged
        self._changes: Mapping[str, object] = (
            {c.field: c.after for c in result.plan.changes} if result and planned else {}
        )
        self._known = result is not None and not result.known_after

    def value(self, field: str) -> object:
        """What a field will be; ``None`` while that is unknown.

        Raises:
            AttributeError: the observation has no such field.
        """
        now = self.now(field)
        if not self._known:
            return None
        return self._changes.get(field, now)

    def now(self, field: str) -> object:
        """What a field is that no plan changes: of the hardware, or of foreign packages.

        Raises:
            AttributeError: the observation has no such field.
        """
        return None if self._observed is None else getattr(self._observed, field)


__all__ = ["PlannedObservation"]
