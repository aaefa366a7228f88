"""What a worker was at work on, where others find it when its process has died: a small file, mapped into memory.

Rule: it says which step, of which part and up to where, never a value of a record. What is written to the map stands in
the file, however the process ends. It is kept from the second run of a job on, for a first death may be no record's
fault; it costs a write per batch and step.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from malstrom_py.batches import Batch
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.read_source import ReadSource

_BYTES: Final = 2048


def box_path(token: str, incarnation: int, worker: int) -> Path:
    """Where the box of a worker lies on its machine. ``token``: of this start of the job."""
    return Path(tempfile.gettempdir()) / f"malstrom-box-{token}-{incarnation}-{worker}"


def clear_before(token: str, incarnation: int) -> None:
    """Take away on this machine what incarnations before this one have left: nobody asks for it any more.

    >>> BlackBox(box_path("docs", 1, 7)).note("")
    >>> clear_before("docs", 2)
    >>> box_path("docs", 1, 7).exists()
    False
    """
    for path in Path(tempfile.gettempdir()).glob(f"malstrom-box-{token}-*"):
        if int(path.name.split("-")[-2]) < incarnation:
            path.unlink(missing_ok=True)


class BlackBox:
    """The box at ``path``, which is made anew.

    >>> path = box_path("docs", 1, 0)
    >>> box = BlackBox(path)
    >>> box.note("step 'parse' had 3 records")
    >>> last_words(path)
    "step 'parse' had 3 records"
    >>> box.close()
    >>> last_words(path)
    ''
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _BYTES)
            self._map = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)

    def note(self, said: str) -> None:
        """From now on this is what was being done; nothing if empty."""
        data = said.encode()[: _BYTES - 1]
        self._map[: len(data) + 1] = data + b"\0"

    def close(self) -> None:
        """The worker has ended well: take it away."""
        self._map.close()
        self._path.unlink(missing_ok=True)


def last_words(path: Path) -> str:
    """What the box at ``path`` says; empty where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_BYTES).partition(b"\0")[0].decode(errors="replace")


def watch(operators: Mapping[str, Operator], box: BlackBox) -> None:
    """From now on each step notes in ``box`` what it is at work on, while it is."""
    sources = [source for source in operators.values() if isinstance(source, ReadSource)]
    stack: list[str] = []

    def noting(step: str, work: Callable[[Batch, Outlet], None]) -> Callable[[Batch, Outlet], None]:
        def on_batch(batch: Batch, out: Outlet) -> None:
            stack.append(_said(step, batch, sources))
            box.note(stack[-1])
            work(batch, out)
            stack.pop()
            box.note(stack[-1] if stack else "")

        return on_batch

    for step, operator in operators.items():
        watched: Any = operator  # its method is taken over for this one object
        watched.on_batch = noting(step, operator.on_batch)


def _said(step: str, batch: Batch, sources: list[ReadSource]) -> str:
    source = None if batch.part is None else batch.part.partition("/")[0]
    read = [last for one in sources if source in {None, one.context.step} and (last := one.last_read())]
    came = ", read from " if batch.part is not None else " that had come by an exchange; what was read here last is of "
    return f"step {step!r} was at work on {len(batch)} records{came if read else ''}{' and '.join(read)}"
