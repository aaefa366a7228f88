"""Stage, pre-commit, publish, recover and abort of every place with every committer: interrupted, repeated, delayed and
concurrent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import SinkError
from malstrom_py.testing.contracts import check_sink
from malstrom_py.testing.contracts.sinks import context_of
from tests.unit.sinks.spark.publishing import Died
from tests.unit.sinks.staged.pairs import PAIRS, Case, Target, staged, without_spark

EVERY_PAIR = pytest.mark.parametrize("pair", PAIRS)
STEPS_MAX = 200
STRIDE = 1
"""Every which step is interrupted."""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


def fresh(pair: str, folder: Path) -> Target:
    return PAIRS[pair](folder)


def cases(pair: str, folder: Path) -> Iterator[tuple[int, Case]]:
    """Yield a case for each step, until one is not reached: the test breaks then."""
    for step in range(1, STEPS_MAX, STRIDE):
        yield step, Case(fresh(pair, folder / str(step)), is_typed=pair.endswith(("table", "Spark", "renames")))
    raise AssertionError("the steps have no end")


def at(step: int, what: Callable[[], object]) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number == step:
            what()

    return before


def from_then_on(step: int, error: type[BaseException]) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number >= step:
            raise error

    return before


def fail() -> None:
    raise OSError(5, "Input/output error")


@EVERY_PAIR
def test_the_contract_of_sinks_holds(pair: str, tmp_path: Path) -> None:
    numbers, targets = count(), []

    def made() -> Any:
        targets.append(fresh(pair, tmp_path / str(next(numbers))))
        return targets[-1].sink()

    check_sink(
        made,
        lambda _: [{"value": number, "part": 0} for number in targets[-1].rows()],
        values=[{"value": number, "part": 0} for number in range(12)],
        again=lambda _: targets[-1].sink(),
    )


@EVERY_PAIR
def test_s7_a_process_that_dies_in_a_commit_leaves_it_to_the_next_start(pair: str, tmp_path: Path) -> None:
    for step, case in cases(pair, tmp_path):
        steps = case.target.steps
        with contextlib.suppress(Died), steps.watched(from_then_on(step, Died)):
            case.commit(case.first)
        case.goes_on()
        if steps.seen < step:
            assert step > 5
            return


@EVERY_PAIR
def test_s7_a_process_that_dies_in_a_recovery_leaves_it_to_the_next_start(pair: str, tmp_path: Path) -> None:
    for step, case in cases(pair, tmp_path):
        steps = case.target.steps
        case.commit(case.first)
        with contextlib.suppress(Died), steps.watched(from_then_on(step, Died)):
            case.recover()
        case.goes_on()
        if steps.seen < step:
            return


@EVERY_PAIR
@pytest.mark.parametrize("is_aborted", [True, False])
def test_s7_a_commit_with_a_step_that_fails_is_repeated_or_aborted(is_aborted: bool, pair: str, tmp_path: Path) -> None:
    failed = 0
    for step, case in cases(pair, tmp_path):
        steps = case.target.steps
        refused = True
        with steps.watched(at(step, fail)):
            try:
                case.commit(case.first)
                refused = False
            except (SinkError, OSError):
                failed += 1
        if steps.seen < step:
            assert failed
            return
        if is_aborted and refused:
            case.target.sink().abort(case.first, case.payloads[case.first.snapshot])
            assert sorted(case.target.rows()) in ([], [10, 11]), step
            left = [name for name in case.target.staged() if case.first.snapshot in name]
            assert left == [] or "function" in pair  # it may have stored them: the next start finishes what has begun
        else:
            case.goes_on()


@EVERY_PAIR
def test_s7_two_processes_in_one_commit_show_each_row_once(pair: str, tmp_path: Path) -> None:
    for step, case in cases(pair, tmp_path):
        steps = case.target.steps

        def other(case: Case = case) -> None:
            with contextlib.suppress(SinkError):  # one of both may be refused, and is repeated
                case.commit(case.first)

        with steps.watched(at(step, other)), contextlib.suppress(SinkError):
            case.commit(case.first)
        case.goes_on()
        if steps.seen < step:
            return


@EVERY_PAIR
def test_s7_a_process_that_was_paused_in_a_commit_changes_nothing_later(pair: str, tmp_path: Path) -> None:
    for step, case in cases(pair, tmp_path):
        steps = case.target.steps
        visible: list[int] = []

        def later(case: Case = case, visible: list[int] = visible) -> None:
            with contextlib.suppress(SinkError):  # where a process holds a lock, the next start waits for its end
                case.goes_on()
                fourth = context_of(4, final=False)
                sink = case.target.sink()
                sink.commit(fourth, staged(sink, fourth, 40))
                visible.extend(case.target.rows())

        with steps.watched(at(step, later)), contextlib.suppress(SinkError):
            case.commit(case.first)
        if visible:
            assert sorted(case.target.rows()) == sorted(visible) == [10, 11, 20, 21, 40]
        else:
            case.goes_on()
        if steps.seen < step:
            return


@EVERY_PAIR
def test_s7_a_recovery_that_was_delayed_keeps_what_a_later_start_has_staged(pair: str, tmp_path: Path) -> None:
    case = Case(fresh(pair, tmp_path), is_typed=True)
    for _ in range(2):
        case.target.sink().recover(context_of(2), [])  # knows of no manifest, and comes before the second snapshot
    case.commit(case.second)
    assert sorted(case.target.rows()) == [20, 21]


@EVERY_PAIR
def test_what_is_held_outlives_the_recovery_of_another_run(pair: str, tmp_path: Path) -> None:
    case = Case(fresh(pair, tmp_path), is_typed=True)
    release = case.target.sink().hold(case.first, case.payloads[case.first.snapshot])
    if pair.startswith("folder"):
        case.target.sink().recover(context_of(5), [])
    case.commit(case.first)
    release()
    assert sorted(case.target.rows()) == [10, 11]


@EVERY_PAIR
def test_an_abort_discards_its_snapshot_alone_and_can_be_repeated(pair: str, tmp_path: Path) -> None:
    case = Case(fresh(pair, tmp_path), is_typed=True)
    for _ in range(2):
        case.target.sink().abort(case.second, case.payloads[case.second.snapshot])
    case.commit(case.first, case.third)
    assert sorted(case.target.rows()) == [10, 11, 30, 31]
    assert case.target.staged() == []


@EVERY_PAIR
def test_a_commit_is_the_same_for_any_order_of_payloads(pair: str, tmp_path: Path) -> None:
    case = Case(fresh(pair, tmp_path), is_typed=True)
    for order in (1, -1):
        case.target.sink().commit(case.first, case.payloads[case.first.snapshot][::order])
        assert sorted(case.target.rows()) == [10, 11]


@EVERY_PAIR
def test_a_payload_of_another_step_or_snapshot_is_refused(pair: str, tmp_path: Path) -> None:
    case = Case(fresh(pair, tmp_path), is_typed=True)
    others = case.payloads[case.second.snapshot]
    if not pair.endswith("Spark"):  # it publishes several snapshots together
        with pytest.raises(SinkError, match="payload of step 'out' names a file of another"):
            case.target.sink().commit(case.first, others)
    for payload in (b"", b"{}", b"[]", b"\xff", others[0].replace(b"/out/", b"/other/"), others[0][:-4]):
        with pytest.raises(SinkError, match="payload of step 'out'"):
            case.target.sink().commit(case.second, [payload])
    assert case.target.rows() == []
