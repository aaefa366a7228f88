"""Staging folders are created, locked, kept or removed; other folders are never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.pinned.folder import RECORD, PinFolder, new_folder


def fill(folder: PinFolder) -> None:
    folder.rows.mkdir()
    (folder.rows / "part-0.parquet").write_text("rows")


def left_over(staging: Path, *, keep: bool = False) -> Path:
    """Make the folder of a killed program: it has rows and no lock."""
    folder = new_folder(staging, "job", keep=keep)
    fill(folder)
    folder.leave(keep=True)
    return folder.path


def test_the_next_start_removes_what_an_earlier_one_has_left(tmp_path: Path) -> None:
    left = left_over(tmp_path)
    new = new_folder(tmp_path, "job", keep=False)
    assert list((tmp_path / "job").iterdir()) == [new.path]
    assert left != new.path


def test_what_a_start_leaves_that_was_cut_short_at_its_first_step_is_removed_too(tmp_path: Path) -> None:
    left = left_over(tmp_path)
    (left / "rows" / "part-0.parquet").unlink()
    (left / "rows").rmdir()
    (left / RECORD).unlink()
    new_folder(tmp_path, "job", keep=False)
    assert not left.exists()


@pytest.mark.parametrize("is_copy_last", [False, True])
def test_a_folder_is_left_alone_by_other_starts_and_removed_by_the_last_that_holds_it(
    is_copy_last: bool, tmp_path: Path
) -> None:
    held = new_folder(tmp_path, "job", keep=False)
    fill(held)
    copy = PinFolder(held.path)
    copy.hold()
    new_folder(tmp_path, "job", keep=False).leave(keep=False)
    first, last = (held, copy) if is_copy_last else (copy, held)
    first.leave(keep=False)
    assert held.rows.exists()
    last.leave(keep=False)
    assert not held.path.exists()


def test_other_jobs_and_what_is_not_ours_are_left_alone(tmp_path: Path) -> None:
    other = new_folder(tmp_path, "other", keep=False)
    other.leave(keep=True)
    (tmp_path / "job").mkdir()
    theirs = [
        tmp_path / "notes.txt",
        tmp_path / "job" / "data.parquet",
        tmp_path / "job" / "pin-mine" / "data.parquet",
        tmp_path / "job" / "pin-20260101T000000000000Z-00000000" / "data.parquet",
        tmp_path / "job" / "pin-20260101T000000000000Z-11111111" / RECORD,
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    outside = tmp_path / "outside"
    left_over(outside)
    (tmp_path / "job" / "pin-20260101T000000000000Z-22222222").symlink_to(next((outside / "job").iterdir()))
    new_folder(tmp_path, "job", keep=False).leave(keep=False)
    assert all(path.exists() for path in (*theirs, other.path))
    assert len(list((outside / "job").iterdir())) == 1


def test_a_folder_that_is_gone_cannot_be_held(tmp_path: Path) -> None:
    folder = PinFolder(tmp_path / "gone")
    with pytest.raises(SourceError, match=r"the rows staged in .*gone are gone .*: start the job again"):
        folder.hold()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"rows cannot be staged in .*file/job: Not a directory\. Give staging="):
        new_folder(tmp_path / "file", "job", keep=False)
    (tmp_path / "job").symlink_to(tmp_path)
    with pytest.raises(SourceError, match="it is a symbolic link, remove it"):
        new_folder(tmp_path, "job", keep=False)
