"""Errors that cross from one process to another: what they were, where that can be carried, and in words where not."""

from __future__ import annotations

import sys
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.errors.text import redacting
from malstrom_py.events import NodeFailed
from malstrom_py.workers.reports.error_transfer import pack_error, trace_of, unpack_error, without_internals


class UsersError(Exception):
    """An error with an argument that pickle would lose."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def test_an_error_comes_with_its_attributes_its_notes_and_its_cause() -> None:
    error = raised(OperatorError("step 'a' failed", step="a", key=("k", 1), function="f at x.py:3"), KeyError("name"))
    error.add_note("so far 3 rows")
    there = unpack_error(pack_error(error))
    assert isinstance(there, OperatorError)
    assert (str(there), there.step, there.key, there.function) == ("step 'a' failed", "a", ("k", 1), "f at x.py:3")
    assert there.__notes__ == ["so far 3 rows"]
    assert repr(there.__cause__) == repr(KeyError("name"))


def refuse(code: int) -> None:
    raise UsersError(code, why="secret")


def test_a_cause_that_cannot_be_carried_is_told_with_the_users_line_and_later_causes_come() -> None:
    try:
        try:
            try:
                raise KeyError("name")
            except KeyError as deepest:
                refuse(3)
                raise AssertionError from deepest
        except UsersError as users:
            users.__cause__ = users.__context__
            raise OperatorError("step 'a' failed", step="a") from users
    except OperatorError as error:
        there = unpack_error(pack_error(error))
    assert (type(there), str(there), repr(there.__cause__)) == (
        OperatorError,
        "step 'a' failed",
        repr(KeyError("name")),
    )
    line = refuse.__code__.co_firstlineno + 1
    place = (
        f"caused by UsersError: 3: secret, raised at {__file__}:{line}, in refuse, which could not be brought from its "
        f"process"
    )
    assert there.__notes__ == [place]
    again = unpack_error(pack_error(there))
    assert (again.__notes__, repr(again.__cause__)) == ([place], repr(KeyError("name")))


def test_each_of_several_causes_that_cannot_be_carried_is_told() -> None:
    error = raised(OperatorError("step 'a' failed"), raised(UsersError(1, why="no"), UsersError(2, why="no")))
    there = unpack_error(pack_error(error))
    assert there.__cause__ is None
    assert [note.partition(",")[0] for note in there.__notes__] == [
        "caused by UsersError: 1: no",
        "caused by UsersError: 2: no",
    ]


@pytest.mark.parametrize("error", [SystemExit("secret"), KeyboardInterrupt()])
def test_what_ends_a_process_comes_as_an_error_that_tells_where(error: BaseException) -> None:
    def leave() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        leave()
    there = unpack_error(pack_error(caught.value))
    assert isinstance(there, OperatorError)
    assert f"a function of the job ended its process: {type(error).__name__}" in str(there)
    assert f"raised at {__file__}:" in str(there)
    assert "in leave. Raise an exception" in str(there)
    assert repr(there.__cause__) == repr(error)


def test_a_key_that_cannot_be_pickled_does_not_keep_the_error_from_coming() -> None:
    there = unpack_error(pack_error(OperatorError("step 'a' failed", step="a", key=threading.Lock())))
    assert isinstance(there, InternalError)
    assert "step 'a' failed" in str(there)


def test_a_foreign_error_comes_as_it_was_or_by_its_type() -> None:
    assert repr(unpack_error(pack_error(ZeroDivisionError("by 0")))) == repr(ZeroDivisionError("by 0"))
    there = unpack_error(pack_error(UsersError(3, why="secret")))
    assert isinstance(there, InternalError)
    assert ("UsersError" in str(there), "secret" in str(there)) == (True, True)


def test_an_error_of_a_class_that_is_not_here_is_told_in_words() -> None:
    module = types.ModuleType("only_there")
    exec("class Theirs(Exception): pass", module.__dict__)
    sys.modules["only_there"] = module
    try:
        packed = pack_error(module.Theirs("x"))
    finally:
        del sys.modules["only_there"]
    there = unpack_error(packed)
    assert isinstance(there, InternalError)
    assert "Theirs" in str(there)


def test_a_chain_of_causes_has_an_end() -> None:
    error = raised(ValueError("a"))
    error.__cause__ = error
    assert repr(unpack_error(pack_error(error))) == repr(ValueError("a"))


# Tracebacks.


PACKAGE = Path(mp.__file__).parent
ROOMS = (PACKAGE, (PACKAGE / "workers").resolve(), (PACKAGE / "rescale").resolve())


def inner(number: int) -> int:
    return 1 // number


def outer(number: int) -> int:
    return inner(number)


def files_of(error: BaseException | None) -> list[Path]:
    assert error is not None
    return [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]


def ours(file: Path) -> bool:
    return any(file.is_relative_to(room) for room in ROOMS)


def failed_job() -> OperatorError:
    job = mp.Job("failing")
    job.source("in", sources.Memory([1, 0])).map("inverse", outer).sink("out", sinks.Memory())
    with pytest.raises(OperatorError) as caught:
        mp.run(job)
    return caught.value


def test_the_cause_is_shown_from_the_users_first_frame_on() -> None:
    cause = failed_job().__cause__
    assert isinstance(cause, ZeroDivisionError)
    frames = traceback.extract_tb(cause.__traceback__)
    assert [frame.name for frame in frames] == ["outer", "inner"]


def test_the_error_itself_shows_no_executor() -> None:
    names = {file.name for file in files_of(failed_job()) if ours(file)}
    assert names <= {"in_process.py"}


def test_whichever_public_function_was_called_is_the_only_frame_of_this_package() -> None:
    job = mp.Job("failing")
    stream = job.source("in", sources.Memory([0])).map("inverse", outer)
    stream.sink("out", sinks.Memory())
    calls: list[Callable[[], object]] = [
        lambda: mp.run(job),
        lambda: mp.InProcess().run(job),
        lambda: mp.collect(stream),
        lambda: mp.run(mp.Job("empty")),
        lambda: mp.run(job, workers=0),
    ]
    for call in calls:
        with pytest.raises(mp.MalstromError) as caught:
            call()
        assert len([file for file in files_of(caught.value) if ours(file)]) == 1


def test_a_cause_within_this_package_is_shown_without_frames() -> None:
    job = mp.Job("adding")
    job.source("in", sources.Memory(["x"])).key_by("key", str).sum("sum").sink("out", sinks.Memory())
    with pytest.raises(OperatorError) as caught:
        mp.run(job)
    assert isinstance(caught.value.__cause__, TypeError)
    assert files_of(caught.value.__cause__) == []


def test_a_file_next_to_the_package_whose_name_begins_alike_is_the_users() -> None:
    neighbours = [f"{PACKAGE}_jobs/job.py", f"{ROOMS[1]}_job.py"]
    for file in neighbours:
        code = compile("def fails():\n    raise ValueError('theirs')\n", file, "exec")
        names: dict[str, Any] = {}
        exec(code, names)
        with pytest.raises(ValueError, match="theirs") as caught:
            names["fails"]()
        error = OperatorError("failed", step="a")
        error.__cause__ = caught.value
        without_internals(error)
        assert Path(file) in files_of(caught.value)


def test_an_internal_error_keeps_everything() -> None:
    with pytest.raises(InternalError) as caught:
        raise InternalError("our bug")
    assert files_of(without_internals(caught.value)) == [Path(__file__)]


def test_causes_that_go_in_a_circle_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    error = OperatorError("failed", step="a")
    error.__cause__ = first
    assert without_internals(error) is error


def test_a_users_error_that_is_its_own_cause_ends() -> None:
    def circular(number: int) -> int:
        error = ValueError("mine")
        raise error from error

    job = mp.Job("circular")
    job.source("in", sources.Memory([1])).map("circular", circular).sink("out", sinks.Memory())
    with pytest.raises(OperatorError, match="'circular' failed"):
        mp.run(job)


def test_a_ctrl_c_is_shown_from_the_users_code_on() -> None:
    def interrupts(number: int) -> int:
        raise KeyboardInterrupt

    job = mp.Job("interrupted")
    job.source("in", sources.Memory([1])).map("interrupts", interrupts).sink("out", sinks.Memory())
    with pytest.raises(KeyboardInterrupt) as caught:
        mp.run(job)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "interrupts"


def test_the_trace_of_an_error_is_the_users_frames_and_goes_to_other_processes_with_it() -> None:
    error = failed_job()
    trace = trace_of(error)
    assert "return inner(number)" in trace
    assert "return 1 // number" in trace
    assert trace.count("  File ") == 2
    sent = unpack_error(pack_error(error))
    assert trace_of(sent) == trace
    with redacting(True):
        assert trace_of(error) == ""


def test_the_event_of_a_failure_has_its_trace() -> None:
    job = mp.Job("failing")
    job.source("in", sources.Memory([1, 0])).map("inverse", outer).sink("out", sinks.Memory())
    seen: list[object] = []
    with pytest.raises(OperatorError):
        mp.run(job, on_event=seen.append)
    (failed,) = (event for event in seen if isinstance(event, NodeFailed))
    assert "return 1 // number" in failed.trace


def test_an_error_without_a_frame_of_the_user_has_no_trace() -> None:
    assert trace_of(OperatorError("step 'a' failed")) == ""
    job = mp.Job("failing")
    job.source("in", sources.Memory(["x"])).map("number", int).sink("out", sinks.Memory())
    with pytest.raises(OperatorError) as caught:
        mp.run(job)
    assert trace_of(caught.value) == ""
