"""The operator interface that the executor runs: an operator takes one message at a time and sends messages downstream.

Rule: an operator never calls upstream, and neither keeps nor changes a batch that it receives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, ParamSpec, Protocol, TypeGuard, TypeVar
from weakref import WeakMethod

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import Control, Epoch, PartMessage, StateMessage
from malstrom_py.errors import InternalError
from malstrom_py.events import AnyEvent
from malstrom_py.operators.names_taken import names_taken

if TYPE_CHECKING:
    from malstrom_py.state.keyed_state import KeyedState
    from malstrom_py.state.memory import StepMemory

OnError = Literal["fail", "skip", "dead-letter"]

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls ``method`` and does not keep its object.

    For a part of an operator that calls its owner: a cycle would keep the state of an ended job in memory.
    """
    found = WeakMethod(method)

    def call(*args: P.args, **options: P.kwargs) -> T:
        alive = found()
        assert alive is not None, "an operator's part is called by its owner alone"
        return alive(*args, **options)

    return call


class Outlet(Protocol):
    """The output of an operator: one outlet per step, with one port per output stream."""

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Send to the successors on ``port``. An empty batch is dropped."""
        ...

    def forward(self, message: Control) -> None:
        """Send a control message on every port. Ports without epochs carry only the maximum epoch."""
        ...

    def drain(self) -> None:
        """Process all that was sent so far to the end of the region: for steps that send far more than they take."""
        ...

    def passed(self) -> int:
        """Return the largest epoch that this step sent or a later step took, up to the next exchange."""
        ...


class Watch(Protocol):
    """What looks at the records of a step."""

    def ended(self) -> None:
        """Note that no more records come."""
        ...


@dataclass(slots=True)
class Counters:
    """The counters of one step, in rows. ``rows_out`` has one entry per port.

    ``rows_made``: rows of columns converted to Python values for the step; ``columns_made``: rows converted to
    columns. ``ahead``: those of the ``late`` that were too far in the future (T4). ``dropped_timers``: timers set by a
    timer at the end of the stream (T6). ``unmatched``: rows that a join dropped because they have no partner.
    ``calls``: batches taken.
    ``held``: epochs that did not advance the frontier because another input lags. ``time_ns``: time spent, where the
    executor measures it.
    """

    rows_in: int = 0
    rows_out: list[int] = field(default_factory=list)
    filtered: int = 0
    late: int = 0
    skipped: int = 0
    dead_letters: int = 0
    ahead: int = 0
    dropped_timers: int = 0
    unmatched: int = 0
    rows_made: int = 0
    columns_made: int = 0
    calls: int = field(default=0, compare=False)
    held: int = field(default=0, compare=False)
    time_ns: int = field(default=0, compare=False)


def no_check(keys: Sequence[Any]) -> None:
    """Accept every key: for steps outside a job."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The context in which an operator is built on a worker.

    ``timed`` and ``keyed``: whether records have a timestamp and a key; None: it differs by record, as in a DAG.
    ``workers``: how many workers the job had when this one started. ``inputs``: the steps that send to this one.
    ``check_keys`` raises `CodecError` if a key is not legal (F4). ``warned``: the steps that have logged a warning
    about their function; workers of one process share it. ``checked``: whether the job is in test mode.
    """

    job: str
    step: str
    worker: int = 0
    workers: int = 1
    inputs: tuple[str, ...] = ()
    on_error: OnError = "fail"
    dead_letter_port: int | None = None
    timed: bool | None = False
    keyed: bool | None = False
    codec: Codec = field(default_factory=Codec)
    check_keys: Callable[[Sequence[Any]], object] = no_check
    clock: Clock = field(default_factory=SystemClock)
    counters: Counters = field(default_factory=Counters)
    warned: set[str] = field(default_factory=set)
    checked: bool = False

    def trusts_columns(self, batch: Batch) -> TypeGuard[ColumnBatch]:
        """Whether ``batch`` has columns that are what its rows are: these are new, if a function may have changed them.

        In test mode a change is an error, and is found elsewhere.
        """
        return isinstance(batch, ColumnBatch) and (self.checked or not batch.rows_made)


class ColumnsRead(NamedTuple):
    """The columns that a step reads of the values it takes.

    ``passes``: whether it sends these values on, perhaps with more columns, ``made`` by it. Otherwise its values are
    new, and later steps read no column of the old ones.
    """

    names: frozenset[str] = frozenset()
    passes: bool = False
    made: frozenset[str] = frozenset()


def read_by(function: object, position: int = 0, *, passes: bool = False) -> ColumnsRead | None:
    """Return the columns that ``function`` takes of the row at ``position`` of its arguments; None: of whole rows."""
    names = names_taken(function, position)
    return None if names is None else ColumnsRead(names, passes)


class Operator:
    """Base of all operators: forwards control messages and keeps no state."""

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.counters = context.counters

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        """Process a batch that is not empty."""
        raise NotImplementedError(f"{type(self).__name__} takes no batches")

    watch: Watch | None = None
    """Is notified that no more records come."""

    two_sided: bool = False
    """Whether the step has two inputs that differ, so that it takes batches by `on_side`."""

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        """Process a batch of the left (0) or right (1) input: instead of `on_batch`, if `two_sided`."""
        raise NotImplementedError(f"{type(self).__name__} has no sides")

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        """Forward ``epoch``, which the step's own frontier (T6: merged over its inputs) has reached."""
        out.forward(epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """Forward the start or end of a part of a source upstream. Called in source regions only."""
        out.forward(message)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        """Apply a control message that has arrived on all inputs to the step's state, then forward it."""
        out.forward(message)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        """Do periodic work: called about every ``linger_s`` of the runtime's ``clock`` if `scheduled`."""

    listens: bool = False
    """Whether the step takes events of the job by `on_event`."""

    def on_event(self, event: AnyEvent) -> None:
        """Notify the step of an event of the job, between two messages."""

    def rewind(self, epoch: Epoch) -> Epoch:
        """Set the step's frontier back to ``epoch``: a part has arrived whose frontier is lower (T2).

        Returns the epoch that the step itself guarantees then. Called in source regions only, where no state is kept.
        """
        return epoch

    def track(self, slots_of: Callable[[Sequence[Any]], Sequence[int]]) -> None:
        """Track which keys change, and persist keyed artefacts at barriers (S2). Called before any message.

        ``slots_of``: keys -> their slots, one each. A step without keyed state tracks nothing.
        """

    installs_bytes: int | None = None
    """About how many bytes of artefacts one call of `install` takes; None: all."""

    def install(
        self,
        chain: Sequence[bytes],
        slots: Collection[int],
        *,
        migrate: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        """Restore the keys of ``slots`` from the artefacts of one worker: a full one, then its deltas (S5).

        Called once per worker that wrote a snapshot, before any message; with `installs_bytes` for some slots at a
        time. ``migrate(key, state)`` returns the state with which the job resumes, None to drop the key.

        Raises:
            SnapshotError, CodecError: the artefacts are damaged, or hold a class that is not registered.
            OperatorError: ``migrate`` raised; names step and key.
            InternalError: two workers had the same key, or this step keeps no state.
        """
        raise InternalError(f"step {self.context.step!r} keeps no keyed state, but was given some to restore")

    def continue_chain(self, snapshot: str) -> None:
        """Persist at the next barrier only what changes from now on: the installed state is that of ``snapshot`` (S2).

        Called after `install`, before any message.
        """
        raise InternalError(f"step {self.context.step!r} keeps no keyed state, but its chain was to be continued")

    def continue_at(self, epoch: int) -> None:
        """Resume after ``epoch``, which the step forwarded before its state was saved: it does not come again."""

    @property
    def holds_epochs(self) -> bool:
        """Whether the step holds back an epoch that its snapshot would not contain: a barrier then waits (S1)."""
        return False

    scheduled: bool = False
    """Whether `on_schedule` is called."""

    @property
    def dormant(self) -> bool:
        """Whether `on_schedule` has nothing to do until a message comes: the worker need not wake for it."""
        return False

    holding: bool = False
    """Whether the step may hold records back, waiting for calls: only then are the following members used."""

    @property
    def awaiting(self) -> bool:
        """Whether the step holds records or epochs: the worker calls `resume` in each round until it does not."""
        return False

    @property
    def backlogged(self) -> bool:
        """Whether the step holds so much that its region must not take in more (F2, back-pressure)."""
        return False

    @property
    def load(self) -> float:
        """Return the ratio of what the step holds to what it can send within a fraction of a second."""
        return 0.0

    def resume(self, out: Outlet) -> int:
        """Send what is ready, and return the number of records and epochs. Not called while outputs are full."""
        return 0

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        """Return the columns that the step made with ``options`` reads; None if it needs whole values."""
        return ColumnsRead(passes=True) if cls.passes_all else None

    passes_all: ClassVar[bool] = False
    """Whether the step sends all values on and reads none."""

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[[Any], Any]]:
        """Return the functions of a row that the step made with ``options`` computes on columns where it can."""
        return ()

    @classmethod
    def why_never(cls, function: Callable[..., Any]) -> str | None:
        """Return why one of `compiled_functions` is called for each row, as far as that is known without rows."""
        from malstrom_py.traced.tracing import why_never

        return why_never(function, makes_columns=cls.makes_columns, makes_tuples=cls.makes_tuples)

    makes_columns: ClassVar[bool] = True
    """Whether `compiled_functions` must return what columns hold."""

    makes_tuples: ClassVar[bool] = False
    """Whether tuples of such values will do."""

    takes_columns: bool = False
    """Whether the step reads columns of a `ColumnBatch`. If not, its rows are converted to Python values."""

    takes_frames: bool = False
    """Whether the step reads columns as Polars frames rather than Arrow arrays; a source may then produce frames."""

    @property
    def state_ahead(self) -> KeyedState | None:
        """R12: the state by key that may be sent ahead of a move, between two messages; None if there is none.

        A step that does more at `Collect` and `Acquire` than take its state out and put it in has none.
        """
        return None

    @property
    def memory(self) -> StepMemory | None:
        """What puts state by key on disk; None if all is in memory."""
        return None

    @property
    def keys(self) -> int | None:
        """The number of keys with state here; None for a step without keyed state."""
        return None


OperatorFactory = Callable[[StepContext], Operator]
"""Builds one step on one worker. It is shipped to workers, so it holds only what the user passed."""
