"""``stateful_map``: one state per key, one output per record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.errors import own_words
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.keyed import KeyedOperator, Rows


class StatefulMap(KeyedOperator):
    """Calls ``fn(key, value, state) -> (output, new state)``; a new state of None drops the key's state.

    A key without state starts from ``default()``, or from None without a default.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> def rise(key, value, highest):
    ...     return value > highest, max(value, highest)
    >>> job = mp.Job("docs")
    >>> levels = job.source("levels", sources.Memory([("a", 3), ("b", 1), ("a", 2)]))
    >>> keyed = levels.key_by("river", lambda level: level[0]).map("level", lambda level: level[1])
    >>> mp.collect(keyed.stateful_map("rise", rise, default=int))
    [True, True, False]
    """

    def __init__(
        self,
        context: StepContext,
        *,
        fn: Callable[[Any, Any, Any], tuple[Any, Any]],
        default: Callable[[], Any] | None,
    ) -> None:
        super().__init__(context, function=fn)
        self._fn = fn
        self._default = default

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn, default = self.states, self._fn, self._default
        get = states.get
        for key, value in rows:
            state = get(key)
            if state is None and default is not None:
                state = default()
            answer = fn(key, value, state)
            try:
                result, state = answer
            except (TypeError, ValueError) as error:
                raise no_pair(answer, "(output, state)") from error
            if state is None:
                states.pop(key, None)
            else:
                states[key] = state
            results.append(result)


def no_pair(answer: object, pair: str) -> TypeError:
    """That a function returned ``answer`` where it must return a ``pair``; for the caller to raise.

    >>> str(no_pair((1, 2, 3), "(output, state)")), str(no_pair(None, "(output, state)"))
    ('must return (output, state), got a tuple of 3', 'must return (output, state), got None')
    """
    got = "None" if answer is None else type(answer).__name__
    if isinstance(answer, tuple | list):
        got = f"a {got} of {len(answer)}"
    return own_words(TypeError(f"must return {pair}, got {got}"))
