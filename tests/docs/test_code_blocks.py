"""Every Python block of README.md, CONTRIBUTING.md and docs/ runs, in order and in one namespace per page.

A page runs in a new empty folder. A block that starts with `>>>` is checked like a doctest; where a `text`
block follows one that printed something, it shows what was printed. No mark exempts a Python block from
running: other text is shown under another language. Notes in docs/design are left out: they also show what
was rejected. docs/spark.md is run by the tests of Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.running import run_block, run_page, shows
from tests.pages import DESIGN, PAGES, SPARK, Block, blocks_of, shown

RUN = [page for page in PAGES if DESIGN not in page.parents and page != SPARK]

LANGUAGES = {"python", "sh", "console", "text", "toml", "json", "yaml", "mermaid", "csv", "ini", "dockerfile"}
"""What may follow an opening fence, and nothing else: no `py`, no `python no-run`."""


@pytest.mark.parametrize("page", RUN, ids=shown)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_page_fences_only_languages_that_are_known(page: Path) -> None:
    unknown = [f"line {block.line}: {block.info!r}" for block in blocks_of(page.read_text())]
    assert [where for where in unknown if where.partition(": ")[2].strip("'") not in LANGUAGES] == []


def test_a_block_that_raises_names_the_page_and_the_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = Block("python", "\nraise KeyError('k')\n", 7)
    with pytest.raises(KeyError) as raised:
        run_block(block, {}, page)
    frame = raised.traceback[-1]
    assert (str(frame.path), frame.lineno + 1) == (str(page), 8)


def test_what_is_printed_is_compared_with_the_text_that_follows(tmp_path: Path) -> None:
    printed = run_block(Block("python", "print('step 1: read\\nstep 2: at line 7')\n", 1), {}, tmp_path)
    assert shows(Block("text", "step 1:\n  read step 2: at line ...\n", 3), printed)
    assert not shows(Block("text", "step 1: read\n", 3), printed)
