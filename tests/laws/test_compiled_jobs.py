"""The law of compiled steps in a job: what functions of dict rows give on columns is what plain Python gives, while
batches are cut anywhere, keys move, workers crash and jobs resume from snapshots.
"""

from __future__ import annotations

import csv
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.data.time import to_time
from malstrom_py.operators.compiled import CompiledFunction
from malstrom_py.state.key_symbols import KeySymbols

Row = dict[str, Any]
SEEDS = int(os.environ.get("COMPILED_SEEDS", "20"))
PARTS = 2
STREAMS = 3


def classed(row: Row) -> Row:
    if row["n"] > 3:
        return {**row, "s": "large"}
    return row


def swapped(row: Row) -> Row:
    return {"id": row["id"], "n": row["m"], "m": row["n"] % 7, "f": row["f"], "s": row["s"], "o": row["o"]}


MAPS: Sequence[Callable[[Row], Row]] = (
    lambda r: {**r, "n": r["n"] * 3 + r["m"]},  # beyond 63 bits for some
    lambda r: {**r, "n": r["n"] // r["m"]},  # by zero for some
    lambda r: {**r, "f": r["f"] / 2 if r["n"] > 0 else -r["f"]},
    lambda r: {**r, "s": r["s"].upper() + "x"},
    lambda r: {**r, "o": (r["o"] or 0) + 1},
    lambda r: {**r, "n": r["o"] + 1},  # of None for some
    lambda r: {**r, "m": min(r["m"], r["n"]), "f": float(r["m"])},
    lambda r: {**r, "m": r["absent"]},
    swapped,
    classed,
)
FILTERS: Sequence[Callable[[Row], Any]] = (
    lambda r: r["n"] % 2 == 0,
    lambda r: r["o"] is not None,
    lambda r: r["o"],
    lambda r: r["s"] in {"a", "B", "Bx"},
    lambda r: r["f"] > 0 or r["m"] < 0,
    lambda r: r["o"] > 1,
    lambda r: not r["s"].startswith("a"),
)
FILTER_MAPS: Sequence[Callable[[Row], Row | None]] = (
    lambda r: {**r, "n": r["m"]} if r["f"] > 0 else None,
    lambda r: r if r["o"] else None,
    lambda r: None if r["n"] < 0 else {**r, "n": 6 // r["m"], "o": None},
)
SPLITS: Sequence[Callable[[Row], Any]] = (
    lambda r: [r["n"] % 3],
    lambda r: (0, r["m"] % 7 // 2),
    lambda r: {0, 1} if r["o"] else {r["id"] % 2},
    lambda r: [r["id"] // 60],  # there is no such stream for some
    lambda r: (0, 6 // r["m"] % 3),
    lambda r: () if r["s"] == "a" else (0,),
)
TIMES: Sequence[Callable[[Row], Any]] = (
    lambda r: r["id"] * 10,
    lambda r: r["n"],  # too early for some
    lambda r: r["o"],  # None for some
    lambda r: r["f"],
)
KEYS: Sequence[Callable[[Row], Any]] = (
    lambda r: r["s"],
    lambda r: r["n"] % 3,
    lambda r: r["m"] > 0,
    lambda r: r["o"] or -1,
    lambda r: 6 // r["m"],
    lambda r: (r["s"], r["m"] % 2),
    lambda r: (r["id"] % 3, r["o"], r["s"].upper()),
    lambda r: (6 // r["m"], "x") if r["n"] > 0 else (0, r["s"]),
    lambda r: (r["s"], r["m"] > 0),
    lambda r: "all",
)


SUMS: Sequence[tuple[Callable[[Row], Any], Callable[[Row], Any], Callable[[Row], Any]]] = (
    (lambda r: r["id"], lambda r: r["m"], lambda r: r["s"]),
    (lambda r: r["n"] * 2 + 1, lambda r: r["n"] % 5, lambda r: r["s"].lower()),  # beyond 63 bits for some
    (lambda r: r["m"] if r["m"] > 0 else r["id"], lambda r: -r["m"], lambda r: r["n"]),
    (lambda r: (r["o"] or 0) // 2, lambda r: r["o"] is None, lambda r: "x" + r["s"]),
)
"""What is summed up, and of what the largest and the smallest is taken."""

STEPS: dict[str, Sequence[Callable[[Row], Any]]] = {
    "map": MAPS,
    "filter": FILTERS,
    "filter_map": FILTER_MAPS,
    "assign_timestamps": TIMES,
    "branch": FILTERS,
    "split": SPLITS,
}


class Chain(NamedTuple):
    """The functions of a job, in order: those before the key, the key, and those after it."""

    steps: list[tuple[str, Callable[[Row], Any]]]
    sums: tuple[Callable[[Row], Any], Callable[[Row], Any], Callable[[Row], Any]] | None
    on_error: Any


def drawn_rows(rng: random.Random) -> list[Row]:
    floats = [0.0, -0.0, 1.5, -2.5] + [float("nan"), float("inf")] * (rng.random() < 0.3)
    ints = [-5, -1, 0, 1, 2, 7] + [2**62, -(2**63)] * (rng.random() < 0.3)
    nones = [None] * rng.choice([0, 0, 1])
    return [
        {
            "id": number,
            "n": rng.choice(ints),
            "m": rng.choice([-3, 1, 2, 5, 0] if rng.random() < 0.1 else [-3, 1, 2, 5]),
            "f": rng.choice(floats),
            "s": rng.choice(["a", "B", "é", "large"]),
            "o": rng.choice([0, 1, 4, *nones]),
        }
        for number in range(rng.choice([5, 40, 200]))
    ]


def drawn_chain(rng: random.Random) -> Chain:
    def some(most: int) -> list[tuple[str, Callable[[Row], Any]]]:
        kinds = rng.choices([*STEPS], [6, 4, 2, 2, 1, 2], k=rng.randint(0, most))
        return [(kind, rng.choice(STEPS[kind])) for kind in kinds]

    steps = [*some(3), ("key_by", rng.choice(KEYS)), *some(2)]
    return Chain(
        steps, rng.choice(SUMS) if rng.random() < 0.5 else None, rng.choice(["skip", "dead-letter", "dead-letter"])
    )


def built(chain: Chain, rows: list[Row], kind: str, folder: Path) -> tuple[mp.Job, sinks.Memory, sinks.Memory]:
    """Return a job, and the sinks of its results and of its dead letters."""
    job, out, letters = mp.Job("compiled"), sinks.Memory(), sinks.Memory()
    stream: Any
    if kind == "rows":
        stream = job.source("rows", sources.Memory(rows, parts=PARTS))
    elif kind == "columns":
        stream = job.source("rows", sources.Memory(rows, parts=PARTS)).select("columns", *rows[0])
    else:
        stream = job.source("rows", sources.Files(str(folder / f"*.{kind}")))
    for number, (step, function) in enumerate(chain.steps):
        count = (STREAMS,) if step == "split" else ()
        stream = getattr(stream, step)(f"{step}-{number}", *count, function, on_error=chain.on_error)
        stream = stream[0] if step in ("branch", "split") else stream
    if chain.sums:
        total, most, least = chain.sums
        figures = {"total": agg.sum(total), "most": agg.max(most), "least": agg.min(least)}
        stream = stream.aggregate("sums", n=agg.count(), **figures)
    stream.sink("out", out)
    if chain.on_error == "dead-letter":
        for number, (step, _) in enumerate(chain.steps):
            job.dead_letters(f"{step}-{number}").sink(f"letters-{number}", letters)
    return job, out, letters


def written(rows: list[Row], kind: str, folder: Path) -> list[Row]:
    """Write ``rows`` to a file per partition, and return what a job reads of them."""
    for part in range(PARTS):
        own = rows[part::PARTS]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(own, schema=SCHEMA), folder / f"{part}.parquet", row_group_size=16)
        else:
            with (folder / f"{part}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(own)
    if kind == "parquet":
        return rows
    files = mp.Job("read").source("rows", sources.Files(str(folder / "*.csv")))
    read: list[Row] = mp.collect(files)
    return sorted(read, key=lambda row: row["id"])


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("m", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("o", pa.int64()),
    ]
)


def in_python(chain: Chain, rows: list[Row]) -> tuple[dict[Any, list[Row]], Counter[str]]:
    """Return the results by key, and the dead letters as texts."""
    results, letters = defaultdict[Any, list[Row]](list), Counter[str]()
    for row in rows:
        value, key = row, None
        for number, (step, function) in enumerate(chain.steps):
            try:
                result = function(value)
                if (step in ("filter", "branch") and not result) or (step == "filter_map" and result is None):
                    break
                if step == "split" and not set(result) <= set(range(STREAMS)):
                    raise IndexError
                if step == "split" and 0 not in result:
                    break
                if step == "assign_timestamps":
                    to_time(result, "ms")
            except Exception as error:
                letters[f"{step}-{number} {type(error).__name__} {value!r}"] += 1
                break
            if step == "key_by":
                key = result
            elif step in ("map", "filter_map"):
                value = result
        else:
            results[key].append(value)
    return results, letters


def by_part(rows: Sequence[Row]) -> list[str]:
    """Return ``rows`` as texts, those of each partition in their order; between partitions there is none."""
    return [repr(row) for row in sorted(rows, key=lambda row: row["id"] % PARTS)]


@pytest.mark.parametrize("kind", ["rows", "columns", "parquet", "csv"])
def test_functions_on_columns_give_what_python_gives(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met, compute = Counter[str](), CompiledFunction._computed

    def counted(self: CompiledFunction, *of: Any, **options: Any) -> Any:
        found = compute(self, *of, **options)
        met["by rows" if found is None else "on columns"] += 1
        return found

    monkeypatch.setattr(CompiledFunction, "_computed", counted)
    for seed in range(SEEDS):
        rng = random.Random(f"{kind} {seed}")
        rows, chain, folder = drawn_rows(rng), drawn_chain(rng), tmp_path / str(seed)
        folder.mkdir()
        if kind in ("parquet", "csv"):
            rows = written(rows, kind, folder)
        job, out, letters = built(chain, rows, kind, folder)
        mp.Simulation(workers=rng.randint(1, 3), seed=seed, checks=rng.random() < 0.5).run(job)
        results, failed = in_python(chain, rows)
        what = (seed, chain)
        if chain.sums:
            total, most, least = chain.sums
            sums = {
                key: {
                    "n": len(of),
                    "total": sum(map(total, of)),
                    "most": max(map(most, of)),
                    "least": min(map(least, of)),
                }
                for key, of in results.items()
            }
            found = {repr(key): of[-1] for key, of in out.by_key.items()}
            assert found == {repr(key): of for key, of in sums.items()}, what
        else:
            parts = {repr(key): by_part(of) for key, of in out.by_key.items()}
            assert parts == {repr(key): by_part(of) for key, of in results.items()}, what
        if chain.on_error == "dead-letter":
            shown = Counter(f"{one.step} {one.error.partition(':')[0]} {one.value!r}" for one in letters.items)
            assert shown == failed, what
            met["dead letters"] += len(letters.items)
    assert met["by rows"]
    assert met["dead letters"]
    assert kind == "rows" or 2 * met["on columns"] > met["by rows"]


SEVERAL: Sequence[Callable[[Row], Any]] = (
    lambda r: (r["s"], r["m"] % 2),
    lambda r: (r["id"] % 3, r["o"], r["s"]),
    lambda r: (6 // (r["m"] or 1), "x"),
    lambda r: (r["s"], r["m"] > 0),
)


def test_windows_by_several_fields_give_what_python_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    met, number = Counter[bool](), KeySymbols.of

    def counted(self: KeySymbols, column: Any, **options: Any) -> Any:
        met[isinstance(column, pa.RecordBatch)] += 1
        return number(self, column, **options)

    monkeypatch.setattr(KeySymbols, "of", counted)
    for seed in range(SEEDS):
        rng = random.Random(seed)
        rows, key = drawn_rows(rng), rng.choice(SEVERAL)
        size, step = rng.choice([(30, 30), (300, 300), (60, 20)])
        job, out = mp.Job("windows"), sinks.Memory()
        stream = job.source("rows", sources.Memory(rows, parts=PARTS)).select("columns", *rows[0])
        times = stream.assign_timestamps("time", lambda r: r["id"]).generate_epochs(
            "epochs", mp.limit_out_of_orderness(0)
        )
        panes = times[0].key_by("key", key).window("window", windows.sliding(size, step))
        panes.aggregate(n=agg.count(), total=agg.sum(lambda r: r["m"] + 1)).sink("out", out)
        mp.Simulation(workers=rng.randint(1, 3), seed=seed, checks=rng.random() < 0.5).run(job)
        expected = defaultdict[Any, list[int]](lambda: [0, 0])
        for row in rows:
            for start in range(row["id"] // step * step, row["id"] - size, -step):
                of = expected[repr(key(row)), start]
                of[0], of[1] = of[0] + 1, of[1] + row["m"] + 1
        found = {(repr(key), one.start): [*one.value.values()] for key, of in out.by_key.items() for one in of}
        assert found == expected, (seed, key)
        assert sum(map(len, out.by_key.values())) == len(expected)
    assert met[True]


VALUES: Sequence[Callable[[Row], Any]] = (
    lambda r: r["n"],
    lambda r: r["n"] % 3 + r["m"],
    lambda r: r["id"],
    lambda r: len(r["s"]) - 6 // r["m"],  # by zero for some
)


def test_what_is_distinct_or_largest_by_a_function_is_what_python_gives() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        rows, key, value = drawn_rows(rng), rng.choice([*SEVERAL, KEYS[0]]), rng.choice(VALUES)
        rank = rng.choice(VALUES[:3])
        job, once, best = mp.Job("values"), sinks.Memory(), sinks.Memory()
        stream = job.source("rows", sources.Memory(rows, parts=PARTS)).select("columns", *rows[0]).key_by("key", key)
        stream.distinct("once", by=value, on_error="skip").sink("distinct", once)
        numbers = stream.map("numbers", lambda r: {"id": r["id"], "n": r["n"], "m": r["m"]})
        numbers.top_n("best", 3, by=rank).final().sink("largest", best)
        mp.Simulation(workers=rng.randint(1, 3), seed=seed, checks=rng.random() < 0.5).run(job)
        expected, ranks = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
        for row in rows:
            ranks[repr(key(row))].append(rank(row))
            with suppress(ZeroDivisionError):
                made = value(row)
                expected[repr(key(row))].append(made)
        found = {repr(one): sorted(map(value, of)) for one, of in once.by_key.items()}
        assert found == {one: sorted(set(of)) for one, of in expected.items()}, seed
        largest = {repr(one): [rank(row) for row in of[-1]] for one, of in best.by_key.items()}
        assert largest == {one: sorted(of)[::-1][:3] for one, of in ranks.items()}, seed


PAIRS: Sequence[Callable[[Row], Any]] = (
    lambda r: (r["id"], r["n"], r["m"], r["s"]),
    lambda r: (r["id"], r["n"] * 2, 6 // r["m"], r["s"].upper()),
    lambda r: (r["id"], r["n"], r["m"], "x") if r["o"] else (r["id"], r["m"], r["n"], r["s"]),
)
OF_PAIRS: Sequence[tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = (
    (lambda t: t[2] % 5 != 1, lambda t: t[3], lambda t: t[2]),
    (lambda t: t[1] > 6 // t[2], lambda t: (t[3], t[0] % 2), lambda t: t[1] + t[2]),
    (lambda t: t[3], lambda t: t[0] % 3, lambda t: len(t) - t[1]),
)


def test_tuples_of_functions_are_those_of_python() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        rows, pair, (test, key, value) = drawn_rows(rng), rng.choice(PAIRS), rng.choice(OF_PAIRS)
        job, out = mp.Job("tuples"), sinks.Memory()
        stream = job.source("rows", sources.Memory(rows, parts=PARTS)).select("columns", *rows[0])
        some = stream.map("pairs", pair, on_error="skip").filter("some", test, on_error="skip").key_by("key", key)

        def summed(sums: Any, pair: Any, of: Callable[[Any], Any] = value) -> Any:
            return (sums or 0) + of(pair)

        some.fold("sums", summed, default=lambda: None).final().sink("out", out)
        mp.Simulation(workers=rng.randint(1, 3), seed=seed, checks=rng.random() < 0.5).run(job)
        expected = defaultdict[str, int](int)
        for row in rows:
            with suppress(ZeroDivisionError):
                made = pair(row)
                if test(made):
                    expected[repr(key(made))] += value(made)
        assert {repr(one): of[-1] for one, of in out.by_key.items()} == expected, seed
