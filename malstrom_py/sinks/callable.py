"""``Callable``: a sink that calls a user's function. Its side effects are immediate and cannot be undone."""

from __future__ import annotations

import collections.abc
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.errors.text import after, describe_function, failed_in, sentence, text_of
from malstrom_py.sinks.base import BaseStatelessSink, BaseWriter
from malstrom_py.worker_context import WorkerInfo


class Callable(BaseStatelessSink):
    """Calls ``fn(value)`` for each record; with ``batch=True`` ``fn(batch)`` for each `Batch`.

    A value has neither key nor time; a `Batch` has ``keys``, ``values`` and ``timestamps``, lists that must not be
    changed. Each worker calls ``fn`` in its own thread or process. An exception of ``fn`` fails the job with a
    `SinkError` that names step, worker and function.

    >>> writer = Callable(print).build(WorkerInfo("docs", "out", 0))
    >>> writer.write(Batch(["ant", "bee"], keys=[1, 2]))
    ant
    bee
    >>> Callable(lambda batch: print(batch.keys), batch=True).build(WorkerInfo("docs", "out", 0)).write(
    ...     Batch(["ant", "bee"], keys=[1, 2])
    ... )
    [1, 2]
    """

    def __init__(self, fn: collections.abc.Callable[[Any], object], *, batch: bool = False) -> None:
        if not callable(fn):
            raise PlanError(f"sinks.Callable takes a function, got {type(fn).__name__}")
        self._fn = fn
        self._batch = batch

    def __repr__(self) -> str:
        return f"Callable({describe_function(self._fn)})"

    def build(self, worker: WorkerInfo) -> _CallableWriter:
        return _CallableWriter(self._fn, self._batch, worker)


class _CallableWriter(BaseWriter):
    def __init__(self, fn: collections.abc.Callable[[Any], object], whole: bool, worker: WorkerInfo) -> None:
        self._fn = fn
        self._whole = whole
        self._worker = worker

    def write(self, batch: Batch) -> None:
        fn = self._fn
        try:
            if self._whole:
                fn(batch)
                return
            for value in batch.values:
                fn(value)
        except Exception as error:
            raise SinkError(
                f"on worker {self._worker.worker}: {type(error).__name__} in {failed_in(fn, error)}"
                f"{after(sentence(text_of(error)))}. Correct the function."
            ) from error
