"""Objects of a store as files: the same rows as of local files, exact positions, objects that change."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py import object_stores
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.object_stores import Bucket, StoreError
from malstrom_py.sources.base import Part
from malstrom_py.sources.files import Files
from malstrom_py.sources.files.objects import ObjectFile, ObjectPath
from malstrom_py.testing.contracts import check_source
from tests.unit.sources.reading import read_source

ROOT: Final = "memory://sources"
_numbers = count()


class Patient:
    """A part that waits for its thread: the checks take a poll without rows for the end of what can be had."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self.snapshot, self.is_finished, self.close = part.snapshot, part.is_finished, part.close
        self.set_polls = part.set_polls

    def poll(self, rows_max: int) -> Any:
        while True:
            rows = self._part.poll(rows_max)
            if rows is not None or self._part.is_finished():
                return rows
            self._wait(self._part._ahead)

    @staticmethod
    def _wait(ahead: Any) -> None:
        with ahead._changed:
            ahead._changed.wait_for(lambda: ahead._chunks or ahead._ended, 60)


class Waiting(Files[Any]):
    """Its parts wait."""

    def build_part(self, part: Part, state: Any) -> Any:
        return Patient(super().build_part(part, state))


def stored(**files: bytes) -> str:
    """Put files, ``_`` in their names for the dot; return their folder."""
    folder = f"in{next(_numbers)}"
    for name, data in files.items():
        Bucket(ROOT).put(f"{folder}/{name.replace('__', '/').replace('_', '.')}", data)
    return f"{ROOT}/{folder}"


def parquet(rows: Sequence[dict[str, Any]], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), out, **options)
    return out.getvalue()


ROWS: Final = [{"n": number, "text": f"row {number}"} for number in range(40)]
CSV: Final = b"n,text\n" + b"".join(f"{row['n']},{row['text']}\n".encode() for row in ROWS)
JSON: Final = b"".join(b'{"n": %d, "text": "row %d"}\n' % (number, number) for number in range(40))
TEXT: Final = b"".join(b"row %d\n" % number for number in range(40))


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("a_csv", CSV, {}),
        ("a_csv", CSV, {"split_bytes": 100, "newlines_in_values": False}),
        ("a_csv_gz", gzip.compress(CSV), {}),
        ("a_json", JSON, {"split_bytes": 300}),
        ("a_parquet", parquet(ROWS, row_group_size=16), {}),
        ("a_parquet", parquet(ROWS, row_group_size=16), {"split_bytes": 1}),
        ("a_parquet", parquet(ROWS), {"columns": ["text"]}),
    ],
)
def test_the_contract_of_sources_holds(name: str, data: bytes, options: dict[str, Any]) -> None:
    folder = stored(**{name: data})
    check_source(Waiting(f"{folder}/*", **options), cuts_max=4)


@pytest.mark.parametrize(
    "files",
    [
        {"a_csv": CSV, "b_csv": CSV},
        {"a_csv": b"n,text\n1,x\nbroken\n2,y\n", "b_csv": b""},
        {"a_json_gz": gzip.compress(JSON)},
        {"a_txt": b"", "b_txt": TEXT * 5000},
        {"a_parquet": parquet(ROWS, row_group_size=7), "b_parquet": parquet(ROWS)},
    ],
)
def test_rows_are_those_of_local_files(files: dict[str, bytes], tmp_path: Path) -> None:
    folder = stored(**files)
    for name, data in files.items():
        (tmp_path / name.replace("_", ".")).write_bytes(data)
    of_objects, local = read_source(Waiting(f"{folder}/*")), read_source(Files(f"{tmp_path}/*"))
    assert of_objects == local
    assert of_objects


def test_patterns_name_objects_as_they_name_files() -> None:
    folder = stored(a_csv=CSV, b__c_csv=CSV, b__d_txt=CSV)
    Bucket(ROOT).put(f"{folder.removeprefix(ROOT + '/')}/_staging/x.csv", CSV)

    def parts(pattern: str) -> list[str]:
        return [part.removeprefix(f"{folder}/") for part in Files(f"{folder}/{pattern}", format="csv").list_parts()]

    assert parts("*.csv") == ["a.csv"]
    assert parts("**/*.csv") == ["a.csv", "b/c.csv"]
    assert parts("b/?.*") == ["b/c.csv", "b/d.txt"]
    assert parts("a.csv") == ["a.csv"]
    assert parts("_staging/*.csv") == ["_staging/x.csv"]
    with pytest.raises(SourceError, match="no object matches"):
        parts("nothing-*.csv")


