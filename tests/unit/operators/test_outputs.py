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


def rows(batches: list[Batch]) -> list[tuple[Any, Any, Any]]:
    return [row for batch in batches for row in rows_of_batch(batch)]


def with_sides() -> Output[Any, Any]:
    output = output_of(("a", 1, 5))
    output.side("late").emit("b", 2, 6)
    output.emit("c", 3, 7)
    output.side("odd").emit("d", 4, 8)
    output.side("late").emit("e", 5, 9)
    return output


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
