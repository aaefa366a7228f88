"""Builds the documentation site: ``python -m tests.docs.website build FOLDER``, which `make site` calls.

The pages are copied to ``build/site/docs``, with the API reference beside them, and zensical builds them into a folder
of this version. FOLDER may have other versions already: the switch of versions shows them all. ``serve`` shows the
site while it is written.

Rules: the index, ``docs/README.md``, is the navigation: its headings are the tabs and their groups, its lists the
pages; a link to a folder brings its pages. The site asks no other host for anything.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import malstrom_py
from tests.docs.reference import pages as reference_pages
from tests.pages import PAGES, links_of, relinked
from tests.tree import ROOT, pyproject

DOCS: Final = ROOT / "docs"
INDEX: Final = DOCS / "README.md"
STAGE: Final = ROOT / "build" / "site"
ADDRESSES: Final = pyproject()["project"]["urls"]

ZENSICAL: Final = (sys.executable, "-c", "from zensical.main import cli; cli()")

MERMAID: Final = '"https://unpkg.com/mermaid@12/dist/mermaid.min.js"'
"""Where zensical's script loads Mermaid from."""
OUR_MERMAID: Final = 'new URL("site/mermaid.tiny.js",__md_scope).href'

FRONT_TITLE: Final = "---\ntitle: A stream processor for Python\n---\n"
REDIRECT: Final = """<!doctype html><title>malstrom-py</title><link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={0}"><a href="{0}">The documentation of malstrom-py</a>
"""
_ITEM: Final = re.compile(r"- \[(?P<title>.+?)\]\((?P<target>[^()\s#:]+)\)(?:: (?P<words>.*))?")


class Entry(NamedTuple):
    """A page of the navigation: the tab and group it is in ("" for none), its place, its title, and a few words."""

    tab: str
    group: str
    place: str
    title: str | None
    words: str = ""


@cache
def places() -> dict[Path, str]:
    """Return page of the repository -> its place in the site. The two front pages have one place."""
    inside = {page: page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents}
    outside = {page: page.relative_to(ROOT).as_posix().lower() for page in PAGES if page not in inside}
    return outside | inside | dict.fromkeys((ROOT / "README.md", INDEX), "index.md")


def navigation() -> list[Entry]:
    """Return the pages of the site in their order, as the index has them; after them those of the API."""
    tab = group = ""
    found: dict[str, Entry] = {}
    for line in INDEX.read_text().splitlines():
        if line.startswith("## "):
            tab, group = line.removeprefix("## "), ""
        elif line.startswith("### "):
            group = line.removeprefix("### ")
        elif tab and (item := _ITEM.match(line)):
            words = item["words"] or ""
            for page in _pages_at((DOCS / item["target"]).resolve()):
                title = item["title"] if page == DOCS / item["target"] else None
                found.setdefault(places()[page], Entry(tab, group, places()[page], title, words))
    return [*found.values(), *(Entry("Reference", "API", f"reference/{m}.md", m) for m in reference_pages())]


def _pages_at(target: Path) -> list[Path]:
    """Return the pages that a link leads to: one, or those of a folder, its index first, in the order of the index."""
    if target.name == "README.md" and DOCS in target.parent.parents:
        target = target.parent
    if target.is_dir():
        index = target / "README.md"
        listed = [link.target for link in links_of(index.read_text())] if index.exists() else []
        first = {name: place for place, name in reversed(list(enumerate(["README.md", *listed])))}
        return sorted(target.glob("*.md"), key=lambda page: (first.get(page.name, len(first)), page.name))
    return [target]


def stage(into: Path) -> None:
    """Write what zensical reads: pages whose links lead to pages of the site, or to the repository."""
    into = into / "docs"
    for page, place in places().items():
        if page != ROOT / "README.md":
            text = relinked(page.read_text(), partial(_leads, page, place))
            _write(into / place, FRONT_TITLE + text if page == INDEX else text)
    for file in DOCS.rglob("*.*"):
        if file.suffix != ".md":
            _write(into / file.relative_to(DOCS), file.read_bytes())
    for module, text in reference_pages().items():
        _write(into / f"reference/{module}.md", text)


