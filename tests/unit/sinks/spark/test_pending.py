"""What an interrupted publication has left, met by other jobs, steps and modes: nothing is lost, and nothing wedged."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import SinkError
from malstrom_py.local_files import locked
from malstrom_py.sinks.spark import Spark
from tests.unit.sinks.spark.publishing import Died, Disk, dies_at, each_step, pre_committed, rows, run
from tests.unit.sinks.writing import context

BEFORE: list[Any] = [{"n": 0}]
ALL: list[Any] = [{"n": 1}]


def intended(folder: Path) -> list[Path]:
    return list(folder.rglob("commit.json"))


def between_the_renames(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose overwrite died when the target was away."""
    for step, disk in each_step(monkeypatch, dies_at):
        again = folder / str(step)
        run(Spark(again / "out"), BEFORE, snapshot="s0")
        sink = Spark(again / "out", mode="overwrite")
        payload = pre_committed(sink, ALL)
        with disk, contextlib.suppress(Died):
            sink.commit(context(), [payload])
        if not (again / "out").exists():
            return again
    pytest.fail("the target is never away")


def interrupted_append(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Spark(folder / "out")
    payload = pre_committed(sink, BEFORE)
    with pytest.raises(Died), Disk(monkeypatch, dies_at(11)):
        sink.commit(context(), [payload])
    assert intended(folder)


def test_a_target_that_came_back_while_it_was_overwritten_is_told_and_nothing_of_the_three_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = between_the_renames(tmp_path, monkeypatch)
    (folder / "out").mkdir()
    (folder / "out" / "theirs").touch()
    for _ in range(2):
        with pytest.raises(SinkError, match=rf"has created {folder}/out during.*Move {folder}/out elsewhere") as raised:
            Spark(folder / "out", mode="overwrite").recover(context("s2"), [])
        assert f"{folder}/_staging/job/s1.out/old" in str(raised.value)
    (folder / "out").rename(folder / "theirs")
    Spark(folder / "out", mode="overwrite").recover(context("s2"), [])
    assert rows(folder / "out") == ALL
    assert not list(folder.rglob("_staging"))


def test_an_overwrite_that_is_given_up_though_the_target_came_back_removes_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = between_the_renames(tmp_path, monkeypatch)
    (folder / "out").mkdir()
    (folder / "out" / "theirs").touch()
    (intent,) = intended(folder)
    intent.unlink()
    for _ in range(2):
        with pytest.raises(SinkError, match=r"save what you need of the two") as raised:
            Spark(folder / "out", mode="overwrite").recover(context("s2"), [])
        assert str(intent.with_name("old")) in str(raised.value)
    assert rows(intent.with_name("old")) == BEFORE
    (folder / "out" / "theirs").unlink()
    Spark(folder / "out", mode="overwrite").recover(context("s2"), [])
    assert rows(folder / "out") == BEFORE


@pytest.mark.parametrize("mode", ["append", "overwrite", "error"])
@pytest.mark.parametrize(("job", "step"), [("job", "out"), ("job", "other"), ("other", "out")])
def test_whoever_starts_on_a_folder_that_is_being_overwritten_is_told_who_finishes_that(
    mode: Any, job: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = between_the_renames(tmp_path, monkeypatch)
    own = (mode, job, step) == ("overwrite", "job", "out")
    starts = Spark(folder / "out", mode=mode)
    if not own:
        for _ in range(2):
            with pytest.raises(SinkError, match=r"tart (that|the) job once") as raised:
                starts.recover(context("s2", job=job, step=step), [])
            assert str(intended(folder)[0]) in str(raised.value)
    Spark(folder / "out", mode="overwrite").recover(context("s2"), [])
    assert rows(folder / "out") == ALL
    if mode != "error":
        starts.recover(context("s3", job=job, step=step), [])
    assert not list(folder.rglob("_staging"))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize(("job", "step"), [("job", "out"), ("job", "other"), ("other", "out")])
def test_an_overwrite_that_is_given_up_is_put_back_by_whoever_starts_on_its_folder(
    mode: Any, job: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = between_the_renames(tmp_path, monkeypatch)
    intended(folder)[0].unlink()
    Spark(folder / "out", mode=mode).recover(context("s2", job=job, step=step), [])
    assert rows(folder / "out") == BEFORE
    assert not list(folder.rglob("s1.out"))


def test_an_append_that_was_interrupted_is_not_overwritten_but_others_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_append(tmp_path, monkeypatch)
    for step in ("out", "other"):
        with pytest.raises(SinkError, match="Start that job once, unchanged"):
            Spark(tmp_path / "out", mode="overwrite").recover(context("s2", step=step), [])
    Spark(tmp_path / "out").recover(context("s2", step="other"), [])
    Spark(tmp_path / "out").recover(context("s2"), [])
    assert rows(tmp_path / "out") == BEFORE
    Spark(tmp_path / "out", mode="overwrite").recover(context("s2"), [])


def test_an_overwrite_of_another_folder_or_one_that_is_under_way_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = between_the_renames(tmp_path, monkeypatch)
    Spark(folder / "other", mode="overwrite").recover(context("s2", step="other"), [])
    with locked(intended(folder)[0].parent) as is_held:
        assert is_held
        Spark(folder / "out").recover(context("s2", step="other"), [])
    assert len(intended(folder)) == 1