def test_an_object_that_changes_while_it_is_read_is_an_error() -> None:
    folder = stored(a_txt=TEXT * 5000)
    key = f"{folder.removeprefix(ROOT + '/')}/a.txt"
    part = Waiting(f"{folder}/a.txt").build_part(Part(f"{folder}/a.txt"), None)
    assert part.poll(10)
    Bucket(ROOT).put(key, TEXT * 5000)
    with pytest.raises(SourceError, match="was replaced, written to or removed while it was read"):
        for _ in iter(lambda: part.poll(10_000), None):
            pass
    position = part.snapshot()
    part.close()
    again = Waiting(f"{folder}/a.txt").build_part(Part(f"{folder}/a.txt"), position)
    with pytest.raises(SourceError, match="the file changed since the job started"):
        again.poll(1)
    again.close()


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_store_that_fails_while_it_is_read_is_no_damaged_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(a_csv=CSV, a_parquet=parquet(ROWS * 50_000, row_group_size=500_000, compression="none"))
    source, read = Waiting(f"{folder}/{name}"), Bucket.read
    part = source.build_part(source.list_parts()[0], None)

    def failing(self: Bucket, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        if start or name == "a.csv":
            raise StoreError(5, "the server is gone")
        return read(self, key, start, stop, etag=etag)

    monkeypatch.setattr(Bucket, "read", failing)
    with pytest.raises(SourceError, match="the server is gone") as raised:
        part.poll(10)
    assert "damaged" not in str(raised.value)
    part.close()


def test_new_objects_are_found_and_a_changed_one_is_an_error() -> None:
    folder = stored(a_txt=TEXT)
    source = Waiting(f"{folder}/*.txt", new_files=True)
    (part,) = source.list_parts()
    opened = source.build_part(part, None)
    while not opened.is_finished():
        opened.poll(1000)
    known = {part: opened.snapshot()}
    opened.close()
    key = folder.removeprefix(ROOT + "/")
    Bucket(ROOT).put(f"{key}/b.txt", b"new\n")
    again = Waiting(f"{folder}/*.txt", new_files=True)
    assert list(again.list_parts_after(known)) == [f"{folder}/a.txt", f"{folder}/b.txt"]
    Bucket(ROOT).put(f"{key}/a.txt", b"other\n")
    with pytest.raises(SourceError, match="was changed after an earlier run had read it"):
        again.list_parts_after(known)
    Bucket(ROOT).delete([f"{key}/a.txt"])
    assert list(again.list_parts_after(known)) == [f"{folder}/b.txt"]


def test_times_of_objects_are_too_coarse_to_tell_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objects of one second and one content are two; one that was replaced within its second has changed."""
    made = object_stores._stat
    monkeypatch.setattr(object_stores, "_stat", lambda meta: replace(made(meta), st_mtime_ns=0))
    tags = {"monday.txt": "one", "tuesday.txt": "one"}
    monkeypatch.setattr(object_stores, "_tag", lambda meta: tags[meta["path"].split("/")[-1]])
    folder = stored(monday_txt=b"n\n")
    (part,) = Waiting(f"{folder}/*.txt", new_files=True).list_parts()
    position = {"format": "text", "schema": None, "finished": True, "split_bytes": None, "first": ""}
    known = {part: {**position, "file": [2, 0, "one"], "offset": 2, "records": 0, "rows": 1}}
    key = folder.removeprefix(ROOT + "/")
    Bucket(ROOT).delete([f"{key}/monday.txt"])
    Bucket(ROOT).put(f"{key}/tuesday.txt", b"n\n")
    again = Waiting(f"{folder}/*.txt", new_files=True)
    assert list(again.list_parts_after(known)) == [f"{folder}/tuesday.txt"]
    Bucket(ROOT).put(f"{key}/monday.txt", b"x\n")
    tags["monday.txt"] = "two"
    with pytest.raises(SourceError, match="was changed after an earlier run had read it"):
        again.list_parts_after(known)


def test_the_tag_of_azure_is_the_same_in_lists_and_in_answers() -> None:
    assert object_stores._tag({"e_tag": "0x8DA1"}) == object_stores._tag({"e_tag": '"0x8DA1"'}) == '"0x8DA1"'


def test_a_file_reads_any_range_of_an_object() -> None:
    folder = stored(a_txt=bytes(range(256)) * 2000)
    with ObjectFile(ObjectPath(Bucket(ROOT), f"{folder}/a.txt")) as file:
        assert file.seek(0, 2) == 512_000
        assert file.read(5) == b""
        for at, size in [(0, 3), (3, 70_000), (511_990, 100), (256, 256), (100_000, 300_000)]:
            assert file.seek(at) == at
            assert file.read(size) == (bytes(range(256)) * 2000)[at : at + size]
        file.seek(0)
        assert file.read() == bytes(range(256)) * 2000


def test_a_copy_for_a_worker_reads_the_same() -> None:
    folder = stored(a_csv=CSV)
    source = Waiting(f"{folder}/*.csv", store_options={"secret": "hush"})
    source.list_parts()
    assert read_source(cloudpickle.loads(cloudpickle.dumps(source))) == ROWS
    assert "hush" not in repr(source)


def test_an_object_that_is_missing_is_an_error() -> None:
    folder = stored(a_csv=CSV)
    with pytest.raises(SourceError, match="no object matches"):
        Files(f"{folder}/b.csv").list_parts()
    with pytest.raises(SourceError, match="has no column 'other'"):
        read_source(Waiting(f"{folder}/a.csv", columns=["n", "other"]))


def test_arguments_that_make_no_sense_are_refused() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (["s3://bucket/*.csv", "/local/*.csv"], {}, "not both"),
        ("s3://bucket", {}, "names no object"),
        ("s3:///x.csv", {}, "names no bucket"),
        ("ftp://host/x.csv", {}, "is neither, give a path"),
        ("s3://bucket/*.csv", {"follow": True}, "follow=True watches local folders"),
        ("/local/*.csv", {"store_options": {}}, "store_options are for object stores"),
        ("s3://bucket/*.csv", {"store_options": {"timeout": 5}}, "maps names to texts"),
    ]
    for patterns, options, message in cases:
        with pytest.raises(PlanError, match=message):
            Files(patterns, **options)
