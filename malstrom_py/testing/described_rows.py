"""Rows as people describe them for ``why``: compared with what a step has made as values, or as JSON has these.

Rule: where several keys are written alike, a key is the one that is given itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

from malstrom_py.data.equality import seen_form
from malstrom_py.errors import SinkError


def is_same(wanted: Any, found: Any, *, is_key: bool = False) -> bool:
    """Return whether ``found`` is ``wanted``, or would be as JSON. ``is_key``: infinity differs from null then."""
    if isinstance(found, datetime) and isinstance(wanted, str):
        try:
            return datetime.fromisoformat(wanted) == found
        except ValueError:
            return False
    try:
        if bool(wanted == found):
            return True
    except Exception:  # of the user's own classes
        return False
    if isinstance(found, str | int) or found is None or (is_key and type(wanted) is type(found)):
        return False
    from malstrom_py.sinks.files.json_lines import json_line, json_value

    # As sinks.Files writes it, or as the commands print it.
    written = partial(json.dumps, default=json_value) if is_key else json_line
    return any(_read_back(wanted, write) == _read_back(found, write) for write in (written, _PRINTED))


_PRINTED: Final = partial(json.dumps, default=repr)


def _read_back(value: Any, write: Callable[[dict[str, Any]], str]) -> Any:
    """Return what is read back if ``value`` is written as JSON; an object that equals nothing if it cannot be."""
    try:
        return json.loads(write({"": value}))
    except (TypeError, ValueError, SinkError):
        return object()


class WantedKey:
    """The key whose records pass: ``given``, or what is as JSON has it unless ``is_exact``, of the type ``key_type``.

    ``found``: the keys that have passed.
    """

    def __init__(self, given: Any, *, is_exact: bool = False, key_type: str | None = None) -> None:
        self.given = given
        self.found: dict[Any, Any] = {}
        self._form = seen_form(given) if is_exact else None
        self._is_exact = is_exact
        self._type = key_type

    def takes(self, key: Any) -> bool:
        """Return whether records of ``key`` pass."""
        if self._is_exact:
            return bool(seen_form(key) == self._form)
        is_taken = self._type in (None, type(key).__name__) and is_same(self.given, key, is_key=True)
        if is_taken:
            self.found[seen_form(key)] = key
        return is_taken
