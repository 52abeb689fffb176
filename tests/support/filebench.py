"""Random policies of files, and the whole engine run over them on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filestates import file_state, here, request
from hypothesis import strategies as st

from gpustate.core.outcome import NodeResult, Outcome
from gpustate.core.state import AnyState
from gpustate.engine import fleet
from gpustate.engine.events import Event


@dataclass(frozen=True)
class Wish:
    """One file of a random policy: where it starts, what it should hold, how it goes wrong."""

    start: str | None
    text: str
    needs: tuple[int, ...]
    known_after: tuple[int, ...]
    script: str  # instead of writing the file


BAD = "echo 'error: no luck' >&2; exit 3"
SCRIPTS = {"": Outcome.CHANGED, BAD: Outcome.FAILED, "kill -9 $$": Outcome.FAILED}
contents = st.sampled_from(("", "x", "x\n", "\n", "a = 1\r\nb\r\n", "end\n\n", "ü ✓\n")) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
)


@st.composite
def wishes(draw: st.DrawFn, scripts: tuple[str, ...]) -> list[Wish]:
    """Files whose states wait for those before them in any way there is."""
    made: list[Wish] = []
    for number in range(draw(st.integers(1, 5))):
        some: st.SearchStrategy[tuple[int, ...]] = st.just(())
        if number:
            some = st.lists(st.sampled_from(range(number)), max_size=2, unique=True).map(tuple)
        wanted = draw(contents)
        start = draw(st.none() | st.just(wanted) | contents)
        made.append(Wish(start, wanted, draw(some), draw(some), draw(st.sampled_from(scripts))))
    return made


class Bench:
    """A policy of files in a folder of its own, and a node that is this machine."""

    def __init__(self, folder: Path, plan: list[Wish]) -> None:
        self.files = [folder / f"file{number}" for number in range(len(plan))]
        self.node = here(folder / "state")
        self.steps: list[str] = []
        for path, wish in zip(self.files, plan, strict=True):
            if wish.start is not None:
                path.write_bytes(wish.start.encode())
        self.classes = [
            file_state(
                f"s{number}",
                needs=tuple(f"s{n}" for n in wish.needs),
                known_after=tuple(f"s{n}" for n in wish.known_after),
            )
            for number, wish in enumerate(plan)
        ]
        self.wishes = plan

    def states(self, *, scripts: bool = True, **more: Any) -> list[AnyState]:
        return [
            cls(path=str(path), text=wish.text, script=wish.script if scripts else "", **more)
            for cls, path, wish in zip(self.classes, self.files, self.wishes, strict=True)
        ]

    def run(self, states: list[AnyState], *, apply: bool) -> NodeResult:
        def listen(event: Event) -> None:
            if event.kind == "step":
                self.steps.append(event.state)

        self.steps.clear()
        result = fleet.run(request(self.node, *states, apply=apply), listen)
        assert len(result.nodes) == 1
        return result.nodes[0]

    def check_order(self) -> None:
        """No state ran before one it waits for, in whatever stage that was."""
        at = {name: place for place, name in enumerate(self.steps)}
        for number, wish in enumerate(self.wishes):
            for other in (*wish.needs, *wish.known_after):
                if {f"s{number}", f"s{other}"} <= at.keys():
                    assert at[f"s{other}"] < at[f"s{number}"], self.steps

    def expected(self) -> dict[str, Outcome]:
        """What has to become of each state, told without the engine."""
        told: dict[str, Outcome] = {}
        for number, wish in enumerate(self.wishes):
            first = [told[f"s{n}"] for n in (*wish.needs, *wish.known_after)]
            if any(outcome in (Outcome.FAILED, Outcome.NOT_RUN) for outcome in first):
                told[f"s{number}"] = Outcome.NOT_RUN
            elif wish.start == wish.text:
                told[f"s{number}"] = Outcome.UNCHANGED
            else:
                told[f"s{number}"] = SCRIPTS[wish.script]
        return told


def new(
    *, needs: tuple[int, ...] = (), known_after: tuple[int, ...] = (), script: str = ""
) -> Wish:
    """A file that is not there yet."""
    return Wish(None, "x", needs, known_after, script)


def outcomes(result: NodeResult) -> dict[str, Outcome]:
    return {state.state: state.outcome for state in result.states}


def identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there, and when it was written last."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None
