"""The documentation site: it has every page and every public name, its links lead somewhere, and a browser shows it.

The site is built once, with a copy as an older version, and served as GitHub Pages would serve it.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.docs.reference import public_modules
from tests.docs.test_reference import MODULES, names_of
from tests.docs.website import INDEX, build, list_versions, navigation, places
from tests.left_out import chromium
from tests.pages import PAGES, links_of, shown

VERSION, OLDER = "1.10.0", "1.9.2"
SWITCHES = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-background-networking")
PATIENCE_MS = 30_000
OPENED = """{ const attach = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function () { return attach.call(this, { mode: "open" }) } }"""
"""The search and the diagrams are in closed trees, into which no test can look."""
needs_chromium = pytest.mark.needs_chromium


class Html(HTMLParser):
    """What a page of the site links to, and the anchors it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        self.targets += [target for name in ("href", "src") if (target := found.get(name))]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print no requests."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that is published, with two versions."""
    folder = tmp_path_factory.mktemp("site")
    build(folder, VERSION, folder / "stage")
    shutil.rmtree(folder / "stage")
    shutil.copytree(folder / VERSION, folder / OLDER)
    list_versions(folder)
    return folder


@pytest.fixture(scope="module")
def site(published: Path) -> Path:
    return published / VERSION


@pytest.fixture(scope="module")
def address(published: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=list(SWITCHES))
        yield opened
        opened.close()


def page_of(browser: Browser, address: str, wrong: list[str], *, dark: bool = False, width: int = 1280) -> Page:
    """Return a page; what it logs as an error and asks of other hosts goes into ``wrong``."""
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light")
    context.add_init_script(OPENED)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("response", lambda answer: wrong.append(answer.url) if answer.status >= 400 else None)
    page.on("request", lambda asked: None if asked.url.startswith((address, "data:")) else wrong.append(asked.url))
    return page


def html_at(place: str) -> str:
    """Return the file of a page's place."""
    path = Path(place)
    folder = path.parent if path.stem in ("README", "index") else path.with_suffix("")
    return str(folder / "index.html")


def test_every_page_is_in_the_navigation_and_in_the_site(site: Path) -> None:
    listed = [entry.place for entry in navigation()]
    assert [shown(page) for page in PAGES if places()[page] not in [*listed, "index.md"]] == []
    assert [place for place in [*listed, "index.md"] if not (site / html_at(place)).is_file()] == []
    assert {entry.tab for entry in navigation()} == set(re.findall(r"(?m)^## (.+)$", INDEX.read_text()))


def test_recipes_are_in_the_order_of_their_index() -> None:
    listed = [link.target for link in links_of((INDEX.parent / "how-to" / "README.md").read_text())]
    pages = [entry.place for entry in navigation() if entry.place.startswith("how-to/")]
    assert pages == ["how-to/README.md", *(f"how-to/{name}" for name in dict.fromkeys(listed) if "/" not in name)]


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = {file.relative_to(site).as_posix(): Html(file) for file in site.rglob("*.html") if file.name != "404.html"}
    dead = []
    for path, page in pages.items():
        for target in page.targets:
            link = urlsplit(urljoin(f"http://site/{path}", target))
            file = unquote(link.path).lstrip("/")
            file += "index.html" if file.endswith("/") or not file else ""
            if link.netloc != "site":
                continue
            anchors = pages[file].anchors if file in pages else {""}
            if not (site / file).is_file() or unquote(link.fragment) not in anchors | {""}:
                dead.append(f"{path}: {target}")
    assert dead == []


def test_the_search_finds_sessions_and_public_names(site: Path) -> None:
    found = {item["location"]: item for item in json.loads((site / "search.json").read_text())["items"]}
    assert any("session" in item["text"] for place, item in found.items() if place.startswith("windows/"))
    for name in ("malstrom_py/#StreamBuilder.assign_timestamps", "malstrom_py.sinks/#Files"):
        assert f"reference/{name}" in found


