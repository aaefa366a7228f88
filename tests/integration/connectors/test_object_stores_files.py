"""Files in an S3: the contracts, whole jobs, files in parts, objects that change, new objects, careless stores."""

from __future__ import annotations

import io
import json
import traceback
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SinkError, SourceError
from malstrom_py.object_stores import Bucket
from malstrom_py.testing.contracts import check_sink, check_source
from tests.integration.connectors.buckets import TestBucket
from tests.integration.small_s3 import small_s3
from tests.servers import make_folders
from tests.unit.sources.files.test_objects import Waiting


def rows_in(bucket: TestBucket, prefix: str = "out/") -> list[dict[str, Any]]:
    """What a reader of all visible Parquet files sees."""
    visible = [key for key in bucket.keys(prefix) if "/_" not in key]
    return [row for key in visible for row in pl.read_parquet(io.BytesIO(bucket.objects.get(key))).to_dicts()]


def test_a_job_reads_objects_and_writes_objects(bucket: TestBucket, tmp_path: Path) -> None:
    for number in range(3):
        bucket.objects.put(f"in/{number}.csv", b"n,text\n" + b"%d,x\n" % number * 20)

    def job() -> mp.Job:
        job = mp.Job("copy")
        read = sources.Files(f"{bucket.url}/in/*.csv", new_files=True, store_options=bucket.options)
        job.source("in", read).sink("out", sinks.Files(f"{bucket.url}/out", store_options=bucket.options))
        return job

    snapshots = mp.Snapshots(f"{bucket.url}/snapshots", options=bucket.options)
    first = mp.run(job(), snapshots=snapshots)
    assert (first.read, first.written) == (60, 60)
    assert sorted(row["n"] for row in rows_in(bucket)) == sorted([0, 1, 2] * 20)
    assert not [key for key in bucket.keys("out/") if "/_staging/" in key]
    bucket.objects.put("in/3.csv", b"n,text\n3,y\n")
    again = mp.run(job(), snapshots=snapshots)
    assert (again.read, again.resumed_finished) == (1, False)
    assert sorted(row["n"] for row in rows_in(bucket)) == sorted([*[0, 1, 2] * 20, 3])


def test_a_job_that_had_finished_reads_nothing(bucket: TestBucket) -> None:
    job = mp.Job("once")
    job.source("in", sources.Memory([1, 2, 3])).sink(
        "out", sinks.Files(f"{bucket.url}/out", store_options=bucket.options)
    )
    snapshots = mp.Snapshots(f"{bucket.url}/snapshots", options=bucket.options)
    first = mp.run(job, snapshots=snapshots)
    again = mp.run(job, snapshots=snapshots)
    assert again.resumed_finished
    assert again.last_snapshot == first.last_snapshot
    assert str(again).endswith(
        f'already finished in snapshot {first.last_snapshot}, nothing was read; resume="none" starts over'
    )
    assert len(rows_in(bucket)) == 3


def test_the_contract_of_sources_holds(bucket: TestBucket) -> None:
    bucket.objects.put("in/a.csv", b"n\n" + b"".join(b"%d\n" % number for number in range(12)))
    check_source(Waiting(f"{bucket.url}/in/*.csv", store_options=bucket.options), cuts_max=2)


class Folder(sinks.Files):
    """It knows where its rows are."""

    def __init__(self, bucket: TestBucket, name: str) -> None:
        super().__init__(f"{bucket.url}/{name}", format="json", store_options=bucket.options)
        self.bucket, self.name = bucket, name

    def rows(self) -> list[Any]:
        visible = [key for key in self.bucket.keys(f"{self.name}/") if "/_" not in key]
        return [json.loads(line)["value"] for key in visible for line in self.bucket.objects.get(key).splitlines()]


def test_the_contract_of_sinks_holds(bucket: TestBucket) -> None:
    numbers = count()
    check_sink(lambda: Folder(bucket, f"out{next(numbers)}"), Folder.rows, values=range(6))


