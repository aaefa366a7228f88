"""Side outputs of the general steps are streams like any other."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.messages import DataMessage


def numbers() -> mp.StreamBuilder[None, int]:
    return mp.Job("a").source("numbers", sources.Memory([1, 2, 3]))


def aside(message: DataMessage[None, int], output: mp.Output[None, int]) -> None:
    (output.side("odd") if message.value % 2 else output).send(message)


def once(message: DataMessage[None, int], output: mp.Output[None, int]) -> None:
    output.send(message)


def test_side_outputs_are_streams_behind_the_main_one_and_carry_epochs() -> None:
    job = mp.Job("sides")
    timed = job.source("numbers", sources.Memory([1, 2, 3])).assign_timestamps("at", lambda n: n)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    even, odd, none = on_time.stateless_op("sort", aside, sides=("odd", "none"))
    assert [mp.collect(stream) for stream in (even, odd, none)] == [[2], [1, 3], []]
    totals = odd.key_by("all", lambda n: "all").ttl_map("total", lambda k, n, s: (n, s), ttl=1)
    assert mp.collect(totals) == [1, 3]
    (only,) = numbers().stateless_op("it", once, sides=[])
    assert mp.collect(only) == mp.collect(numbers())


def test_side_outputs_stand_before_dead_letters() -> None:
    def risky(message: DataMessage[None, int], output: mp.Output[None, int]) -> None:
        output.side("all").send(message)
        output.emit(None, 6 // message.value)

    job = mp.Job("sides")
    quotients, every = job.source("numbers", sources.Memory([3, 0, 2])).stateless_op(
        "risky", risky, sides=["all"], on_error="dead-letter"
    )
    assert (mp.collect(quotients), mp.collect(every)) == ([2, 3], [3, 2])
    assert [letter.value for letter in mp.collect(job.dead_letters("risky"))] == [0]


def test_a_side_output_that_was_not_named_fails_the_job() -> None:
    with pytest.raises(mp.OperatorError, match="step 'it' sent a record to a side output 'odd', but it has none"):
        mp.collect(numbers().stateless_op("it", aside, on_error="skip"))
