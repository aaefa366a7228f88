"""Refuses to run a job where the call would block a user's event loop.

Rule: a call from a coroutine or an event-loop callback is refused immediately, because the loop could do nothing else
until the job ends. A notebook cell is allowed, with or without ``await`` in it: the kernel runs cells inside its own
loop, and a cell blocks only the notebook. A coroutine function that a cell awaits is refused like any other.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from types import FrameType
from typing import Final

from malstrom_py.errors import PlanError

_NOTEBOOKS: Final = frozenset({"IPython", "ipykernel", "marimo"})
"""Packages whose coroutines run the cells of a notebook."""

_CELLS: Final = ("<module>", "<cell line")
"""Code names of notebook cells. A cell that awaits something is itself a coroutine."""

_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def refuse_in_coroutine(function: str) -> None:
    """`PlanError` if ``function``, which returns when a job has ended, is called where it would block an event loop.

    >>> async def main():
    ...     refuse_in_coroutine("mp.run")
    >>> asyncio.run(main())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    malstrom_py.errors.PlanError: mp.run blocks the event loop that runs here until its job has ended: start ...
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if _is_plain_cell(sys._getframe(1)):
        return
    raise PlanError(
        f"{function} blocks the event loop that runs here until its job has ended: start it instead, handle = "
        f"mp.InProcess(…).start(job), which returns immediately, and await asyncio.to_thread(handle.wait); or call it "
        f"in a thread, await asyncio.to_thread({function}, …)"
    )


def _is_plain_cell(frame: FrameType | None) -> bool:
    """Return whether the innermost coroutine that is running is a notebook's, and not one of the user's."""
    while frame is not None:
        if frame.f_code.co_flags & _COROUTINE and not frame.f_code.co_name.startswith(_CELLS):
            return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOTEBOOKS
        frame = frame.f_back
    return False
