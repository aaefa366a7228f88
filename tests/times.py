"""Prints how long each suite took, by processor time and by the clock: ``pytest -p tests.times`` (``make times``).

Processor time is that of the test's process and of those it started that have ended; not that of a Ray, a Spark or
a server, which several tests share. The clock of suites that run beside each other adds up to more than the run.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator
from pathlib import PurePosixPath
from typing import Any

import pytest

MOST = 40
"""How many tests are printed, those that take most processor time first."""


def used_s() -> float:
    """Return the processor time of this process and of those it has started."""
    all_of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in all_of)


def suite_of(nodeid: str) -> str:
    """Return the row of a test.

    >>> suite_of("tests/integration/ray/test_a.py::test_b"), suite_of("tests/laws/test_a.py::test_b")
    ('integration/ray', 'laws')
    >>> suite_of("malstrom_py/agg.py::malstrom_py.agg.sum")
    'docstrings'
    """
    folders = PurePosixPath(nodeid.partition("::")[0]).parent.parts
    return "/".join(folders[1:3]) if folders[0] == "tests" and folders[1:] else "docstrings"


class Times:
    """Adds up the phases of the tests; in a process of xdist it only notes each in its report."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._used_s: Counter[str] = Counter()
        self._clock_s: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()
        self._items_s: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        """Begin after the imports."""
        self._before_s = used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Note the processor time of a phase."""
        report = yield
        now_s = used_s()
        report.used_s, self._before_s = now_s - self._before_s, now_s
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add a phase to its suite."""
        suite = suite_of(report.nodeid)
        self._used_s[suite] += report.used_s
        self._clock_s[suite] += report.duration
        self._tests[suite] += report.when == "call"
        self._items_s[report.nodeid] += report.used_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, and which tests take most."""
        for nodeid, used_s in self._items_s.most_common(MOST):
            terminalreporter.write_line(f"{used_s:6.1f} s  {nodeid}")
        rows = [(f"`{suite}`", *self._of(suite)) for suite, _ in self._used_s.most_common()]
        totals = (self._tests.total(), self._used_s.total(), self._clock_s.total())
        terminalreporter.write_line("| suite | tests | processor s | clock s |\n|---|---|---|---|")
        for name, tests, used, clock in [*rows, ("all", *totals)]:
            terminalreporter.write_line(f"| {name} | {tests:,} | {used:,.0f} | {clock:,.0f} |")

    def _of(self, suite: str) -> tuple[int, float, float]:
        return self._tests[suite], self._used_s[suite], self._clock_s[suite]


def pytest_configure(config: pytest.Config) -> None:
    """Count in this run."""
    config.pluginmanager.register(Times())
