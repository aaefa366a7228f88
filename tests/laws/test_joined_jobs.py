"""Law: a join gives the pairs that its definition names, in a whole job that is rescaled, crashes and resumes.

The definitions are nested loops over all records that were not late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources, windows
from malstrom_py.snapshot.store import MemoryStore
from tests.simulation.jobs.runs import OnDisk

Row = dict[str, Any]

KEYS: Final[list[list[Any]]] = [
    ["a", "ä", "", None],
    [0, 1, 2**30, None],
    list(range(40)),
    [f"k{n}" for n in range(40)],
]

SLACK: Final = 8
"""How late a row may be; some are later."""


def near(lower: int, upper: int) -> Callable[[Row, Row], bool]:
    return lambda left, right: lower <= right["at"] - left["at"] <= upper


def windows_of_both(size: int, step: int) -> Callable[[Row, Row], int]:
    """Return what counts the windows that have two rows."""

    def count(left: Row, right: Row) -> int:
        times: list[int] = sorted((left["at"], right["at"]))
        return max(0, times[0] // step - (times[1] - size) // step)

    return count


def same_session(left: Row, right: Row) -> bool:
    return bool(left["session"] == right["session"])


GAP: Final = 4
"""Of sessions."""


def note_sessions(rows: list[Row]) -> None:
    """Note in each row when its session starts."""
    for row in rows:
        row["session"] = row["at"]
        of_key = [other["at"] for other in rows if other["key"] == row["key"]]
        while earlier := [at for at in of_key if row["session"] - GAP < at < row["session"]]:
            row["session"] = min(earlier)


JOINS: Final[dict[str, tuple[Callable[[Any, Any], Any], Callable[[Row, Row], int], str]]] = {
    "window": (
        lambda a, b: a.join("join", b, window=windows.tumbling(6), how="outer"),
        lambda left, right: left["at"] // 6 == right["at"] // 6,
        "outer",
    ),
    "sliding": (lambda a, b: a.join("join", b, window=windows.sliding(9, 4)), windows_of_both(9, 4), "inner"),
    "interval": (lambda a, b: a.join_interval("join", b, lower=-3, upper=5, how="outer"), near(-3, 5), "outer"),
    "interval ahead": (lambda a, b: a.join_interval("join", b, lower=1, upper=9, how="left"), near(1, 9), "left"),
    "session": (lambda a, b: a.join("join", b, window=windows.session(GAP), how="outer"), same_session, "outer"),
    "as of": (lambda a, b: a.join_asof("join", b, tolerance=7, how="inner"), near(-7, 0), "last"),
}
"""The join, how often two rows of a key are a pair, and which rows are sent."""


def pairs_of(lefts: list[Row], rights: list[Row], may: Callable[[Row, Row], int], how: str) -> Iterator[Any]:
    """Yield numbers of rows; of the last right row its time, as several may have it."""
    paired = set[int]()
    for left in lefts:
        found = [right for right in rights if left["key"] == right["key"] and may(left, right)]
        paired.update(right["n"] for right in found)
        if how == "last":
            yield from [(left["n"], max(right["at"] for right in found))] if found else []
        else:
            pairs = [(left["n"], right["n"]) for right in found for _ in range(may(left, right))]
            yield from pairs or ([] if how == "inner" else [(left["n"], None)])
    if how == "outer":
        yield from ((None, right["n"]) for right in rights if right["n"] not in paired)


def in_types(columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return columns whose types, and whose number, differ from batch to batch."""
    first, made = columns.column("n")[0].as_py(), dict(zip(columns.schema.names, columns.columns, strict=True))
    if pa.types.is_string(made["key"].type) and first % 2:
        made["key"] = made["key"].cast(pa.string_view()) if first % 3 else made["key"].dictionary_encode("encode")
    elif pa.types.is_int64(made["key"].type) and first % 2:
        made["key"] = made["key"].cast(pa.int32())
    if first % 7 == 0:
        made["more"] = pa.array([[number] for number in range(len(columns))])
    return pa.RecordBatch.from_pydict(made)


def union_of(count: int) -> pa.Array:
    numbers, texts = pa.array(range(count), pa.int64()), pa.array([f"{n}" for n in range(count)])
    return pa.UnionArray.from_sparse(pa.array([n % 2 for n in range(count)], pa.int8()), [numbers, texts])


def runs_of(count: int) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array([f"run of {count}"]))


def with_null_entry(count: int) -> pa.Array:
    places = pa.array([n % 2 for n in range(count)], pa.int8())
    return pa.DictionaryArray.from_arrays(places, pa.array([None, f"one of {count}"]))


