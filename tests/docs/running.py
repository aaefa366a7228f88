"""Runs the Python blocks of a page, in order and in one namespace. For the tests of the pages."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.pages import Block, blocks_of, shown


@contextlib.contextmanager
def no_ray_is_left() -> Iterator[None]:
    """Shut down a Ray that was started here: tests that come later in this process start one of another size."""
    before = _ray_runs()
    try:
        yield
    finally:
        if _ray_runs() and not before:
            sys.modules["ray"].shutdown()


def _ray_runs() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def run_page(page: Path) -> None:
    """Run the page in the working directory; a `text` block after one that printed something shows the output."""
    with no_ray_is_left():
        _run_page(page)


def _run_page(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(page.read_text()):
        if block.info == "python":
            printed = run_block(block, namespace, page)
        elif block.info == "text" and printed:
            assert shows(block, printed), (
                f"line {block.line} of {shown(page)} does not show what is printed:\n{printed}"
            )
            printed = ""


def run_block(block: Block, namespace: dict[str, object], page: Path) -> str:
    """Run one block like a separate file and return its output. Tracebacks have the lines of the page."""
    if not block.text.lstrip().startswith(">>>"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
        return printed.getvalue()
    example = doctest.DocTestParser().get_doctest(block.text, namespace, page.name, str(page), block.line - 1)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(example, out=said.append, clear_globs=False)
    namespace.update(example.globs)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
    return ""


def shows(block: Block, printed: str) -> bool:
    """Whether ``block`` is what was printed, however its lines are wrapped; ``...`` matches anything."""
    pieces = map(re.escape, " ".join(block.text.split()).split("..."))
    return re.fullmatch(".*".join(pieces), " ".join(printed.split())) is not None
