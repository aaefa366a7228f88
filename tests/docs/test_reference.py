"""The API reference that `make docs` generates has every public name, with the words of its docstring."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.reference import origins_of, public_modules
from tests.tree import ROOT, modules

MODULES = {name: importlib.import_module(name) for name in public_modules()}


def names_of(module: ModuleType) -> list[str]:
    """What is public in ``module``."""
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


NAMES = [(module, name) for module, loaded in MODULES.items() for name in names_of(loaded) if name != "__version__"]


class Page(HTMLParser):
    """The docstrings of a page of the reference, by the id of what they describe."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: dict[str, str] = {"": ""}
        self._open: list[tuple[str, str, bool]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"br", "hr", "img", "input", "link", "meta", "wbr"}:
            return
        given = dict(attrs)
        ident = given.get("id") if tag in {"section", "div"} else None
        self._open.append((tag, ident or "", "docstring" in (given.get("class") or "").split()))
        if ident:
            self.words.setdefault(ident, "")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if any(docstring for _, _, docstring in self._open):
            owner = next((ident for _, ident, _ in reversed(self._open) if ident), "")
            self.words[owner] += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The generated pages, by module."""
    folder = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-W", "error", "-m", "tests.docs.reference", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    files = {module: folder / f"{module.replace('.', '/')}.html" for module in MODULES}
    assert "malstrom_py.html" in (folder / "index.html").read_text()
    assert (folder / "search.js").is_file()
    return {module: Page(file.read_text()) for module, file in files.items()}


def plain(text: str) -> str:
    """Words alone: how they are marked up and wrapped does not count."""
    return " ".join(re.sub(r"[^\w\s]", " ", text).split())


def first_words(thing: object) -> str:
    """The first paragraph of a docstring."""
    return plain((inspect.getdoc(thing) or "").partition("\n\n")[0])


def methods_of(owner: object) -> Iterator[tuple[str, object]]:
    """The public methods that ``owner`` itself defines, if it is a class, and that have docstrings; no aliases."""
    for name, member in vars(owner).items() if isinstance(owner, type) else ():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__ and function.__name__ == name:
            yield name, function


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_public_module_has_a_page_with_its_words(module: str, pages: dict[str, Page]) -> None:
    assert first_words(MODULES[module]) in plain(" ".join(pages[module].words.values()))


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_a_public_name_is_in_the_reference_with_its_words(module: str, name: str, pages: dict[str, Page]) -> None:
    thing, words = getattr(MODULES[module], name), pages[module].words
    if isinstance(thing, ModuleType):
        assert thing.__name__ in pages
        return
    assert name in words
    if not isinstance(thing, type) and not inspect.isroutine(thing):
        assert words[name].strip(), f"nothing is said of the constant {name}"
        return
    assert first_words(thing) in plain(words[name])
    methods = {method: first_words(member) for method, member in methods_of(thing)}
    missing = [method for method, said in methods.items() if said not in plain(words[f"{name}.{method}"])]
    assert missing == []


def test_the_reference_has_what_users_import() -> None:
    below = ("clock", "errors", "partitioners", "sinks", "sources", "testing", "testing.contracts")
    assert {"malstrom_py", *(f"malstrom_py.{name}" for name in below)} <= set(MODULES)
    assert ("malstrom_py", "KeyedStreamBuilder") in NAMES
    assert ("malstrom_py.errors", "CodecError") in NAMES


def test_a_name_that_is_imported_is_found_where_it_is_defined() -> None:
    assert origins_of("malstrom_py")["MAX_EPOCH"] == "malstrom_py.data.messages"
    assert set(origins_of("malstrom_py").values()) <= set(modules())


def test_the_words_of_a_page_go_to_what_they_describe() -> None:
    page = Page('<div class="docstring">a<br>b</div><section id="X"><div class="docstring">c</div></section>')
    assert page.words == {"": "ab", "X": "c"}


def test_generated_pages_are_no_part_of_the_repository() -> None:
    assert "/docs-out/" in (ROOT / ".gitignore").read_text().splitlines()
    makefile = Path(ROOT / "Makefile").read_text()
    assert re.search(r"^docs:.*\n\t@\$\(PY\) -m tests\.docs\.reference docs-out$", makefile, flags=re.MULTILINE)
    assert re.search(r"^clean:\n(\t.*\n)*\t@rm -rf .*\bdocs-out\b", makefile, flags=re.MULTILINE)
