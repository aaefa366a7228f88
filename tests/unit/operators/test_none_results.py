"""Results that are all None are warned of, with the function and its line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources


def forgets(value: Any) -> Any:
    value  # noqa: B018


def forgets_the_state(message: Any, state: Any, output: Any) -> Any:
    state = (state or 0) + message.value


def keyed(stream: Any) -> Any:
    return stream.key_by("k", lambda value: value % 3)


def run(step: Callable[[Any], Any], rows: int, workers: int = 1) -> None:
    job = mp.Job("forgetful")
    step(job.source("in", sources.Memory(range(rows), parts=2))).sink("out", sinks.Memory())
    mp.run(job, workers, progress=False)


WARNED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "map": (lambda s: s.map("step", forgets), "forgets"),
    "stateful_op": (lambda s: keyed(s).stateful_op("step", forgets_the_state), "forgets_the_state"),
}


@pytest.mark.parametrize("name", WARNED)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_thousand_results_of_none_are_warned_of_once(
    name: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    step, function = WARNED[name]
    with caplog.at_level(logging.WARNING):
        run(step, 5000, workers)
    (said,) = caplog.messages
    assert said.startswith("job forgetful: step 'step': 1,000 results in a row were None (in ")
    assert f"{function} at " in said
    assert "test_none_results.py:" in said


QUIET: dict[str, tuple[Callable[[Any], Any], int]] = {
    "fewer": (lambda s: s.map("step", forgets), 999),
    "one result": (lambda s: s.map("step", lambda value: value if value == 7 else None), 5000),
    "a column": (lambda s: s.map("row", lambda value: {"a": None}).map("step", itemgetter("a")), 5000),
    "filter_map": (lambda s: s.filter_map("step", lambda value: None), 5000),
    "inspect": (lambda s: s.inspect("step", forgets), 5000),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_may_be_meant_is_not_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    step, rows = QUIET[name]
    with caplog.at_level(logging.WARNING):
        run(step, rows)
    assert caplog.messages == []
