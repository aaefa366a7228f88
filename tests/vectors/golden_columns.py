"""Makes tests/vectors/columns-2: a chain of artefacts with blocks of columns. All later versions must read them.

Run ``python -m tests.vectors.golden_columns FOLDER`` to make them elsewhere. ``base.full`` has columns by pane,
``rows.delta`` rows, ``columns.delta`` columns again, each for other keys and for some of the same.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from malstrom_py.codec import Codec
from malstrom_py.state.artefact import artefact, by_slot, column_artefact
from malstrom_py.state.column_image import ColumnImage, Shape, storable
from malstrom_py.state.entries import encoded_entries
from tests.vectors.golden_snapshot import slots_of

FOLDER: Final = Path(__file__).with_name("columns-2")
NAMES: Final = ("base.full", "rows.delta", "columns.delta")

SHAPE: Final[Shape] = [0, (1, {"where": 2, "is": (3,), "else": ()})]
"""Of a state [count, (sum, (last,) or ())]."""

BASE: Final[dict[Any, dict[int, Any]]] = {
    "lamp": {10: [1, (0.5, ("on",))], 20: [2, (-0.0, ())]},
    "chair": {10: [3, (1.5, (None,))]},
    "gone": {10: [1, (1.0, ())]},
    "dësk": {20: [2**40, (float("inf"), ("",))]},
    None: {-10: [7, (2.5, ("none",))]},
}
ROWS: Final[dict[Any, Any]] = {"lamp": {20: [3, (9.0, ())]}, "bed": {20: [1, (4.0, ("x",))]}}
COLUMNS: Final[dict[Any, Any]] = {"bed": {20: [2, (5.0, ("y",))], 30: [1, (1.0, ())]}, "chair": {30: [1, (0.0, ())]}}
STATE: Final[dict[Any, Any]] = {**BASE, **ROWS, **COLUMNS}
del STATE["gone"]


def image_of(state: dict[Any, dict[int, Any]], gone: list[Any]) -> ColumnImage:
    """Return ``state`` as columns."""
    rows = [
        (key, pane, count, total, last)
        for key, panes in state.items()
        for pane, (count, (total, last)) in panes.items()
    ]
    keys, panes, counts, totals, lasts = zip(*rows, strict=True)
    image = storable(
        ColumnImage(
            pa.array(keys, pa.string()),
            np.array(slots_of(keys)),
            [
                pa.array(counts, pa.int64()),
                pa.array(totals, pa.float64()),
                pa.array([True if last else None for last in lasts], pa.bool_()),
                pa.array([last[0] if last else None for last in lasts], pa.string()),
            ],
            SHAPE,
            pa.array(panes, pa.int64()),
            pa.array(gone, pa.string()),
            np.array(slots_of(gone), np.int64),
        )
    )
    assert image is not None
    return image


def make(folder: Path) -> None:
    """Make the artefacts in ``folder``."""
    codec = Codec()
    forms = codec.encode_each_at_rest(list(ROWS), step="", keys=list(ROWS))
    entries = encoded_entries(codec, list(ROWS), list(ROWS.values()), {}, step="")
    made = (
        column_artefact(image_of(BASE, []), delta=False, note=b"a note"),
        artefact(by_slot(slots_of(list(ROWS)), forms, entries), delta=True),
        column_artefact(image_of(COLUMNS, ["gone", "never there"]), delta=True, note=b"the last note"),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in zip(NAMES, made, strict=True):
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
