"""Generates the API reference from the docstrings: ``python -m tests.docs.reference FOLDER``, which `make docs` calls.

Rule: the reference has the public modules and no others, and nothing in it is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import warnings
from pathlib import Path

import pdoc.doc
import pdoc.render

import malstrom_py
from tests.tree import modules, tree_of

ALSO_PUBLIC = ("malstrom_py.clock", "malstrom_py.errors", "malstrom_py.testing.strategies")
"""Public modules without an ``__all__``: all that is defined in them is meant."""

NOT_PUBLIC = ("malstrom_py.codec", "malstrom_py.testing.laws")
"""Packages whose ``__all__`` is for other modules of ours."""


def public_modules() -> list[str]:
    """The modules that users import from: those that say what is public in them, and a few more."""
    saying = [name for name in modules() if hasattr(importlib.import_module(name), "__all__")]
    return sorted({*saying, *ALSO_PUBLIC} - {*NOT_PUBLIC})


def origins_of(module: str) -> dict[str, str]:
    """Name -> the module of ours that ``module`` imports it from."""
    imports = [node for node in ast.walk(tree_of(modules()[module])) if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports for alias in node.names if node.module in modules()}


def described(module: str) -> pdoc.doc.Module:
    """Return the text on ``module``. A constant that it imports has the text of its definition."""
    face = importlib.import_module(module)
    for name in getattr(face, "__all__", ()):
        getattr(face, name)  # pdoc does not see a name that is loaded on first use before it is loaded
    page = pdoc.doc.Module(face)
    origins = origins_of(module)
    for name, member in page.members.items():
        if isinstance(member, pdoc.doc.Variable) and not member.docstring and name in origins:
            origin = pdoc.doc.Module.from_name(origins[name]).get(name)
            member.docstring = "" if origin is None else origin.docstring
    return page


def generate(folder: Path) -> None:
    """Write the reference into ``folder``, as HTML with a search; ``index.html`` is its beginning."""
    pages = {module: described(module) for module in public_modules()}
    footer = f"malstrom-py {malstrom_py.__version__}, Apache License 2.0"
    pdoc.render.configure(docformat="google", show_source=False, footer_text=footer)
    with warnings.catch_warnings():
        # Types that only a type checker can evaluate are shown as in the source.
        warnings.filterwarnings("ignore", message="Error parsing type annotation")
        for module, page in pages.items():
            file = folder / f"{module.replace('.', '/')}.html"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(pdoc.render.html_module(page, pages))
    (folder / "index.html").write_text(pdoc.render.html_index(pages))
    (folder / "search.js").write_text(pdoc.render.search_index(pages))


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the API reference.")
    parser.add_argument("folder", type=Path, help="where to write it")
    folder: Path = parser.parse_args().folder
    generate(folder)
    print(f"The reference is in {folder / 'index.html'}")


if __name__ == "__main__":
    main()
