"""The numbered rules: each rule that code follows has a test with its number in the name; code cites no other rule."""

from __future__ import annotations

import re

import pytest

from tests.tree import ROOT, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text()

DEFINED = set(re.findall(r"^- \*\*([FTRS]\d+)\*\*", PAGE, flags=re.MULTILINE))
MISSING = set(re.findall(r"^- \*\*([FTRS]\d+)\*\* \(\[not yet\]\(not-yet\.md#", PAGE, flags=re.MULTILINE))
"""The rules that the page marks with a link to docs/not-yet.md."""

FOLLOWED = DEFINED - MISSING

TESTS = "\n".join(file.read_text() for file in sorted((ROOT / "tests").rglob("test_*.py")))


def test_the_page_defines_rules() -> None:
    assert len(FOLLOWED) > 25
    assert not MISSING


@pytest.mark.parametrize("rule", sorted(FOLLOWED))
def test_a_rule_has_a_test_with_its_number(rule: str) -> None:
    assert re.search(rf"^def test_{rule.lower()}_\w+\(", TESTS, flags=re.MULTILINE), (
        f"no test_{rule.lower()}_… in tests/"
    )


def test_code_cites_only_rules_that_exist() -> None:
    cited = {
        f"{module} cites {rule}"
        for module, file in modules().items()
        for rule in re.findall(r"\b([FTRS]\d{1,2})\b", file.read_text())
        if rule not in DEFINED
    }
    assert not cited
