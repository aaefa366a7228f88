"""`describe_function`: a user finds the function an error speaks of."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from pathlib import Path

import pytest

from malstrom_py.data.messages import DeadLetter
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.failures import ErrorPolicy
from tests.unit.operators.stepping import Recorder, Stepped


def function(value: int) -> int:
    return value


def logged(wrapped: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(wrapped)
    def wrapper(value: int) -> int:
        return wrapped(value)

    return wrapper


@logged
def decorated(value: int) -> int:
    return value


@functools.lru_cache
def cached(value: int) -> int:
    return value


class Caller:
    def __call__(self, value: int) -> int:
        return value

    def method(self, value: int) -> int:
        return value

    @staticmethod
    def static(value: int) -> int:
        return value

    @classmethod
    def of_class(cls, value: int) -> int:
        return value


class Made:
    def __init__(self, value: int) -> None:
        self.value = value


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


@pytest.mark.parametrize(
    ("described", "name", "line"),
    [
        (function, "function", "def function(value: int) -> int:"),
        (functools.partial(functools.partial(function), 1), "function", "def function(value: int) -> int:"),
        (decorated, "decorated", "@logged"),
        (cached, "cached", "@functools.lru_cache"),
        (Caller(), "Caller", "def __call__(self, value: int) -> int:"),
        (Caller().method, "Caller.method", "def method(self, value: int) -> int:"),
        (Caller.static, "Caller.static", "@staticmethod"),
        (Caller.of_class, "Caller.of_class", "@classmethod"),
        (Made, "Made", "def __init__(self, value: int) -> None:"),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_a_function_is_told_by_name_file_and_line(described: object, name: str, line: str) -> None:
    assert describe_function(described) == f"{name} at {__file__}:{line_of(line)}"


def test_a_lambda_is_told_by_file_and_line() -> None:
    reported = describe_function(lambda value: value)
    assert reported.startswith("test_a_lambda_is_told_by_file_and_line.<locals>.<lambda> at ")


@pytest.mark.parametrize(("described", "reported"), [(str.upper, "str.upper"), (len, "len"), (int, "int"), (7, "int")])
def test_what_has_no_code_is_told_by_name(described: object, reported: str) -> None:
    assert describe_function(described) == reported


def test_a_column_is_told_as_one() -> None:
    assert describe_function(operator.itemgetter("shop")) == "column 'shop'"


def test_a_letter_is_counted_also_where_nothing_takes_it() -> None:
    context = StepContext("test", "under-test", on_error="dead-letter", dead_letter_port=None)
    recorder = Recorder()
    letter = DeadLetter("under-test", None, 1, None, "ValueError: no")
    ErrorPolicy(context).bury([letter], None, Stepped(lambda _: recorder).call(lambda out: out))
    assert context.counters.dead_letters == 1
