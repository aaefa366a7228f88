"""What an interrupted publication has left, met by other jobs, steps and modes: nothing is lost, and nothing wedged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import SinkError
from malstrom_py.local_files import locked
from malstrom_py.sinks.spark import Spark
from malstrom_py.sinks.spark.through_spark import ThroughSparkCommitter
from tests.unit.sinks.spark.publishing import Died, Disk, dies_at, pre_committed, rows, run
from tests.unit.sinks.writing import context

BEFORE: list[Any] = [{"n": 0}]
ALL: list[Any] = [{"n": 1}]


def intended(folder: Path) -> list[Path]:
    return list(folder.rglob("commit.json"))


def interrupted_overwrite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave an overwrite that died before Spark has answered."""
    run(Spark(folder / "out"), BEFORE, snapshot="s0")
    sink = Spark(folder / "out", mode="overwrite")
    payload = pre_committed(sink, ALL)
    with monkeypatch.context() as patched:
        patched.setattr(ThroughSparkCommitter, "note", die)
        with pytest.raises(Died):
            sink.commit(context(), [payload])
    assert intended(folder)


def die(*args: Any, **options: Any) -> None:
    raise Died


def interrupted_append(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Spark(folder / "out")
    payload = pre_committed(sink, BEFORE)
    with pytest.raises(Died), Disk(monkeypatch, dies_at(11)):
        sink.commit(context(), [payload])
    assert intended(folder)


@pytest.mark.parametrize("mode", ["append", "overwrite", "error"])
@pytest.mark.parametrize(("job", "step"), [("job", "out"), ("job", "other"), ("other", "out")])
def test_a_start_on_a_folder_that_is_being_overwritten_names_the_job_that_finishes_it(
    mode: Any, job: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_overwrite(tmp_path, monkeypatch)
    starts = Spark(tmp_path / "out", mode=mode)
    if (mode, job, step) != ("overwrite", "job", "out"):
        for _ in range(2):
            with pytest.raises(SinkError, match=r"tart (that|the) job once") as raised:
                starts.recover(context("s2", job=job, step=step), [])
            assert str(intended(tmp_path)[0]) in str(raised.value)
    intended(tmp_path)[0].unlink()
    if mode != "error":
        starts.recover(context("s3", job=job, step=step), [])
    Spark(tmp_path / "out", mode="overwrite").recover(context("s4"), [])
    assert rows(tmp_path / "out") == BEFORE
    assert not list(tmp_path.rglob("_staging"))


def test_folders_that_an_older_version_was_swapping_are_not_removed(tmp_path: Path) -> None:
    work = tmp_path / "_staging" / "job" / "s1.out"
    for name in ("old", "new"):
        (work / name).mkdir(parents=True)
        (work / name / "theirs").touch()
    for _ in range(2):
        with pytest.raises(SinkError, match=r"move those that you need to their place, remove .*s1\.out"):
            Spark(tmp_path / "out", mode="overwrite").recover(context("s2"), [])
    assert (work / "old" / "theirs").exists()


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
    interrupted_overwrite(tmp_path, monkeypatch)
    Spark(tmp_path / "other", mode="overwrite").recover(context("s2", step="other"), [])
    with locked(intended(tmp_path)[0].parent) as is_held:
        assert is_held
        Spark(tmp_path / "out").recover(context("s2", step="other"), [])
    assert len(intended(tmp_path)) == 1
