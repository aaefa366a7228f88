"""The accelerator: what runs in C where the package was built with a compiler. Results are the same without it.

`library`, called through ctypes with the GIL released, takes columns: it gives keys ids and folds values by id, without
which steps with state make rows of columns, and scans csv (`malstrom_py.sources.files.csv_scan`). `rows`, a module,
takes lists of Python objects: it finds the slots of keys and the rows of each owner, and takes rows apart into columns
of their fields. The environment variable ``MALSTROM_ACCELERATOR`` may be ``off``, or the path of a library built
otherwise.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, Final, Protocol, cast

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
    "ms_text_slots": (
        _LONG,
        [_INT, _POINTER, _POINTER, _INT, _POINTER, _LONG, _LONG, ctypes.c_uint32, ctypes.c_uint32, _POINTER],
    ),
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


def built(name: str = "groups") -> Path | None:
    """Return the file of the library, or of the module ``rows``; None if it was not built, or is off."""
    asked = os.environ.get(VARIABLE, "")
    there = [Path(__file__).with_name("native") / f"{name}{suffix}" for suffix in EXTENSION_SUFFIXES]
    paths = [] if asked == "off" else [Path(asked)] if asked and name == "groups" else there
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
        _log_unusable(path, error, "numpy")
        return None


class Rows(Protocol):
    """The module ``rows``."""

    VERSION: int

    def slots(self, keys: list[Any], count: int, find: Callable[[Any], int], /) -> bytes:
        """Return the slot of each key as uint32. ``find`` is asked for the slots of keys of rarer types."""
        ...

    def split(self, slots: Any, by_slot: Any, parts: int, columns: tuple[list[Any] | None, ...], /) -> list[Any]:
        """Return each of ``columns`` as ``parts`` lists: its rows by the part of their slot.

        ``slots``: a buffer of uint32, one per row; ``by_slot``: a buffer of uint16, the part of each slot.
        `IndexError`, `ValueError` or `TypeError` if a slot has no part, or the lengths differ.
        """
        ...

    def fields(
        self, rows: list[Any], keys: list[Any] | None, /
    ) -> tuple[tuple[str, ...] | None, list[tuple[type | None, list[Any] | None]]] | None:
        """Return rows as columns of their fields, each with the exact type of all its values.

        The type is None if they differ, or are strings of which many are one object. The column is None if it holds
        the very objects of ``keys``. The names are None for tuples. The result is None unless all rows are exact
        tuples of one width, or exact dicts of the same names in one order, and all values str, int, float, bool, bytes
        or None.
        """
        ...

    def join(self, names: tuple[str, ...] | None, columns: tuple[list[Any], ...], /) -> list[Any]:
        """Return the rows of `fields` again."""
        ...

    def kind(self, column: list[Any], /) -> type | None:
        """Return the exact type of all values of a list; None if they differ, or there are none."""
        ...


ROWS_VERSION: Final = 1


def load_rows(path: str | Path) -> Rows:
    """Load the module ``rows`` from ``path``. `ImportError` if there is none, or it is of another version."""
    loader = ExtensionFileLoader("rows", str(path))
    spec = spec_from_loader("rows", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    if (version := getattr(module, "VERSION", 0)) != ROWS_VERSION:
        raise ImportError(f"it is of version {version}, not {ROWS_VERSION}")
    return cast(Rows, module)


@cache
def rows() -> Rows | None:
    """Return the module ``rows``; None if it was not built, does not load, or is off. Log that one is not used."""
    path = built("rows")
    if path is None:
        return None
    try:
        return load_rows(path)
    except ImportError as error:
        _log_unusable(path, error, "Python")
        return None


def _log_unusable(path: Path, error: Exception, instead: str) -> None:
    _LOG.warning(
        "the accelerator %s was built for another machine or version (%s), so %s does its work, more slowly: "
        "install malstrom-py again",
        path,
        error,
        instead,
    )
