"""A query that has ended is started again where it was, once the job asks for it, until the job ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SourceError
from malstrom_py.sources.spark import streaming
from malstrom_py.sources.spark.stream_folder import StreamFolder
from malstrom_py.sources.spark.streaming import Followed

if TYPE_CHECKING:
    import pytest

PATIENCE_S = 20.0


class Query:
    """Runs until it is ended, or until a test lets it fail."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._error: Exception | None = None

    def wait(self) -> None:
        assert self._over.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._over.set()

    def fail(self, text: str) -> None:
        self._error = SourceError(text)
        self._over.set()


def until(reached: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 1000)):
        if reached():
            return
        pause.wait(0.001)
    raise AssertionError


def test_it_is_started_again_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_POLL_S", 0.001)
    folder = StreamFolder(tmp_path / "stream")
    with folder.alone() as name:
        """It is made."""
    started: list[Query] = []
    errors = [None, None, SourceError("Spark is gone"), None]

    def start() -> Any:
        if (error := errors.pop(0)) is not None:
            raise error
        started.append(Query())
        return started[-1]

    def asked_after(text: str) -> None:
        until(lambda: folder.failure() == text)
        folder.ask_again()

    followed = Followed(folder.path, name, start)
    left = folder.batch(0).with_name(".tmp-0-0011aabb")
    left.mkdir()
    started[0].fail("no broker")
    asked_after("no broker")
    until(lambda: len(started) == 2)
    assert not left.exists(), "what the query before has left unfinished is removed"
    started[1].fail("no disk")
    asked_after("no disk")
    asked_after("Spark is gone")
    until(lambda: len(started) == 3)
    followed.leave(keep=True)
    assert folder.failure() is None, "the job has ended it"
    assert errors == []
