"""What the executor runs: an operator takes one message at a time and sends messages down.

Rule: an operator never calls upstream, never keeps a batch it was given, never changes one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Control, Epoch, PartMessage, StateMessage
from malstrom_py.errors import InternalError

OnError = Literal["fail", "skip", "dead-letter"]


class Outlet(Protocol):
    """Where an operator sends to: one outlet per step, with one port per output stream."""

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Send to the successors on ``port``. An empty batch is dropped."""
        ...

    def forward(self, message: Control) -> None:
        """Send a control message on every port. Ports without epochs carry only the maximum epoch."""
        ...

    def drain(self) -> None:
        """Have what was sent so far processed to the end, before sending more: for steps that make much of little."""
        ...

    def passed(self) -> int:
        """The largest epoch that this step has sent or that any step behind it has taken, up to the next exchange."""
        ...


@dataclass(slots=True)
class Counters:
    """What one step did, in rows. ``rows_out`` has one entry per port.

    ``rows_made``: how many rows of columns had to be made Python values for it; ``columns_made``: the other way.
    ``ahead``: how many of the ``late`` were too far in the future (T4). ``calls``: batches taken; ``held``: epochs
    that moved nothing, for another input is behind. ``time_ns``: time spent, where the executor measures it.
    """

    rows_in: int = 0
    rows_out: list[int] = field(default_factory=list)
    filtered: int = 0
    late: int = 0
    skipped: int = 0
    dead_letters: int = 0
    ahead: int = 0
    rows_made: int = 0
    columns_made: int = 0
    calls: int = field(default=0, compare=False)
    held: int = field(default=0, compare=False)
    time_ns: int = field(default=0, compare=False)


def no_check(keys: Sequence[Any]) -> None:
    """Any key goes: for steps that stand alone."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What an operator is told when it is built on a worker.

    ``timed`` and ``keyed`` say whether records have a timestamp and a key; None: each as it comes, as in a DAG.
    ``check_keys`` raises `CodecError` if one of the keys it is given is not legal (F4). ``warned``: the steps that have
    logged a warning about their function; workers of one process share it. ``at_close``: what is to be called when the
    worker closes, however the run has ended; nothing that can fail.
    """

    job: str
    step: str
    worker: int = 0
    on_error: OnError = "fail"
    dead_letter_port: int | None = None
    timed: bool | None = False
    keyed: bool | None = False
    codec: Codec = field(default_factory=Codec)
    check_keys: Callable[[Sequence[Any]], object] = no_check
    clock: Clock = field(default_factory=SystemClock)
    counters: Counters = field(default_factory=Counters)
    warned: set[str] = field(default_factory=set)
    at_close: list[Callable[[], None]] = field(default_factory=list, compare=False)


class Operator:
    """Base of all operators: forwards control messages, holds nothing."""

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.counters = context.counters

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        """Take a batch that is not empty."""
        raise NotImplementedError(f"{type(self).__name__} takes no batches")

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """The step's own frontier (T6: merged over its inputs) has reached ``epoch``. Pass it on."""
        out.forward(epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """A part of a source upstream came or went. Seen in source regions only."""
        out.forward(message)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """A control message that acts on state has come on all inputs. Do what it asks, then pass it on."""
        out.forward(message)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        """Called about every ``linger_s`` of the runtime's ``clock``, if `scheduled` says so."""

    def rewind(self, epoch: Epoch) -> Epoch:
        """Go back to ``epoch``, which is all that is promised from here on: a part has come that is behind (T2).

        Returns what the step itself promises by it. Called in source regions only, where no state is kept.
        """
        return epoch

    def track(self, slots_of: Callable[[Sequence[Any]], Sequence[int]]) -> None:
        """From now on note which keys change, and persist keyed artefacts at barriers (S2). Comes before any message.

        ``slots_of``: keys -> their slots, one each. A step without keyed state has nothing to note.
        """

    def install(
        self,
        chain: Sequence[bytes],
        slots: Collection[int],
        *,
        migrate: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        """Take over the keys of ``slots`` from what one worker persisted: a full artefact, then its deltas (S5).

        Called once per worker that had written, before any message. ``migrate(key, state)`` gives the state by which
        the job goes on, None to drop the key.

        Raises:
            SnapshotError, CodecError: the artefacts are damaged, or hold what is not registered.
            OperatorError: ``migrate`` raised; names step and key.
            InternalError: two workers had the same key, or this step keeps no state.
        """
        raise InternalError(f"step {self.context.step!r} keeps no keyed state, but was given some to take over")

    def continue_at(self, epoch: int) -> None:
        """Go on behind ``epoch``, which was passed on where the state is from: it is not told of it again."""

    @property
    def holds_epochs(self) -> bool:
        """Whether it holds an epoch back, which nothing that a barrier persists would tell of: let it wait (S1)."""
        return False

    scheduled: bool = False
    """Whether `on_schedule` wants to be called."""

    holding: bool = False
    """Whether it may hold records back, while something goes on elsewhere: only then is it asked what follows."""

    @property
    def awaiting(self) -> bool:
        """Whether it holds records or epochs: `resume` is called in each step of the worker, until it does not."""
        return False

    @property
    def backlogged(self) -> bool:
        """Whether it holds so much that its region must take nothing more in (F2)."""
        return False

    @property
    def load(self) -> float:
        """By how many times what it holds is more than it should be asked to hold, by how fast it can leave."""
        return 0.0

    def resume(self, out: Outlet) -> int:
        """Send what can leave by now: how many records and epochs. Not called while the region's outputs are full."""
        return 0

    takes_columns: bool = False
    """Whether a `ColumnBatch` is taken as it is. Where it is not, its rows will be made; a source asks to know."""

    takes_frames: bool = False
    """Whether columns are taken as frames of Polars, not as Arrow has them; a source that can give both asks."""

    @property
    def keys(self) -> int | None:
        """How many keys have state here; None for a step without keyed state."""
        return None


OperatorFactory = Callable[[StepContext], Operator]
"""Builds one step on one worker. It is shipped to workers, so it holds what the user gave and no more."""
