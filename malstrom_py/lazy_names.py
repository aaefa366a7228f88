"""Names of a package that are imported when they are used: a worker, or a command, needs few of them.

Rule: the package imports the same names under ``TYPE_CHECKING``, for type checkers and editors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from malstrom_py.errors.unknown_names import Table, unknown_name


def lazy_names(
    package: str, names: Mapping[str, str], unknown: Table
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of ``package``.

    ``names``: module -> the names that are defined in it, or its own name. ``unknown``: the answers to other names.
    """
    homes = {name: module for module, defined in names.items() for name in defined.split()}

    def value_of(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise unknown_name(package, name, unknown)
        module = import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return value_of, known
