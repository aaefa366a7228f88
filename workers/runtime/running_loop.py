"""Refuses to run a job where that would block an event loop of the user's.

Rule: in a coroutine, or a callback of a loop, it is refused at once: nothing else of that loop would go on until the
job has ended, which may be never. A notebook runs its cells inside the loop of its kernel: a cell blocks nothing but
the notebook, as any other work in it does, and goes ahead, with ``await`` in it or not. A coroutine function that a
cell awaits is one like any other.
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
"""How the code of a cell is named, which is a coroutine itself where it awaits something."""

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
        f"mp.InProcess(…).start(job), which returns at once, and await asyncio.to_thread(handle.wait); or call it in a "
        f"thread, await asyncio.to_thread({function}, …)"
    )


def _is_plain_cell(frame: FrameType | None) -> bool:
    """Return whether the innermost coroutine that is running is a notebook's, and not one of the user's."""
    while frame is not None:
        if frame.f_code.co_flags & _COROUTINE and not frame.f_code.co_name.startswith(_CELLS):
            return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOTEBOOKS
        frame = frame.f_back
    return False
