"""What messages say of other code's exceptions: the text, the line, and what is nearest to an unknown name."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from traceback import extract_tb
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from malstrom_py import capture, events, logs, sinks, sources
from malstrom_py.errors import MalstromError, OperatorError, SinkError, SourceError
from malstrom_py.errors.text import describe_error, redacting, redacts
from malstrom_py.workers.reports.error_transfer import pack_error, unpack_error

SECRET = "card 4711"


def raises(value: Any) -> Any:
    raise ValueError(f"cannot use {SECRET}")


def calls_what_raises(value: Any) -> Any:
    return raises(value)


class Mine(Exception):
    """Cannot be pickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def raises_own(value: Any) -> Any:
    raise Mine(SECRET, "two")


class Source(sources.StatelessSource[Any]):
    def build(self, worker: Any) -> Any:
        raise SourceError(f"no {SECRET}")


def job_of(step: Callable[[Any], Any], sink: Any = None) -> mp.Job:
    job = mp.Job("texts")
    step(job.source("in", sources.Memory([{"delay": 4}]))).sink("out", sink or sinks.Memory())
    return job


def failure_of(step: Callable[[Any], Any], sink: Any = None, **options: Any) -> MalstromError:
    with pytest.raises(MalstromError) as caught:
        mp.run(job_of(step, sink), 2, progress=False, **options)
    return caught.value


def everything(error: BaseException) -> str:
    """Return all that a reader of ``error`` may see: it and its causes, contexts and notes."""
    seen: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and one not in seen:
            seen.append(one)
            todo += [one.__cause__, one.__context__]
    return "\n".join(f"{one!r} {one} {getattr(one, '__notes__', '')}" for one in seen)


def keeps(stream: Any) -> Any:
    return stream


FAILING: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "map": (lambda s: s.map("step", raises), None),
    "filter": (lambda s: s.filter("step", raises), None),
    "flat_map": (lambda s: s.flat_map("step", raises), None),
    "key_by": (lambda s: s.key_by("step", raises), None),
    "fold": (
        lambda s: s.key_by("k", lambda _: 1).fold("step", lambda acc, value: raises(value), default=int),
        None,
    ),
    "stateful_op": (
        lambda s: s.key_by("k", lambda _: 1).stateful_op("step", lambda message, state, out: raises(message)),
        None,
    ),
    "inspect": (lambda s: s.inspect("step", raises), None),
    "assign_timestamps": (lambda s: s.assign_timestamps("step", raises), None),
    "partitioner": (lambda s: s.key_by("step", lambda _: 1, partitioner=raises).count("n"), None),
    "initial_state": (
        lambda s: s.key_by("k", lambda _: 1).fold(
            "step", lambda acc, value: acc, default=int, initial_state=lambda: raises(1)
        ),
        None,
    ),
    "expression": (
        lambda s: s.with_columns("step", x=pl.col("delay").map_elements(raises, return_dtype=pl.Int64)),
        None,
    ),
    "sink": (keeps, sinks.Callable(raises)),
    "class that cannot be pickled": (lambda s: s.map("step", raises_own), None),
}


@pytest.mark.parametrize("name", FAILING)
def test_the_text_of_a_users_exception_and_its_line_are_in_the_message(name: str) -> None:
    step, sink = FAILING[name]
    error = failure_of(step, sink)
    assert SECRET in str(error)
    assert "test_text.py:" in str(error)


