"""`source`: opens parts, polls them in turn, backs off, finds quiet parts, ends, and closes what it opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch, PartFinished, PartOpened, PartQuiet
from malstrom_py.errors import InternalError, MalformedRecord, MalstromError, OperatorError, PlanError, SourceError
from malstrom_py.errors.text import redacting
from malstrom_py.operators.read_source import ReadSource, batch_of
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from tests.unit.operators.scripted import Scripted
from tests.unit.operators.stepping import Stepped


class Reading:
    """A source step that is opened and polled by hand."""

    def __init__(self, source: Any, on_error: Any = "fail", linger_s: float = 1.0) -> None:
        self.step = Stepped(partial(ReadSource, source=source), on_error=on_error)
        operator = self.step.operator
        assert isinstance(operator, ReadSource)
        self.operator = operator
        self.clock = VirtualClock()
        self._poll = partial(operator.poll, rows_max=10, linger_s=linger_s, clock=self.clock)

    def open(self) -> Reading:
        parts = self.operator.list_parts([0])[0]
        self.step.call(partial(self.operator.open, parts=parts))
        return self

    def poll(self, times: int = 1) -> list[int]:
        return [self.step.call(self._poll) for _ in range(times)]

    @property
    def due_in_s(self) -> float:
        """In how many seconds the first part is due: 0 where there is none to wait for."""
        due_s = self.operator.next_poll_s()
        return 0.0 if due_s is None else due_s - self.clock.monotonic_s()

    def read_all(self) -> Reading:
        while not self.operator.finished:
            self.poll()
            self.clock.advance(max(0.0, self.due_in_s))
        return self


def test_all_parts_are_announced_before_any_record_and_finished_one_by_one() -> None:
    step = Reading(Scripted({"a": [[1]], "b": [[2]]})).open().read_all().step
    seen = [message.values if isinstance(message, Batch) else message for message in step.messages()]
    assert seen == [
        PartOpened("under-test/a"),
        PartOpened("under-test/b"),
        [1],
        PartFinished("under-test/a"),
        [2],
        PartFinished("under-test/b"),
        Epoch(MAX_EPOCH),
    ]


def test_parts_are_polled_in_turn() -> None:
    step = Reading(Scripted({"a": [[1], [2], [3]], "b": [[10], [20]]})).open().read_all().step
    assert step.values() == [1, 10, 2, 20, 3]


def test_t5_the_end_is_the_maximum_epoch_once_all_parts_are_finished() -> None:
    reading = Reading(Scripted({"a": [[1]], "b": [[2]]})).open()
    reading.poll()
    assert reading.step.epochs() == []
    reading.poll()
    assert (reading.step.epochs(), reading.operator.finished) == ([MAX_EPOCH], True)


def test_t5_a_source_without_parts_ends_at_once() -> None:
    reading = Reading(Scripted({})).open()
    assert (reading.step.messages(), reading.operator.finished) == ([Epoch(MAX_EPOCH)], True)


def test_an_empty_list_is_nothing_now_and_sends_no_batch() -> None:
    step = Reading(Scripted({"a": [[], None, [1]]})).open().read_all().step
    assert [batch.values for batch in step.batches()] == [[1]]
    assert step.counters.rows_in == 1


def test_rows_may_come_as_any_sequence_or_as_arrow_columns() -> None:
    columns = pa.RecordBatch.from_pydict({"n": [1, None]})
    step = Reading(Scripted({"a": [(1, 2), range(2), columns]})).open().read_all().step
    assert step.values() == [1, 2, 0, 1, {"n": 1}, {"n": None}]


def test_at_most_256_parts_are_open_at_once_and_all_are_read() -> None:
    source = Scripted({f"p{n}": [[n]] for n in range(600)})
    reading = Reading(source).open().read_all()
    assert source.open_at_once_max == 256
    assert reading.step.values() == list(range(600))
    assert set(source.closed.values()) == {1}


def test_a_source_may_say_how_many_parts_are_open_at_once() -> None:
    class Large(Scripted):
        parts_open_max = 3

    source = Large({f"p{n}": [[n]] for n in range(10)})
    assert Reading(source).open().read_all().step.values() == list(range(10))
    assert source.open_at_once_max == 3


def test_parts_of_one_name_are_refused() -> None:
    class Twice(Scripted):
        def list_parts(self) -> list[Part]:
            return [Part("same"), Part("other"), Part("same")]

    with pytest.raises(SourceError, match=r"source 'under-test'.*'same' twice"):
        Reading(Twice({"same": [], "other": []})).open()


def test_a_finished_part_is_closed_at_once_and_only_once() -> None:
    source = Scripted({"a": [[1]], "b": [[1], [2]]})
    reading = Reading(source).open()
    reading.poll()
    assert source.closed == {"a": 1, "b": 0}
    reading.operator.close()
    assert source.closed == {"a": 1, "b": 1}


MALFORMED = {"a": [[1], MalformedRecord("line 2 is not a number", record="x"), [3]]}


def test_a_malformed_record_fails_and_names_step_and_part() -> None:
    reading = Reading(Scripted(MALFORMED)).open()
    with pytest.raises(SourceError, match=r"'under-test', partition 'a': line 2 is not a number.*on_error=") as caught:
        reading.read_all()
    assert type(caught.value) is SourceError
    assert isinstance(caught.value.__cause__, MalformedRecord)


def test_a_malformed_record_becomes_a_dead_letter() -> None:
    step = Reading(Scripted(MALFORMED), on_error="dead-letter").open().read_all().step
    assert step.values() == [1, 3]
    letter = step.dead_letters[0]
    assert (letter.step, letter.key, letter.value, letter.timestamp) == ("under-test", None, "x", None)
    assert letter.error == "line 2 is not a number"
    assert step.batches(port=1)[0].part == "under-test/a"


ANY_ERROR = pytest.mark.parametrize(
    "error",
    [
        OSError("disk"),
        SourceError("gone"),
        MalformedRecord("odd", record=1),
        StopIteration(),
        RuntimeError("generator"),
    ],
    ids=lambda error: type(error).__name__,
)


FAILING: dict[str, Callable[[Exception], Scripted]] = {
    "listing": lambda error: Scripted({}, list_error=error),
    "opening": lambda error: Scripted({"a": [[1]], "b": error}),
    "polling": lambda error: Scripted({"a": [[1], error, [3]]}),
}


@ANY_ERROR
@pytest.mark.parametrize("where", FAILING)
def test_an_error_names_the_source_and_leaves_what_is_open_to_be_closed(where: str, error: Exception) -> None:
    source = FAILING[where](error)
    reading = Reading(source)
    with pytest.raises(SourceError, match="source 'under-test'") as caught:
        reading.open().read_all()
    assert caught.value.__cause__ is error
    reading.operator.close()
    assert source.closed == ({} if where == "listing" else {"a": 1})


def test_an_error_while_a_finished_part_is_closed_names_the_source() -> None:
    source = Scripted({"a": [[1]]}, close_error=OSError("disk"))
    reading = Reading(source).open()
    with pytest.raises(SourceError, match=r"source 'under-test'.*partition 'a'") as caught:
        reading.read_all()
    assert isinstance(caught.value.__cause__, OSError)
    assert source.closed == {"a": 1}


def test_closing_closes_every_part_also_when_one_of_them_fails() -> None:
    source = Scripted({"a": [[1]], "b": [[1]], "c": [[1]]}, close_error=OSError("disk"))
    reading = Reading(source).open()
    with pytest.raises(SourceError, match="source 'under-test'"):
        reading.operator.close()
    reading.operator.close()
    assert source.closed == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("error", [PlanError("no such option"), InternalError("our bug")])
def test_errors_that_are_not_of_reading_pass_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        Reading(Scripted({}, list_error=error)).open()
    assert caught.value is error
    assert error.__cause__ is None
    polled = type(error)("again")
    with pytest.raises(type(error)) as caught:
        Reading(Scripted({"a": [polled]})).open().poll()
    assert caught.value is polled
    assert polled.__cause__ is None


@pytest.mark.parametrize("where", ["list", "open", "poll"])
def test_an_interrupt_passes(where: str) -> None:
    class Interrupted(Scripted):
        def list_parts(self) -> Any:
            if where == "list":
                raise KeyboardInterrupt
            return super().list_parts()

        def build_part(self, part: Part, state: Any) -> Any:
            if where == "open":
                raise KeyboardInterrupt
            return super().build_part(part, state)

    reading = Reading(Interrupted({"a": [KeyboardInterrupt()]}), on_error="skip")
    with pytest.raises(KeyboardInterrupt):
        reading.open().poll()


def test_is_finished_that_raises_behind_a_malformed_record_names_the_source() -> None:
    class Torn(Scripted):
        def build_part(self, part: Part, state: Any) -> Any:
            built = super().build_part(part, state)

            def is_finished() -> bool:
                raise OSError("torn")

            built.is_finished = is_finished  # type: ignore[method-assign]
            return built

    with pytest.raises(SourceError, match="source 'under-test'"):
        Reading(Torn({"a": [MalformedRecord("odd", record=1)]}), on_error="skip").open().poll()


def test_the_text_of_a_users_error_is_shown_unless_it_is_hidden() -> None:
    place = r"failed in partition 'a': ValueError in \S*poll at \S+\.py:\d+"
    with pytest.raises(SourceError, match=rf"{place}: secret\. Correct it$"):
        Reading(Scripted({"a": [ValueError("secret")]})).open().poll()
    with (
        redacting(True),
        pytest.raises(SourceError, match=rf"{place}\. Correct it$"),
    ):
        Reading(Scripted({"a": [ValueError("secret")]})).open().poll()
    with (
        redacting(True),
        pytest.raises(
            SourceError,
            match=r"failed in partition 'a': OSError in \S*poll at \S+\.py:\d+: \[Errno 5\] Input/output error$",
        ),
    ):
        Reading(Scripted({"a": [OSError(5, "secret")]})).open().poll()


def test_what_is_no_part_or_no_list_of_records_is_refused_with_what_to_return() -> None:
    class Partless(Scripted):
        def build_part(self, part: Part, state: Any) -> Any:
            return [1, 2]

    with pytest.raises(
        SourceError, match=r"Partless\.build_part at \S+ returned list: .* poll\(rows_max\), is_finished"
    ):
        Reading(Partless({"a": []})).open()

    class Single(Scripted):
        def build_part(self, part: Part, state: Any) -> Any:
            built = super().build_part(part, state)
            built.poll = lambda rows_max: {"one": "record"}  # type: ignore[method-assign]
            return built

    with pytest.raises(SourceError, match=r"<lambda> at \S+ returned dict: return a list of records, or None"):
        Reading(Single({"a": []})).open().poll()


class Sized:
    """Gives as many rows as requested, each of ``row_bytes``, and lets ``row_s`` pass for each."""

    def __init__(self, clock: VirtualClock, row_s: float = 0.0, row_bytes: int = 10) -> None:
        self.clock, self.row_s, self.row = clock, row_s, "x" * row_bytes
        self.asked: list[int] = []

    def list_parts(self) -> list[Part]:
        return [Part("a")]

    def build_part(self, part: Part, state: Any) -> Any:
        return self

    def poll(self, rows_max: int) -> list[str]:
        self.asked.append(rows_max)
        self.clock.advance(self.row_s * rows_max)
        return [self.row] * rows_max

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("row_s", "row_bytes", "asked"),
    [
        (0.0, 10, [4, 8, 16, 32, 64, 100, 100]),
        (0.02, 10, [4, 8, 2, 4, 8, 2, 4]),  # a poll of 8 takes longer than a tenth of a second
        (1.0, 10, [4, 1, 1, 1, 1, 1, 1]),
        (0.0, 1 << 17, [4, 7, 7, 7, 7, 7, 7]),  # about a mebibyte per poll
        (0.0, 1 << 22, [4, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_a_part_is_asked_for_as_much_as_it_gives_soon_and_small(row_s: float, row_bytes: int, asked: list[int]) -> None:
    clock = VirtualClock()
    source = Sized(clock, row_s, row_bytes)
    step = Stepped(partial(ReadSource, source=source))
    operator = step.operator
    assert isinstance(operator, ReadSource)
    step.call(partial(operator.open, parts=[Part("a")]))
    for _ in range(7):
        step.call(partial(operator.poll, rows_max=100, linger_s=1.0, clock=clock))
        operator.made(source.asked[-1], 0, took_s=0.0, limit_s=1.0, load=0.0)
    assert source.asked == asked


# Columns


class Wide:
    """A part of columns, 1 KiB to the row, that keeps how many rows it was asked for."""

    parts_open_max = 1

    def __init__(self) -> None:
        self.asked: list[int] = []

    def list_parts(self) -> list[Part]:
        return [Part("all")]

    def build_part(self, part: Part, state: Any) -> Wide:
        return self

    def poll(self, rows_max: int) -> pa.RecordBatch:
        self.asked.append(rows_max)
        return pa.RecordBatch.from_pydict({"text": ["x" * 1024] * rows_max})

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


def test_a_batch_that_a_part_gives_is_not_written_to() -> None:
    mine = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]}), part="mine")
    sent = batch_of(mine, "in/all", None)
    assert isinstance(sent, ColumnBatch)
    assert (sent.part, sent.named, sent.columns) == ("in/all", True, mine.columns)
    assert (mine.part, mine.named) == ("mine", False)


@pytest.mark.parametrize("rows_max", [1, 1024])
def test_columns_are_bounded_by_bytes_however_many_rows_may_come(rows_max: int) -> None:
    source = Wide()
    step = Stepped(partial(ReadSource, source=source))
    operator = step.operator
    assert isinstance(operator, ReadSource)
    step.call(partial(operator.open, parts=source.list_parts()))
    poll = partial(operator.poll, linger_s=1.0, clock=VirtualClock(), bytes_max=1 << 16, columns_rows_max=131_072)
    for _ in range(20):
        step.call(partial(poll, rows_max=rows_max))
        operator.made(source.asked[-1], 0, took_s=0.0, limit_s=1.0, load=0.0)
    assert 512 <= max(source.asked) <= 16 * (1 << 16) // 1024


# Quiet parts


LINGER_S = 1.0


class Quiet:
    """A source step whose parts are polled by hand."""

    def __init__(self, scripts: dict[str, Any], on_error: Any = "fail") -> None:
        self.source = Scripted(scripts)
        self.step = Stepped(partial(ReadSource, source=self.source), on_error=on_error)
        operator = self.step.operator
        assert isinstance(operator, ReadSource)
        self.operator = operator
        self.clock = VirtualClock()
        self.step.call(partial(operator.open, parts=operator.list_parts([0])[0]))

    def poll(self, *, after_s: float = 0.0, times: int = 1) -> Quiet:
        self.clock.advance(after_s)
        for _ in range(times):
            self.step.call(partial(self.operator.poll, rows_max=10, linger_s=LINGER_S, clock=self.clock))
        return self

    @property
    def quiet(self) -> list[tuple[str, float]]:
        return [
            (message.part.removeprefix("under-test/"), message.quiet_s)
            for message in self.step.messages()
            if isinstance(message, PartQuiet)
        ]


def test_t2_a_part_is_quiet_since_the_first_time_it_had_nothing() -> None:
    reading = Quiet({"a": [[1], None, None, [], [2], None, None, [3]]})
    reading.poll().poll(after_s=5.0)
    assert reading.quiet == []
    reading.poll(after_s=2.0).poll(after_s=3.0)
    assert reading.quiet == [("a", 2.0), ("a", 5.0)]
    reading.poll(after_s=10.0)  # it has something
    reading.poll(after_s=10.0).poll(after_s=4.0)
    assert reading.quiet[2:] == [("a", 4.0)]


def test_t2_a_part_that_never_had_anything_is_quiet_too() -> None:
    assert Quiet({"a": [None] * 9}).poll().poll(after_s=7.0).quiet == [("a", 7.0)]


def test_t2_a_part_that_is_not_asked_is_not_quiet() -> None:
    reading = Quiet({"a": [[1], [2], [3], None, None]}).poll().poll(after_s=1_000.0).poll(after_s=1_000.0)
    assert reading.quiet == []
    # Nor is the time before it was first found empty counted.
    assert reading.poll(after_s=1_000.0).quiet == []


def test_t2_parts_that_wait_to_be_opened_are_not_quiet() -> None:
    reading = Quiet({f"p{number}": [None] * 99 for number in range(300)})
    for _ in range(3):
        reading.poll(after_s=LINGER_S * 8, times=256)
    assert {part for part, _ in reading.quiet} == {f"p{number}" for number in range(256)}


def test_t2_a_part_that_is_finished_is_not_quiet() -> None:
    reading = Quiet({"a": [[1], None, None], "b": [None] * 9}).poll(times=2).poll(after_s=2.0, times=2)
    assert reading.quiet == [("b", 2.0)]
    # At this poll "a" has nothing for the second time, and finishes.
    reading.poll(after_s=5.0, times=2)
    assert reading.quiet == [("b", 2.0), ("b", 7.0)]
    assert reading.source.closed["a"] == 1


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_t2_a_part_with_records_that_cannot_be_read_is_not_quiet(on_error: Any) -> None:
    bad = MalformedRecord("no json", record="{")
    reading = Quiet({"a": [None, bad, None, None]}, on_error=on_error)
    reading.poll().poll(after_s=5.0).poll(after_s=5.0)
    assert reading.quiet == []


def test_t2_a_part_that_was_taken_over_starts_anew() -> None:
    giver, taker = (Quiet({"a": [None] * 9}) for _ in range(2))
    giver.poll().poll(after_s=50.0)
    released = giver.step.call(partial(giver.operator.release, part=giver.operator.list_parts([0])[0][0]))
    taker.step.call(partial(taker.operator.release, part=taker.operator.list_parts([0])[0][0]))
    taker.step.call(partial(taker.operator.take, part=Part("a"), position=released[0], state={}))
    taker.clock.advance(100.0)
    assert taker.poll().poll(after_s=3.0).quiet == []  # it is not asked yet
    taker.operator.poll_gained()
    assert taker.poll().poll(after_s=3.0).quiet == [("a", 3.0)]


# Positions in errors


FRAME = pl.DataFrame({"n": [4, 2, 0]})


def csv(folder: Path) -> Any:
    FRAME.write_csv(folder / "n.csv")
    return sources.Files(folder / "n.csv")


def json_lines(folder: Path) -> Any:
    FRAME.write_ndjson(folder / "n.jsonl")
    return sources.Files(folder / "n.jsonl")


def parquet(folder: Path) -> Any:
    FRAME.write_parquet(folder / "n.parquet")
    return sources.Files(folder / "n.parquet")


def followed(folder: Path) -> Any:
    FRAME.write_csv(folder / "n.csv")
    return sources.Files(str(folder / "*.csv"), follow=True)


def memory(folder: Path) -> Any:
    return sources.Memory(FRAME.to_dicts())


def generated(folder: Path) -> Any:
    def rows(part: int, start: int) -> Iterator[dict[str, int]]:
        return iter(FRAME.to_dicts()[start:])

    return sources.Generator(rows)


def text_of(error: MalstromError) -> str:
    return "\n".join((str(error), *getattr(error, "__notes__", ())))


@pytest.mark.parametrize(
    ("source", "upto"),
    [
        (memory, "position 3"),
        (generated, "position 3"),
        (csv, "row 3"),
        (json_lines, "row 3"),
        (parquet, "row 3"),
        (followed, "row 3 of 'n.csv'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_error_says_how_far_a_source_was_read(source: Callable[[Path], Any], upto: str, tmp_path: Path) -> None:
    job = mp.Job("job")
    job.source("in", source(tmp_path)).map("ratio", lambda row: 1 / row["n"]).sink("out", sinks.Memory())
    with pytest.raises(OperatorError) as caught:
        mp.run(job)
    text = text_of(caught.value)
    assert re.search(rf"a batch of partition '.+' of source 'in', which ended at {re.escape(upto)}(\n|$)", text), text
    assert not re.search(r"\bb['\"]|\{'|schema", text), text
