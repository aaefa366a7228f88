"""Two scans of csv by the accelerator in C: where whole records end, and records with some of their fields only.

Rule: a scan answers only what it is certain of. Its answer is None for bytes whose quotes or number of fields are not
those of whole records, and without the accelerator; the caller then has another way with the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.sources.files.frames import Bytes
from malstrom_py.state import accelerator

if TYPE_CHECKING:
    import pyarrow as pa

_BOM: Final = b"\xef\xbb\xbf"


def last_end(window: Bytes) -> int | None:
    r"""Return the end of the last whole record; None if uncertain. A ``\r`` at the end may be half of ``\r\n``."""
    import pyarrow as pa

    native: Any = accelerator.library()
    if native is None:
        return None
    end: int = native.ms_csv_cut(pa.py_buffer(window).address, len(window))
    return None if end < 0 else end


class Projection:
    """Leaves out of records with the fields ``names`` those that are not ``wanted``.

    ``one_line``: no value holds a line end. ``names``, afterwards: the wanted fields, in the order of the file.
    """

    def __init__(self, names: Sequence[str], wanted: Collection[str], *, one_line: bool) -> None:
        import numpy as np

        copies = [name in wanted for name in names]
        last = len(names) - 1
        # The scan stops after the first and the last field, and before and after each wanted one.
        stops = [at for at in range(len(names)) if at in {0, last} or copies[at] or copies[at + 1]]
        self.names = [name for name in names if name in wanted]
        self._skips = np.diff(np.array([-1, *stops], np.int64)) - 1
        self._copies = np.array([copies[at] for at in stops], np.uint8)
        self._one_line = one_line

    def of(self, frame: Bytes) -> pa.Buffer | None:
        """Return the records of ``frame`` with the wanted fields only; None if uncertain."""
        import pyarrow as pa

        native: Any = accelerator.library()
        if native is None:
            return None
        out = pa.allocate_buffer(len(frame) + 1)
        size: int = native.ms_csv_project(
            pa.py_buffer(frame).address,
            len(frame),
            self._skips.ctypes.data,
            self._copies.ctypes.data,
            len(self._copies),
            self._one_line,
            out.address,
        )
        # Arrow drops a byte order mark, which here may come from the middle of a record.
        if size < 0 or out[: min(size, len(_BOM))].to_pybytes() == _BOM:
            return None
        return out[:size]