@pytest.mark.parametrize("name", FAILING)
def test_redact_errors_hides_the_text_everywhere_and_leaves_type_and_place(
    name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    step, sink = FAILING[name]
    seen: list[Any] = []
    with caplog.at_level(logging.DEBUG):
        error = failure_of(step, sink, redact_errors=True, on_event=seen.append)
    assert SECRET not in everything(error) + caplog.text + repr(seen)
    assert "test_text.py:" in str(error)
    assert "Error" in str(error) or "Mine" in str(error)
    assert any(isinstance(event, events.Error | events.NodeFailed) for event in seen)
    assert not redacts()


def test_the_environment_hides_texts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALSTROM_REDACT_ERRORS", "1")
    hidden = failure_of(lambda s: s.map("step", raises))
    assert SECRET not in everything(hidden)
    inside = {Path(frame.filename).name for frame in extract_tb(hidden.__traceback__)}
    assert inside <= {"test_text.py", "in_process.py"}
    monkeypatch.setenv("MALSTROM_REDACT_ERRORS", "0")
    assert SECRET in str(failure_of(lambda s: s.map("step", raises)))


@pytest.mark.parametrize("runtime", [mp.InProcess, mp.Simulation])
@pytest.mark.parametrize("redact", [True, False])
def test_a_job_of_a_handle_hides_texts_or_shows_them(runtime: Any, redact: bool) -> None:
    options = {"control": False} if runtime is mp.InProcess else {}
    handle = runtime(redact_errors=redact).start(job_of(lambda s: s.map("step", raises)), **options)
    with pytest.raises(OperatorError) as caught:
        handle.wait(timeout_s=60)
    assert (SECRET in everything(caught.value)) is not redact
    assert (SECRET in str(handle.status().error)) is not redact


def test_a_text_of_this_package_is_shown_also_while_texts_are_redacted() -> None:
    error = failure_of(lambda s: s.key_by("k", lambda _: 1).stateful_map("step", lambda *_: 1), redact_errors=True)
    assert "must return" in str(error)


def test_an_error_of_this_package_that_a_users_code_raises_is_foreign() -> None:
    job = mp.Job("texts")
    job.source("in", Source()).sink("out", sinks.Memory())
    with pytest.raises(SourceError, match=SECRET):
        mp.run(job)
    with pytest.raises(SourceError) as caught:
        mp.run(job, redact_errors=True)
    assert SECRET not in everything(caught.value)
    assert "SourceError in build at" in str(caught.value)


def test_dead_letters_hide_the_text_too() -> None:
    job, letters = mp.Job("texts"), sinks.Memory()
    job.source("in", sources.Memory([1])).map("step", raises, on_error="dead-letter").sink("out", sinks.Memory())
    job.dead_letters("step").sink("letters", letters)
    mp.run(job)
    assert [letter.error for letter in letters.items] == [f"ValueError: cannot use {SECRET}"]
    mp.run(job, redact_errors=True)
    assert [letter.error for letter in letters.items] == ["ValueError"]


def test_a_log_has_the_text_unless_it_is_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    try:
        for redact in (False, True):
            with redacting(redact):
                try:
                    raises(1)
                except ValueError:
                    logging.getLogger("malstrom_py").exception("failed")
    finally:
        logs.reset()
    shown, hidden = capsys.readouterr().err.splitlines()
    assert SECRET in shown
    assert SECRET not in hidden
    assert all("ValueError" in line and "test_text.py:" in line for line in (shown, hidden))


@pytest.mark.parametrize("redact", [True, False])
def test_the_text_goes_with_an_error_to_another_process_or_stays(redact: bool) -> None:
    for function in (raises, raises_own):
        try:
            function(1)
        except Exception as cause:
            error = OperatorError("step 'step' failed")
            error.__cause__ = cause
            with redacting(redact):
                arrived = unpack_error(pack_error(error))
            assert isinstance(arrived, OperatorError)
            assert (SECRET in everything(arrived)) is not redact
            with redacting(redact):
                alone = unpack_error(pack_error(cause))
            assert (SECRET in everything(alone)) is not redact


def test_the_line_that_raised_is_named_and_the_function() -> None:
    assert ", raised in raises at " in str(failure_of(lambda s: s.map("step", calls_what_raises)))
    own = str(failure_of(lambda s: s.map("step", raises)))
    assert f"in raises at {__file__}:{raises.__code__.co_firstlineno + 1}: " in own


def test_a_text_that_raises_or_is_long_does_no_harm() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe_error(Silent()) == "Silent"
    assert len(describe_error(ValueError("x" * 10_000))) < 2100


def test_a_missing_field_of_a_row_names_the_nearest_that_it_has() -> None:
    row = {"arr_delay": 1, "dep_delay": 2, **{f"c{number}": 0 for number in range(40)}}
    job = mp.Job("texts")
    stream = job.source("in", sources.Memory([row])).map("step", lambda row: row["dep_dealy"])
    with pytest.raises(OperatorError, match=r"KeyError .*: 'dep_dealy' \(the row has 'dep_delay'\)"):
        mp.collect(stream)
    with pytest.raises(OperatorError, match=r"'other' \(if it was looked up in the row: that has 'delay'\)"):
        mp.run(job_of(lambda s: s.map("step", lambda row: row["other"])))


def test_a_key_error_of_another_dict_does_not_blame_the_row() -> None:
    rates = {"USD": 0.9}
    row: dict[str, Any] = {"ccy": "CHF", "amount": 1}
    stream = mp.Job("texts").source("in", sources.Memory([row]))
    with pytest.raises(OperatorError, match=r"'CHF' \(if it was looked up in the row: that has 'ccy', 'amount'\)"):
        mp.collect(stream.map("eur", lambda row: row["amount"] * rates[row["ccy"]]))


def test_a_key_error_of_another_dict_says_nothing_of_a_row_that_has_the_key() -> None:
    error = failure_of(lambda s: s.map("step", lambda row: dict[str, int]()["delay"]))
    assert "the row has" not in str(error)


BY_NAME: dict[str, Callable[[Any], Any]] = {
    "key_by": lambda s: s.key_by("step", "dealy"),
    "sum": lambda s: s.key_by("k", lambda _: 1).sum("step", by="dealy"),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_an_unknown_column_names_the_nearest(name: str, tmp_path: Path) -> None:
    assert "has no column 'dealy', did you mean 'delay'?" in str(failure_of(BY_NAME[name]))
    pl.DataFrame({"delay": [1], "carrier": ["AA"]}).write_parquet(tmp_path / "a.parquet")
    job = mp.Job("texts")
    BY_NAME[name](job.source("in", sources.Files(tmp_path / "*.parquet"))).sink("out", sinks.Memory())
    with pytest.raises(OperatorError, match="has no column 'dealy', did you mean 'delay'"):
        mp.run(job)


def test_a_file_sink_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SinkError, match="out"):
        mp.run(job_of(keeps, sinks.Files(tmp_path / "out", format="json")))


def test_a_mark_of_this_package_is_kept_when_an_error_is_pickled() -> None:
    from malstrom_py.errors import mark_safe

    with redacting(True):
        assert describe_error(pickle.loads(pickle.dumps(mark_safe(TypeError("must return a pair"))))) == (
            "TypeError: must return a pair"
        )


def test_a_file_object_that_fails_is_described_without_its_text() -> None:
    class Failing(BytesIO):
        def write(self, data: Any) -> int:
            raise ValueError(SECRET)

    job = mp.Job("texts")
    job.source("in", sources.Memory([1])).capture_into("step", capture.Writer(Failing()))
    with pytest.raises(MalstromError, match=rf"cannot be written \(ValueError: {SECRET}\)"):
        mp.run(job, progress=False)
    with pytest.raises(MalstromError, match=r"cannot be written \(ValueError\)") as caught:
        mp.run(job, progress=False, redact_errors=True)
    assert SECRET not in everything(caught.value)
