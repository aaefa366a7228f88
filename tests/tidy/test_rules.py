"""The numbered rules: those the page says are there have tests that bear their number; no other number is cited."""

from __future__ import annotations

import re

import pytest

from tests.tree import ROOT, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text()

DEFINED = set(re.findall(r"^- \*\*([FTRS]\d+)\*\*", PAGE, flags=re.MULTILINE))
THERE_NOW = set(re.findall(r"^\| ([FTRS]\d+) \|", PAGE, flags=re.MULTILINE))

TESTS = "\n".join(file.read_text() for file in sorted((ROOT / "tests").rglob("test_*.py")))


def test_the_page_defines_the_rules_it_lists() -> None:
    assert THERE_NOW
    assert THERE_NOW <= DEFINED


@pytest.mark.parametrize("rule", sorted(THERE_NOW))
def test_a_rule_that_is_there_has_a_test_that_bears_its_number(rule: str) -> None:
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
