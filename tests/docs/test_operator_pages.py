"""docs/operators has a section for every step, with its arguments, and a row for every source and sink."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from malstrom_py import KeyedStreamBuilder, sinks, sources
from tests.pages import blocks_of
from tests.tree import ROOT

PAGES = {page.stem: page.read_text() for page in sorted((ROOT / "docs" / "operators").glob("*.md"))}

NAMES = (ROOT / "docs" / "api.md").read_text()

ELSEWHERE = {"sink", "key_distribute", "group_by", "with_watermark"}
"""``sink`` has the page of sinks, ``key_distribute`` is ``key_by``, and the others are on the page of Spark."""

STEPS = [
    name
    for name, member in inspect.getmembers(KeyedStreamBuilder, inspect.isfunction)
    if not name.startswith("_") and name not in ELSEWHERE
]


SECTIONS = {
    heading: body
    for text in PAGES.values()
    for heading, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
}
"""Heading of the second level -> the text below it, over all pages."""

PAGE_OF = {
    "window": "windows",
    **dict.fromkeys(("join", "join_interval", "join_asof", "join_table"), "joins"),
    "enrich": "enrich",
}
"""A step that has its own page, on which the text from its signature on is its section."""

for step, page in PAGE_OF.items():
    text = (ROOT / "docs" / f"{page}.md").read_text()
    SECTIONS[step] = text[text.index(f"`{step}(") :]


def test_there_are_pages_and_steps() -> None:
    assert {"stateless", "keyed", "stateful", "time", "sources-and-sinks"} <= set(PAGES)
    assert len(STEPS) > 30


@pytest.mark.parametrize("step", STEPS)
def test_a_step_has_a_section_with_an_example(step: str) -> None:
    assert step in SECTIONS, f"docs/operators has no section for {step}"
    assert any(block.info == "python" for block in blocks_of(SECTIONS[step])), "no example"


@pytest.mark.parametrize("step", STEPS)
def test_a_section_has_the_arguments_of_the_step(step: str) -> None:
    call = re.match(rf"`{step}\((.*?)\)`", SECTIONS[step].lstrip())
    assert call
    assert call[1].split(", ") == arguments_of(getattr(KeyedStreamBuilder, step))


def arguments_of(method: Callable[..., object]) -> list[str]:
    """The parameters of a builder's method as a page shows them, without self and annotations."""
    signature = inspect.signature(method)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare[1:], return_annotation=inspect.Signature.empty))
    return shown[1:-1].replace("'", '"').split(", ")


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_among_the_public_names(step: str) -> None:
    assert re.search(rf"^\|(?: `\w+`,| `\w+\(.*?\)`,)* `{step}(?:\(.*?\))?`", NAMES, flags=re.MULTILINE)


def test_sources_and_sinks_have_a_row_that_leads_to_their_page() -> None:
    built_in = [
        f"{kind}.{name}"
        for kind, module in (("sources", sources), ("sinks", sinks))
        for name in module.__all__
        if not getattr(getattr(module, name), "_is_protocol", False)
        and not inspect.isabstract(getattr(module, name))  # a class to inherit
        and any(hasattr(getattr(module, name), method) for method in ("list_parts", "build", "open"))
    ]
    assert len(built_in) >= 7
    linked = set(re.findall(r"^\|.*?\|", PAGES["sources-and-sinks"], flags=re.MULTILINE))
    assert [name for name in built_in if not any(f"[`{name}`](" in cell for cell in linked)] == []
