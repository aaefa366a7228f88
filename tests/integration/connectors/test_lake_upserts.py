"""Upserts and deletes of `sinks.Delta` and `sinks.Iceberg`: the last row of each key, once, also through crashes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.table
import pytest

import malstrom_py as mp
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.snapshot.ids import number_of
from malstrom_py.testing.contracts import check_sink
from tests.integration.connectors.lake_crashes import crash_at
from tests.integration.connectors.lakes import Lake, context_of, staged, worker_of
from tests.integration.connectors.test_lake_jobs import PARTS, ROWS, Gated


def upserting(lake: Lake, keys: Any = "id", **options: Any) -> Any:
    return lake.sink(mode="upsert", keys=keys, **options)


def rows(lake: Lake) -> list[tuple[Any, ...]]:
    """Return the rows of the table as another program reads them, in order."""
    return sorted(lake.frame().rows(), key=repr)


def write(sink: Any, number: int, *batches: Any) -> None:
    sink.recover(context_of(number), [])
    with closing(sink.open(worker_of())) as writer:
        for batch in batches:
            writer.write(batch if isinstance(batch, Batch | ColumnBatch) else Batch(batch))
        sink.commit(context_of(number), [writer.pre_commit(context_of(number))])


def test_s7_upserts_keep_the_contract_of_sinks(lake: Lake) -> None:
    lakes: list[Lake] = []

    def made() -> Any:
        lakes.append(replace(lake, folder=lake.folder / str(len(lakes))))
        return upserting(lakes[-1], "value")

    check_sink(made, lambda _: lakes[-1].values())


def test_s7_a_crash_between_two_calls_leaves_each_row_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(0, 200, 3 if lake.form == "delta" else 8):
        folder = lake.folder / str(at)
        if not crash_at(replace(lake, folder=folder), monkeypatch, at, mode="upsert", keys="value"):
            assert at > 10
            return
    raise AssertionError("a run has fewer calls")


def test_the_last_row_of_a_key_is_kept_and_deletes_are_in_order(lake: Lake) -> None:
    sink = upserting(lake, ["id", "kind"], delete_field="gone", partition_by="kind")
    first = [
        {"id": 1, "kind": "a", "n": 1, "gone": False},
        {"id": 1, "kind": "a", "n": 2, "gone": False},
        {"id": 1, "kind": "b", "n": 3, "gone": False},
        {"id": 2, "kind": "a", "n": 4, "gone": False},
        {"id": 2, "kind": "a", "n": 5, "gone": True},
        {"id": 3, "kind": "a", "n": 6, "gone": True},
    ]
    write(sink, 1, first)
    assert rows(lake) == [(1, "a", 2), (1, "b", 3)]
    second = [
        {"id": 1, "kind": "a", "gone": True},
        {"id": 1, "kind": "a", "n": 7, "gone": False},
        {"id": 1, "kind": "b", "gone": True},
    ]
    columns = pa.RecordBatch.from_pylist([{"kind": "c", "id": 9, "n": None, "gone": False}])
    write(sink, 2, second, ColumnBatch(columns))
    assert rows(lake) == [(1, "a", 7), (9, "c", None)]
    write(sink, 3, [{"id": 1, "kind": "a", "gone": True}, {"id": 9, "kind": "c", "gone": True}])
    assert rows(lake) == []


def test_rows_of_a_key_that_has_moved_follow_those_of_its_former_worker(lake: Lake) -> None:
    sink = upserting(lake)
    first, second = sink.open(worker_of(0)), sink.open(worker_of(1))
    for writer, version, n in ((first, 1, 1), (second, 2, 2), (second, 2, 3), (first, 3, 4), (second, 4, 5)):
        writer.moved(version)
        writer.write(Batch([{"id": 1, "n": n}, {"id": n + 10, "n": n}]))
    payloads = [second.pre_commit(context_of(1)), first.pre_commit(context_of(1))]
    sink.commit(context_of(1), payloads)
    first.close()
    second.close()
    assert rows(lake) == [(1, 5), *((n + 10, n) for n in range(1, 6))]


def test_two_processes_in_one_commit_merge_it_once(lake: Lake) -> None:
    write(upserting(lake), 1, [{"id": n, "n": 0} for n in range(20)])
    payload = staged(upserting(lake), [{"id": n, "n": 1} for n in range(10, 30)], 2)
    with closing(lake.sink().open(worker_of(step="append"))) as writer:
        writer.write(Batch([{"id": 100, "n": 0}]))
        others = writer.pre_commit(context_of(1, step="append"))
    with ThreadPoolExecutor(4) as pool:
        merges = [pool.submit(upserting(lake).commit, context_of(2), [payload]) for _ in range(3)]
        append = pool.submit(lake.sink().commit, context_of(1, step="append"), [others])
        for done in (*merges, append):
            done.result()
    assert rows(lake) == sorted([(n, int(n >= 10)) for n in range(30)] + [(100, 0)], key=repr)


def test_what_cannot_be_a_key_is_refused_before_the_snapshot(lake: Lake) -> None:
    write(lake.sink(), 1, [{"id": 1, "x": 0.5, "n": 1}])
    for keys, row, why in (
        ("id", {"id": None, "x": 1.0, "n": 1}, "the key 'id' is missing or None"),
        ("id", {"x": 1.0, "n": 1}, "the key 'id' is missing or None"),
        ("x", {"id": 1, "x": 1.0, "n": 1}, "the key 'x' is double"),
        ("id", {"id": 1, "x": 1.0, "n": 1, "new": 1}, "has no column 'new'"),
    ):
        with closing(upserting(lake, keys).open(worker_of())) as writer, pytest.raises(SinkError, match=why):
            writer.write(Batch([row]))
    missing = pytest.raises(SinkError, match="field 'gone' of some rows is missing or not a bool")
    with closing(upserting(lake, delete_field="gone").open(worker_of())) as writer, missing:
        writer.write(Batch([{"id": 1, "n": 1}]))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "merge"}, "mode must be 'append' or 'upsert'"),
        ({"mode": "upsert"}, "mode='upsert' needs keys"),
        ({"keys": "id"}, "mode='upsert' needs keys"),
        ({"mode": "upsert", "keys": ["id", "id"]}, "keys must be different names"),
        ({"mode": "upsert", "keys": "id", "delete_field": "id"}, "delete_field must name a field"),
        ({"delete_field": "gone"}, "delete_field must name a field"),
    ],
)
def test_wrong_arguments_are_refused(lake: Lake, options: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        lake.sink(**options)


def test_a_job_that_is_rescaled_keeps_a_table_equal_to_its_origin(lake: Lake, tmp_path: Path) -> None:
    def change(row: Any) -> dict[str, Any]:
        part, n = row
        return {"id": f"{part}/{n % 7}", "n": n, "gone": n % 5 == 0}

    gate = tmp_path / "gate"
    job = mp.Job("changes")
    changes = job.source("changes", Gated(gate)).map("change", change)
    changes.key_by("id", lambda change: change["id"]).sink("out", upserting(lake, delete_field="gone"))
    handle = mp.InProcess(2).start(job)
    handle.rescale(3)
    gate.touch()
    handle.wait(timeout_s=60)
    expected = {f"part-{part}/{n % 7}": n for part in range(PARTS) for n in range(ROWS)}
    assert rows(lake) == sorted((id, n) for id, n in expected.items() if n % 5)


def test_a_column_that_came_after_the_rows_were_staged_is_none_in_them(lake: Lake) -> None:
    sink = upserting(lake, new_columns="add")
    write(sink, 1, [{"id": 1, "n": 1}, {"id": 2, "n": 1}])
    second = staged(sink, [{"id": 1, "n": 2}, {"id": 3, "n": 2}], 2)
    third = staged(sink, [{"id": 2, "n": 3, "new": "x"}], 3)  # a worker is in the next snapshot before the commit
    sink.commit(context_of(2), [second])
    sink.commit(context_of(3), [third])
    assert rows(lake) == [(1, 2, None), (2, 3, "x"), (3, 2, None)]


def test_rows_that_delete_need_their_keys_alone_also_in_a_batch_of_these(lake: Lake) -> None:
    sink = upserting(lake, delete_field="gone", partition_by="kind")
    write(sink, 1, [{"id": n, "kind": "ab"[n % 2], "n": n, "gone": False} for n in range(4)])
    write(sink, 2, [{"id": 0, "gone": True}])
    write(sink, 3, [{"id": 1, "kind": "b", "n": 1, "why": "old", "gone": True}])
    mixed = [{"id": 2, "kind": "a", "why": "old", "gone": True}, {"id": 3, "kind": "a", "n": 9, "gone": False}]
    write(sink, 4, mixed)
    assert rows(lake) == [(3, "a", 9)]


def test_rows_that_have_the_keys_of_different_rows_stay(lake: Lake) -> None:
    known = [{"id": a, "kind": b, "n": 0, "tags": [b]} for a in (1, 2, None) for b in ("x", "y", None)]
    write(lake.sink(), 1, known)
    sink = upserting(lake, ["id", "kind"], delete_field="gone")
    wanted = [{"id": 1, "kind": "x", "n": 5, "tags": [], "gone": False}, {"id": 2, "kind": "y", "gone": True}]
    write(sink, 2, wanted)
    expected = {(one["id"], one["kind"]): one["n"] for one in known} | {(1, "x"): 5}
    del expected[2, "y"]
    assert [row[:3] for row in rows(lake)] == sorted(((*keys, n) for keys, n in expected.items()), key=repr)


@pytest.mark.parametrize("name", ["k`q", "k'q", 'k"q', "a b", "Id", "select"])
def test_columns_may_have_any_name_that_the_table_takes(lake: Lake, name: str) -> None:
    if lake.form == "delta" and " " in name:
        return
    sink = upserting(lake, name)
    for number in (1, 2):
        write(sink, number, [{name: 1, f"{name}2": number, "k": number}])
    assert rows(lake) == [(1, 2, 2)]


def test_a_late_commit_that_deletes_nothing_does_not_set_the_number_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lake.form == "delta":
        return  # its number is in the log, which takes no version twice
    sink = upserting(lake, delete_field="gone")
    write(sink, 1, [{"id": 1, "n": 1, "gone": False}])
    late = staged(sink, [{"id": 9, "gone": True}], 2)
    merged: list[bool] = []
    original = pyiceberg.table.Transaction.delete

    def paused(transaction: Any, *arguments: Any, **named: Any) -> None:
        original(transaction, *arguments, **named)
        if not merged:
            merged.append(True)
            write(sink, 3, [{"id": 1, "n": 3, "gone": False}])

    monkeypatch.setattr(pyiceberg.table.Transaction, "delete", paused)
    with pytest.raises(SinkError, match=r"later snapshot|removed"):
        sink.commit(context_of(2), [late])
    seen = sink._table.look("malstrom.job.out")
    assert seen is not None
    assert number_of(context_of(3).snapshot) == seen.number
    assert rows(lake) == [(1, 3)]
