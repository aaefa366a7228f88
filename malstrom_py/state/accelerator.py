"""The accelerator: a small library in C that does what `group_kernels` and `GroupIndex` do, several times as fast, and
scans csv (`malstrom_py.sources.files.csv_scan`).

It is built with the package where there is a C compiler, and is optional: results are the same without it. It is called
through ctypes, which releases the GIL. The environment variable ``MALSTROM_ACCELERATOR`` may be ``off``, or the path of
a library built otherwise.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, Final

VARIABLE: Final = "MALSTROM_ACCELERATOR"

_LOG: Final = logging.getLogger("malstrom_py")

_POINTER: Final = ctypes.c_void_p
_INT: Final = ctypes.c_int
_LONG: Final = ctypes.c_int64
_SEED: Final = ctypes.c_uint64

_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "ms_index_new": (_POINTER, [_INT, _SEED, _SEED]),
    "ms_index_free": (None, [_POINTER]),
    "ms_index_len": (_LONG, [_POINTER]),
    "ms_index_null": (_LONG, [_POINTER]),
    "ms_index_numbers": (_POINTER, [_POINTER]),
    "ms_index_bytes": (_POINTER, [_POINTER]),
    "ms_index_numbers_ids": (_LONG, [_POINTER, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _INT]),
    "ms_index_text_ids": (_LONG, [_POINTER, _POINTER, _POINTER, _INT, _POINTER, _LONG, _LONG, _POINTER, _INT]),
    "ms_number": (_LONG, [_POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER, _POINTER]),
    "ms_sum_int": (None, [_POINTER, _POINTER, _LONG, _POINTER, _POINTER]),
    "ms_sum_float": (None, [_POINTER, _POINTER, _LONG, _POINTER, _POINTER]),
    "ms_count": (None, [_POINTER, _POINTER, _LONG, _POINTER, _POINTER]),
    "ms_best_int": (None, [_POINTER, _POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER, _POINTER, _POINTER]),
    "ms_best_float": (None, [_POINTER, _POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER, _POINTER, _POINTER]),
    "ms_edge_8": (None, [_POINTER, _POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER, _POINTER, _POINTER]),
    "ms_edge_1": (None, [_POINTER, _POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER, _POINTER, _POINTER]),
    "ms_mark": (None, [_POINTER, _LONG, _POINTER, _POINTER]),
    "ms_csv_cut": (_LONG, [_POINTER, _LONG]),
    "ms_csv_fields": (_LONG, [_POINTER, _LONG, _POINTER, _POINTER, _LONG, _INT, _POINTER]),
    "ms_csv_lines": (_LONG, [_POINTER, _LONG, _POINTER, _LONG, _POINTER, _LONG, _POINTER]),
    "ms_csv_texts": (_LONG, [_POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER]),
}


def load(path: str | Path) -> ctypes.CDLL:
    """Load the accelerator from ``path``. `OSError` or `AttributeError` if there is none."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def built() -> Path | None:
    """Return the file of the accelerator; None if it was not built, or is off."""
    asked = os.environ.get(VARIABLE, "")
    there = [Path(__file__).with_name("native") / f"groups{suffix}" for suffix in EXTENSION_SUFFIXES]
    paths = [] if asked == "off" else [Path(asked)] if asked else there
    return next(filter(Path.is_file, paths), None)


@cache
def library() -> ctypes.CDLL | None:
    """Return the accelerator; None if it was not built, does not load, or is off. Log that a built one is not used."""
    path = built()
    if path is None:
        return None
    try:
        return load(path)
    except (OSError, AttributeError) as error:
        _LOG.warning(
            "the accelerator %s was built for another machine or version (%s), so numpy does its work, more slowly: "
            "install malstrom-py again",
            path,
            error,
        )
        return None


def kernels() -> ModuleType:
    """Return the module whose scans and folds run: `native_kernels`, or `group_kernels`."""
    if library() is None:
        from malstrom_py.state import group_kernels

        return group_kernels
    from malstrom_py.state import native_kernels

    return native_kernels
