"""Prints the size of each room, beside what the rooms are to become: ``python -m tests.house``, or ``make house``.

A mirror, not a ruler: no test reads these figures. A line is code if it is not blank, not a comment and not in a
docstring; the length of a function has its decorators and its docstring.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from tests.tree import ROOT

ROOTS: Final = ("malstrom_py", "rescale", "workers")

AIMS: Final = {
    ("malstrom_py/state",): 3.9,
    ("malstrom_py/operators",): 6.0,
    ("malstrom_py/connectors", "malstrom_py/sources", "malstrom_py/sinks", "malstrom_py/spark"): 14.6,
    ("malstrom_py/dag", "malstrom_py/testing", "malstrom_py/cli", "malstrom_py/capture"): 7.0,
    ("malstrom_py/data", "malstrom_py/codec", "malstrom_py/builder", "malstrom_py/snapshot"): 7.5,
    ("malstrom_py/errors", "malstrom_py"): 3.6,
    ("rescale",): 3.4,
    ("workers/coordinator",): 4.0,
    ("workers",): 13.0,
}
"""Groups of rooms -> thousands of lines to reach. A room belongs to the most exact name that fits it."""

Node = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Size:
    """What some modules hold."""

    modules: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    functions: list[int] = field(default_factory=list)
    single: int = 0
    """Functions of one statement."""

    def add(self, path: Path) -> None:
        """Count one module."""
        text = path.read_text()
        tree = ast.parse(text)
        comments = {token.start[0] for token in tokens(text) if token.type == tokenize.COMMENT}
        whole = {number for number in comments if text.splitlines()[number - 1].lstrip().startswith("#")}
        blank = {number for number, line in enumerate(text.splitlines(), 1) if not line.strip()}
        self.modules += 1
        self.lines += len(text.splitlines())
        self.comments += len(comments)
        self.code += len(text.splitlines()) - len(whole | blank | set(docstring_lines(tree)))
        for node in ast.walk(tree):
            if isinstance(node, Node):
                self.functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
                self.single += len(body_of(node)) == 1

    def __str__(self) -> str:
        middle = median(self.functions) if self.functions else 0
        once = self.single / max(1, len(self.functions))
        share = self.comments / max(1, self.lines)
        return (
            f"{self.modules:>7} {self.lines:>8,} {self.code:>8,} {share:>8.1%} {len(self.functions):>9,} {middle:>6g}"
            f" {once:>8.0%}"
        )


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a module."""
    yield from tokenize.generate_tokens(io.StringIO(text).readline)


def docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of all strings of statements that are a string: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def body_of(node: Node) -> list[ast.stmt]:
    """Return the statements of a function without its docstring."""
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def room_of(path: Path) -> str:
    """Return the room of a module: two folders deep where there are two.

    >>> room_of(ROOT / "malstrom_py" / "sources" / "files" / "csv.py"), room_of(ROOT / "rescale" / "load.py")
    ('malstrom_py/sources', 'rescale')
    """
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[:1] if folders[0] == "rescale" else folders[:2])


def group_of(room: str) -> tuple[str, ...]:
    """Return the group of `AIMS` with the most exact name that fits a room."""
    fits = [(len(name), group) for group in AIMS for name in group if f"{room}/".startswith(f"{name}/")]
    return max(fits)[1]


def sources(root: str) -> list[Path]:
    """Return the modules below a folder, not through links."""
    return [path for path in sorted((ROOT / root).rglob("*.py")) if not any(p.is_symlink() for p in path.parents)]


def main() -> None:
    groups = {group: Size() for group in AIMS}
    rooms: dict[str, Size] = {}
    total, tests = Size(), Size()
    for path in (path for root in ROOTS for path in sources(root)):
        for size in (total, groups[group_of(room_of(path))], rooms.setdefault(room_of(path), Size())):
            size.add(path)
    for path in sources("tests"):
        tests.add(path)
    print(f"{'room':<28} modules    lines     code comments functions median one-line   to reach")
    for group, aim in AIMS.items():
        inside = sorted(room for room in rooms if group_of(room) == group)
        for room in inside:
            print(f"{room:<28} {rooms[room]}")
        print(f"{'':<28} {groups[group]} {aim * 1000:>10,.0f}\n")
    print(f"{'all of the package':<28} {total} {64_000:>10,}")
    print(f"{'tests':<28} {tests} {80_000:>10,}")
    text = "\n".join(path.read_text() for root in ROOTS for path in sources(root))
    print(f"\nNotColumnar: {text.count('NotColumnar')}; type: ignore: {text.count('type: ignore')}")


if __name__ == "__main__":
    main()
