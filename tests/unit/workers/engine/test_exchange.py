"""The sending side of one exchange: each row to the owner of its slot, in order, epochs and control in their places."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import partitioners, sinks, sources
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.operators.base import StepContext
from malstrom_py.rescale.channels.channel import Barrier, Credit, Frame, Item
from malstrom_py.rescale.keys import key_types
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.protocol import Marker, RescaleMove
from malstrom_py.rescale.partitioners import StableHash
from malstrom_py.rescale.slots import StableSlots
from malstrom_py.testing import strategies
from malstrom_py.workers.engine.exchange import Exchange, SlotsOfKeys
from malstrom_py.workers.engine.flow_limits import Batching
from tests.unit.state.accelerators import PATHS, running

SLOTS = 60
CODEC = Codec()

Seen = tuple[Any, int]
"""What came over a channel, and the version of its table: a (key, value, time) row, an epoch or a message."""


class Modulo:
    """Slot = key modulo the number of slots."""

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        return [key % SLOTS for key in keys]


class Refusing:
    """Nothing may be hashed."""

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        raise AssertionError("hashed")


class Sending:
    """The exchange of worker ``me``, and the far ends of its channels: worker -> all that it has been sent."""

    def __init__(
        self,
        *members: int,
        me: int = 0,
        table: Sequence[int] | None = None,
        slots: SlotsOfKeys | None = None,
        codec: Codec = CODEC,
        **batching: Any,
    ) -> None:
        self.slots = StableHash().bind(SLOTS) if slots is None else slots
        self.table = first_table(SLOTS, members) if table is None else [*table] * (SLOTS // len(table))
        self.me = me
        context = StepContext("test", "x", me, codec=codec)
        self.exchange = Exchange(
            context, members, self.table, slots=self.slots, batching=Batching(**batching), incarnation=1
        )
        self._seen: dict[int, list[Seen]] = {}

    def send(self, *items: Item | list[Any]) -> None:
        """Send batches (or lists of keys, which are their values too), epochs and messages."""
        for given_item in items:
            item = Batch(given_item, keys=given_item) if isinstance(given_item, list) else given_item
            if isinstance(item, Batch):
                self.exchange.on_batch(item)
            elif isinstance(item, Epoch):
                self.exchange.on_epoch(item)
            else:
                self.exchange.control(item)

    def switch(self, move: RescaleMove, before: int = 1, after: int = 1, *, idle: bool = False) -> None:
        self.exchange.switch(move, before=before, after=after, idle=idle)

    def owner(self, key: Any) -> int:
        return self.table[self.slots.slots_of([key])[0]]

    def key_of(self, owner: int) -> Any:
        return next(key for key in range(100) if self.owner(key) == owner)

    def frames(self, receiver: int = 1) -> list[Frame]:
        return self.exchange.remote[receiver].take()

    def seen(self) -> dict[int, list[Seen]]:
        self.exchange.flush()
        for member in self.exchange.remote:
            items = [item for frame in self.frames(member) for item in _items(frame)]
            if items:
                self._seen.setdefault(member, []).extend(items)
        mine, loopback = self._seen.setdefault(self.me, []), self.exchange.loopback
        while (item := loopback.take()) is not None:
            mine += [(one, loopback.version) for one in (_rows(item) if isinstance(item, Batch) else [item])]
        return self._seen

    def items(self) -> dict[int, list[Any]]:
        """As `seen`, without versions, and with an entry for each member."""
        return {member: [] for member in self.exchange.outbound} | {
            member: [item for item, _ in items] for member, items in self.seen().items()
        }


def _items(frame: Frame) -> list[Seen]:
    if frame.control is not None:
        return [(frame.control, frame.version)]
    rows = [] if frame.payload is None else _rows(CODEC.decode_batch(frame.payload))
    items: list[Any] = []
    start = 0
    for row, time, idle in frame.epochs:
        items += [*rows[start:row], Epoch(time, idle)]
        start = row
    return [(item, frame.version) for item in [*items, *rows[start:]]]


def _rows(batch: Batch) -> list[tuple[Any, Any, Any]]:
    times: list[Any] = [None] * len(batch) if batch.timestamps is None else batch.timestamps
    return list(zip(batch.keys or [], batch.values, times, strict=True))


def keys_of(items: Sequence[Any]) -> list[Any]:
    """The keys of rows, the times of epochs, and messages unchanged."""
    return [item[0] if isinstance(item, tuple) else item.time if isinstance(item, Epoch) else item for item in items]


def batch_of(rows: Sequence[Any]) -> Batch:
    keys, values, times = (list(column) for column in zip(*rows, strict=True))
    return Batch(values, keys=keys, timestamps=None if times[0] is None else times)


def columns(keys: list[Any], *, start: int = 0, kind: pa.DataType | None = None) -> ColumnBatch:
    numbers = pa.RecordBatch.from_pydict({"n": list(range(start, start + len(keys)))})
    return ColumnBatch(numbers, key_column=pa.array(keys, kind))


def move_of(old: tuple[int, ...], new: tuple[int, ...], *table: int) -> RescaleMove:
    """From ``old`` to ``new`` members; all slots are dealt to ``table`` or else to ``new``."""
    dealt = table or new
    return RescaleMove(1, old, new, tuple(dealt[slot % len(dealt)] for slot in range(SLOTS)))


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[Item], list[Any]]:
    """The input of an exchange: batches with numbered values, epochs and barriers; and the same row by row."""
    timed = draw(st.booleans())
    atoms = draw(strategies.sequences(keys=strategies.legal_keys(), timed=timed, size_max=40))
    cuts = draw(strategies.batch_cuts(len(atoms)))
    steps: list[Item] = []
    flat: list[Any] = []
    rows: list[Any] = []
    for place, atom in enumerate([*atoms, None]):
        if rows and (place in cuts or not isinstance(atom, DataMessage)):
            steps.append(batch_of(rows))
            rows = []
        if isinstance(atom, DataMessage):
            rows.append((atom.key, place, atom.timestamp))
            flat.append(rows[-1])
        elif isinstance(atom, Epoch):
            steps.append(Epoch(atom.time, idle=draw(st.booleans())))
            flat.append(steps[-1])
        if place in cuts and draw(st.integers(0, 5)) == 5 and not rows:
            steps.append(Barrier(str(place)))
            flat.append(steps[-1])
    return steps, flat


@given(traffic(), st.integers(1, 5), st.integers(1, 9), st.integers(1, 200))
def test_t3_each_row_goes_to_the_owner_of_its_slot_with_epochs_and_control_in_their_places(
    given_traffic: tuple[list[Item], list[Any]], members: int, rows_max: int, bytes_max: int
) -> None:
    """Each row reaches exactly one worker, in order per key; every epoch and barrier reaches every worker in place."""
    steps, flat = given_traffic
    sending = Sending(*range(members), me=members - 1, rows_max=rows_max, bytes_max=bytes_max)
    sending.send(*steps)
    for worker, got in sending.items().items():
        assert got == [item for item in flat if not isinstance(item, tuple) or sending.owner(item[0]) == worker]


@given(
    st.lists(st.lists(st.text(max_size=2) | st.none(), min_size=1, max_size=6), max_size=6),
    st.integers(1, 8),
    st.integers(0, 6),
    st.sampled_from(["beside", "among", "in turn"]),
)
def test_f3_every_row_of_columns_reaches_the_owner_of_its_key_in_order(
    batches: list[list[str | None]], rows_max: int, switches_at: int, place: str
) -> None:
    """Before and after a switch, and whether the keys are a column of the values or not."""
    sending = Sending(0, 1, 2, columns_rows_max=rows_max)
    expected: dict[int, list[Any]] = {worker: [] for worker in range(3)}
    number = 0
    for at, keys in enumerate(batches):
        if at == switches_at:
            sending.switch(move := move_of((0, 1, 2), (1, 2, 0)))
            sending.table = list(move.table)
        made = ColumnBatch(pa.record_batch({"n": range(number, number + len(keys)), "k": pa.array(keys, pa.string())}))
        shared = place == "among" or (place == "in turn" and at % 2 == 0)
        sending.send(made.with_key_column(made.columns.column("k") if shared else pa.array(keys, pa.string())))
        for key in keys:
            expected[sending.owner(key)].append((key, {"n": number, "k": key}, None))
            number += 1
    rows = {worker: [item for item in items if isinstance(item, tuple)] for worker, items in sending.items().items()}
    assert rows == expected


@pytest.mark.parametrize("partitioner", [None, partitioners.index, int], ids=["stable hash", "index", "own"])
@pytest.mark.parametrize("as_columns", [False, True])
def test_f4_each_key_is_checked_once(partitioner: Any, as_columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = 0

    def count(keys: Sequence[Any], *more: Any) -> bool:
        nonlocal checked
        checked += len(keys)
        return True

    monkeypatch.setattr(key_types, "_all_legal", count)
    job, got = mp.Job("test"), list[Any]()
    stream: Any = job.source("in", sources.Memory([{"n": float(n)} for n in range(40)]))
    if as_columns:
        stream = stream.map_batches("columns", lambda columns: columns)
    by = "n" if as_columns else lambda row: row["n"]
    stream.key_by("key", by, partitioner=partitioner).count("n").sink("out", sinks.Callable(got.append))
    mp.run(job, workers=3)
    assert (len(got), checked) == (40, 40)


def test_columns_arrive_as_columns_and_no_row_is_made_on_the_way() -> None:
    sending = Sending(0, 1, 2)
    sent = columns([f"k{n}" for n in range(50)])
    sending.send(sent)
    sending.exchange.flush()
    batches: list[Any] = [sending.exchange.loopback.take()]
    batches += [CODEC.decode_batch(frame.payload) for worker in (1, 2) for frame in sending.frames(worker)]  # type: ignore[arg-type]
    assert all(isinstance(batch, ColumnBatch) and not batch.rows_made for batch in batches)
    assert sum(map(len, batches)) == 50
    assert not sent.rows_made
    assert sent._keys is None, "the keys have become Python objects"


def test_columns_of_one_owner_are_not_copied() -> None:
    sending = Sending(0, 1, table=[0])
    sent = columns(["a", "b"])
    sending.send(sent)
    assert sending.exchange.loopback.take() is sent


class By:
    """A user's partitioner: calls a function with all keys."""

    def __init__(self, function: Callable[[Sequence[Any]], Any]) -> None:
        self.slots_of = function


