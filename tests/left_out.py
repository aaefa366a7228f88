"""Tests that need a program beside Python are left out where it is not found, and the last lines of the run report it.

Rule: they are left out, not skipped: `make test` is complete on a machine without Java, Chromium or any server.
`.ci/run` installs what Debian has of them where it may, and refuses to start without them. Only the tests in network
namespaces are left out there too, where the machine does not allow these.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from malstrom_py.spark.java import find_java

_LEFT_OUT: Final = "left_out"


@dataclass(frozen=True)
class Need:
    """Something that tests need. ``tests``: what they do; ``missing`` returns what is missing and what to do, or "".

    ``needed``: whether a test needs it, by its name and its marks.
    """

    name: str
    tests: str
    missing: Callable[[], str]
    needed: Callable[[str, Set[str]], bool]


def chromium() -> str:
    """Return the path of Chromium, "" without one."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), "")


def postgres(program: str) -> str:
    """Return the path of a program of the newest PostgreSQL, "" without one. Debian keeps them off the path."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
    return shutil.which(program) or (str(installed[-1]) if installed else "")


def _missing_java() -> str:
    java = find_java(os.environ)
    return "" if java.fits else f"Java: {java.description}. {java.what_to_do}"


def _missing_chromium() -> str:
    return (
        "" if chromium() else "Chromium: not found. Install it (on Debian: apt install chromium), or set CHROMIUM to it"
    )


def _missing_prometheus() -> str:
    found = all(map(shutil.which, ("prometheus", "promtool")))
    return "" if found else "Prometheus: not found. Install it (on Debian: apt install prometheus)"


def _missing_server(program: str, name: str, package: str) -> Callable[[], str]:
    def missing() -> str:
        found = shutil.which(program) or postgres(program)
        return "" if found else f"{name}: not found. Install it (on Debian: apt install {package})"

    return missing


def _missing_namespaces() -> str:
    from tests.integration.netns.networks import missing

    return missing()


def _marked(mark: str) -> Callable[[str, Set[str]], bool]:
    return lambda test, marks: mark in marks


def _needs_java(test: str, marks: Set[str]) -> bool:
    from tests.groups import group_of

    return "needs_java" in marks or group_of(test) == "spark"


NEEDS: Final = (
    Need("java", "the tests that start Spark", _missing_java, _needs_java),
    Need("chromium", "the tests that open a browser", _missing_chromium, _marked("needs_chromium")),
    Need("prometheus", "the tests that start Prometheus", _missing_prometheus, _marked("needs_prometheus")),
    Need(
        "postgres",
        "the tests that start PostgreSQL",
        _missing_server("initdb", "PostgreSQL", "postgresql"),
        _marked("needs_postgres"),
    ),
    Need(
        "redis",
        "the tests that start Redis",
        _missing_server("redis-server", "Redis", "redis-server"),
        _marked("needs_redis"),
    ),
    Need(
        "nats",
        "the tests that start NATS",
        _missing_server("nats-server", "NATS", "nats-server"),
        _marked("needs_nats"),
    ),
    Need("netns", "the tests in network namespaces", _missing_namespaces, _marked("needs_netns")),
)


class LeftOut:
    """A plugin of pytest; where several processes share the tests, each finds the same, and the first reports it."""

    def __init__(self) -> None:
        self._left_out: dict[str, int] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
        for need in NEEDS:
            asking = [item for item in items if need.needed(item.nodeid, marks[item])]
            if asking and need.missing():
                config.hook.pytest_deselected(items=asking)
                items[:] = [item for item in items if item not in asking]
                self._left_out[need.name] = len(asking)
        reported: dict[str, Any] | None = getattr(config, "workeroutput", None)
        if reported is not None:
            reported[_LEFT_OUT] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Of pytest-xdist: a process of the tests has ended."""
        self._left_out.update(getattr(node, "workeroutput", {}).get(_LEFT_OUT, {}))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if not hasattr(config, "workeroutput"):
            for line in last_lines(self._left_out, NEEDS):
                config.get_terminal_writer().line(line, yellow=True)


def last_lines(left_out: dict[str, int], needs: Sequence[Need]) -> list[str]:
    """Return what is printed at the end.

    >>> last_lines({"java": 7}, [Need("java", "the tests that start Spark", lambda: "Java: not found", lambda _: True)])
    ['Left out: the tests that start Spark (7). Java: not found.']
    """
    return [
        f"Left out: {need.tests} ({left_out[need.name]}). {need.missing()}." for need in needs if need.name in left_out
    ]