def in_structs(column: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([column], ["in"], mask=pa.array([n % 3 == 1 for n in range(len(column))]))


UNUSUAL: Final[dict[str, Callable[[int], pa.Array]]] = {
    "views": lambda count: pa.array([None, *(f"{n}" * 9 for n in range(count - 1))], pa.string_view()),
    "dictionaries of views": lambda count: (
        pa.array(["a"] * count).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string_view()))
    ),
    "runs": runs_of,
    "unions": union_of,
    "dictionaries with null": with_null_entry,
    "views of lists": lambda count: pa.array(
        [None, *([n] * (n % 3) for n in range(count - 1))], pa.list_view(pa.int64())
    ),
    "dictionaries of decimals": lambda count: pa.DictionaryArray.from_arrays(
        pa.array([0] * count, pa.int8()), pa.array([Decimal("1.5")], pa.decimal128(5, 1))
    ),
    "structs of runs": lambda count: in_structs(runs_of(count)),
    "structs of unions": lambda count: in_structs(union_of(count)),
    "structs of dictionaries with null": lambda count: in_structs(with_null_entry(count)),
}
"""Columns of types of which Arrow does not pick or merge rows, or has no null."""


def stream_of(job: mp.Job, rows: list[Row], side: int, *, columns: str) -> tuple[Any, sinks.Memory]:
    """Return the keyed stream of a side, and the sink of its rows that are late."""
    stream: Any = job.source(f"rows-{side}", sources.Memory(rows, parts=2))
    if columns == "columns":
        stream = stream.select(f"columns-{side}", "n", "key", "at")
    elif columns == "other columns":
        stream = stream.map_batches(f"columns-{side}", in_types)
    elif columns in UNUSUAL:
        stream = stream.map_batches(
            f"columns-{side}", lambda given: given.append_column("unusual", UNUSUAL[columns](len(given)))
        )
    timed = stream.assign_timestamps(f"times-{side}", "at")
    on_time, late = timed.generate_epochs(f"epochs-{side}", mp.limit_out_of_orderness(SLACK))
    late.sink(f"late-{side}", out := sinks.Memory())
    return on_time.key_by(f"key-{side}", "key"), out


@pytest.mark.parametrize("name", JOINS)
def test_a_job_with_a_join_gives_the_pairs_of_its_definition(name: str) -> None:
    for seed in range(8):
        draw = Random(f"{name} {seed}")
        check(name, seed, draw, [draw.choice(["rows", "columns", "other columns"]) for _ in range(2)])


@pytest.mark.parametrize("columns", UNUSUAL)
@pytest.mark.parametrize("name", JOINS)
def test_unusual_columns_are_joined(name: str, columns: str) -> None:
    """Jobs failed in Arrow, and for unions it ended the process."""
    check(name, 1, Random(f"{name} {columns}"), [columns, columns], counts=[20])


@pytest.mark.parametrize("name", JOINS)
def test_a_join_gives_the_same_pairs_with_its_state_on_disk(name: str) -> None:
    """With rescales and crashes; each worker puts all that no batch needs on disk, or most of it."""
    hits = Counter[str]()
    for seed in range(6):
        draw = Random(f"{name} on disk {seed}")
        kinds = [draw.choice(["rows", "columns"])] * 2 if draw.random() < 0.7 else ["rows", "columns"]
        snapshots: Any = draw.random() < 0.5 and mp.Snapshots(MemoryStore(), interval_s=draw.choice([0.02, 0.2]))
        check(name, seed, draw, kinds, crashes=draw.choice([0, 1]), state=OnDisk(seed, hits), snapshots=snapshots)
    assert hits["state was put on disk and found there"] > 50


def check(
    name: str, seed: int, draw: Random, kinds: list[str], counts: Sequence[int] = (20, 150), **options: Any
) -> None:
    """Run a job whose streams are of these kinds, with so many rows each."""
    join, may, how = JOINS[name]
    job, out = mp.Job("joined"), sinks.Memory()
    keys, rate, count = draw.choice(KEYS), draw.choice([1, 5, 20]), draw.choice(counts)
    sides = [
        [{"n": 2 * n + side, "key": draw.choice(keys), "at": n // rate + draw.randrange(12)} for n in range(count)]
        for side in (0, 1)
    ]
    streams = [stream_of(job, rows, side, columns=kinds[side]) for side, rows in enumerate(sides)]
    join(*(stream for stream, _ in streams)).sink("out", out)
    mp.Simulation(workers=draw.randint(1, 3), seed=seed, checks=draw.random() < 0.5, **options).run(job)
    late = {row["n"] for _, sink in streams for row in sink.items}
    lefts, rights = [[row for row in rows if row["n"] not in late] for rows in sides]
    note_sessions([*lefts, *rights])
    shown = "at" if how == "last" else "n"
    found = [(left and left["n"], right and right[shown]) for left, right in out.items]
    assert sorted(found, key=repr) == sorted(pairs_of(lefts, rights, may, how), key=repr), (seed, kinds)
