"""Every Python block of README.md, CONTRIBUTING.md and docs/*.md runs, in order and in one namespace per page.

A page runs in an empty folder of its own. A block that starts with `>>>` is checked like a doctest. There is no way
to mark a Python block as not to be run: what is no program is shown under another language. Notes in docs/design
are left out: they also show what was rejected.
"""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tree import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

LANGUAGES = {"python", "sh", "console", "text", "toml", "json", "mermaid", "csv"}
"""What may stand behind an opening fence, and nothing else: no `py`, no `python no-run`."""

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what stands behind its fence, its text, and the line number of its first line."""

    info: str
    text: str
    line: int


def blocks_of(markdown: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    opened: tuple[str, str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(markdown.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, inside = (fence["fence"], fence["info"].strip(), number + 1), []
        elif fence and fence["fence"].startswith(opened[0]) and not fence["info"].strip():
            found.append(Block(opened[1], "\n".join(inside) + "\n", opened[2]))
            opened = None
        else:
            inside.append(line)
    assert opened is None, f"the fence before line {opened[2]} is never closed"
    return found


def run_block(block: Block, namespace: dict[str, object], page: Path) -> None:
    """Run one block as if it stood in a file of its own, with the page's line numbers in tracebacks."""
    if not block.text.lstrip().startswith(">>>"):
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
        return
    example = doctest.DocTestParser().get_doctest(block.text, namespace, page.name, str(page), block.line - 1)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(example, out=said.append, clear_globs=False)
    namespace.update(example.globs)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page.read_text()):
        if block.info == "python":
            run_block(block, namespace, page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_fences_only_languages_that_are_known(page: Path) -> None:
    unknown = [f"line {block.line}: {block.info!r}" for block in blocks_of(page.read_text())]
    assert [where for where in unknown if where.partition(": ")[2].strip("'") not in LANGUAGES] == []


def test_the_readme_shows_a_job_that_runs() -> None:
    programs = [block.text for block in blocks_of((ROOT / "README.md").read_text()) if block.info == "python"]
    assert any("mp.run(" in program for program in programs)


def test_blocks_are_found_with_language_text_and_line() -> None:
    page = "a\n```python\nx = 1\n\ny = x\n```\n\n````text\n```\n````\n"
    assert blocks_of(page) == [Block("python", "x = 1\n\ny = x\n", 3), Block("text", "```\n", 9)]


def test_a_block_that_raises_names_the_page_and_the_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = Block("python", "\nraise KeyError('k')\n", 7)
    with pytest.raises(KeyError) as raised:
        run_block(block, {}, page)
    frame = raised.traceback[-1]
    assert (str(frame.path), frame.lineno + 1) == (str(page), 8)


def test_blocks_of_a_page_share_a_namespace_and_sessions_are_checked(tmp_path: Path) -> None:
    namespace: dict[str, object] = {}
    run_block(Block("python", "x = 20\n", 1), namespace, tmp_path)
    run_block(Block("python", ">>> x + 1\n21\n>>> y = 3\n", 3), namespace, tmp_path)
    assert namespace["y"] == 3
    with pytest.raises(AssertionError, match="Expected"):
        run_block(Block("python", ">>> x\n4\n", 9), namespace, tmp_path)