def test_a_partitioner_of_a_user_that_returns_bools_loses_no_row() -> None:
    numbers = list(range(8))
    for batch in (Batch(numbers, keys=numbers), ColumnBatch(pa.record_batch({"n": numbers}), keys=numbers)):
        sending = Sending(0, 1, slots=By(lambda keys: [key % 2 == 1 for key in keys]))
        sending.send(batch)
        assert sum(map(len, sending.items().values())) == 8


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [[0, -1], [0, SLOTS], [0], [0, 1, 2], [0, 0.5], [0, None], ["a", "b"], [[0], [1]], [[0], [1, 2]], [0, 2**70], None],
    ids=str,
)
def test_f3_a_partitioner_of_a_user_that_returns_no_slots_is_an_error_that_names_the_step(
    wrong: Any, as_columns: bool, path: str
) -> None:
    keys = ["a", "b"]
    batch = ColumnBatch(pa.record_batch({"k": keys}), keys=keys) if as_columns else Batch(keys, keys=keys)
    said = rf"^step 'x': the partitioner must return one slot for each key, a whole number from 0 to {SLOTS - 1}\.$"
    with running(path), pytest.raises(OperatorError, match=said):
        Sending(0, 1, slots=By(lambda keys: wrong)).send(batch)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize(
    "slots",
    [
        np.arange(4, dtype=np.uint32)[::-1],
        np.broadcast_to(np.uint32(3), (4,)),
        pa.array([3, 2, 1, 0]),
        [np.uint64(3), np.int64(2), 1, True],
        np.array([3, 2, 1, 0], object),
        range(4),
    ],
    ids=lambda slots: type(slots).__name__,
)
def test_f3_a_partitioner_of_a_user_may_return_integers_of_every_kind(slots: Any, as_columns: bool, path: str) -> None:
    keys = ["a", "b", "c", "d"]
    batch = ColumnBatch(pa.record_batch({"k": keys}), keys=keys) if as_columns else Batch(keys, keys=keys)
    with running(path):
        sending = Sending(0, 1, slots=By(lambda keys: slots), table=[0, 1, 0, 1])
        sending.send(batch)
        rows = {worker: [row[0] for row in items] for worker, items in sending.items().items()}
    found = [int(slot) for slot in (slots.to_pylist() if isinstance(slots, pa.Array) else slots)]
    assert rows == {
        worker: [key for key, slot in zip(keys, found, strict=True) if slot % 2 == worker] for worker in (0, 1)
    }


