"""`CheckedOutput`: what a user's logic may send, and the errors that say what it may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.logic import CheckedOutput, Output
from tests.unit.operators.stepping import Recorder, Stepped, rows_of_batch


def checked(*, timed: bool | None = True, keyed: bool | None = True, sides: Sequence[str] = ()) -> CheckedOutput:
    return CheckedOutput(StepContext("test", "under-test", timed=timed, keyed=keyed), sides)


def output_of(*rows: tuple[Any, Any, Any]) -> Output[Any, Any]:
    output: Output[Any, Any] = Output()
    for row in rows:
        output.emit(*row)
    return output


def sent(by: CheckedOutput, output: Output[Any, Any], port: int = 0, **options: Any) -> list[Batch]:
    step = Stepped(lambda _: Recorder(), ports=3)
    step.call(lambda out: by.send(output, out, **options))
    return step.batches(port)


def test_an_output_becomes_one_batch() -> None:
    (batch,) = sent(checked(), output_of(("a", 1, 5), ("b", 2, 4)), part="p")
    assert (batch.keys, batch.values, batch.timestamps, batch.part) == (["a", "b"], [1, 2], [5, 4], "p")


@pytest.mark.parametrize("time", [MIN_EPOCH + 1, 0, MAX_EPOCH - 1])
def test_every_int64_is_a_time_above_the_epoch_that_stands_for_none(time: int) -> None:
    assert sent(checked(), output_of(("a", 1, time)))[0].timestamps == [time]


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ([5, None], "without a timestamp"),
        ([None], "without a timestamp"),
        ([5, 2.0], "of type float"),
        ([True], "of type bool"),
        (["5"], "of type str"),
        ([MAX_EPOCH], "at the maximum watermark"),
        ([MIN_EPOCH], "at or below the watermark"),
        ([-(1 << 70)], "at or below the watermark"),
    ],
)
def test_times_that_are_none_are_refused(times: list[Any], why: str) -> None:
    with pytest.raises(OperatorError, match=f"'under-test' sent a .*{why}"):
        sent(checked(), output_of(*(("a", 1, time) for time in times)))


def test_nothing_is_sent_at_or_below_what_has_passed() -> None:
    by = checked()
    by.passed = 7
    assert len(sent(by, output_of(("a", 1, 8)))) == 1
    with pytest.raises(OperatorError, match="sent a record at 7, at or below the watermark 7") as caught:
        sent(by, output_of(("a", "secret", 9), ("a", "secret", 7)))
    assert caught.value.rule == "epoch order"
    assert "secret" not in str(caught.value)


def named(message: object, output: object) -> None:
    """Replaces a user's function."""


@pytest.mark.parametrize("key", ["b", None, ("a",)])
def test_foreign_keys_of_records_and_timers_are_named_with_the_function(key: Any) -> None:
    with_record, with_timer = output_of((key, 1, 5)), output_of()
    with_timer.set_timer(key, 5)
    for output in (with_record, with_timer):
        with pytest.raises(OperatorError, match=r"named at .*test_outputs\.py") as caught:
            checked().check_keys(output, {"a"}, named)
        assert (caught.value.key, caught.value.rule) == (key, "key kept")
    checked().check_keys(with_record, {"a", key}, named)


def test_records_before_since_have_been_checked_already() -> None:
    output = output_of(("gone", 1, 5), ("a", 1, 5))
    checked().check_keys(output, {"a"}, named, since=1)
    with pytest.raises(OperatorError, match="'gone'"):
        checked().check_keys(output, {"a"}, named)


def test_keys_that_cannot_be_hashed_are_refused() -> None:
    with pytest.raises(OperatorError, match=r"'under-test'.*list cannot be hashed"):
        checked().check_keys(output_of((["a"], 1, 5)), {"a"}, named)


@pytest.mark.parametrize("time", [0, -(1 << 80), MAX_EPOCH])
def test_a_timer_may_be_at_any_time_an_epoch_can_reach(time: int) -> None:
    checked().check_timer(time)


@pytest.mark.parametrize("time", [MAX_EPOCH + 1, None, 1.0, False], ids=repr)
def test_a_timer_at_another_time_is_refused(time: Any) -> None:
    with pytest.raises(OperatorError, match="'under-test' set a timer at "):
        checked().check_timer(time)


def rows(batches: list[Batch]) -> list[tuple[Any, Any, Any]]:
    return [row for batch in batches for row in rows_of_batch(batch)]


def with_sides() -> Output[Any, Any]:
    output = output_of(("a", 1, 5))
    output.side("late").emit("b", 2, 6)
    output.emit("c", 3, 7)
    output.side("odd").emit("d", 4, 8)
    output.side("late").emit("e", 5, 9)
    return output


def test_side_outputs_go_to_their_own_ports_in_order() -> None:
    by = checked(sides=["odd", "late"])
    assert rows(sent(by, with_sides())) == [("a", 1, 5), ("c", 3, 7)]
    assert rows(sent(by, with_sides(), port=1)) == [("d", 4, 8)]
    (late,) = sent(by, with_sides(), port=2, part="p")
    assert (late.keys, late.values, late.timestamps, late.part) == (["b", "e"], [2, 5], [6, 9], "p")


def test_a_side_output_that_the_step_does_not_have_is_refused_and_named() -> None:
    with pytest.raises(OperatorError, match=r"'under-test' sent .* 'late', but its side outputs are 'odd', 'bad': "):
        sent(checked(sides=["odd", "bad"]), with_sides())
    with pytest.raises(OperatorError, match="side output 'late', but it has none"):
        sent(checked(), with_sides())


def test_the_rules_of_time_hold_for_side_outputs() -> None:
    by = checked(sides=["odd", "late"])
    by.passed = 8
    with pytest.raises(OperatorError, match="sent a record at 5, at or below the watermark 8"):
        sent(by, with_sides())
    with pytest.raises(OperatorError, match="timestamp on an untimed stream"):
        sent(checked(timed=False, sides=["odd", "late"]), with_sides())


def test_side_outputs_that_were_taken_back_send_nothing() -> None:
    output: Output[Any, Any] = Output()
    output.side("unknown").emit("a", 1)
    output.truncate(0, 0)
    assert sent(checked(), output) == []


def test_records_as_they_come_are_cut_into_timed_and_untimed_batches_in_order() -> None:
    output = output_of(("a", 1, 5), (None, 2, 6), ("c", 3, None), ("d", 4, None), ("e", 5, 7))
    batches = sent(checked(timed=None, keyed=None), output, part="p")
    assert [(batch.keys, batch.values, batch.timestamps, batch.part) for batch in batches] == [
        (["a", None], [1, 2], [5, 6], "p"),
        (["c", "d"], [3, 4], None, "p"),
        (["e"], [5], [7], "p"),
    ]


@pytest.mark.parametrize("time", [7, MAX_EPOCH, True, 2.0])
def test_times_of_records_as_they_come_are_checked_too(time: Any) -> None:
    by = checked(timed=None)
    by.passed = 7
    with pytest.raises(OperatorError, match="'under-test' sent a "):
        sent(by, output_of(("a", 1, None), ("a", 1, time)))