@pytest.mark.parametrize("module", public_modules())
def test_the_reference_has_each_public_name(site: Path, module: str) -> None:
    anchors = Html(site / "reference" / module / "index.html").anchors
    names = {name for name in names_of(MODULES[module]) if not name.startswith("__")}
    assert {name for name in names if f"{module}.{name}" not in MODULES} <= anchors


def test_programs_that_read_find_the_pages(published: Path, site: Path) -> None:
    listed = (published / "llms.txt").read_text()
    addresses = re.findall(rf"\(<?\S*?/{re.escape(VERSION)}/(\S+?\.md)>?\)", listed)
    assert {str(Path(html_at(entry.place)).with_suffix(".md")) for entry in navigation()} == set(addresses)
    assert [address for address in addresses if not (site / address).is_file()] == []
    assert "assign_timestamps" in (published / "llms-full.txt").read_text()


def test_the_latest_release_is_first(tmp_path: Path) -> None:
    for version in ("main", "1.9.2", "1.10.0"):
        (tmp_path / version).mkdir()
        for name in ("sitemap.xml", "404.html", "llms.txt", "llms-full.txt"):
            (tmp_path / version / name).write_text(version)
    list_versions(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["1.10.0", "1.9.2", "main"]
    assert [one["version"] for one in listed if one["aliases"] == ["latest"]] == ["1.10.0"]
    assert (tmp_path / "404.html").read_text() == "1.10.0"
    assert 'url=1.10.0/"' in (tmp_path / "index.html").read_text()


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_the_front_page(browser: Browser, address: str, dark: bool) -> None:
    wrong: list[str] = []
    page = page_of(browser, address, wrong, dark=dark)
    page.goto(address)
    expect(page).to_have_title("A stream processor for Python - malstrom-py")
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate" if dark else "default")
    expect(page.locator(".md-code__button").first).to_be_visible()
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    page.context.close()
    assert wrong == []


@needs_chromium
def test_a_search_for_session_leads_to_the_windows(browser: Browser, address: str) -> None:
    wrong: list[str] = []
    page = page_of(browser, address, wrong)
    page.goto(f"{address}{VERSION}/")
    page.locator(".md-search__button").click()
    page.get_by_role("combobox", name="Search").fill("session")
    page.locator(f"a[href*='/{VERSION}/windows/']").first.click()
    expect(page.locator("h1")).to_have_text(re.compile("^Windows"))
    page.context.close()
    assert wrong == []


@needs_chromium
def test_diagrams_are_drawn_without_another_host(browser: Browser, address: str) -> None:
    wrong: list[str] = []
    page = page_of(browser, address, wrong)
    page.goto(f"{address}{VERSION}/protocol/")
    expect(page.locator("div.mermaid").first).to_be_visible()
    expect(page.locator("pre.mermaid")).to_have_count(0)
    page.context.close()
    assert wrong == []


@needs_chromium
@pytest.mark.parametrize("place", ["", "windows/", "connectors/", "reference/malstrom_py.sinks/"])
def test_a_phone_shows_a_page_as_wide_as_itself_and_its_menu(browser: Browser, address: str, place: str) -> None:
    wrong: list[str] = []
    page = page_of(browser, address, wrong, width=390)
    page.goto(f"{address}{VERSION}/{place}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    home = page.locator(".md-nav--primary > .md-nav__list > .md-nav__item").first
    expect(home).not_to_be_in_viewport()
    page.locator("header label[for=__drawer]").click()
    expect(home).to_be_in_viewport()
    page.context.close()
    assert wrong == []


@needs_chromium
def test_another_version_is_one_click_away(browser: Browser, address: str) -> None:
    wrong: list[str] = []
    page = page_of(browser, address, wrong)
    page.goto(f"{address}{VERSION}/windows/")
    page.locator(".md-version").hover()
    page.locator(".md-version__link", has_text=OLDER).click()
    expect(page).to_have_url(f"{address}{OLDER}/windows/")
    page.context.close()
    assert wrong == []
