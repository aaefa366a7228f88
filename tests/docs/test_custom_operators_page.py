"""docs/custom-operators.md has the laws that there are, with what they say, and docs/api.md the hooks of logics."""

from __future__ import annotations

import re

import pytest

from malstrom_py.operators.logic import HOOKS
from malstrom_py.testing import LAWS
from tests.tree import ROOT


def test_the_table_has_the_laws_in_their_order() -> None:
    page = (ROOT / "docs" / "custom-operators.md").read_text()
    table = page.partition("| law | says |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0].strip("| ") for line in table.splitlines()] == [law.name for law in LAWS]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_on_the_page_of_names(hook: str) -> None:
    assert re.search(rf"^\| `{hook}\(", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