def _write(file: Path, content: str | bytes) -> None:
    """Write a file, if it has changed: zensical builds those alone again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    if not file.exists() or file.read_bytes() != data:
        file.write_bytes(data)


def _leads(page: Path, place: str, target: str) -> str:
    """Return where a link of ``page`` leads in the site; one to another file leads to the repository."""
    path, sharp, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return target
    file = (page.parent / path).resolve()
    file = _pages_at(file)[0] if DOCS in file.parents and file.is_dir() else file
    inside = places().get(file) or (file.relative_to(DOCS).as_posix() if DOCS in file.parents else None)
    if inside:
        return os.path.relpath(inside, Path(place).parent) + sharp + anchor
    return f"{ADDRESSES['Homepage']}/blob/main/{file.relative_to(ROOT)}{sharp}{anchor}"


def configure(into: Path, address: str, *, switch: bool) -> Path:
    """Write zensical's configuration: ``docs/site/zensical.toml``, and what depends on the pages. Return its file."""
    project: dict[str, Any] = tomllib.loads((DOCS / "site" / "zensical.toml").read_text())["project"]
    tabs: dict[str, dict[str, list[Any]]] = {}
    sections: dict[str, list[dict[str, str]]] = {}
    for entry in navigation():
        page = {entry.title.replace("`", ""): entry.place} if entry.title else entry.place
        tabs.setdefault(entry.tab, {}).setdefault(entry.group, []).append(page)
        sections.setdefault(entry.tab, []).append({entry.place: entry.words})
    project["nav"] = [{"Home": "index.md"}, *({tab: _nested(groups)} for tab, groups in tabs.items())]
    project["site_url"] = address
    # Not as repo_url, which asks GitHub for its stars.
    project["extra"]["social"] = [{"icon": "fontawesome/brands/github", "link": ADDRESSES["Homepage"]}]
    project["plugins"]["llmstxt"] = {"sections": sections, "full_output": "llms-full.txt"}
    if not switch:
        del project["extra"]["version"]
    file = into / "mkdocs.yml"
    file.write_text(json.dumps(project))  # JSON is YAML
    return file


def _nested(groups: dict[str, list[Any]]) -> list[Any]:
    return [*groups.pop("", []), *({group: pages} for group, pages in groups.items())]


def build(folder: Path, version: str, stage_in: Path = STAGE) -> None:
    """Build the site of ``version`` into its folder below ``folder``."""
    shutil.rmtree(stage_in, ignore_errors=True)
    stage(stage_in)
    config = configure(stage_in, f"{ADDRESSES['Documentation']}{version}/", switch=True)
    subprocess.run([*ZENSICAL, "build", "--strict", "-f", str(config)], check=True)
    for script in (stage_in / "out" / "assets" / "javascripts").glob("bundle.*.js"):
        text = script.read_text()
        assert MERMAID in text, f"{script.name} loads Mermaid from elsewhere: see MERMAID"
        script.write_text(text.replace(MERMAID, OUR_MERMAID))
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(stage_in / "out", folder / version)
    list_versions(folder)


def list_versions(folder: Path) -> None:
    """Write what leads from ``folder`` to the versions in it: the latest release first, then those that are older."""
    versions = sorted((file.parent.name for file in folder.glob("*/sitemap.xml")), key=_order, reverse=True)
    listed = [{"version": v, "title": v, "aliases": ["latest"] if v == versions[0] else []} for v in versions]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    (folder / "index.html").write_text(REDIRECT.format(f"{versions[0]}/"))
    for name in ("404.html", "llms.txt", "llms-full.txt"):
        shutil.copy(folder / versions[0] / name, folder)


def _order(version: str) -> list[int]:
    """Return what versions are sorted by. One without numbers, such as that of the main branch, is the oldest."""
    return [int(number) for number in re.findall(r"\d+", version)]


def serve(address: str) -> None:
    """Serve the site, and follow changes of the pages. Those of docstrings need a new start."""
    shutil.rmtree(STAGE, ignore_errors=True)
    stage(STAGE)
    config = configure(STAGE, f"http://{address}/", switch=False)
    command = [*ZENSICAL, "serve", "--dev-addr", address, "-f", str(config)]
    with subprocess.Popen(command) as server:
        while server.poll() is None:
            time.sleep(0.5)
            stage(STAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build or serve the documentation site.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("folder", type=Path, help="where to write it; may have other versions")
    building.add_argument("--version", default=malstrom_py.__version__, help="the folder and the name of this version")
    serving = commands.add_parser("serve")
    serving.add_argument("--address", default="localhost:8000")
    options = parser.parse_args()
    if options.command == "serve":
        serve(options.address)
        return
    build(options.folder, options.version)
    print(f"The site is in {options.folder / options.version}; make site-serve shows it")


if __name__ == "__main__":
    main()
