"""Any graph, any sequence of calls: the executor gives the output of `Naive`, also with checkpoints at any place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.dag import DagExecutor
from malstrom_py.data.messages import MAX_EPOCH, DataMessage
from tests.unit.dag.naive import OPERATORS, Naive, Plan, Row

Action = tuple[str, str, Any]
"""What is done, at which node, with what."""

END: list[Action] = [("run", "", None), ("take", "", None)]
KEYS = st.sampled_from(["a", "b", None, 1])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sources = tuple(f"s{number}" for number in range(draw(st.integers(1, 2))))
    operators: list[tuple[str, str, tuple[str, ...]]] = []
    for number in range(draw(st.integers(1, 5))):
        before = [*sources, *(name for name, _, _ in operators)]
        reads = draw(st.lists(st.sampled_from(before), min_size=1, max_size=3, unique=True))
        operators.append((f"o{number}", draw(st.sampled_from(["pass", *OPERATORS])), tuple(reads)))
    return Plan(sources, tuple(operators))


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Plan, list[Action]]:
    plan = draw(plans())
    times = st.integers(-5, 25)
    rows = st.lists(st.tuples(KEYS, st.integers(-9, 9), st.none() | times), min_size=1, max_size=4)
    marks = times | st.just(MAX_EPOCH) if draw(st.booleans()) else times
    sources, names = st.sampled_from(plan.sources), [*plan.sources, *(name for name, _, _ in plan.operators)]
    actions = st.lists(
        st.tuples(st.just("event"), sources, rows)
        | st.tuples(st.just("watermark"), sources, marks)
        | st.tuples(st.just("inject"), st.sampled_from([*names, f"{names[-1]}-out"]), rows)
        | st.tuples(st.sampled_from(["run", "take"]), st.just(""), st.none()),
        max_size=14,
    )
    return plan, draw(actions)


def naively(plan: Plan, actions: list[Action]) -> list[dict[str, list[Row]]]:
    """Run `Naive`; return the output after each "take", and at the end."""
    naive, taken = Naive(plan), []
    for what, node, data in [*actions, *END]:
        if what == "take":
            taken.append(naive.taken())
            continue
        if what == "watermark":
            naive.watermark(node, data)
        for row in data if what in ("event", "inject") else ():
            naive.inject(node, row)
        if what != "inject":
            naive.run()
    return taken


def really(
    plan: Plan, actions: list[Action], between: Callable[[DagExecutor, int], DagExecutor]
) -> list[dict[str, list[Row]]]:
    """Run the executor; ``between`` may replace it between two actions."""
    executor, taken = plan.executor(), []
    for number, (what, node, data) in enumerate([*actions, *END]):
        executor = between(executor, number)
        match what:
            case "take":
                taken.append(rows_of(executor))
            case "run":
                executor.run()
            case "watermark":
                executor.process_watermark(node, data)
            case "inject":
                executor.inject_events(node, messages(data))
            case _:
                executor.process_event(node, messages(data))
    return taken


def messages(rows: list[Row]) -> list[DataMessage[Any, int]]:
    return [DataMessage(*row) for row in rows]


def rows_of(executor: DagExecutor) -> dict[str, list[Row]]:
    taken = executor.take_all_sink_outputs(messages=True)
    return {sink: [(one.key, one.value, one.timestamp) for one in rows] for sink, rows in taken.items()}


def by_key(taken: list[dict[str, list[Row]]]) -> list[dict[str, dict[Any, list[Row]]]]:
    """Sort the output per sink and key: a checkpoint keeps the order of timers of one time only per key."""
    return [
        {sink: {key: [row for row in rows if row[0] == key] for key, _, _ in rows} for sink, rows in one.items()}
        for one in taken
    ]


@given(scenario=scenarios(), looks=st.booleans())
@settings(max_examples=80)
def test_the_executor_gives_what_the_naive_one_gives_and_a_checkpoint_leaves_it_as_it_is(
    scenario: tuple[Plan, list[Action]], looks: bool
) -> None:
    def look(executor: DagExecutor, _: int) -> DagExecutor:
        assert not looks or executor.checkpoint() == executor.checkpoint()
        return executor

    assert really(*scenario, look) == naively(*scenario)


@pytest.mark.long
@given(scenario=scenarios())
@settings(max_examples=50)
def test_a_checkpoint_restored_into_a_new_executor_at_every_point_changes_nothing(
    scenario: tuple[Plan, list[Action]],
) -> None:
    plan, actions = scenario

    def again(executor: DagExecutor, _: int) -> DagExecutor:
        fresh = plan.executor()
        fresh.restore(executor.checkpoint())
        assert fresh.checkpoint() == executor.checkpoint()
        assert fresh.checkpoint_watermarks() == executor.checkpoint_watermarks()
        return fresh

    assert by_key(really(plan, actions, again)) == by_key(naively(plan, actions))


@pytest.mark.long
@given(scenario=scenarios(), data=st.data())
@settings(max_examples=40)
def test_going_back_to_any_checkpoint_in_the_same_executor_undoes_all_since(
    scenario: tuple[Plan, list[Action]], data: st.DataObject
) -> None:
    plan, actions = scenario
    point = data.draw(st.integers(0, len(actions)))

    def there_and_back(executor: DagExecutor, number: int) -> DagExecutor:
        if number == point:
            snapshot = executor.checkpoint()
            end: Action = ("watermark", plan.sources[0], MAX_EPOCH)
            for what, node, rows in [*actions, end]:
                if what == "watermark":
                    executor.process_watermark(node, rows)
                elif rows:
                    executor.inject_events(node, messages(rows))
            executor.run()
            executor.restore(snapshot)
        return executor

    assert by_key(really(plan, actions, there_and_back)) == by_key(naively(plan, actions))
