"""What the source text of a function says: whether its end can be reached, and what its decorators pass on."""

from __future__ import annotations

import ast
import functools
from typing import Any

import pytest

from malstrom_py.operators.forgotten_return import _falls, reaches_end, unwrapped

FALLING = [
    "value * 2",
    "if value: return",
    "if value: return\nelif other: return",
    "for one in value: return",
    "for one in value: break\nelse: return",
    "while value: return",
    "while True: break",
    "while True:\n  if value: break",
    "while True:\n  try: break\n  finally: value()",
    "while True:\n  match value:\n    case 1: break",
    "with value: value()",
    "try: return\nexcept E: value()",
    "try: raise E\nexcept E: value()",
    "try: value()\nexcept E: raise",
    "match value:\n  case 1: return",
    "match value:\n  case one if one: return",
    "match value:\n  case 1: return\n  case _: value()",
]
LEAVING = [
    "return",
    "raise E",
    "if value: return\nraise E",
    "if value: return\nelse: raise E",
    "while True: value()",
    "while True:\n  for one in value: break",
    "while True:\n  def inner():\n    for one in value: break",
    "for one in value: pass\nelse: return",
    "with value: return",
    "try: value()\nfinally: raise E",
    "try: return\nexcept E: raise",
    "try: value()\nexcept E: return\nelse: return",
    "match value:\n  case 1: return\n  case other: return",
]


@pytest.mark.parametrize("body", FALLING)
def test_control_can_go_past_the_end(body: str) -> None:
    assert _falls(ast.parse(body).body)


@pytest.mark.parametrize("body", LEAVING)
def test_control_cannot_go_past_the_end(body: str) -> None:
    assert not _falls(ast.parse(body).body)


def empty(value: Any) -> None:
    """It does nothing."""


def falls(value: Any) -> None:
    print(value)


def test_the_source_is_found_or_nothing_is_said() -> None:
    assert reaches_end(falls.__code__) is True
    assert reaches_end(empty.__code__) is False
    scope: dict[str, Any] = {}
    exec("def made(value):\n    print(value)", scope)
    assert reaches_end(scope["made"].__code__) is None
    assert reaches_end((lambda value: value + 1).__code__) is None


def test_only_a_decorator_that_passes_the_result_on_is_looked_through() -> None:
    def passing(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            if arguments:
                return function(*arguments)
            result = function()
            print(result)
            return result

        return wrapper

    def changing(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            return [function(*arguments)]

        return wrapper

    def dropping(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            function(*arguments)

        return wrapper

    assert unwrapped(passing(passing(falls))) is falls
    assert unwrapped(passing(functools.cache(falls))) is falls
    for decorator in (changing, dropping):
        decorated = decorator(falls)
        assert unwrapped(decorated) is decorated
    loop = passing(falls)
    loop.__wrapped__ = loop
    assert unwrapped(loop) is loop
