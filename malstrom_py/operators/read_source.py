"""``source``: lists, pins and reads the parts of a source that are assigned to this worker, one batch at a time.

Rules. Every part is announced by `PartOpened`, its end by `PartFinished`; after the last one the maximum epoch follows
(T5). A part that was polled repeatedly without records is reported by `PartQuiet` (T2); a part that was not polled,
because it is not open yet or because of back-pressure, is not. Only a source that reads new data (`GrowingSource`)
gets the snapshot's positions when it lists its parts. A source whose parts are listed again never finishes before it is
stopped: on each worker an empty part, which is always idle, holds the place of those that are still to come (R13).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    DeadLetter,
    Epoch,
    PartEpoch,
    PartFinished,
    PartOpened,
    PartQuiet,
    PartReleased,
    StateMessage,
)
from malstrom_py.data.schema import pickable
from malstrom_py.errors import InternalError, MalformedRecord, MalstromError, SourceError, lasting
from malstrom_py.errors.text import describe_function, text_of, text_with_place
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import ErrorPolicy
from malstrom_py.operators.listing import (
    grown_positions,
    is_read,
    new_positions,
    parts_of,
    with_known,
)
from malstrom_py.operators.part_reader import PartReader, ReadPart
from malstrom_py.sources.base import (
    BasePart,
    BaseSource,
    Part,
    PartPerWorker,
    PolledRows,
    Source,
    as_part,
    as_source,
)
from malstrom_py.worker_context import WorkerId, WorkerInfo

if TYPE_CHECKING:
    from malstrom_py.operators.dict_batches import DictBatches


def check_parts(parts: Sequence[object], source: BaseSource[Any], step: str) -> None:
    """Raise `SourceError` unless ``parts`` are distinct names of parts."""
    for part in parts:
        if not isinstance(part, str):
            raise SourceError(
                f"source {step!r} lists a partition of type {type(part).__name__}: the name of a partition must "
                f"be a str, such as a path (in {describe_function(source.list_parts)})"
            )
    for part, times in Counter(parts).items():
        if times > 1:
            raise SourceError(f"source {step!r} lists partition {part!r} twice: each partition needs its own name")


def size_of(value: Any) -> int:
    """Return about how many bytes a value takes: its own, and those of its items one level down.

    >>> size_of("x" * 1000) > 1000, size_of({"column": "x" * 1000}) > 1000
    (True, True)
    """
    if isinstance(value, dict):
        return getsizeof(value, 64) + sum(map(getsizeof, value.values(), repeat(64)))
    if isinstance(value, (list, tuple)):
        return getsizeof(value, 64) + sum(map(getsizeof, value, repeat(64)))
    return getsizeof(value, 64)


def batch_of(polled: Any, part: str, poll: object) -> Batch:
    """Return the result of ``poll`` as a batch: columns stay columns."""
    if isinstance(polled, list):
        return Batch(polled, part=part)
    if isinstance(polled, Batch):
        return polled.of_part(part, named=True)
    if hasattr(polled, "schema"):  # an Arrow RecordBatch, recognized without importing Arrow
        return ColumnBatch(pickable(polled), part=part, named=True)
    if isinstance(polled, str | bytes | Mapping) or not isinstance(polled, Iterable):
        raise SourceError(
            f"{describe_function(poll)} returned {type(polled).__name__}: return a list of records, or None if there "
            f"are none at the moment"
        )
    return Batch(list(polled), part=part)


def row_bytes(batch: Batch) -> int:
    """Return about how many bytes a row of ``batch`` takes."""
    if isinstance(batch, ColumnBatch):
        return max(1, batch.size // len(batch))
    return size_of(batch.values[-1])


_COLUMN_BYTES: Final = 16
_DICTS_FIRST: Final = 512
"""The rows of the first poll where dicts may become columns: they show the types of the fields."""

_ROUTED_MAX: Final = 16_384


class RestoredPart(NamedTuple):
    """The position of a part in a snapshot; ``state``: what operators store for the part, by step."""

    position: Any = None
    is_finished: bool = False
    state: Mapping[str, Any] | None = None


_AT_START: Final = RestoredPart()
NO_RESTORED_PARTS: Final[Mapping[Part, RestoredPart]] = {}


class ReadSource(Operator):
    """Polls its parts in turn, at most 256 of them open at a time (or the source's ``parts_open_max``).

    A part that waits to be opened holds back event time like any part without data.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> mp.collect(mp.Job("docs").source("numbers", sources.Memory([1, 2, 3], parts=2)))
    [1, 3, 2]
    """

    def __init__(
        self,
        context: StepContext,
        *,
        source: Source[Any],
        columns: Collection[str] | None = None,
        dict_columns: Collection[str] | None = None,
    ) -> None:
        """``columns``: those of the records that the plan reads, of a narrowing source; None for all.

        ``dict_columns``: the fields that the plan reads of dicts, if columns of many of them pay.
        """
        super().__init__(context)
        self._columns = columns
        self._dicts: DictBatches | None = None
        if dict_columns is not None:
            from malstrom_py.operators.dict_batches import DictBatches  # few jobs need it

            self._dicts = DictBatches(dict_columns)
        self.given: Final = source
        """The user's object."""
        self.source: Final[BaseSource[Any]] = as_source(source)
        """The source of this step, with all members of the contract."""
        self.lists_again_every_s = self.source.lists_again_every_s
        """How often new parts are looked for while the job runs, in seconds; None: never."""
        self._expects_parts = False
        self._stopping = False
        self._failures = ErrorPolicy(context)
        self._waiting: deque[tuple[Part, Any]] = deque()
        self._readers: deque[PartReader] = deque()
        self._gained: list[tuple[Part, Any]] = []
        self._paces: dict[Part, int | None] = {}
        """How many rows of a gained part its former worker polled last."""
        self.ended: dict[Part, Any] = {}
        """The parts here that have ended, with their positions."""
        self.finished = False
        self._polled: PartReader | None = None
        self.polled_s = 0.0
        """The time of the last poll."""
        self._rows_cap: int | None = None

    @property
    def reads_new_with(self) -> str | None:
        """The argument with which the source would read its new data; None if there is none."""
        return None if self.source.reads_new else self.source.reads_new_with or None

    def pin(self, record: Any = None, *, was_read: bool = False) -> None:
        """Pin the version of the data that this job reads, if the source can: that of ``record``, if given, or the
        data that is new since, if the recorded data ``was_read`` and the source reads new data.
        """
        is_next = was_read and record is not None and self.source.reads_new
        try:
            (self.source.pin_next if is_next else self.source.pin)(self.context.job, record)
        except Exception as error:
            self._raise(error, "could not be pinned")

    def unpin(self, *, keep: bool = False) -> None:
        """Undo a successful `pin` at the end of the job. ``keep``: the job will be resumed."""
        try:
            self.source.unpin(keep=keep)
        except Exception as error:
            self._raise(error, "could not remove the data it had pinned for the job")

    @property
    def moves_parts(self) -> bool:
        """Whether another worker can resume a part at its position: not of a `StatelessSource`."""
        return not isinstance(self.source, PartPerWorker)

    @property
    def parts_left(self) -> list[Part]:
        """The parts here that are not finished."""
        return [*(reader.part for reader in self._readers), *(part for part, _ in (*self._waiting, *self._gained))]

    def list_parts(self, workers: Sequence[int], known: Mapping[Part, Any] | None = None) -> dict[int, list[Part]]:
        """Assign all parts of the source to ``workers``; called once per job. ``known``: the parts and positions of the
        snapshot that the job resumes from.
        """
        dealt: dict[int, list[Part]] = {worker: [] for worker in workers}
        if not self.moves_parts:
            return {worker: [Part(f"worker-{worker}")] for worker in workers}
        try:
            parts = parts_of(self.source, known)
        except Exception as error:
            self._raise(error, "could not list its partitions")
        check_parts(parts, self.source, self.context.step)
        if self.lists_again_every_s is not None and known is not None and not self.source.reads_new:
            parts = with_known(parts, known)
        for index, part in enumerate(parts):
            dealt[workers[index % len(workers)]].append(part)
        return dealt

    def new_positions(self, parts: Sequence[Part], known: Mapping[Part, Any] | None) -> dict[Part, Any]:
        """Return where those of ``parts`` begin that have appeared since the snapshot with the ``known`` parts, and
        where those continue that were read and have more now.
        """
        try:
            if self.lists_again_every_s is not None:
                return new_positions(self.source, parts, known)
            return grown_positions(self.source, parts, known) if self.source.reads_new else {}
        except Exception as error:
            self._raise(error, "could not say where its new partitions begin")

    def find_parts(self, known: Collection[Part]) -> list[tuple[Part, Any]]:
        """List the parts again. Return those that are not ``known``, with the positions at which they begin (R13)."""
        source = self.source
        try:
            parts = list(source.list_parts())
        except Exception as error:
            self._raise(error, "could not list its partitions again")
        check_parts(parts, source, self.context.step)
        try:
            return [(part, source.new_part_position(part)) for part in parts if part not in known]
        except Exception as error:
            self._raise(error, "could not say where its new partitions begin")

    def open(
        self, out: Outlet, *, parts: Sequence[Part], restored: Mapping[Part, RestoredPart] = NO_RESTORED_PARTS
    ) -> None:
        """Announce ``parts``, which are assigned to this worker, and open the first of them: those in ``restored`` at
        their position, the others at their start.
        """
        for part in parts:
            at = restored.get(part, _AT_START)
            if at.is_finished:
                self.ended[part] = at.position
            else:
                self._announce(out, part, at.position, at.state)
        self.expect_parts(out)
        self._open_more()
        self.settle(out)

    def expect_parts(self, out: Outlet) -> None:
        """R13: hold the place of parts that are still to come, if this source is listed again."""
        if self.lists_again_every_s is not None and not self._expects_parts and not self._stopping:
            self._expects_parts = True
            self.finished = False
            out.forward(PartOpened(self._place, is_empty=True))

    def will_stop(self) -> None:
        """Note that `stop` follows: from now on no more parts are to come."""
        self._stopping = True

    def expect_none(self, out: Outlet) -> None:
        """R13: this worker leaves, or stops reading: it gets no more new parts."""
        if self._expects_parts:
            self._expects_parts = False
            out.forward(PartFinished(self._place))

    def add(self, out: Outlet, *, parts: Sequence[tuple[Part, Any]]) -> None:
        """R13: read new ``parts`` from their positions. Once a stop is planned they end there, because this worker may
        have sent the maximum epoch.
        """
        if self._stopping:
            self.ended.update(parts)
            return
        for part, position in parts:
            self._announce(out, part, position, None)
        self._open_more()

    def take(self, out: Outlet, *, part: Part, position: Any, state: Mapping[str, Any] | None) -> None:
        """Take over ``part`` at ``position``, to be polled after `poll_gained` (R6); its epoch counts immediately.

        ``state`` is what operators stored for the part on its former worker, and this source: how many rows it polled.
        """
        self.finished = False
        self._gained.append((part, position))
        self._paces[part] = (state or {}).get(self.context.step)
        out.forward(PartOpened(self._name(part), state))

    def take_finished(self, *, part: Part, position: Any) -> None:
        """Store the position of a part that another worker has read to its end, for snapshots."""
        self.ended[part] = position

    def poll_gained(self) -> None:
        """Start polling the gained parts: no record that another worker read from them is in flight (R6)."""
        self._waiting.extend(self._gained)
        self._gained.clear()
        self._open_more()

    @property
    def open_names(self) -> list[str]:
        """The parts that are read here now, by their names in messages."""
        return [reader.name for reader in self._readers]

    def open_parts(self) -> Iterator[tuple[str, ReadPart]]:
        """Return the parts that are read here now, by their names in messages, for metrics."""
        return ((reader.name, reader.read(moves=self.moves_parts)) for reader in list(self._readers))

    def last_read(self) -> str:
        """Describe the last read, for people: its part and position; empty before the first read."""
        reader = self._polled
        if reader is None:
            return ""
        upto = reader.position(moves=self.moves_parts)
        ended = upto and f", which ended at {upto}"
        return f"a batch of partition {reader.part!r} of source {self.context.step!r}{ended}"

    def rewind(self, epoch: Epoch) -> Epoch:
        """Return the frontier of the source, which is the minimum before its end."""
        return Epoch(MAX_EPOCH if self.finished else MIN_EPOCH)

    def settle(self, out: Outlet) -> None:
        """Send the maximum epoch if no part is left to read here.

        R2: not called between the release of a part and the new routing table, because no epoch may be sent in between.
        """
        is_open = self._readers or self._waiting or self._gained or self._expects_parts
        if not is_open and not self.finished:
            self.finished = True
            out.forward(Epoch(MAX_EPOCH))

    def stop(self, out: Outlet) -> None:
        """Stop reading: every part ends at its current position."""
        self._stopping = True
        for part, position in (*self._waiting, *self._gained):
            self.ended[part] = position
            out.forward(PartFinished(self._name(part)))
        self._waiting.clear()
        self._gained.clear()
        while self._readers:
            reader = self._readers.popleft()
            self.ended[reader.part] = self._position(reader)
            self._close(reader)
            out.forward(PartFinished(reader.name))
        self.expect_none(out)
        self.settle(out)

    def release(self, out: Outlet, *, part: Part) -> tuple[Any, PartReleased | None]:
        """Stop reading ``part`` here: return its position, and the message that collects its state in operators (R2).

        The message has passed all operators once the executor has run; None for a finished part, for which operators
        store nothing. The release of the last part sends no maximum epoch: see `settle`.
        """
        if part in self.ended:
            return self.ended.pop(part), None
        reader = next((reader for reader in self._readers if reader.part == part), None)
        if reader is not None:
            self._readers.remove(reader)
            position = self._position(reader)
            self._close(reader)
        else:
            position = self._take_waiting(part)
        rows = self._paces.pop(part, None) if reader is None else reader.pace
        released = PartReleased(self._name(part), {} if rows is None else {self.context.step: rows})
        out.forward(released)
        self._open_more()
        return position, released

    def _take_waiting(self, part: Part) -> Any:
        """Remove a part that waits to be opened, and return its position."""
        for waiting in (self._waiting, self._gained):
            for pair in waiting:
                if pair[0] == part:
                    waiting.remove(pair)
                    return pair[1]
        raise InternalError(f"source {self.context.step!r}: part {part!r} is not read on this worker")

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, AbsBarrier) and self.moves_parts:
            positions = dict(self._waiting) | dict(self._gained)
            positions |= {reader.part: self._position(reader) for reader in self._readers}
            images = {part: [position, False] for part, position in positions.items()}
            images |= {part: [position, is_read(self.source, position)] for part, position in self.ended.items()}
            state = self.context.codec.encode_at_rest(images, step=self.context.step)
            message.backend.persist(self.context.step, state)
        out.forward(message)

    def poll(
        self,
        out: Outlet,
        *,
        rows_max: int,
        linger_s: float,
        clock: Clock,
        bytes_max: int = 1 << 20,
        columns_rows_max: int | None = None,
        frames: bool = False,
    ) -> int:
        """Poll the next part that is due, once, and return the number of records.

        The number of rows asked for starts small and doubles, up to ``rows_max`` and about ``bytes_max``. It shrinks
        when the part is slow, so that the other parts do not wait, and when the following steps are slow (`made`). A
        part that returns columns is asked for up to ``columns_rows_max`` rows, and then for sixteen times the bytes;
        while it is quick for eight times the rows of the poll before.
        ``frames``: whether a later step takes columns as Polars frames.
        """
        for _ in range(len(self._readers)):
            reader = self._readers[0]
            self._readers.rotate(-1)
            if reader.poll_at_s and clock.monotonic_s() < reader.poll_at_s:
                continue
            started_s = self.polled_s = clock.monotonic_s()
            most = columns_rows_max if reader.gives_columns and columns_rows_max is not None else rows_max
            rows = min(most, reader.rows_next)
            if self._rows_cap is not None:
                rows = min(rows, self._rows_cap)
            read = self._poll_part(reader, rows, out, frames=frames)
            now_s = clock.monotonic_s()
            reader.adapt(now_s - started_s, most, bytes_max * (_COLUMN_BYTES if most > rows_max else 1))
            if not read:
                self._nothing_came(reader, now_s, linger_s, out)
            elif reader.wait_s:
                reader.came()
            return read
        return 0

    def made(self, read: int, routed: int, *, took_s: float, limit_s: float, load: float) -> None:
        """Adapt the size of polls: ``read`` rows took ``took_s`` to the end of the region, and may take ``limit_s``;
        they became ``routed`` rows for other regions. ``load``: the ratio of these to what the other regions can take.

        Each part has its own batch size, so that slow rows of one part do not affect the others.
        """
        if self._polled is not None:
            self._polled.batch_size.took(read, took_s, limit_s=limit_s, load=load)
        self._rows_cap = max(1, _ROUTED_MAX * read // routed) if routed > read else None

    def next_poll_s(self) -> float | None:
        """Return when the next poll is due, in the clock's monotonic time; 0 for now, None if no part is open."""
        return min((reader.poll_at_s for reader in self._readers), default=None)

    def close(self) -> None:
        """Close every part that is still open."""
        errors = []
        while self._readers:
            try:
                self._close(self._readers.pop())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _nothing_came(self, reader: PartReader, now_s: float, linger_s: float, out: Outlet) -> None:
        quiet_s = reader.delay(now_s, linger_s)
        # A part that has just finished is no longer open, and not quiet.
        if quiet_s > 0 and reader in self._readers:
            out.forward(PartQuiet(reader.name, quiet_s))

    def _poll_part(self, reader: PartReader, rows_max: int, out: Outlet, *, frames: bool) -> int:
        malformed: Iterable[MalformedRecord] = ()
        bad = 0
        batch: Batch | None = None
        self._polled = reader
        if frames:
            reader.set_frames()
        try:
            try:
                polled: Any
                while isinstance(polled := reader.source_part.poll(rows_max), Epoch):
                    out.forward(PartEpoch(reader.name, polled.time))
                if isinstance(polled, PolledRows):
                    polled, bad, malformed = polled
                if polled is not None:
                    batch = self._batch_of(polled, reader)
            except MalformedRecord as error:
                bad, malformed = 1, [error]
            finished = reader.source_part.is_finished()
        except Exception as error:
            self._raise(error, f"failed in partition {reader.part!r}")
        if bad:
            self._malformed(malformed, bad, reader, out)
        rows = 0
        if batch is not None and (rows := len(batch)):
            out.send(batch)
            reader.gives_columns = isinstance(batch, ColumnBatch)
            reader.row_bytes = row_bytes(batch)
        count = rows + bad
        reader.count += count
        self.counters.rows_in += count
        if finished:
            self._readers.remove(reader)
            self.ended[reader.part] = self._position(reader)
            self._close(reader)
            out.forward(PartFinished(reader.name))
            self._open_more()
            self.settle(out)
        return count

    def _batch_of(self, polled: Any, reader: PartReader) -> Batch:
        batch = batch_of(polled, reader.name, reader.source_part.poll)
        return batch if self._dicts is None else self._dicts.convert(batch, (one.source_part for one in self._readers))

    def _malformed(self, errors: Iterable[MalformedRecord], count: int, reader: PartReader, out: Outlet) -> None:
        """Apply the policy to ``count`` bad records; their ``errors`` are not made to be skipped."""
        if self.context.on_error == "skip":
            self.counters.skipped += count
            return
        if self.context.on_error == "dead-letter":
            step = self.context.step
            letters = [DeadLetter(step, None, error.record, None, text_of(error)) for error in errors]
            self._failures.bury(letters, reader.name, out)
            return
        for error in errors:
            raise SourceError(
                f"source {self.context.step!r}, partition {reader.part!r}: {text_of(error) or text_with_place(error)} "
                f"Correct the input, or give the source on_error='skip' or on_error='dead-letter'."
            ) from error

    def _announce(self, out: Outlet, part: Part, position: Any, state: Mapping[str, Any] | None) -> None:
        self.finished = False
        self._waiting.append((part, position))
        out.forward(PartOpened(self._name(part), state))

    def _open_more(self) -> None:
        while self._waiting and len(self._readers) < self.source.parts_open_max:
            part, position = self._waiting.popleft()
            try:
                source_part = self._build(part, position)
                bad_rows = self.context.on_error != "fail"
                reader = PartReader(part, self._name(part), source_part, bad_rows=bad_rows)
                if (rows := self._paces.pop(part, None)) is not None:
                    reader.expect(rows)
                elif self._dicts is not None:
                    reader.expect(_DICTS_FIRST)
            except Exception as error:
                self._raise(error, f"could not open partition {part!r}")
            self._readers.append(reader)

    def _build(self, part: Part, position: Any) -> BasePart[Any]:
        source, here = self.source, self.context
        if isinstance(source, PartPerWorker):
            worker = WorkerInfo(here.job, here.step, WorkerId(here.worker), here.workers)
            return as_part(source.build(worker), source.build, here.step, positions=False)
        if self._columns is not None and source.is_narrowing:
            built = source.build_narrow_part(part, position, self._columns)
        else:
            built = source.build_part(part, position)
        return as_part(built, source.build_part, here.step, positions=True)

    def _position(self, reader: PartReader) -> Any:
        """Return the position of ``reader``; None for a source without positions."""
        if not self.moves_parts:
            return None
        try:
            return reader.source_part.snapshot()
        except Exception as error:
            self._raise(error, f"could not return its offset in partition {reader.part!r}")

    def _name(self, part: Part) -> str:
        return f"{self.context.step}/{part}"

    @property
    def _place(self) -> str:
        """The name of the empty part, which no part has."""
        return f"\0{self.context.step}"

    def _close(self, reader: PartReader) -> None:
        try:
            reader.source_part.close()
        except Exception as error:
            self._raise(error, f"could not close partition {reader.part!r}")

    def _raise(self, error: Exception, what: str) -> NoReturn:
        """Raise ``error`` as a `SourceError` that names this step; other errors of ours are raised unchanged."""
        if isinstance(error, SourceError):
            named = SourceError(f"source {self.context.step!r}: {text_of(error) or text_with_place(error)}")
            raise (lasting(named) if error.lasting else named) from error
        if isinstance(error, MalstromError):
            raise error
        raise SourceError(f"source {self.context.step!r} {what}: {text_with_place(error)}") from error
