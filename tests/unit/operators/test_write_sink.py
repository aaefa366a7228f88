"""`sink`: passes batches to a writer, or to writers of parts; each failure is an error that names the step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.builder.job import Job
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    Acquire,
    Collect,
    Epoch,
    Interrogate,
    PartFinished,
    PartOpened,
)
from malstrom_py.errors import CodecError, OperatorError, SinkError, lasting
from malstrom_py.operators.write_sink import KeyByPart, WriteParts, WriteSink
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerInfo
from tests.unit.operators.stepping import Stepped


class Plain:
    """A sink without transactions that is its own writer, and fails where the test asks for it."""

    def __init__(self, failing: str = "", error: BaseException | None = None) -> None:
        self._failing, self._error = failing, error or OSError(28, "No space left on device")
        self.workers: list[WorkerInfo] = []
        self.batches: list[Batch] = []
        self.closed = 0

    def _at(self, where: str) -> None:
        if where == self._failing:
            raise self._error

    def build(self, worker: WorkerInfo) -> Plain:
        self.workers.append(worker)
        self._at("open")
        return self

    def write(self, batch: Batch) -> None:
        self._at("write")
        self.batches.append(batch)

    def close(self) -> None:
        self.closed += 1
        self._at("close")


class Rows(Plain):
    """One that looks at the values."""

    def write(self, batch: Batch) -> None:
        self.batches.append(batch.with_values(batch.values))


class Names(Plain):
    """One that makes names of the values."""

    def write(self, batch: Batch) -> None:
        for value in batch.values:
            Job(value)


class Unfinished:
    """One that forgets to return its writer."""

    def build(self, worker: WorkerInfo) -> None:
        Plain()


class Transactional(Plain):
    """One that offers both ways."""

    def __init__(self, built: object = "itself") -> None:
        super().__init__()
        self._built = self if built == "itself" else built

    def open(self, worker: WorkerInfo) -> Any:
        self.workers.append(worker)
        return self._built

    def build(self, worker: WorkerInfo) -> Plain:
        raise AssertionError("a transactional sink is opened as one")

    def pre_commit(self, context: CommitContext) -> bytes:
        return b""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Nothing to show."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Nothing to undo."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Nothing to clear."""


def operator_of(sink: Any) -> tuple[Stepped, WriteSink]:
    step = Stepped(partial(WriteSink, sink=sink), ports=0)
    assert isinstance(step.operator, WriteSink)
    return step, step.operator


def test_a_sink_that_is_both_is_opened_as_transactional() -> None:
    sink = Transactional()
    _, operator = operator_of(sink)
    operator.open()
    assert operator.transactional is not None
    assert repr(operator.writer) == repr(sink)


def test_a_sink_that_is_not_open_takes_nothing() -> None:
    step, _ = operator_of(Plain())
    with pytest.raises(SinkError, match="sink 'under-test' is not open"):
        step.push(Batch([1]))


@pytest.mark.parametrize("where", ["open", "write", "close"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SinkError("No space left on device")])
def test_an_error_names_the_step_and_what_it_was(where: str, error: Exception) -> None:
    step, operator = operator_of(Plain(where, error))

    def live() -> None:
        operator.open()
        step.push(Batch([1]))
        operator.close()

    with pytest.raises(SinkError, match=r"sink 'under-test' could not .*No space left on device") as caught:
        live()
    assert caught.value.__cause__ is error


def test_an_error_of_ours_below_a_sink_is_repeated_and_one_of_the_sink_s_own_kind_has_its_place() -> None:
    times = pa.array([300_000_000_000_000_000], pa.timestamp("us"))
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"t": times}))
    step, operator = operator_of(Rows())
    operator.open()
    with pytest.raises(SinkError, match=r"could not write: CodecError: column 't' of Arrow type timestamp\[us\]"):
        step.push(batch)
    step, operator = operator_of(Plain("write", CodecError("secret")))
    operator.open()
    with pytest.raises(SinkError, match=r"could not write: CodecError in \S+ at \S+\.py:\d+: secret\. Correct it$"):
        step.push(Batch([1]))
    step, operator = operator_of(Names())
    operator.open()
    with pytest.raises(SinkError, match=r"could not write: PlanError: job name 'secret !' is not legal"):
        step.push(Batch(["secret !"]))


