"""Delta and Iceberg tables in an S3: contracts, partitions, crashes, late committers, whole jobs, careless stores."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.connectors.lake.delta_table import DeltaTable
from malstrom_py.connectors.lake.iceberg_table import IcebergTable
from malstrom_py.errors import PlanError, SinkError, SourceError
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.buckets import TestBucket
from tests.integration.connectors.lake_crashes import crash_at
from tests.integration.connectors.lakes import Lake, context_of, read_all
from tests.integration.connectors.postgres_tools import Waiting
from tests.integration.small_s3 import small_s3
from tests.unit.sinks.staged import test_pairs
from tests.unit.sinks.staged.pairs import PAIRS, Steps, Target

STRANGE = ["a/b", "a b", "ü€ 50%", "#1?", "..", None]
IN_A_COMMIT = {"delta": 20, "iceberg": 19}
"""After a copy and before the removal of what was copied; after the commit in the table."""


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, bucket: TestBucket, tmp_path: Path, planned_by_pyiceberg: None) -> Lake:
    return Lake(request.param, tmp_path, bucket)


@pytest.mark.long("*iceberg")
def test_partitions_have_any_value_and_a_table_keeps_the_contract_of_sources(lake: Lake) -> None:
    rows = [{"value": number, "part": part} for number, part in enumerate(STRANGE)]
    lake.write(rows, 1, partition_by="part")
    lake.write([{"value": 100 + number, "part": "a b"} for number in range(10)], 2)
    written: dict[Any, Any] = {row["value"]: row["part"] for row in rows}
    written |= dict.fromkeys(range(100, 110), "a b")
    assert {row["value"]: row["part"] for row in lake.frame().to_dicts()} == written
    assert lake.staged() == []
    found = read_all(lake.source(columns=["part", "value"]))
    assert {row["value"]: row["part"] for row in found} == written
    assert len(found) == len(written)
    source = lake.source(filter=(pc.field("part") == "a b") & (pc.field("value") != 103))
    source.pin("read")
    assert len(source.list_parts()) == 2
    copied: Any = pickle.loads(pickle.dumps(source))
    build = copied.build_part
    copied.build_part = lambda part, state: Waiting(build(part, state), 60.0)
    check_source(copied, cuts_max=1)


IN_PAIRS = (
    test_pairs.test_s7_a_process_that_dies_in_a_commit_leaves_it_to_the_next_start,
    test_pairs.test_s7_a_process_that_dies_in_a_recovery_leaves_it_to_the_next_start,
    partial(test_pairs.test_s7_a_commit_with_a_step_that_fails_is_repeated_or_aborted, True),
    partial(test_pairs.test_s7_a_commit_with_a_step_that_fails_is_repeated_or_aborted, False),
    test_pairs.test_s7_two_processes_in_one_commit_show_each_row_once,
    test_pairs.test_s7_a_process_that_was_paused_in_a_commit_changes_nothing_later,
    test_pairs.test_s7_a_recovery_that_was_delayed_keeps_what_a_later_start_has_staged,
    test_pairs.test_what_is_held_outlives_the_recovery_of_another_run,
    test_pairs.test_an_abort_discards_its_snapshot_alone_and_can_be_repeated,
    test_pairs.test_a_commit_is_the_same_for_any_order_of_payloads,
    test_pairs.test_a_payload_of_another_step_or_snapshot_is_refused,
)


@pytest.mark.parametrize("number", range(len(IN_PAIRS)))
@pytest.mark.long("*iceberg*")
def test_s7_a_table_in_a_store_is_a_pair_of_a_place_and_a_committer(
    number: int, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: type = DeltaTable if lake.form == "delta" else IcebergTable

    def target(folder: Path) -> Target:
        one = replace(lake, folder=tmp_path / f"{folder.parent.name}-{folder.name}")
        steps = Steps([(table, name) for name in ("_find", "_create", "_add")])
        return Target(steps, one.sink, one.values, lambda: [str(path) for path in one.staged()])

    monkeypatch.setitem(PAIRS, "S3, table", target)
    monkeypatch.setattr(test_pairs, "STRIDE", 5)
    IN_PAIRS[number]("S3, table", tmp_path)


def test_s7_a_crash_in_a_commit_leaves_each_row_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert crash_at(lake, monkeypatch, IN_A_COMMIT[lake.form])


def test_a_resumed_job_reads_the_same_version_and_removed_files_are_named(lake: Lake) -> None:
    assert lake.bucket is not None
    lake.write([{"value": 1}], 1)
    source = lake.source()
    source.pin("job")
    record, (part,) = source.pin_record(), source.list_parts()
    lake.write([{"value": 2}], 2)
    again = lake.source()
    again.pin("job", record)
    assert read_all(again) == [{"value": 1}]
    lake.bucket.objects.delete([part.partition("#")[0].removeprefix(f"{lake.bucket.url}/")])
    opened = source.build_part(part, None)
    with pytest.raises(SourceError, match="the version was vacuumed or expired"):
        for _ in iter(lambda: opened.poll(1), "never"):
            pass
    opened.close()
    with pytest.raises(SourceError, match=r"vacuumed or expired.*start this job from the beginning"):
        lake.source().pin("job", record)
    with pytest.raises(SourceError, match=r"vacuumed or expired\. Read a later version"):
        lake.source().pin("job")


def test_commits_of_delta_are_conditional_also_if_the_environment_switches_that_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with small_s3() as server:
        lake = Lake("delta", tmp_path, TestBucket("s3://bucket", server.options))
        lake.write([{"value": 1}], 1)
        lake.write([{"value": 2, "more": 3}], 2, new_columns="add")
        assert lake.commits() == 3
        log = [(path, absent) for method, path, absent in server.seen if method == "PUT" and "/_delta_log/" in path]
    assert len(log) == 4
    assert all(absent for _, absent in log)


def test_a_store_that_ignores_conditions_is_refused() -> None:
    with small_s3() as server:
        server.heeds_conditions = False
        job = mp.Job("careless")
        job.source("in", sources.Memory([1])).sink("out", sinks.Delta("s3://bucket/out", store_options=server.options))
        with pytest.raises(SinkError, match="Use a store that has conditional writes"):
            mp.run(job)
        assert not server.objects


def test_a_bucket_that_is_missing_is_a_clear_error_without_secrets(bucket: TestBucket) -> None:
    options = {**bucket.options, "endpoint": bucket.options["endpoint"].replace("//", "//me:hush@")}
    with pytest.raises(SourceError, match="the Delta table s3://nothing-here/table cannot be read") as read:
        sources.Delta("s3://nothing-here/table", store_options=options).pin("job")
    with pytest.raises(SinkError, match="cannot write to s3://nothing-here/table") as written:
        sinks.Delta("s3://nothing-here/table", store_options=options).recover(context_of(1), [])
    assert "hush" not in f"{read.value} {written.value}"
    with pytest.raises(SourceError, match="there is no Delta table"):
        sources.Delta(f"{bucket.url}/table", store_options=bucket.options).pin("job")


def test_arguments_are_checked() -> None:
    for kind in (sinks.Delta, sources.Delta):
        with pytest.raises(PlanError, match="store_options are for object stores"):
            kind("/data/table", store_options={})
        with pytest.raises(PlanError, match="takes a URL such as"):
            kind("s3://bucket/a table")
        with pytest.raises(PlanError, match="takes a URL such as"):
            kind("memory:///table")
        with pytest.raises(PlanError, match="store_options maps names to texts"):
            kind("s3://bucket/table", store_options={"timeout": 60})  # type: ignore[dict-item]
        assert "hush" not in repr(kind("s3://bucket/table", store_options={"secret_access_key": "hush"}))
    for of_table in (sinks.Iceberg, sources.Iceberg):
        with pytest.raises(PlanError, match=r"nothing like the store option 'user_agent'\. Those of both are"):
            of_table("a.b", store_options={"user_agent": "x"})
        with pytest.raises(PlanError, match="'timeout' is a time such as"):
            of_table("a.b", store_options={"timeout": "soon"})