def test_a_large_file_is_written_and_read_in_parts(bucket: TestBucket) -> None:
    text = "x" * 1_000_000
    job = mp.Job("large")
    job.source("in", sources.Memory([{"n": n, "text": text} for n in range(20)])).sink(
        "out", sinks.Files(f"{bucket.url}/out", format="json", store_options=bucket.options)
    )
    mp.run(job)
    (key,) = [key for key in bucket.keys("out/") if "/_" not in key]
    assert bucket.objects.stat(key).st_size > 20_000_000
    source = Waiting(f"{bucket.url}/out/*.json", store_options=bucket.options, split_bytes=9_000_000)
    parts = source.list_parts()
    assert len(parts) == 3
    found = []
    for part in parts:
        opened = source.build_part(part, None)
        while not opened.is_finished():
            found += [row["n"] for row in opened.poll(100) or ()]
        opened.close()
    assert found == list(range(20))


def test_a_bucket_that_is_missing_and_a_server_that_is_gone_are_clear_errors(bucket: TestBucket) -> None:
    missing = sinks.Files("s3://nothing-here/out", store_options=bucket.options)
    job = mp.Job("nowhere")
    job.source("in", sources.Memory([1])).sink("out", missing)
    with pytest.raises(SinkError, match="cannot clear s3://nothing-here/out") as raised:
        mp.run(job)
    assert "hush" not in str(raised.value)
    with pytest.raises(SourceError, match=r"s3://nothing-here/\*.csv cannot be listed"):
        sources.Files("s3://nothing-here/*.csv", store_options=bucket.options).list_parts()


def test_objects_that_mark_folders_are_not_read(bucket: TestBucket, s3: str) -> None:
    bucket.objects.put("in/a.json", b'{"n": 1}\n')
    bucket.objects.put("in/empty.json", b"")
    make_folders(s3, f"{bucket.url.removeprefix('s3://')}/in/sub")
    for pattern in ("in/*", "in/**"):
        source = sources.Files(f"{bucket.url}/{pattern}", format="json", store_options=bucket.options)
        names = [part.removeprefix(f"{bucket.url}/") for part in source.list_parts()]
        assert names == ["in/a.json", "in/empty.json"]


def test_errors_show_no_password_of_an_endpoint() -> None:
    with small_s3() as server:
        options = {**server.options, "endpoint": server.options["endpoint"].replace("//", "//me:hush@")}
        bucket = Bucket("s3://bucket", options)
        with pytest.raises(FileNotFoundError) as raised:
            bucket.get("nothing")
        assert "hush" not in "".join(traceback.format_exception(raised.value))


def test_a_store_that_ignores_conditions_is_refused_by_sinks_and_snapshots() -> None:
    with small_s3() as server:
        server.heeds_conditions = False
        job = mp.Job("careless")
        job.source("in", sources.Memory([1])).sink("out", sinks.Files("s3://bucket/out", store_options=server.options))
        with pytest.raises(SinkError, match="Use a store that has conditional writes"):
            mp.run(job)
        plain = mp.Job("careless")
        plain.source("in", sources.Memory([1])).sink("out", sinks.Memory())
        with pytest.raises(mp.SnapshotError, match="Use a store that has conditional writes"):
            mp.run(plain, snapshots=mp.Snapshots("s3://bucket/snapshots", options=server.options))
        assert [key for key in server.objects if "canary" in key] == []


def test_a_key_that_cannot_be_listed_is_named_and_spares_other_folders() -> None:
    with small_s3() as store:
        store.objects |= {f"b/{key}": b"row\n" for key in ("in/a.txt", "in//b.txt", "other/x.txt", "other/y.txt")}
        assert len(sources.Files("s3://b/other/*.txt", store_options=store.options).list_parts()) == 2
        with pytest.raises(SourceError, match=r'"in//b\.txt".*Rename that object, or begin the pattern with a folder'):
            sources.Files(["s3://b/other/*.txt", "s3://b/in/*.txt"], store_options=store.options).list_parts()
