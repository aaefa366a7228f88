"""Two scans of csv by the accelerator in C: where whole records end, and records with some of their fields only.

Rule: a scan answers only what it is certain of. Its answer is None for bytes whose quotes or number of fields are not
those of whole records, and without the accelerator; the caller then has another way with the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py import accelerator
from malstrom_py.sources.files.frames import Bytes

if TYPE_CHECKING:
    import pyarrow as pa

_BOM: Final = b"\xef\xbb\xbf"
_SPAN_BYTES: Final = 8


def last_end(window: Bytes) -> int | None:
    r"""Return the end of the last whole record; None if uncertain. A ``\r`` at the end may be half of ``\r\n``."""
    import pyarrow as pa

    native: Any = accelerator.library()
    if native is None:
        return None
    end: int = native.ms_csv_cut(pa.py_buffer(window).address, len(window))
    return None if end < 0 else end


class Projection:
    """Takes the columns ``wanted`` out of records with the fields ``names``.

    ``as_text``: those to return as text. The others are ``raw``, in the order of the file, and left as csv.
    ``one_line``: no value holds a line end.
    """

    def __init__(
        self, names: Sequence[str], wanted: Collection[str], as_text: Collection[str], *, one_line: bool
    ) -> None:
        import numpy as np

        chosen = [name in wanted for name in names]
        last = len(names) - 1
        # The scan stops after the first and the last field, and before and after each wanted one.
        stops = [at for at in range(len(names)) if at in {0, last} or chosen[at] or chosen[at + 1]]
        self._wanted = [name for name in names if name in wanted]
        self.raw = [name for name in self._wanted if name not in as_text]
        self._is_raw = np.array([name in self.raw for name in self._wanted], np.uint8)
        self._fields = len(names)
        self._skips = np.diff(np.array([-1, *stops], np.int64)) - 1
        self._chosen = np.array([chosen[at] for at in stops], np.uint8)
        self._one_line = one_line

    def split(self, frame: Bytes) -> tuple[dict[str, pa.Array], pa.Buffer | None] | None:
        """Return the columns that are text, and lines of csv with those that are raw, if any.

        A text is null for an empty field without quotes, and not checked to be UTF-8.
        """
        import pyarrow as pa

        native: Any = accelerator.library()
        # Arrow drops a byte order mark in front of what it reads.
        if native is None or frame.startswith(_BOM):
            return None
        data, size, width = pa.py_buffer(frame), len(frame), len(self._wanted)
        spans = pa.allocate_buffer(_SPAN_BYTES * width * (size // self._fields + 2))
        stops = (self._skips.ctypes.data, self._chosen.ctypes.data, len(self._chosen))
        rows: int = native.ms_csv_fields(data.address, size, *stops, self._one_line, spans.address)
        if rows <= 0:
            return None
        found: dict[str, pa.Array] = {}
        for index, name in enumerate(self._wanted):
            if self._is_raw[index]:
                continue
            texts = self._texts(data, spans.address + _SPAN_BYTES * index, rows)
            if texts is None:
                return None
            found[name] = texts
        if not self.raw:
            return found, None
        lines = pa.allocate_buffer(size + 1)
        wanted = (self._is_raw.ctypes.data, width)
        lines = lines[: native.ms_csv_lines(data.address, size, spans.address, rows, *wanted, lines.address)]
        return None if lines[: len(_BOM)].to_pybytes() == _BOM else (found, lines)

    def _texts(self, data: pa.Buffer, spans: int, rows: int) -> pa.Array | None:
        """Return the texts of the column whose first span has the address ``spans``; None if uncertain."""
        import pyarrow as pa

        native: Any = accelerator.library()
        out = pa.allocate_buffer(data.size, resizable=True)
        offsets, valid = pa.allocate_buffer(4 * (rows + 1)), pa.allocate_buffer((rows + 7) // 8)
        step = len(self._wanted) * _SPAN_BYTES // 4
        to = (out.address, offsets.address, valid.address)
        size: int = native.ms_csv_texts(data.address, data.size, spans, step, rows, *to)
        if size < 0:
            return None
        out.resize(size)
        return pa.Array.from_buffers(pa.string(), rows, [valid, offsets, out])
