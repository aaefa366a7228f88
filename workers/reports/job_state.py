"""How the state of a running job is read: where its snapshots are, and what the stored state of each step says.

Rule: a state is shown as the step's results are: of an aggregate the figures, of a window its results so far. What
is needed for that is sent as plain data, so that a program without the job's code reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec

from malstrom_py import agg
from malstrom_py.agg import Aggregation
from malstrom_py.data.figures import unchanged
from malstrom_py.data.time import Unit
from malstrom_py.errors import PlanError, SnapshotError
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.windows import WindowResult
from malstrom_py.workers.reports.job_status import JobOutcome

T = TypeVar("T")

_FINISHED: Final = frozenset(
    ("count", "sum", "min", "max", "mean", "std", "first", "last", "earliest", "latest", "n_unique")
)


class Figure(msgspec.Struct, frozen=True):
    """One aggregate in a state: its ``name``, the aggregation ``of`` `malstrom_py.agg`, and its place in the state.

    ``skips``: it leaves None out. The state of another aggregation, such as ``custom``, is shown unchanged.
    """

    name: str
    of: str
    place: int = 0
    skips: bool = False

    @property
    def finish(self) -> Callable[[Any], Any]:
        """What makes the figure of the state."""
        if self.of not in _FINISHED:
            return unchanged
        one: Aggregation[Any, Any] = getattr(agg, self.of)()
        return agg.skipping_nulls(one).finish if self.skips else one.finish


class StateShape(msgspec.Struct, frozen=True):
    """What the stored state of a key says.

    ``form``: "value": what is shown; "first": it comes with more, that is not shown; "top": with its ranks;
    "tumbling", "session", "count": open windows; "own": of the step's own, and never shown. ``figures``: the
    aggregates of a state or window, without a name if it is one. ``keys``: the names of the key's columns. ``span``:
    the size of a window, or the gap of a session. ``unit``: of the times of windows, None if they are not moments.
    """

    form: Literal["value", "first", "top", "tumbling", "session", "count", "own"]
    keys: tuple[str, ...] = ("key",)
    figures: tuple[Figure, ...] = ()
    span: int = 0
    unit: Unit | None = None

    @property
    def shown(self) -> Callable[[Any], Any]:
        """What makes of a stored state the one that is shown."""
        of, span = self._of_figures(), self.span
        match self.form:
            case "first":
                return lambda state: state[0]
            case "top":
                return lambda state: list(state[1][::-1])
            case "tumbling":
                return lambda panes: [
                    WindowResult(start, start + span, of(panes[start]), True) for start in sorted(panes)
                ]
            case "session":
                return lambda there: [WindowResult(first, last + span, of(state), True) for first, last, state in there]
            case "count" if self.unit is None:
                return lambda state: [WindowResult(0, state[0], of(state[3]), True)]
            case "count":
                return lambda state: [WindowResult(state[1], state[2] + 1, of(state[3]), True)]
            case _:
                return of

    def _of_figures(self) -> Callable[[Any], Any]:
        figures = [(one.name, one.place, one.finish) for one in self.figures]
        if not figures:
            return unchanged
        if not figures[0][0]:
            return figures[0][2]
        return lambda state: {name: finish(state[place]) for name, place, finish in figures}


@dataclass(frozen=True, slots=True)
class JobState:
    """Where the state of job ``job`` is. ``shapes``: of each step with state. ``uri``: the place of its snapshots, for
    other processes; None if it makes none, or ``keeper`` keeps them. ``snapshots``: only in processes of the job.
    """

    job: str
    shapes: Mapping[str, StateShape]
    uri: str | None = None
    keeper: str = ""
    snapshots: Snapshots | None = field(default=None, repr=False)

    @property
    def shown(self) -> list[str]:
        """The steps whose state can be read."""
        return [step for step, shape in self.shapes.items() if shape.form != "own"]

    def shape_of(self, step: str) -> StateShape:
        """Return what the state of ``step`` says. `PlanError` if it has none that can be shown."""
        shape = self.shapes.get(step)
        if shape is not None and shape.form != "own":
            return shape
        problem = (
            f"has no step {step!r} with state"
            if shape is None
            else f"has a step {step!r} whose state is internal, such as records that wait for others or parts of "
            f"windows: put a step with figures after it, and ask for that"
        )
        shown = ", ".join(self.shown)
        there = f"those whose state can be read are {shown}" if shown else "no step has state to be read"
        raise PlanError(f"job {self.job!r} {problem}: {there}")

    def place(self) -> Snapshots:
        """Return the place of the snapshots. `SnapshotError` if there is none, or none that can be opened here."""
        if self.snapshots is not None:
            return self.snapshots
        if self.uri is not None:
            return Snapshots(self.uri)
        if self.keeper:
            raise SnapshotError(
                f"job {self.job!r} keeps its snapshots in {self.keeper}, which only the program that runs it can read: "
                f"ask the handle there, or give the job snapshots=mp.Snapshots(uri)"
            )
        raise SnapshotError(
            f"job {self.job!r} runs without snapshots, and its state is read from them: start it with "
            f"snapshots=mp.Snapshots(uri), or malstrom run --snapshots URI"
        )


class StateAnswers:
    """Answers where the state of a job is, once its first run has said it with `set`; `JobEnded` if none ever has."""

    def __init__(self, ended: Future[JobOutcome]) -> None:
        self._ended = ended
        self._make: Callable[[], JobState] | None = None
        self._known: Future[None] = Future()
        ended.add_done_callback(self._answer)

    def set(self, make: Callable[[], JobState]) -> None:
        """Let ``make`` answer from now on, in the thread that asks."""
        self._make = make
        self._answer()

    def asked(self, about: Callable[[], T] | None = None) -> Future[JobState | T]:
        """Return the future of the answer, or of what ``about`` returns once the first run is known."""
        answer: Future[JobState | T] = Future()
        answer.set_running_or_notify_cancel()

        def resolve(_: object) -> None:
            try:
                answer.set_result(self._now() if about is None else about())
            except Exception as error:
                answer.set_exception(error)

        self._known.add_done_callback(resolve)
        return answer

    def _now(self) -> JobState:
        if self._make is None:
            raise self._ended.result().refusal("asked for its state")
        return self._make()

    def _answer(self, _: object = None) -> None:
        with suppress(InvalidStateError):  # it is known
            self._known.set_result(None)
