"""Tests that need Java are left out where no fitting Java is found, and the last line of the run reports it.

Rule: it is left out, not skipped: `make test` is complete on a machine without Java. `.ci/run` refuses to start there.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from malstrom_py.spark.java import Java, find_java

_LEFT_OUT: Final = "left_out_without_java"


class WithoutJava:
    """A plugin of pytest; where several processes share the tests, each finds the same, and the first reports it."""

    def __init__(self) -> None:
        self._left_out = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        asking = [item for item in items if needs_java(item)]
        if not asking or find_java(os.environ).fits:
            return
        config.hook.pytest_deselected(items=asking)
        items[:] = [item for item in items if item not in asking]
        self._left_out = len(asking)
        told: dict[str, Any] | None = getattr(config, "workeroutput", None)
        if told is not None:
            told[_LEFT_OUT] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Of pytest-xdist: a process of the tests has ended."""
        self._left_out = max(self._left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if self._left_out and not hasattr(config, "workeroutput"):
            config.get_terminal_writer().line(last_line(self._left_out, find_java(os.environ)), yellow=True)


def needs_java(item: pytest.Item) -> bool:
    """Whether a test starts a Spark."""
    from tests.groups import group_of

    return group_of(item.nodeid) == "spark" or item.get_closest_marker("needs_java") is not None


def last_line(left_out: int, java: Java) -> str:
    """What is said at the end.

    >>> last_line(7, Java(fits=False, description="not found", what_to_do="Install it"))
    'Left out: the tests that start Spark (7). Java: not found. Install it.'
    """
    return f"Left out: the tests that start Spark ({left_out}). Java: {java.description}. {java.what_to_do}."
