"""Files in an object store: the contract, crashes and pauses at each request, stores that ignore conditions."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.object_stores import Bucket
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.staged.objects import ObjectStage
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.spark.publishing import Died
from tests.unit.sinks.writing import READERS, context

REQUESTS: Final = ("stat", "get", "list", "create", "upload", "copy", "delete")
_numbers = count()


def empty_folder() -> str:
    return f"memory://sinks/{next(_numbers)}"


def keys(url: str) -> list[str]:
    prefix = url.removeprefix("memory://sinks/") + "/"
    return [key.removeprefix(prefix) for key, _ in Bucket("memory://sinks").list(prefix)]


def visible(url: str) -> list[str]:
    return [key for key in keys(url) if not key.startswith("_")]


def rows(url: str, format: str) -> list[Any]:
    prefix = url.removeprefix("memory://sinks/")
    found = [Bucket("memory://sinks").get(f"{prefix}/{key}") for key in visible(url)]
    return [row for data in found for row in READERS[format](io.BytesIO(data)).to_dicts()]


def pre_committed(url: str, snapshot: str, *, workers: int = 2) -> list[bytes]:
    payloads = []
    for number in range(workers):
        writer = Files(url, format="json", file_bytes_max=1).open(WorkerInfo("job", "out", WorkerId(number)))
        for row in range(2):
            writer.write(Batch([{"n": f"{snapshot}-{number}-{row}"}]))
        payloads.append(writer.pre_commit(context(snapshot, final=False)))
        writer.close()
    return payloads


def written(*snapshots: str) -> list[str]:
    return [f"{snapshot}-{number}-{row}" for snapshot in snapshots for number in range(2) for row in range(2)]


@contextlib.contextmanager
def requests(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], object]) -> Iterator[list[int]]:
    """Call ``before`` with the number of each request to a store; yield the numbers."""
    seen: list[int] = []

    def counted(request: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            seen.append(len(seen) + 1)
            before(len(seen))
            return request(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for name in REQUESTS:
            patched.setattr(Bucket, name, counted(getattr(Bucket, name)))
        yield seen


def test_a_writer_of_more_than_a_million_files_can_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    url = empty_folder()
    made = ObjectStage.__init__

    def made_long_ago(self: ObjectStage, *args: Any) -> None:
        made(self, *args)
        self._uploaded = 999_999

    monkeypatch.setattr(ObjectStage, "__init__", made_long_ago)
    Files(url).commit(context("s1", final=False), pre_committed(url, "s1"))
    assert sorted(row["n"] for row in rows(url, "json")) == written("s1")


def test_the_commit_object_lists_the_files() -> None:
    url = empty_folder()
    sink = Files(url, format="csv", partition_by="day")
    writer = sink.open(WorkerInfo("job", "out", WorkerId(0)))
    writer.write(Batch([{"day": "mo", "n": 1}, {"day": "tu", "n": 2}]))
    sink.commit(context("s1"), [writer.pre_commit(context("s1"))])
    writer.close()
    names = ["day=mo/out-s1-00000.csv", "day=tu/out-s1-00001.csv"]
    assert visible(url) == names
    prefix = url.removeprefix("memory://sinks/")
    record = json.loads(Bucket("memory://sinks").get(f"{prefix}/_malstrom/job/out/s1.json"))
    assert record == {"format": 1, "job": "job", "step": "out", "files": names}


def staged_types(url: str, snapshot: str, *values: Any, **options: Any) -> tuple[Files, list[bytes]]:
    """A sink, and what workers have pre-committed that each write one of ``values``."""
    sink, payloads = Files(url, **options), []
    for worker, value in enumerate(values):
        writer = sink.open(WorkerInfo("job", "out", WorkerId(worker)))
        writer.write(Batch([{"n": value}]))
        payloads.append(writer.pre_commit(context(snapshot, final=False)))
        writer.close()
    return sink, payloads


def types(url: str) -> set[pa.DataType]:
    prefix = url.removeprefix("memory://sinks/")
    return {
        pq.read_schema(io.BytesIO(Bucket("memory://sinks").get(f"{prefix}/{key}"))).field("n").type
        for key in visible(url)
    }


def test_parquet_files_of_all_workers_and_commits_have_one_schema() -> None:
    url = empty_folder()
    for snapshot, values in (("s1", (1, 0.5)), ("s2", (2, None)), ("s3", (3,))):
        sink, payloads = staged_types(url, snapshot, *values)
        sink.commit(context(snapshot, final=False), payloads)
        sink.commit(context(snapshot, final=False), payloads)
    assert types(url) == {pa.float64()}
    assert sum(row["n"] or 0 for row in rows(url, "parquet")) == 6.5
    with pytest.raises(SinkError, match=r"column 'n' holds .*'out-s3-00000.parquet'.*schema="):
        staged_types(url, "s4", "text")
    with pytest.raises(SinkError, match="schema= says int64 for column 'n'"):
        Files(url, schema=pa.schema([("n", pa.int64())])).recover(context("s4"), [SnapshotId("s3")])


def test_a_commit_of_parquet_that_dies_anywhere_ends_in_one_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in count(1):
        url = empty_folder()
        _, payloads = staged_types(url, "s1", 1, 0.5)

        def die(now: int, step: int = step) -> None:
            if now >= step:
                raise Died

        with requests(monkeypatch, die) as seen, contextlib.suppress(Died):
            Files(url).commit(context("s1", final=False), payloads)
        Files(url).commit(context("s1", final=False), payloads)
        assert types(url) == {pa.float64()}
        assert sorted(row["n"] for row in rows(url, "parquet")) == [0.5, 1.0]
        if len(seen) < step:
            return


def test_a_file_of_the_machine_that_is_missing_is_not_taken_for_an_object_that_was_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(*_: object) -> bool:
        raise FileNotFoundError("the folder for temporary files was cleared")

    url = empty_folder()
    sink, payloads = staged_types(url, "s1", 1, 0.5)
    with monkeypatch.context() as patched:
        patched.setattr("malstrom_py.sinks.files.schemas._convert", lose)
        with pytest.raises(SinkError, match="cannot write again in memory://"):
            sink.commit(context("s1", final=False), payloads)
    sink.commit(context("s1", final=False), payloads)
    assert types(url) == {pa.float64()}


def test_a_store_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "create", lambda self, key, data: self.put(key, data) is None)
    with pytest.raises(SinkError, match="Use a store that has conditional writes"):
        Files(empty_folder()).recover(context("s1"), [])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'{"files": ["_staging/job/out/s2/0123456789abcdef-000000.csv"], "folders": [""]}',
        b'{"files": ["_staging/job/../s1/0123456789abcdef-000000.csv"], "folders": [""]}',
        b'{"files": ["_staging/job/other/s1/0123456789abcdef-000000.csv"], "folders": [""]}',
        b'{"files": ["_staging/job/out/s1/0123456789abcdef-000000.csv"], "folders": [".."]}',
    ],
)
def test_a_payload_that_names_something_else_is_refused(payload: bytes) -> None:
    with pytest.raises(SinkError, match="payload of step 'out'"):
        Files(empty_folder()).commit(context("s1"), [payload])


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(PlanError, match="names no bucket"):
        Files("s3:///out")
    with pytest.raises(PlanError, match="has an empty name between two /"):
        Files("s3://bucket/out//day")
    with pytest.raises(PlanError, match="has a password") as raised:
        Files("s3://key:hush@bucket/out")
    assert "hush" not in str(raised.value)
    with pytest.raises(PlanError, match="store_options are for object stores"):
        Files("/out", store_options={"region": "here"})
    with pytest.raises(PlanError, match="maps names to texts"):
        Files("s3://bucket/out", store_options={"timeout": 5})  # type: ignore[dict-item]
    with pytest.raises(PlanError, match="file_bytes_max is at most"):
        Files("s3://bucket/out", file_bytes_max=5 << 30)


def test_options_are_never_shown() -> None:
    sink = Files("s3://bucket/out", store_options={"aws_secret_access_key": "hush"})
    assert "hush" not in repr(sink)
    assert "hush" not in repr(vars(sink))