@pytest.mark.parametrize("path", PATHS)
def test_f3_a_subclass_of_the_default_partitioner_decides_itself(path: str) -> None:
    class Constant(StableSlots):
        def slots_of(self, keys: Sequence[Any]) -> list[int]:
            return [0] * len(keys)

    with running(path):
        sending = Sending(0, 1, slots=Constant(SLOTS))
        sending.send([f"key {n}" for n in range(20)], [])
        assert {worker: len(items) for worker, items in sending.items().items()} == {0: 20, 1: 0}


@pytest.mark.parametrize("path", PATHS)
def test_rows_in_tuples_go_the_same_way(path: str) -> None:
    keys: Any = ("a", "b", "c")
    with running(path):
        sending = Sending(0, 1)
        sending.send(Batch(keys, keys=keys))
        assert sorted(row[0] for items in sending.items().values() for row in items) == ["a", "b", "c"]


@pytest.mark.parametrize("timed", [False, True])
@given(keys=st.lists(strategies.legal_keys(), max_size=30), members=st.integers(1, 4))
def test_f3_rows_go_the_same_way_with_and_without_c(keys: list[Any], members: int, timed: bool) -> None:
    batch = Batch(list(range(len(keys))), keys=keys, timestamps=list(range(len(keys))) if timed else None)
    found = []
    for path in PATHS:
        with running(path):
            sending = Sending(*range(members), rows_max=7)
            sending.send(batch)
            found.append(sending.items())
    assert found[1:] == found[:-1]


