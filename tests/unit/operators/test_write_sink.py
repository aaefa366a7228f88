"""`sink`: passes batches to a writer, and turns each failure into an error that names the step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.builder.job import Job
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import CodecError, SinkError, lasting
from malstrom_py.operators.write_sink import WriteSink
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
    assert operator.writer is sink


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


def test_the_text_of_a_users_error_is_shown() -> None:
    step, operator = operator_of(Plain("write", ValueError("secret")))
    operator.open()
    with pytest.raises(SinkError, match="'under-test' could not write: ValueError") as caught:
        step.push(Batch([1]))
    assert "secret" in str(caught.value)


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
