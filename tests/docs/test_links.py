"""Links between pages lead somewhere: the file is there, and so is the heading. Links out of the repository are few."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.pages import PAGES, anchors_of, links_of, shown
from tests.tree import ROOT

OUTSIDE = {
    *(
        "github.com",
        "hypothesis.readthedocs.io",
        "keepachangelog.com",
        "nightlies.apache.org",
        "pathway.com",
        "pola.rs",
    ),
    *("semver.org", "spark.apache.org", "docs.aws.amazon.com", "docs.databricks.com"),
}
"""Hosts that a page may link to. Nothing asks them whether the page is still there."""

INDEX = ROOT / "docs" / "README.md"


def why_dead(target: str, page: Path) -> str | None:
    """What is wrong with a link of ``page`` to ``target``; None if it leads somewhere."""
    if re.match(r"[a-z]+:", target):
        host = urlsplit(target).hostname
        return None if host in OUTSIDE else f"{host} is none of the hosts that pages link to"
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"there is no {path}"
    if ROOT not in file.parents:
        return "it leads out of the repository"
    if anchor and (file.suffix != ".md" or anchor not in anchors_of(file.read_text())):
        return f"{shown(file)} has no heading #{anchor}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = [(link, why_dead(link.target, page)) for link in links_of(page.read_text())]
    assert [f"line {link.line}: {link.target}: {why}" for link, why in links if why] == []


def listed_by(index: Path) -> set[Path]:
    """Return the pages and folders that an index links to, and those of the indexes among them."""
    listed = {(index.parent / link.target.partition("#")[0]).resolve() for link in links_of(index.read_text())}
    below = {page for page in listed if page.name == "README.md" and index.parent in page.parent.parents}
    return listed.union(*map(listed_by, below))


def test_the_index_leads_to_every_page_of_the_docs_or_to_its_folder() -> None:
    listed = listed_by(INDEX)
    listed |= {page for page in PAGES if page.parent in listed} | {INDEX}
    missing = [shown(page) for page in PAGES if INDEX.parent in page.parents and page not in listed]
    assert missing == []


def test_a_dead_link_is_told(tmp_path: Path) -> None:
    page = ROOT / "docs" / "api.md"
    assert why_dead("codec.md", page) is None
    assert why_dead("codec.md#at-rest", page) is None
    assert why_dead("codec.md#at-sea", page) == "docs/codec.md has no heading #at-sea"
    assert why_dead("nowhere.md", page) == "there is no nowhere.md"
    assert why_dead("#nowhere", page) == "docs/api.md has no heading #nowhere"
    assert why_dead(f"../../../../../../../..{tmp_path}", page) == "it leads out of the repository"
    assert why_dead("https://example.invalid/", page) is not None
