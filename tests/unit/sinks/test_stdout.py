"""`Stdout`: one line per value, flushed with each batch."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.stdout import Stdout
from malstrom_py.worker_context import WorkerId, WorkerInfo

WORKER = WorkerInfo("job", "out", WorkerId(0))


def secretive(value: int) -> str:
    raise KeyError("not today")


def test_each_value_is_a_line_and_keys_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Stdout().build(WORKER)
    writer.write(Batch([1, "é", None], keys=["a", "b", "c"]))
    writer.write(Batch([]))
    writer.close()
    assert capsys.readouterr().out == "1\né\nNone\n"


def test_format_says_what_the_line_is(capsys: pytest.CaptureFixture[str]) -> None:
    Stdout(format=lambda value: f"<{value}>").build(WORKER).write(Batch([1, 2]))
    assert capsys.readouterr().out == "<1>\n<2>\n"


def test_a_batch_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    below = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(below)))
    Stdout().build(WORKER).write(Batch([1]))
    assert below.getvalue() == b"1\n"


def test_an_error_of_format_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SinkError) as raised:
        Stdout(format=secretive).build(WORKER).write(Batch([1]))
    assert isinstance(raised.value.__cause__, KeyError)
    assert f"secretive at {Path(__file__)}:{secretive.__code__.co_firstlineno + 1}" in str(raised.value)
    assert capsys.readouterr().out == ""


def test_a_stop_iteration_of_format_loses_nothing_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["one"])
    with pytest.raises(SinkError, match="format raised StopIteration"):
        Stdout(format=lambda _value: next(lines)).build(WORKER).write(Batch([1, 2]))
    assert capsys.readouterr().out == ""


def test_format_must_give_text() -> None:
    whole: Any = lambda value: value  # noqa: E731
    with pytest.raises(SinkError, match="returned int, not str"):
        Stdout(format=whole).build(WORKER).write(Batch([1]))
    not_callable: Any = "{}"
    with pytest.raises(PlanError, match="function"):
        Stdout(format=not_callable)


def test_a_character_the_output_has_no_place_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with pytest.raises(SinkError, match="cannot be printed as ascii"):
        Stdout().build(WORKER).write(Batch(["é"]))


def test_a_closed_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.raises(SinkError, match="it is closed"):
        Stdout().build(WORKER).write(Batch([1]))
