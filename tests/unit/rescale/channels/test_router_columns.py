"""Columns over an exchange: each row at its key's owner, in order, as columns; cut as they should be."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.rescale.channels.router import Router
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.partitioners import StableHash

SLOTS = 32
WORKERS = 3


class Exchange:
    """A router of worker 0 among three, and what each worker would get of it."""

    def __init__(self, *, columns_rows_max: int = 100, bytes_max: int = 1 << 20, rows_max: int = 4) -> None:
        codec, slots = Codec(), StableHash().bind(SLOTS)
        self.table = first_table(SLOTS, range(WORKERS))
        self.slots = slots
        self.decode = partial(codec.decode_batch, step="x")
        self.router = Router(
            "x",
            0,
            range(WORKERS),
            self.table,
            slots_of=slots.slots_of,
            slots_of_column=slots.slots_of_arrow,
            encode=partial(codec.encode_batch, step="x"),
            rows_max=rows_max,
            bytes_max=bytes_max,
            columns_rows_max=columns_rows_max,
        )

    def received(self, worker: int) -> list[Any]:
        """Batches and epochs, in order, that ``worker`` was sent."""
        items: list[Any] = []
        if worker == 0:
            while (item := self.router.loopback.take()) is not None:
                items.append(item)
            return items
        for frame in self.router.channels[worker].take():
            if frame.payload is not None:
                items.append(self.decode(frame.payload))
            items.extend(entry[1] for entry in frame.epochs)
        return items

    def rows(self, worker: int) -> list[tuple[Any, Any]]:
        batches = [item for item in self.received(worker) if isinstance(item, Batch)]
        return [row for batch in batches for row in zip(batch.keys or [], batch.values, strict=True)]

    def owner(self, key: object) -> int:
        return self.table[self.slots.slot_of(key)]


def columns(keys: list[Any], *, start: int = 0, kind: pa.DataType | None = None) -> ColumnBatch:
    numbers = pa.RecordBatch.from_pydict({"n": list(range(start, start + len(keys)))})
    return ColumnBatch(numbers, key_column=pa.array(keys, kind))


@given(st.lists(st.lists(st.text(max_size=2) | st.none(), min_size=1, max_size=6), max_size=6), st.integers(1, 8))
def test_f3_every_row_reaches_the_owner_of_its_key_in_order(batches: list[list[str | None]], cut: int) -> None:
    exchange = Exchange(columns_rows_max=cut)
    expected: dict[int, list[tuple[Any, Any]]] = {worker: [] for worker in range(WORKERS)}
    number = 0
    for keys in batches:
        exchange.router.route(columns(keys, start=number, kind=pa.string()))
        for key in keys:
            expected[exchange.owner(key)].append((key, {"n": number}))
            number += 1
    exchange.router.flush()
    assert {worker: exchange.rows(worker) for worker in range(WORKERS)} == expected


@pytest.mark.parametrize("keys", [[1, 2, 3, 4, 5, 6, 7, 8], [1.0, 2.5, 3.0, 0.25], [True, False, None]], ids=str)
def test_f4_rows_and_columns_go_the_same_way(keys: list[Any]) -> None:
    by_rows, by_columns = Exchange(), Exchange()
    by_rows.router.route(Batch([{"n": n} for n in range(len(keys))], keys=keys))
    by_columns.router.route(columns(keys))
    for exchange in (by_rows, by_columns):
        exchange.router.flush()
    for worker in range(WORKERS):
        assert by_rows.rows(worker) == by_columns.rows(worker)


def test_columns_arrive_as_columns_and_no_row_is_made_on_the_way() -> None:
    exchange = Exchange()
    sent = columns([f"k{n}" for n in range(50)])
    exchange.router.route(sent)
    exchange.router.flush()
    batches = [batch for worker in range(WORKERS) for batch in exchange.received(worker)]
    assert all(isinstance(batch, ColumnBatch) and not batch.rows_made for batch in batches)
    assert sum(map(len, batches)) == 50
    assert not sent.rows_made


def test_batches_are_joined_up_to_their_size_and_one_per_schema() -> None:
    exchange = Exchange(columns_rows_max=10)
    key = next(f"k{n}" for n in range(99) if exchange.owner(f"k{n}") == 1)
    for start in range(0, 25, 5):
        exchange.router.route(columns([key] * 5, start=start))
    exchange.router.route(ColumnBatch(pa.RecordBatch.from_pydict({"m": ["x"]}), key_column=pa.array([key])))
    exchange.router.route(Batch(["row"], keys=[key]))
    exchange.router.flush()
    assert [len(batch) for batch in exchange.received(1)] == [10, 10, 5, 1, 1]


def test_bytes_cut_columns_too() -> None:
    exchange = Exchange(columns_rows_max=10_000, bytes_max=64)
    key = next(f"k{n}" for n in range(99) if exchange.owner(f"k{n}") == 2)
    for start in range(0, 40, 10):
        exchange.router.route(columns([key] * 10, start=start))
    assert [len(batch) for batch in exchange.received(2)] == [10, 10, 10, 10]


def test_t3_epochs_keep_their_place_among_columns() -> None:
    exchange = Exchange(columns_rows_max=100)
    key = next(f"k{n}" for n in range(99) if exchange.owner(f"k{n}") == 1)
    exchange.router.route(columns([key, key]))
    exchange.router.epoch(Epoch(7))
    exchange.router.route(columns([key], start=2))
    exchange.router.epoch(Epoch(MAX_EPOCH))
    (frame,) = exchange.router.channels[1].take()
    assert frame.rows == 3
    assert [tuple(entry)[:2] for entry in frame.epochs] == [(2, 7), (3, MAX_EPOCH)]
    items = exchange.received(0)
    assert [item.time for item in items if isinstance(item, Epoch)] == [7, MAX_EPOCH]


def test_keys_that_are_lists_beside_columns_are_routed_too() -> None:
    exchange = Exchange()
    keys = [("a", n) for n in range(20)]
    exchange.router.route(ColumnBatch(pa.RecordBatch.from_pydict({"n": list(range(20))}), keys=keys))
    exchange.router.flush()
    found = [row for worker in range(WORKERS) for row in exchange.rows(worker)]
    assert sorted(found, key=lambda row: row[0]) == [(key, {"n": n}) for n, key in enumerate(keys)]
