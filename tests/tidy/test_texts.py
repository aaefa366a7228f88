"""Texts of errors that are not ours go through `malstrom_py.errors.text`, which hides them while texts are redacted."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from tests.tree import modules, tree_of

SHOWN = {
    "malstrom_py.builder.mistakes": "of arguments that do not fit Python names the parameters alone",
    "malstrom_py.dag.registration": "as mistakes",
    "malstrom_py.codec.types": "the text is about a class",
    "malstrom_py.sources.files.typed_rows": "the text is about a class",
    "malstrom_py.sources.files.csv": "it looks for the number of the column alone",
    "malstrom_py.sources.files.parquet": "the text is ours: NoSuchTime",
    "malstrom_py.sinks.output_record": "our own file of names and counts",
    "malstrom_py.snapshot.checkpointer": "a manifest's ValueError is ours",
    "malstrom_py.snapshot.log": "a manifest's ValueError is ours",
    "malstrom_py.snapshot.user_checkpointer": "a manifest's ValueError is ours",
    "malstrom_py.spark.session": "in a Python that may be without this package; nothing of a job has run",
    "malstrom_py.workers.ray.coordinator_start": "it looks for two words",
    "malstrom_py.workers.transport.zeromq": "the text of an error number of ZeroMQ",
}
"""The modules that use such a text, and why it has no values of records."""

NOT_IN_JOBS = ("malstrom_py.cli.", "malstrom_py.testing.", "malstrom_py.workers.simulator.")


def own_errors(trees: Iterable[ast.AST]) -> set[str]:
    """Return the names of the classes of this package that are errors."""
    pythons = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    names, size = pythons, 0
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while len(names) > size:
        size = len(names)
        names = names | {one.name for one in classes if {last(base) for base in one.bases} & names}
    return names - pythons


def last(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def caught(handler: ast.ExceptHandler) -> set[str]:
    kind = handler.type
    return {last(one) for one in kind.elts} if isinstance(kind, ast.Tuple) else {last(kind)} if kind else set()


def texts(tree: ast.AST, own: set[str]) -> Iterator[int]:
    """Yield the lines that use the text of an error whose class may be another's."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None or caught(handler) <= own:
            continue
        for node in ast.walk(handler):
            formatted = node.value if isinstance(node, ast.FormattedValue) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"str", "repr"}:
                formatted = next(iter(node.args), None)
            if isinstance(formatted, ast.Name) and formatted.id == handler.name:
                yield formatted.lineno


def test_texts_of_other_code_are_redacted() -> None:
    trees = {name: tree_of(file) for name, file in modules().items()}
    own = own_errors(trees.values())
    read = {name: list(texts(tree, own)) for name, tree in trees.items() if not name.startswith(NOT_IN_JOBS)}
    found = {name: lines for name, lines in read.items() if lines}
    asked = {name: lines for name, lines in found.items() if name not in SHOWN}
    assert not asked, "use text_of, describe_error or public_text, or list the module with why it has no values"
    assert SHOWN.keys() <= found.keys()


def test_such_a_text_is_found() -> None:
    code = "try:\n  f()\nexcept {} as error:\n  raise PlanError(f'{{error}}') from error\nelse:\n  str(error)"
    assert list(texts(ast.parse(code.format("(SinkError, ValueError)")), {"SinkError"})) == [4]
    assert not list(texts(ast.parse(code.format("errors.SinkError")), {"SinkError"}))