@pytest.mark.parametrize(
    ("sink", "wanted"),
    [
        (Unfinished(), r"write\(batch\) and close\(\)"),
        (Transactional(built=None), r"pre_commit\(context\) and close\(\)"),
    ],
)
def test_what_is_no_writer_is_refused_with_the_methods_that_it_needs(sink: Any, wanted: str) -> None:
    _, operator = operator_of(sink)
    named = r"sink 'under-test': \w+\.(build|open) at \S+test_write_sink\.py:\d+ returned NoneType"
    with pytest.raises(SinkError, match=f"{named}: return an object with the methods .*{wanted}"):
        operator.open()
    operator.close()


def test_closing_happens_once_also_when_it_fails() -> None:
    sink = Plain("close")
    _, operator = operator_of(sink)
    operator.close()
    operator.open()
    with pytest.raises(SinkError, match="could not be closed"):
        operator.close()
    operator.close()
    assert sink.closed == 1


def test_an_interrupt_passes() -> None:
    step, operator = operator_of(Plain("write", KeyboardInterrupt()))
    operator.open()
    with pytest.raises(KeyboardInterrupt):
        step.push(Batch([1]))


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_an_error_that_a_restart_would_raise_again_stays_one(where: str) -> None:
    """The job is not restarted for it."""
    for error, is_lasting in ((lasting(SinkError("no")), True), (SinkError("no"), False), (OSError("no"), False)):
        step, operator = operator_of(Plain(where, error))

        def live(step: Stepped = step, operator: WriteSink = operator) -> None:
            operator.open()
            step.push(Batch([1]))
            operator.close()

        with pytest.raises(SinkError) as caught:
            live()
        assert caught.value.lasting is is_lasting


# Parts


class Shelf:
    """Parts by the first letter, in memory. ``failing`` names the calls that fail, of part ``"b"`` only."""

    def __init__(self, failing: str = "", *, position: bool = True) -> None:
        self.failing, self.position = failing.split(), position
        self.rows: dict[str, list[Any]] = {}
        self.opened: list[tuple[str, Any]] = []
        self.closed: list[str] = []

    def fail(self, call: str, part: str) -> None:
        if call in self.failing and part == "b":
            raise ValueError("secret")

    def assign_part(self, message: mp.DataMessage[Any, str]) -> str:
        self.fail("assign", message.value[0])
        return message.value[0]

    def build_part(self, part: str, state: Any) -> Book:
        self.opened.append((part, state))
        self.fail("build", part)
        return Book(self, part)


class Book:
    def __init__(self, shelf: Shelf, part: str) -> None:
        self._shelf, self._part = shelf, part
        self._rows = shelf.rows.setdefault(part, [])

    def write(self, batch: Batch) -> None:
        self._shelf.fail("write", self._part)
        self._rows.append((batch.keys, batch.values, batch.timestamps))

    def snapshot(self) -> int | None:
        self._shelf.fail("snapshot", self._part)
        return len(self._rows) if self._shelf.position else None

    def close(self) -> None:
        self._shelf.closed.append(self._part)
        self._shelf.fail("close", self._part)


def writing(shelf: Any, *, keyed: bool = False) -> tuple[Stepped, WriteParts]:
    step = Stepped(partial(WriteParts, sink=shelf, keyed=keyed), ports=0, keyed=True)
    assert isinstance(step.operator, WriteParts)
    return step, step.operator


def words(*values: str) -> Batch:
    return Batch(list(values), keys=[value[0] for value in values])


def test_each_record_is_keyed_by_its_part_and_keeps_its_own_key_beside_its_value() -> None:
    step = Stepped(partial(KeyByPart, sink=Shelf()), keyed=True)
    step.push(PartOpened("p"), Batch(["ax", "b"], keys=[1, 2], timestamps=[5, 6], part="p"), PartFinished("p"))
    assert step.rows() == [("a", (1, "ax"), 5), ("b", (2, "b"), 6)]
    assert [batch.part for batch in step.batches()] == [None]
    assert len(step.messages()) == 1
    assert Stepped(partial(KeyByPart, sink=Shelf())).push(Batch(["ax"])).rows() == [("a", "ax", None)]


def test_assign_part_that_raises_is_named() -> None:
    with pytest.raises(OperatorError, match=r"'under-test'.*Shelf\.assign_part at .*test_write_sink\.py") as caught:
        Stepped(partial(KeyByPart, sink=Shelf("assign"))).push(Batch(["b"]))
    assert "secret" in str(caught.value)


def test_assign_part_is_told_key_value_and_time() -> None:
    seen: list[Any] = []

    class Curious(Shelf):
        def assign_part(self, message: mp.DataMessage[Any, str]) -> str:
            seen.append(message)
            return "a"

    Stepped(partial(KeyByPart, sink=Curious())).push(Batch(["x"], keys=[1], timestamps=[5]), Batch(["y"]))
    assert seen == [mp.DataMessage(1, "x", 5), mp.DataMessage(None, "y", None)]


