"""Writes the API reference from the docstrings, as Markdown: a page for each public module, for `tests.docs.website`.

Rule: the reference has the public modules and no others, and nothing in it is written by hand.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import pdoc.doc
import pdoc.docstrings

from tests.tree import modules, tree_of

ALSO_PUBLIC = ("malstrom_py.clock", "malstrom_py.errors", "malstrom_py.testing.strategies")
"""Public modules without an ``__all__``: all that is defined in them is meant."""

NOT_PUBLIC = ("malstrom_py.codec", "malstrom_py.testing.laws")
"""Packages whose ``__all__`` is for other modules of ours."""

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)
NAME = re.compile(r"(?<![`\[])`([A-Za-z_][\w.]*)`(?!`)")


def public_modules() -> list[str]:
    """The modules that users import from: those that say what is public in them, and a few more."""
    saying = [name for name in modules() if hasattr(importlib.import_module(name), "__all__")]
    return sorted({*saying, *ALSO_PUBLIC} - {*NOT_PUBLIC})


def origins_of(module: str) -> dict[str, str]:
    """Name -> the module of ours that ``module`` imports it from."""
    imports = [node for node in ast.walk(tree_of(modules()[module])) if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports for alias in node.names if node.module in modules()}


@cache
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


def pages() -> dict[str, str]:
    """Return module -> its page."""
    return {module: "\n\n".join(_page(described(module))) + "\n" for module in public_modules()}


def shown(module: str, name: str) -> str:
    """Return a public name as programs write it.

    >>> shown("malstrom_py", "Job"), shown("malstrom_py.sinks", "Files")
    ('mp.Job', 'sinks.Files')
    """
    return f"{'mp' if module == 'malstrom_py' else module.removeprefix('malstrom_py.')}.{name}"


class _AsWritten(str):
    """An annotation that is shown as in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def _page(module: pdoc.doc.Module) -> Iterator[str]:
    """Yield the parts of the page of ``module``."""
    yield f"# {module.modulename}"
    yield _words(module)
    for member in _members(module):
        yield f"## `{shown(module.modulename, member.name)}` {{ #{member.name} data-toc-label='{member.name}' }}"
        yield from _body(member)
        for method in _members(member) if isinstance(member, pdoc.doc.Class) else ():
            title = f"{member.name}.{method.name}"
            yield f"### `{title}` {{ #{title} data-toc-label='{method.name}' }}"
            yield from _body(method)


def _members(of: pdoc.doc.Namespace[Any]) -> list[pdoc.doc.Doc[Any]]:
    """Return what is described of a module or class: what is public, has words, and is not in a public base."""
    elsewhere = _places() if isinstance(of, pdoc.doc.Class) else {}
    return [
        member
        for name, member in of.members.items()
        if not name.startswith("_") and member.docstring and not isinstance(member, pdoc.doc.Module)
        if isinstance(of, pdoc.doc.Module) or member.taken_from[0].startswith("malstrom_py")
        if (base := member.taken_from[1].partition(".")[0]) == of.name or base not in elsewhere
    ]


def _body(member: pdoc.doc.Doc[Any]) -> Iterator[str]:
    """Yield how a member is called, and its words."""
    called = member.obj if isinstance(member, pdoc.doc.Class | pdoc.doc.Function) else None
    with suppress(TypeError, ValueError):  # it is not called
        yield f"```python\n{member.name}{_signature(called)}\n```"
    bases = member.obj.__mro__[1:] if isinstance(member, pdoc.doc.Class) else ()
    if public := [f"[`{base.__name__}`]({_places()[base.__name__]})" for base in bases if base.__name__ in _places()]:
        yield f"Has all of {', '.join(public)} too."
    yield _words(member)


def _signature(called: object) -> str:
    """Return the parameters as in the source, one per line where they are long."""
    signature = inspect.signature(called)  # type: ignore[arg-type]  # it raises TypeError for what is not called
    parameters = [
        p.replace(annotation=_as_written(p.annotation)) for p in signature.parameters.values() if p.name != "self"
    ]
    start = str(inspect.Signature(parameters))
    answer = inspect.Signature.empty if isinstance(called, type) else _as_written(signature.return_annotation)
    line = str(inspect.Signature(parameters, return_annotation=answer))
    if len(line) < 80:
        return line
    written = [str(parameter) for parameter in parameters]
    keywords = [n for n, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if keywords and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
        written.insert(keywords[0], "*")
    if positional := sum(p.kind is p.POSITIONAL_ONLY for p in parameters):
        written.insert(positional, "/")
    return "(" + "".join(f"\n    {one}," for one in written) + "\n)" + line.removeprefix(start)


def _as_written(annotation: object) -> object:
    return _AsWritten(annotation) if isinstance(annotation, str) else annotation


def _words(of: pdoc.doc.Doc[Any]) -> str:
    """Return a docstring as Markdown: examples are fenced, and public names are links."""
    text = re.sub(r"(?m)^#{6} (.+)$", r"**\1**\n", pdoc.docstrings.convert(of.docstring, "google", None))
    parts = re.split(r"(?m)(^```[\s\S]*?^```$)", EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text))
    return "".join(part if part.startswith("```") else NAME.sub(_link, part) for part in parts)


def _link(name: re.Match[str]) -> str:
    target = _places().get(name[1].removeprefix("mp."))
    return f"[{name[0]}]({target})" if target else name[0]


@cache
def _places() -> dict[str, str]:
    """Return name -> where its words are; the first module has a name that several have."""
    return {
        name: f"{module}.md#{member.name}"
        for module in reversed(public_modules())
        for member in _members(described(module))
        for name in (member.name, shown(module, member.name))
    }
