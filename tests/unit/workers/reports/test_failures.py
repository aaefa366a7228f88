"""Errors that cross from one process to another: what they were, where that can be carried, and in words where not."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.workers.reports.error_transfer import pack_error, unpack_error


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
