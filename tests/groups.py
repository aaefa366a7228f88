"""Which tests run one after the other where several processes share them, as in ``make test``, and in which order.

Rule: all tests that start a Ray run in one process, and so do all that start a Spark: no two Rays run at the same time,
nor two Sparks, but for the files that need both. So do the tests of PostgreSQL, which share a server, those of type
checkers, which share a cache, and those of any other file. What takes longest comes first: no process is left alone
with it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

GROUPS: Final = {
    "ray": (
        "tests/integration/ray/",
        "tests/integration/netns/",
        "tests/integration/transport/",
        "tests/integration/spark/test_sink_on_ray.py",
        "tests/integration/spark/test_source_on_ray.py",
        "tests/integration/test_demo_ray.py",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/ray.md]",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/how-to/deploy-on-ray.md]",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/debugging.md]",
    ),
    "spark": (
        "tests/integration/spark/",
        "tests/integration/test_demo_spark.py",
    ),
    "lake": (
        "tests/integration/connectors/test_lake_",
        "tests/integration/connectors/test_object_stores_",
        "tests/integration/sources/test_pinned_contract.py",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/connectors/lake.md]",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/how-to/cdc-to-delta.md]",
    ),
    "postgres": ("tests/integration/connectors/test_postgres_",),
    "types": ("tests/typing/",),
}
"""Group -> how the names of its tests begin."""

FIRST: Final = (
    "ray",
    "spark",
    "types",
    "tests/simulation/test_chosen_seeds.py",
    "tests/integration/",
    "tests/simulation/jobs/",
    "tests/simulation/protocol_model/",
    "tests/simulation/",
    "tests/laws/",
)
"""How the names of groups begin, those that take longest first. All others come after them."""


PATIENCE_S: Final = 600
"""A test that hangs is stopped after so long, five times what it is given alone: it may have half of a slow machine."""


def group_of(nodeid: str) -> str:
    """The group of a test: one of `GROUPS`, or its file."""
    file = nodeid.partition("::")[0]
    return next((group for group, begins in GROUPS.items() if nodeid.startswith(begins)), file)


def is_long(item: pytest.Item) -> bool:
    """Return whether a test belongs to `make long` only, by its mark.

    ``long`` is of all cases, ``long("a", "b*")`` of case ``a`` and of those that begin with ``b``, and
    ``long(but=("c",))`` of all others than ``c``.
    """
    return any(is_meant(item, mark) for mark in item.iter_markers("long"))


def is_meant(item: pytest.Item, mark: pytest.Mark) -> bool:
    """Return whether ``mark`` is of this case."""
    named = any(is_case(item, pattern) for pattern in patterns_of(mark))
    return named if mark.args else not named


def patterns_of(mark: pytest.Mark) -> tuple[str, ...]:
    """Return the cases that a mark names."""
    return mark.args or mark.kwargs.get("but", ())


def is_case(item: pytest.Item, pattern: str) -> bool:
    """Return whether a test is a case that ``pattern`` names."""
    case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), case) is not None


def idle_patterns(items: list[pytest.Item]) -> list[str]:
    """Return what marks name that no case of ``items``, all tests, is called."""
    named: dict[str, bool] = {}
    for item in items:
        for mark in item.iter_markers("long"):
            for pattern in patterns_of(mark):
                name = f"{item.nodeid.partition('[')[0]}: {pattern}"
                named[name] = named.get(name, False) or is_case(item, pattern)
    return [name for name, found in named.items() if not found]


def place_of(nodeid: str) -> int:
    """Return the position of a test's group in the order."""
    group = group_of(nodeid)
    return next((place for place, begins in enumerate(FIRST) if group.startswith(begins)), len(FIRST))


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # it is not annotated for others
    """Gives a process that is nearly done with what it has the next group, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # the number of tests says little
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Give others the tests that a dead process had still to run, and return the one it died in.

        That one has failed: it is not run again. Of the groups that were done, xdist would assign empty ones, and a
        process that gets one waits for ever.
        """
        groups = self.assigned_work.pop(node)
        died_in = next((test for group in groups.values() for test, done in group.items() if not done), None)
        for name, group in groups.items():
            if left := {test: False for test, done in group.items() if not done and test != died_in}:
                self.workqueue[name] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: Any) -> None:
        """Assign groups to a process until it has two tests, or knows that none follows: before, it begins none.

        xdist assigns one group, and a process that gets a single test waits for ever.
        """
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