def test_rows_that_stay_do_not_keep_those_of_other_workers() -> None:
    """A join keeps its rows for long."""
    sending = Sending(0, 1, 2, 3)
    numbers = pa.record_batch({"n": range(4000)})
    sending.send(ColumnBatch(numbers, key_column=numbers.column("n")))
    kept = sending.exchange.loopback.take()
    assert isinstance(kept, ColumnBatch)
    assert kept.columns.get_total_buffer_size() < 2 * numbers.nbytes * len(kept) / len(numbers)


def test_rows_for_others_wait_for_more_and_are_cut_at_rows_max() -> None:
    sending = Sending(0, 1, rows_max=5)
    key = sending.key_of(1)
    sending.send([key] * 4)
    assert sending.frames() == []
    sending.send([key] * 3)
    assert [frame.rows for frame in sending.frames()] == [7]
    sending.send([key])
    sending.exchange.flush()
    assert [frame.rows for frame in sending.frames()] == [1]


def test_columns_are_joined_up_to_their_size_and_one_per_schema() -> None:
    sending = Sending(0, 1, columns_rows_max=10)
    key = sending.key_of(1)
    for start in range(0, 25, 5):
        sending.send(columns([key] * 5, start=start))
    sending.send(ColumnBatch(pa.RecordBatch.from_pydict({"m": ["x"]}), key_column=pa.array([key])), [key])
    sending.exchange.flush()
    assert [frame.rows for frame in sending.frames()] == [10, 10, 5, 1, 1]


def test_a_frame_is_cut_at_bytes_max_of_columns_and_of_rows_once_their_size_is_known() -> None:
    sending = Sending(0, 1, columns_rows_max=10_000, bytes_max=64)
    for start in range(0, 40, 10):
        sending.send(columns([sending.key_of(1)] * 10, start=start))
    assert [frame.rows for frame in sending.frames()] == [10, 10, 10, 10]
    sending, sizes = Sending(0, 1, bytes_max=4000), list[int]()
    for _ in range(2):
        sending.exchange.flush()
        sending.frames()
        for _ in range(40):
            sending.send(Batch(["x" * 400], keys=[sending.key_of(1)]))
            sizes += [frame.rows for frame in sending.frames()]
    assert 0 < max(sizes) <= 20


@pytest.mark.parametrize("left", [False, True], ids=["one worker", "one worker left"])
def test_f3_with_one_worker_nothing_is_hashed_and_nothing_encoded(left: bool) -> None:
    class Unused(Codec):
        def __getattribute__(self, name: str) -> Any:
            if name == "encode_batch" and not left:
                raise AssertionError("encoded")
            return super().__getattribute__(name)

    sending = Sending(*(0, 1)[: 1 + left], slots=Refusing(), codec=Unused())
    if left:
        sending.switch(move_of((0, 1), (0,)))
        sending.frames()
        sending.exchange.disconnect(1)
        sending.exchange.loopback.take()
    batch = Batch([object(), object()], keys=["a", "b"])
    sending.send(batch, Epoch(5), Barrier("1"))
    sending.exchange.flush()
    assert not sending.exchange.remote
    assert sending.exchange.loopback.take() is batch
    assert [sending.exchange.loopback.take() for _ in range(2)] == [Epoch(5), Barrier("1")]


