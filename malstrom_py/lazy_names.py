"""Names of a module that are loaded when they are first used (PEP 562), so that an import is quick.

Rule: a module lists its lazy names twice, as imports under ``TYPE_CHECKING`` for type checkers and editors, and in the
table of `lazy_names`. A test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any


def lazy_names(
    module: str, homes: Mapping[str, str], answers: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of ``module``.

    ``homes``: module -> the names that it defines, separated by spaces. A name may be that of a module itself.
    ``answers``: the table in `malstrom_py.errors.unknown_names` that answers names which are neither here nor modules
    of the package ``module``.

    >>> import malstrom_py as mp
    >>> "Job" in dir(mp), mp.Job.__module__
    (True, 'malstrom_py.builder.job')
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        home = home_of.get(name) or _submodule(module, name)
        if home is None:
            # Loaded for a mistake only. It looks at the frame that has called this function.
            from malstrom_py.errors import unknown_names

            table: unknown_names.Table = {} if answers is None else getattr(unknown_names, answers)
            raise unknown_names.unknown_name(module, name, table)
        found = import_module(home)
        value = found if home == f"{module}.{name}" else getattr(found, name)
        vars(sys.modules[module])[name] = value  # so that this function is called once for each name
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *home_of})

    return load, names


def _submodule(module: str, name: str) -> str | None:
    """Return the module ``name`` of the package ``module``: a program may use it without importing it."""
    path = vars(sys.modules[module]).get("__path__")
    if path is None or name.startswith("_"):
        return None
    full = f"{module}.{name}"
    return None if PathFinder.find_spec(full, path) is None else full