def test_rows_are_written_part_by_part_in_order_with_keys_and_times_as_they_were() -> None:
    shelf = Shelf()
    step, _ = writing(shelf, keyed=True)
    step.push(Batch([(1, "a1"), (2, "b1"), (3, "a2")], keys=["a", "b", "a"], timestamps=[5, 6, 7]))
    assert shelf.rows == {"a": [([1, 3], ["a1", "a2"], [5, 7])], "b": [([2], ["b1"], [6])]}
    assert shelf.opened == [("a", None), ("b", None)]
    unkeyed = Shelf()
    writing(unkeyed)[0].push(words("a1"), words("a2"), Epoch(MAX_EPOCH))
    assert unkeyed.rows == {"a": [(None, ["a1"], None), (None, ["a2"], None)]}
    assert unkeyed.opened == [("a", None)]


@pytest.mark.parametrize("position", [True, False], ids=["with a position", "without"])
def test_a_part_moves_with_its_position_is_closed_here_and_opened_there(position: bool) -> None:
    shelf = Shelf(position=position)
    (giver, giving), (taker, _) = writing(shelf), writing(shelf)
    giver.push(words("a1", "b1"), words("a2"))
    asked = Interrogate(lambda part: part != "b")
    giver.push(asked)
    assert asked.keys == {"a"}
    moved = Collect(frozenset(asked.keys))
    giver.push(moved)
    assert shelf.closed == ["a"]
    assert giving.keys == 1
    taker.push(Acquire(moved.states))
    assert shelf.opened[2:] == [("a", 2 if position else None)]
    taker.push(words("a3"))
    assert len(shelf.opened) == 3
    assert [values for _, values, _ in shelf.rows["a"]] == [["a1"], ["a2"], ["a3"]]


def test_collecting_parts_that_are_not_here_opens_and_closes_nothing() -> None:
    shelf = Shelf()
    moved = Collect(frozenset({"z"}))
    writing(shelf)[0].push(words("a1"), moved)
    assert (moved.states, shelf.closed) == ({}, [])


@pytest.mark.parametrize(
    ("failing", "what"),
    [
        ("build", "could not open partition 'b'"),
        ("write", "could not write to partition 'b'"),
        ("snapshot", "could not return its offset in partition 'b'"),
        ("close", "could not close partition 'b'"),
    ],
)
def test_what_goes_wrong_is_an_error_that_names_sink_part_and_text(failing: str, what: str) -> None:
    step, _ = writing(Shelf(failing))
    raised = r"ValueError in fail at \S+py:\d+: secret\. Correct it$"
    with pytest.raises(SinkError, match=f"sink 'under-test' {what}: {raised}") as caught:
        step.push(words("a1", "b1"), Collect(frozenset({"a", "b"})))
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_part_that_cannot_be_opened_when_it_has_come_is_named() -> None:
    moved = Collect(frozenset({"b"}))
    writing(Shelf())[0].push(words("b1"), moved)
    with pytest.raises(SinkError, match="could not open partition 'b'"):
        writing(Shelf("build"))[0].push(Acquire(moved.states))


def test_every_part_is_closed_also_behind_one_that_fails_and_none_twice() -> None:
    shelf = Shelf("close")
    step, operator = writing(shelf)
    step.push(words("a1", "b1", "c1"))
    with pytest.raises(SinkError, match="could not close partition 'b'"):
        operator.close()
    operator.close()
    assert shelf.closed == ["a", "b", "c"]


def test_a_failing_run_closes_all_parts() -> None:
    shelf, job = Shelf("write"), mp.Job("a")
    job.source("in", sources.Memory(["a1", "c1", "b1"])).sink("out", shelf)
    with pytest.raises(SinkError, match="'b'"):
        mp.run(job)
    assert sorted(shelf.closed) == ["a", "b", "c"]


@pytest.mark.parametrize("part", [["a"], 1, None, b"a"], ids=repr)
def test_a_part_without_a_name_is_refused_with_one_worker_too(part: Any) -> None:
    class Nameless(Shelf):
        def assign_part(self, message: mp.DataMessage[Any, str]) -> Any:
            return part

    job = mp.Job("a")
    job.source("in", sources.Memory(["a"])).sink("out", Nameless())
    with pytest.raises(OperatorError, match=r"'out-parts': assign_part returned a partition of type .*assign_part at "):
        mp.run(job)
