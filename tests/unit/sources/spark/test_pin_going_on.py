"""A resumed job reads the rows that its snapshot has pinned, and does not run Spark again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.pinned.folder import new_folder
from malstrom_py.sources.pinned.row_groups import RowGroups, new_pin
from malstrom_py.sources.spark import Spark
from tests.unit.sources.pinned.pinned_files import PinnedFiles, parquet

SCHEMA = pa.schema([("n", pa.int64())])


def staged(folder: Path) -> tuple[Path, Any]:
    """Return what a killed run leaves: the folder, and the record in its last manifest."""
    made = new_folder(folder, "job", keep=False)
    pin = PinnedFiles([parquet(made.rows / "a.parquet", {"n": [1, 2]})], SCHEMA)._find("job")
    made.note({"job": "job", "keep": False})
    made.leave(keep=True)
    return made.path, recorded(RowGroups(made.path.name, pin.schema, pin.names, pin.files, str(made.path)))


def recorded(pin: RowGroups) -> Any:
    return {**pin.record(), "source": repr(source())}


def source() -> Spark:
    """Return a source without a session; a new session would need Java."""
    return Spark(table="never_asked_for")


def read(pinned: Spark) -> list[Any]:
    found: list[Any] = []
    for part in pinned.list_parts():
        opened = pinned.build_part(part, None)
        while not opened.is_finished():
            found += pa.Table.from_batches([polled]).to_pylist() if (polled := opened.poll(10)) is not None else []
        opened.close()
    return found


def test_the_same_rows_are_read_and_stay_until_the_job_has_finished(tmp_path: Path) -> None:
    folder, record = staged(tmp_path)
    for keep in (True, False):
        again = source()
        again.pin("job", record)
        assert again.pin_record() == record
        assert read(again) == [{"n": 1}, {"n": 2}]
        again.unpin(keep=keep)
        assert folder.exists() == keep


def test_it_is_kept_if_one_of_two_jobs_is_to_go_on(tmp_path: Path) -> None:
    folder, record = staged(tmp_path)
    both = source()
    both.pin("job", record)
    both.pin("job", record)
    both.unpin(keep=True)
    both.unpin()
    assert folder.exists()
    both.pin("job", record)
    both.unpin()
    assert not folder.exists()


def test_removed_files_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    folder, record = staged(tmp_path)
    (folder / "rows" / "a.parquet").unlink()
    message = r"resumes from a snapshot whose rows no longer exist: .*a\.parquet.*start from the beginning"
    with pytest.raises(SourceError, match=message):
        source().pin("job", record)
    (folder / "rows").rmdir()
    (folder / "malstrom-pin.json").unlink()
    folder.rmdir()
    with pytest.raises(SourceError, match=r"the rows staged in .* are gone"):
        source().pin("job", record)


def test_a_pin_of_files_that_an_earlier_version_did_not_stage_is_read_unless_one_was_changed(tmp_path: Path) -> None:
    path = parquet(tmp_path / "own.parquet", {"n": [1]})
    record = recorded(PinnedFiles([path], SCHEMA)._find("job"))
    again = source()
    again.pin("job", record)
    assert read(again) == [{"n": 1}]
    again.unpin()
    parquet(path, {"n": [1, 2, 3]})
    with pytest.raises(SourceError, match="is no longer the file that was pinned"):
        again.pin("job", record)


def test_the_record_of_another_source_is_refused(tmp_path: Path) -> None:
    record = recorded(new_pin("files", SCHEMA, ["n"], [], None))
    with pytest.raises(
        SourceError, match=r"to resume from reads Spark\(table='never_asked_for'\), and the job now reads Spark"
    ):
        Spark(table="flights").pin("job", record)


def test_a_source_that_another_job_reads_is_not_pinned_otherwise(tmp_path: Path) -> None:
    _, record = staged(tmp_path)
    shared = source()
    shared.pin("first", recorded(new_pin("files", SCHEMA, ["n"], [], None)))
    with pytest.raises(SourceError, match="give each job a separate source"):
        shared.pin("job", record)
    shared.unpin()
