"""The run of the tests itself: what is left of the groups of a process that dies."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from tests.groups import Groups


class Process:
    """A process as the scheduler has it; it is given nothing more."""

    shutting_down = True


def groups(**assigned: dict[str, dict[str, bool]]) -> tuple[Any, dict[str, Any]]:
    scheduler: Any = Groups.__new__(Groups)
    processes = {name: Process() for name in assigned}
    scheduler.assigned_work = {processes[name]: work for name, work in assigned.items()}
    scheduler.workqueue = OrderedDict()
    return scheduler, processes


def test_a_process_that_dies_fails_one_test_and_no_other() -> None:
    """Groups that are done are not assigned again: a process that gets an empty one waits for ever."""
    scheduler, processes = groups(
        dies={"done": {"a": True, "b": True}, "begun": {"c": True, "d": False, "e": False}, "last": {"f": False}},
        stays={"other": {"g": False}},
    )
    assert scheduler.remove_node(processes["dies"]) == "d"
    assert scheduler.workqueue == {"begun": {"e": False}, "last": {"f": False}}
    assert list(scheduler.assigned_work) == [processes["stays"]]


def test_a_process_that_was_done_leaves_nothing() -> None:
    scheduler, processes = groups(dies={"done": {"a": True}}, stays={})
    assert scheduler.remove_node(processes["dies"]) is None
    assert scheduler.workqueue == {}
