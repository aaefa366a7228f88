"""`key_local`: records get keys and stay where they are, so their part and what follows it stay known."""

from __future__ import annotations

from functools import partial

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import PartFinished, PartOpened
from malstrom_py.errors import CodecError
from malstrom_py.operators.key_by import KeyLocal
from tests.unit.operators.stepping import Stepped


def test_records_keep_value_time_and_part() -> None:
    step = Stepped(partial(KeyLocal, fn=lambda value: value % 2))
    step.push(PartOpened("p"), Batch([1, 2], timestamps=[7, 8], part="p"), PartFinished("p"))
    assert step.rows() == [(1, 1, 7), (0, 2, 8)]
    assert step.batches()[0].part == "p"
    assert [step.messages()[0], step.messages()[-1]] == [PartOpened("p"), PartFinished("p")]


def test_a_former_key_is_replaced() -> None:
    step = Stepped(partial(KeyLocal, fn=lambda value: -value))
    assert step.push(Batch([1], keys=["old"])).rows() == [(-1, 1, None)]


def test_generate_epochs_may_follow() -> None:
    job = mp.Job("local")
    timed = job.source("in", sources.Memory([100, 50, 110])).assign_timestamps("at", lambda n: n)
    on_time, late = timed.key_local("local", lambda n: n % 3).generate_epochs("epochs", mp.limit_out_of_orderness(10))
    assert (mp.collect(on_time), mp.collect(late)) == ([100, 110], [50])


def test_every_worker_keeps_its_own_records_and_key_by_may_follow() -> None:
    job, out, counted = mp.Job("local"), sinks.Memory(), sinks.Memory()
    local = job.source("in", sources.Memory(range(20), parts=4)).key_local("local", lambda n: n % 2)
    local.sink("out", out)
    local.key_by("key", lambda n: n % 2).count("count").sink("counted", counted)
    mp.run(job, 3)
    assert {key: sorted(values) for key, values in out.by_key.items()} == {
        0: list(range(0, 20, 2)),
        1: list(range(1, 20, 2)),
    }
    assert {key: values[-1] for key, values in counted.by_key.items()} == {0: 10, 1: 10}


@pytest.mark.parametrize("key", [[1], float("nan"), {}], ids=repr)
def test_f4_a_key_that_is_not_legal_is_refused(key: object) -> None:
    stream = mp.Job("test").source("in", sources.Memory([1, 2]))
    with pytest.raises(CodecError, match="'local'"):
        mp.collect(stream.key_local("local", lambda _: key))
    assert mp.collect(stream.key_local("skipping", lambda n: key if n == 1 else n, on_error="skip")) == [2]
