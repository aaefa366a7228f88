"""Answers to mistakes in writing a job, which Python's own errors would not explain."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from malstrom_py.errors import PlanError

__tracebackhide__ = True  # pytest shows the line of the user

C = TypeVar("C", bound=type)
T = TypeVar("T")


def names_first(cls: C) -> C:
    """Let methods of ``cls`` whose first argument is a ``name`` answer a call without one: ``.map(lambda x: x)``.

    They and those of `named_before` answer other arguments that do not fit, too: the error says what to write.
    """
    for attribute, method in _methods(cls):
        count = method.__code__.co_argcount
        if method.__code__.co_varnames[1:count][:1] == ("name",):
            needs_name = len(method.__defaults__ or ()) < count - 1
            setattr(cls, attribute, _answering(method, attribute, needs_name=needs_name))
    return cls


def named_before(cls: C) -> C:
    """Do as `names_first` for a ``cls`` whose methods take no name, because ``window`` has taken it."""
    for attribute, method in _methods(cls):
        setattr(cls, attribute, _answering(method, attribute, needs_name=False))
    return cls


def _methods(cls: type) -> list[tuple[str, types.FunctionType]]:
    return [
        (attribute, method)
        for attribute, method in vars(cls).items()
        if isinstance(method, types.FunctionType) and not attribute.startswith("_")
    ]


def _answering(method: Callable[..., T], attribute: str, *, needs_name: bool) -> Callable[..., T]:
    @functools.wraps(method)
    def answering(self: Any, /, *arguments: Any, **options: Any) -> T:
        if needs_name and not (isinstance(arguments[0], str) if arguments else "name" in options):
            got = type(arguments[0]).__name__ if arguments else "nothing"
            raise PlanError(
                f"the name of a step must be a str, got {got}: the name comes first, write .{attribute}('some-name', …)"
            )
        try:
            return method(self, *arguments, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside the method: the arguments fit
            raise PlanError(_answer(method, attribute, self, arguments, options)) from None

    return answering


_ALSO: Final = {"join": ". Joins without windows are .join_table, .join_asof and .join_interval"}


def _answer(
    method: Callable[..., object], attribute: str, stream: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> str:
    """Describe ``arguments`` and ``options`` that do not fit, and what to write instead."""
    signature, words = inspect.signature(method), ""
    try:
        signature.bind(stream, *arguments, **options)
    except TypeError as error:
        words = str(error)
    parameters = list(signature.parameters.values())[1:]
    if not (parameters and parameters[0].name == "name"):
        step = stream._name
        if arguments and isinstance(arguments[0], str):
            words, arguments = "an aggregate of windows takes no name, .window(…) has it", arguments[1:]
    else:
        step = arguments[0] if arguments else options.get("name", "?")
        column = parameters[1:2] and parameters[1].default is parameters[1].empty and "str" in parameters[1].annotation
        if column and len(arguments) == 1 and parameters[1].name not in options:  # it is the name that is missing
            return f"step {step!r}: {words}: write .{attribute}('some-name', {step!r})"
    usage = ", ".join(_usage(parameters, list(arguments), options))
    return f"step {step!r}: {words}: write .{attribute}({usage}){_ALSO.get(attribute, '')}"


def _usage(parameters: list[inspect.Parameter], given: list[Any], options: dict[str, Any]) -> Iterator[str]:
    """Yield the arguments to write for a method of ``parameters``, where ``given`` and ``options`` do not fit."""
    takes_figures = any(one.name == "aggs" for one in parameters)
    for one in parameters:
        needed = one.default is one.empty
        if one.kind is one.KEYWORD_ONLY:
            if needed or (given and not takes_figures):
                yield f"{one.name}={'…' if needed else _shown(given.pop(0), '…')}"
        elif one.kind is one.VAR_KEYWORD:
            if takes_figures:
                yield "n=agg.count()"
        elif one.kind is not one.VAR_POSITIONAL and (given or needed or one.name in options):
            yield _shown(given.pop(0) if given else options.get(one.name), one.name)


def _shown(argument: object, otherwise: str) -> str:
    return repr(argument) if isinstance(argument, str | int) else otherwise


def source_of(thing: object) -> str:
    """Return the source that reads ``thing``, which is none; "" if that is unknown."""
    if isinstance(thing, str | os.PathLike):
        return f": write sources.Files({os.fspath(thing)!r})"
    return ": write sources.Memory([…])" if isinstance(thing, Iterable) else ""


def sink_of(thing: object) -> str:
    """Return the sink that writes to ``thing``, which is none; "" if that is unknown."""
    if isinstance(thing, str | os.PathLike):
        return f": write sinks.Files({os.fspath(thing)!r})"
    if isinstance(thing, list):
        return ": write sinks.Memory()"
    name = "print" if thing is print else getattr(thing, "__name__", "fn")  # Ray puts another print in its place
    return f": write sinks.Callable({name})" if callable(thing) else ""


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
