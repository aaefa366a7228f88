"""The lock on a staging folder: held by one or shared, and by none once it is released or forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from malstrom_py.local_files import RunLock, locked


def test_only_one_holds_a_folder_until_it_lets_go(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    for _ in range(2):
        lock.hold(shared=False)
    with pytest.raises(BlockingIOError):
        RunLock(tmp_path).hold(shared=False)
    with locked(tmp_path) as is_mine:
        assert not is_mine
    for _ in range(2):
        lock.release()
    with locked(tmp_path) as is_mine:
        assert is_mine
        with pytest.raises(BlockingIOError):
            lock.hold(shared=False)
    lock.hold(shared=False)
    lock.release()


def test_a_lock_that_is_forgotten_is_released(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.hold(shared=False)
    del lock
    with locked(tmp_path) as is_mine:
        assert is_mine


def test_a_folder_that_was_made_again_is_locked_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = RunLock(folder)
    lock.hold(shared=False)
    folder.rmdir()
    with locked(folder) as is_mine:
        assert not is_mine
    with pytest.raises(FileNotFoundError):
        lock.hold(shared=False)
    folder.mkdir()
    lock.hold(shared=False)
    with pytest.raises(BlockingIOError):
        RunLock(folder).hold(shared=False)
    lock.release()


def test_those_who_share_a_folder_keep_out_who_wants_it_alone_until_the_last_lets_go(tmp_path: Path) -> None:
    writer, committer = RunLock(tmp_path), RunLock(tmp_path)
    writer.hold(shared=True)
    committer.hold(shared=True)
    writer.release()
    with locked(tmp_path) as is_mine:
        assert not is_mine
    committer.release()
    with locked(tmp_path) as is_mine:
        assert is_mine
        with pytest.raises(BlockingIOError):
            writer.hold(shared=True)
