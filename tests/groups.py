"""Which tests run one after the other where several processes share them, as in ``make test``, and in which order.

Rule: all tests that start a Ray run in one process, and so do all that start a Spark: no two Rays run at the same time,
nor two Sparks, but for the files that need both. So do the tests of any other file. What takes longest comes first:
no process is left alone with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

GROUPS: Final = {
    "ray": (
        "tests/integration/ray/",
        "tests/integration/transport/",
        "tests/integration/spark/test_sink_on_ray.py",
        "tests/integration/spark/test_source_on_ray.py",
        "tests/integration/test_demo_ray.py",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/ray.md]",
    ),
    "spark": (
        "tests/integration/spark/",
        "tests/integration/test_demo_spark.py",
    ),
}
"""Group -> how the names of its tests begin."""

FIRST: Final = (
    "ray",
    "spark",
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
