"""The module of a job, whose file a test changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class JobModule:
    """The module of the file at ``path`` with the content ``text``, imported."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.name, self.text = path, path.stem, text
        self.write()
        self.module: ModuleType = __import__(self.name)

    def write(self, *changes: tuple[str, str]) -> None:
        """Write the file as it was at first, with ``changes``."""
        text = self.text
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        self.path.write_text(text)

    def import_again(self) -> ModuleType:
        """Import the present content of the file."""
        del sys.modules[self.name]
        self.module = __import__(self.name)
        return self.module

    @property
    def items(self) -> list[dict[str, Any]]:
        """The rows in the sink ``out`` of the module."""
        items: list[dict[str, Any]] = self.module.out.items
        return items


MakeModule = Callable[[str], JobModule]
"""The fixture that makes one of a text."""