def test_f2_an_exchange_is_backlogged_while_any_channel_waits_for_credit() -> None:
    sending = Sending(0, 1, rows_max=1)
    key = sending.key_of(1)
    assert not sending.exchange.backlogged
    sending.send([key] * (Credit().rows + 1), [key])
    assert len(sending.frames()) == 1
    assert sending.exchange.backlogged
    alone = Sending(0)
    alone.send(["a"] * Credit().rows)
    assert alone.exchange.backlogged
    alone.exchange.loopback.take()
    assert not alone.exchange.backlogged


# In a move.


def test_r2_one_marker_on_every_channel_its_own_included_and_on_those_of_joiners_and_leavers() -> None:
    sending = Sending(0, 1, 2)
    sending.exchange.connect(3)
    move = move_of((0, 1, 2), (0, 1, 3))
    sending.switch(move, 7, 9, idle=True)
    assert sending.items() == {member: [Marker(move, 7, 9, idle=True)] for member in (0, 1, 2, 3)}
    assert sending.exchange.version == 1


def test_r2_while_it_is_silent_epochs_are_kept_back_and_rows_are_not() -> None:
    sending = Sending(0, 1, table=[0, 1], slots=Modulo())
    sending.exchange.silent = True
    sending.send(Epoch(5), Epoch(MAX_EPOCH), [0, 1])
    assert {worker: keys_of(items) for worker, items in sending.items().items()} == {0: [0], 1: [1]}
    move = move_of((0, 1), (0, 1))
    sending.switch(move, 5, 5)
    sending.send(Epoch(6))
    assert keys_of(sending.items()[0]) == [0, Marker(move, 5, 5), 6]


@pytest.mark.parametrize("last", [[0], Epoch(3)], ids=["rows", "epoch"])
@pytest.mark.parametrize("rows_max", [1, 100])
def test_r8_a_channel_is_dropped_at_its_end_and_not_before(last: Any, rows_max: int) -> None:
    sending = Sending(0, 1, table=[1], slots=Modulo(), rows_max=rows_max)
    sending.send(last)
    with pytest.raises(InternalError, match="exchange 'x': the channel to worker 1 is dropped before its end"):
        sending.exchange.disconnect(1)


@st.composite
def moving(draw: st.DrawFn) -> list[Any]:
    """Keys, epochs, and one to three tables of workers 0, 1 and 2."""
    steps: list[Any] = draw(
        st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5) | st.integers(0, 50), max_size=20)
    )
    for _ in range(draw(st.integers(1, 3))):
        table = draw(st.tuples(*[st.sampled_from([0, 1, 2])] * 6))
        steps.insert(draw(st.integers(0, len(steps))), table * (SLOTS // 6))
    return steps


@given(steps=moving(), rows_max=st.integers(1, 7))
def test_r2_whatever_is_sent_goes_by_the_table_of_the_version_that_it_bears(steps: list[Any], rows_max: int) -> None:
    sending = Sending(0, 1, 2, table=(0, 1, 2), slots=Modulo(), rows_max=rows_max)
    tables = [tuple(sending.table)]
    expected: dict[int, list[Seen]] = {0: [], 1: [], 2: []}
    for step in steps:
        version = len(tables) - 1
        if isinstance(step, int):
            sending.send(Epoch(step))
            for items in expected.values():
                items.append((Epoch(step), version))
        elif isinstance(step, list):
            sending.send(step)
            for key in step:
                expected[tables[-1][key % SLOTS]].append(((key, key, None), version))
        else:
            tables.append(step)
            move = RescaleMove(len(tables) - 1, (0, 1, 2), (0, 1, 2), step)
            sending.switch(move, 1, 2)
            for worker, items in expected.items():
                # On the loopback the marker is taken; on a channel its frame is one of the old version.
                items.append((Marker(move, 1, 2), version + (worker == 0)))
    assert sending.seen() == expected


def test_what_routing_needs_is_imported_with_the_first_channel_and_not_by_the_rows_of_a_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Sending(0)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError):
        alone.exchange.connect(1)
