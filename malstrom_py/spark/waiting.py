"""A call that may wait much longer than its caller, given up at a deadline."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from malstrom_py.errors import SparkError

T = TypeVar("T")


def answer_of(ask: Callable[[], T], *, within_s: float) -> T:
    """What ``ask`` gives back, asked in a thread that is left to itself after ``within_s`` seconds: `SparkError` then.

    >>> answer_of(lambda: 42, within_s=5.0)
    42
    """
    answer: Future[T] = Future()
    Thread(target=_ask, args=(ask, answer), name="malstrom-spark-ask", daemon=True).start()
    try:
        return answer.result(within_s)
    except TimeoutError:
        if answer.done():
            raise
        raise SparkError(f"Spark did not answer within {within_s:g} s: see whether its server runs") from None


def _ask(ask: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:
        answer.set_exception(error)
