"""Jobs without rows: with a schema they leave an empty table, which later ones append to."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SinkError
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sinks.spark import Spark
from malstrom_py.sinks.spark.schema import existing_in
from tests.unit.sinks.spark.publishing import Died, dies_at, each_step, fails_at, rows, run
from tests.unit.sinks.writing import context, everything, visible

SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.string())])
ROWS: list[Any] = [{"n": 1, "t": "a"}]


@pytest.mark.parametrize("by", [None, "t"])
@pytest.mark.parametrize("mode", ["append", "error"])
def test_an_empty_table_has_all_columns_and_is_appended_to(mode: Any, by: str | None, tmp_path: Path) -> None:
    for snapshot in ("s1", "s2") if mode != "error" else ("s1",):
        run(Spark(tmp_path / "out", mode=mode, schema=SCHEMA, partition_by=by), [], snapshot=snapshot)
    (name,) = visible(tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / name).equals(SCHEMA)
    for snapshot, schema in (("s3", None), ("s4", SCHEMA)):
        run(Spark(tmp_path / "out", partition_by=by, schema=schema), ROWS, snapshot=snapshot)
    run(Spark(tmp_path / "out", partition_by=by, schema=SCHEMA), [], snapshot="s5")
    assert rows(tmp_path / "out") == ROWS * 2
    with pytest.raises(SinkError, match="is partitioned by"):
        Spark(tmp_path / "out", partition_by=None if by else "t").recover(context("s6"), [])


def test_what_is_appended_to_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    run(Spark(tmp_path / "out", schema=SCHEMA, partition_by="t"), [])
    with pytest.raises(SinkError, match="'m'"):
        run(Spark(tmp_path / "out", partition_by="t"), [{"m": 1, "t": "a"}], snapshot="s2")


@pytest.mark.parametrize("fails", [dies_at, fails_at])
def test_wherever_the_commit_of_an_empty_table_is_interrupted_it_is_there_whole_or_not_at_all(
    fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for step, disk in each_step(monkeypatch, fails):
        sink = Spark(tmp_path / str(step) / "out", schema=SCHEMA)
        sink.recover(context(), [])
        (tmp_path / str(step) / "out").mkdir(parents=True)
        with disk, contextlib.suppress(Died):
            try:
                sink.commit(context(), [])
            except SinkError:
                sink.abort(context(), [])
        Spark(tmp_path / str(step) / "out", schema=SCHEMA).recover(context("s2"), [])
        found = visible(tmp_path / str(step) / "out")
        assert [pq.read_schema(tmp_path / str(step) / "out" / name).equals(SCHEMA) for name in found] in ([], [True])
        if found:
            assert list(read_output(tmp_path / str(step) / "out", "job").outputs["out"].files) == [str(found[0])]
        assert not [name for name in everything(tmp_path / str(step)) if "_staging" in name], step
        seen.add(len(found))
    assert seen == {0, 1}


def test_the_columns_of_folders_are_told_as_spark_tells_them(tmp_path: Path) -> None:
    """Each escape is one character, as in the names that `sinks.Files` and Spark make."""
    (tmp_path / "%C3%BC%25=1").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "%C3%BC%25=1" / "a.parquet")
    there = existing_in(tmp_path)
    assert there is not None
    assert there.partition_by == ("\u00c3\u00bc%",)
