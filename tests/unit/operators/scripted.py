"""A source whose parts do what a script says, one entry per poll, and that keeps account of what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from malstrom_py.sources.base import Part


class ScriptedPart:
    """Each poll gives the next entry: rows, or None, or an exception to raise. At the end it is finished."""

    def __init__(self, script: Sequence[Any], close_error: BaseException | None = None) -> None:
        self._script = list(script)
        self._close_error = close_error
        self.polls = 0
        self.closed = 0

    def poll(self, rows_max: int) -> Any:
        self.polls += 1
        entry = self._script.pop(0) if self._script else None
        if isinstance(entry, BaseException):
            raise entry
        return entry

    def is_finished(self) -> bool:
        return not self._script

    def snapshot(self) -> Any:
        return None

    def close(self) -> None:
        self.closed += 1
        if self._close_error is not None:
            raise self._close_error


class Scripted:
    """Parts by name; a script that is an exception is raised when its part is opened."""

    def __init__(
        self, scripts: Mapping[str, Any], *, list_error: Exception | None = None, close_error: Exception | None = None
    ) -> None:
        self._scripts = scripts
        self._list_error = list_error
        self._close_error = close_error
        self.parts: dict[str, ScriptedPart] = {}
        self.open_at_once_max = 0

    def list_parts(self) -> Sequence[Part]:
        if self._list_error is not None:
            raise self._list_error
        return [Part(name) for name in self._scripts]

    def build_part(self, part: Part, state: Any) -> ScriptedPart:
        script = self._scripts[part]
        if isinstance(script, Exception):
            raise script
        self.parts[part] = ScriptedPart(script, self._close_error)
        self.open_at_once_max = max(self.open_at_once_max, sum(not p.closed for p in self.parts.values()))
        return self.parts[part]

    @property
    def closed(self) -> dict[str, int]:
        """How often each part that was opened has been closed."""
        return {name: part.closed for name, part in self.parts.items()}
