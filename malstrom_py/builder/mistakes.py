"""Answers to mistakes in writing a job, which Python's own errors would not explain."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from malstrom_py.errors import PlanError

__tracebackhide__ = True  # pytest shows the line of the user

C = TypeVar("C", bound=type)
T = TypeVar("T")


def names_first(cls: C) -> C:
    """Let methods of ``cls`` whose first argument is a ``name`` refuse a call without one: ``.map(lambda x: x)``."""
    for attribute, method in list(vars(cls).items()):
        if isinstance(method, types.FunctionType) and not attribute.startswith("_"):
            count = method.__code__.co_argcount
            is_needed = len(method.__defaults__ or ()) < count - 1
            if method.__code__.co_varnames[1:count][:1] == ("name",) and is_needed:
                setattr(cls, attribute, _named(method, attribute))
    return cls


def _named(method: Callable[..., T], attribute: str) -> Callable[..., T]:
    @functools.wraps(method)
    def named(self: Any, /, *arguments: Any, **options: Any) -> T:
        if not (isinstance(arguments[0], str) if arguments else "name" in options):
            got = type(arguments[0]).__name__ if arguments else "nothing"
            raise PlanError(
                f"the name of a step must be a str, got {got}: the name comes first, write .{attribute}('some-name', …)"
            )
        return method(self, *arguments, **options)

    return named


class StreamTuple(tuple[T, ...]):  # noqa: SLOT001  a tuple has no slots for attributes
    """The streams that a step of ``kind`` returns. A method of one stream is refused, with how to take them."""

    kind: str
    names: Sequence[str]

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> NoReturn:
            if attribute.startswith("_"):
                raise AttributeError(attribute, name=attribute, obj=self)
            names = ", ".join(self.names)
            raise AttributeError(
                f"{self.kind} returns {len(self)} streams, so take them first: {names} = stream.{self.kind}(…), then "
                f"{self.names[0]}.{attribute}(…)",
                name=attribute,
                obj=self,
            )

        @property
        def count(self) -> NoReturn:
            """Refuse the method of a stream; that of a tuple would count silently."""
            self.__getattr__("count")


def stream_tuple(kind: str, streams: Iterable[T], names: Sequence[str] = ()) -> Any:
    """Return the ``streams`` of a step of ``kind``; ``names``: what to call them, by default numbered."""
    made = StreamTuple(streams)
    made.kind, made.names = kind, names or [f"stream{number}" for number in range(len(made))]
    return made
