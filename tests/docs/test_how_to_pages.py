"""A recipe is one screen: for whom, code and what it prints, what to watch, where to read on; the index lists it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import blocks_of, links_of, prose_of, shown
from tests.tree import ROOT

INDEX = ROOT / "docs" / "how-to" / "README.md"
RECIPES = sorted(set(INDEX.parent.glob("*.md")) - {INDEX})
WORDS_MAX = 250


@pytest.mark.parametrize("recipe", RECIPES, ids=shown)
def test_a_recipe_has_its_four_pieces_and_is_one_screen(recipe: Path) -> None:
    lines = [line for _, line in prose_of(recipe.read_text()) if line]
    assert lines[1].startswith("For users "), "its first line says for whom it is"
    assert any(line.startswith("**Watch out**: ") for line in lines)
    assert any(line.startswith("More: [") for line in lines)
    kinds = {block.info for block in blocks_of(recipe.read_text())}
    assert kinds >= {"python", "text"}, "code, and what it prints"
    assert sum(len(line.split()) for line in lines) <= WORDS_MAX


def test_the_index_lists_each_recipe_by_its_title() -> None:
    listed = {(INDEX.parent / link.target).resolve() for link in links_of(INDEX.read_text())}
    assert set(RECIPES) <= listed
    text = INDEX.read_text()
    titles = {recipe: recipe.read_text().splitlines()[0].removeprefix("# ") for recipe in RECIPES}
    assert [title for recipe, title in titles.items() if f"[{title}]({recipe.name})" not in text] == []
