"""`stateless_op`: any number of outputs per record by a user's logic, and at epochs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch, PartFinished, PartOpened
from malstrom_py.errors import OperatorError
from malstrom_py.operators.logic import Output
from malstrom_py.operators.stateless_op import StatelessOp
from tests.unit.operators.stepping import Stepped


def twice(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
    for _ in range(message.value):
        output.send(message)


def once(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
    output.send(message)


class AtEpochs:
    """Sends nothing of records, and at each epoch a record under ``key`` at the epoch's time plus ``ahead``."""

    def __init__(self, key: Any = None, ahead: int | None = 0) -> None:
        self.key, self.ahead = key, ahead

    def on_data(self, message: DataMessage[Any, int], output: Output[Any, str]) -> None:
        """Says nothing."""

    def on_epoch(self, epoch: Epoch, output: Output[Any, str]) -> None:
        if epoch.time < MAX_EPOCH:
            output.emit(self.key, "epoch", None if self.ahead is None else epoch.time + self.ahead)


def stepped(logic: Any, **options: Any) -> Stepped:
    return Stepped(partial(StatelessOp, logic=logic), **options)


def test_outputs_keep_order_key_time_and_part() -> None:
    step = stepped(twice, timed=True, keyed=True)
    step.push(
        PartOpened("p"), Batch([2, 0, 1], keys=["a", "b", "c"], timestamps=[5, 6, 7], part="p"), PartFinished("p")
    )
    assert step.rows() == [("a", 2, 5), ("a", 2, 5), ("c", 1, 7)]
    assert [batch.part for batch in step.batches()] == ["p"]
    assert (step.messages()[0], step.messages()[-1]) == (PartOpened("p"), PartFinished("p"))


def test_generate_epochs_may_follow_for_the_part_is_kept() -> None:
    stream = mp.Job("a").source("in", sources.Memory([100, 50, 110])).assign_timestamps("at", lambda n: n)
    op: mp.StreamBuilder[None, int] = stream.stateless_op("op", once)
    on_time, late = op.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    assert (mp.collect(on_time), mp.collect(late)) == ([100, 110], [50])


def test_on_epoch_comes_before_the_epoch_and_may_send_at_it() -> None:
    step = stepped(AtEpochs(), timed=True).push(Epoch(5), Epoch(9))
    assert step.rows() == [(None, "epoch", 5), (None, "epoch", 9)]
    assert [type(message) for message in step.messages()] == [Batch, Epoch, Batch, Epoch]


@pytest.mark.parametrize(("timed", "ahead"), [(True, None), (False, 0)])
def test_a_time_where_there_is_none_or_none_where_there_is_one_is_refused(timed: bool, ahead: int | None) -> None:
    with pytest.raises(OperatorError, match=r"'under-test' sent a .*(untimed|timed) stream"):
        stepped(AtEpochs(ahead=ahead), timed=timed).push(Epoch(5))


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
def test_a_foreign_key_is_refused_whatever_the_policy(on_error: Any) -> None:
    step = stepped(lambda message, output: output.emit("other", 1), keyed=True, on_error=on_error)
    with pytest.raises(OperatorError, match=r"'other'.*<lambda> at .*key_by after this step") as caught:
        step.push(Batch([1], keys=["a"]))
    assert caught.value.rule == "key kept"


@pytest.mark.parametrize(("keyed", "key"), [(True, "a"), (True, None), (False, "a")])
def test_an_epoch_has_no_key_so_none_can_be_sent_at_one(keyed: bool, key: Any) -> None:
    """A keyed record sent by each worker would meet state on workers that do not own its key."""
    with pytest.raises(OperatorError, match=r"which its input does not have \(in AtEpochs\.on_epoch at ") as caught:
        stepped(AtEpochs(key), timed=True, keyed=keyed).push(Batch([1], keys=["a"], timestamps=[1]), Epoch(5))
    assert caught.value.rule == "key kept"


@pytest.mark.parametrize("values", [[1], [1, -1]], ids=["alone", "before one that raises"])
def test_a_timer_is_refused(values: list[int]) -> None:
    def wake(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
        if message.value < 0:
            raise ValueError
        output.set_timer(message.key, 5)

    with pytest.raises(OperatorError, match="'under-test' set a timer, but keeps no state: use stateful_op"):
        stepped(wake, timed=True, on_error="skip").push(Batch(values, timestamps=values))


def test_an_error_in_on_epoch_names_it_whatever_the_policy() -> None:
    class Failing(AtEpochs):
        def on_epoch(self, epoch: Epoch, output: Output[Any, str]) -> None:
            raise ValueError("secret")

    with pytest.raises(OperatorError, match=r"Failing\.on_epoch at ") as caught:
        stepped(Failing(), on_error="skip").push(Epoch(1))
    assert "secret" in str(caught.value)


def odd_aside(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
    (output.side("odd") if message.value % 2 else output).send(message)
    if message.value == 3:
        raise ValueError


def test_side_outputs_have_ports_of_their_own_and_a_record_it_raises_on_leaves_nothing_in_them() -> None:
    step = Stepped(partial(StatelessOp, logic=odd_aside, sides=["odd"]), keyed=True, ports=2, on_error="dead-letter")
    step.push(Batch([1, 2, 3, 5], keys=["a", "b", "c", "d"]))
    assert step.rows() == [("b", 2, None)]
    assert step.rows(1) == [("a", 1, None), ("d", 5, None)]
    assert [letter.value for letter in step.dead_letters] == [3]


def test_where_records_have_a_key_as_it_comes_an_epoch_may_send_without_one() -> None:
    step = Stepped(partial(StatelessOp, logic=AtEpochs()), keyed=None, timed=None)
    assert step.push(Epoch(5)).rows() == [(None, "epoch", 5)]
    with pytest.raises(OperatorError, match="under key 'a'"):
        Stepped(partial(StatelessOp, logic=AtEpochs("a")), keyed=None, timed=None).push(Epoch(5))
