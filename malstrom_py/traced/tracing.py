"""What a function computes from a row: it is called with proxies that note what is done with them, once per path.

A proxy knows the kind of its value but not the value. Where the function asks for a truth (``if``, ``and``, ``in``),
it is called once for each answer, so that its branches are those of Python itself. A path on which it raises is a
`Failing` one, and the function does the rows that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from malstrom_py.traced.nodes import Choice, Failing, Kind, Listed, Node, NoFields, NotTraceable, Result, Tree, leaves
from malstrom_py.traced.proxies import (
    KINDS,
    OVERLAY,
    Instance,
    Places,
    Questions,
    Row,
    RowKind,
    Table,
    Value,
    field_of,
    replaced,
    row_of,
)
from malstrom_py.traced.purity import Checking, Impure, Outside

KEY: Final = "\0key"
"""The field of the keys; no row has it."""

_PATHS_MAX: Final = 100
_RISKY: Final = frozenset({"truediv", "floordiv", "mod", "int"})


@dataclass(frozen=True, slots=True)
class Traced:
    """What a function computes on rows of certain kinds. ``fields``: those that it reads, ``nullable`` or not."""

    tree: Tree
    outside: Outside
    fields: frozenset[str]
    nullable: frozenset[str]

    @property
    def may_be_none(self) -> bool:
        """Whether the function may return None."""
        values = [leaf.value for leaf in leaves(self.tree) if isinstance(leaf, Result)]
        return any(
            value is None or (isinstance(value, Node) and bool(self.nullable.intersection(value.arguments[:1])))
            for value in values
        )


def trace(
    function: Callable[..., Any],
    kinds: Mapping[str, Kind],
    nullable: frozenset[str] = frozenset(),
    *,
    row: RowKind = "dict",
    key: Kind | None = None,
    arguments: Callable[[Questions], tuple[Any, ...]] | None = None,
) -> Traced | str:
    """Return what ``function`` computes from a row with ``kinds`` of fields; a text says why that cannot be known.

    ``nullable``: the fields that may be None. ``row``: what the argument is, a dict, an instance of a class with these
    fields, a tuple of them, or the only field of its row, ``value``.
    ``key``: of what kind the keys are, which are the first argument; they are the field `KEY`.
    ``arguments``: what the function is called with, if that is something else.

    >>> traced = trace(lambda row: row["price"] * 2 if row["price"] > 3 else None, {"price": "int"})
    >>> traced.tree.test.operation, traced.tree.yes.value.operation, traced.tree.no.value
    ('gt', 'mul', None)
    >>> trace(lambda row: print(row), {"price": "int"})
    'calls print'
    """
    checking = Checking(replaced, OVERLAY)
    try:
        own = checking.checked(function)
        paths = _Paths(own, kinds, nullable, checking.outside, row=row, key=key, arguments=arguments)
        tree = paths.explored([])
    except (Impure, NotTraceable) as refused:
        return refused.why
    if all(isinstance(leaf, Failing) for leaf in leaves(tree)):
        return "raises, or does what is not compiled, for each row"
    return Traced(tree, checking.outside, frozenset(paths.fields), nullable)


def field_returned(function: Callable[[Any], Any]) -> str | None:
    """Return the name of the field that ``function`` returns of a row that is a dict; None if it does anything else.

    >>> field_returned(lambda row: row["price"]), field_returned(lambda row: row["price"] * 2)
    ('price', None)
    """
    traced = trace(function, _AnyFields("other"))
    if not isinstance(traced, Traced) or function.__code__.co_names or function.__code__.co_freevars:
        return None
    value = traced.tree.value if isinstance(traced.tree, Result) else None
    return str(value.arguments[0]) if isinstance(value, Node) and value.operation == "field" else None


class _AnyFields(dict[str, Kind]):
    """The kinds of fields that are not known: there is each field, of ``kind``; with "other" nothing can be done."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind: Kind = kind

    def __contains__(self, name: object) -> bool:
        return type(name) is str

    def __missing__(self, name: str) -> Kind:
        return self._kind


def why_impure(function: Callable[[Any], Any]) -> str | None:
    """Return why ``function`` is never traced, with any rows."""
    try:
        Checking().checked(function)
    except Impure as refused:
        return refused.why
    return None


def why_never(function: Callable[[Any], Any], *, makes_columns: bool = True, makes_tuples: bool = True) -> str | None:
    """Return why ``function`` is traced on no rows and no plain values, as far as that is known without them.

    ``makes_columns``: its results must be what columns hold. ``makes_tuples``: these may hold tuples.

    >>> why_never(lambda row: row["price"] * 2), why_never(lambda number: number * 2)
    (None, None)
    >>> why_never(lambda word: word[::2])
    'takes one character, or a slice that is not compiled'
    >>> why_never(lambda row: (row["shop"], row["product"]))
    >>> why_never(lambda row: row["at"], makes_tuples=False)
    """
    if (why := why_impure(function)) is not None:
        return why
    required = function.__code__.co_argcount - len(function.__defaults__ or ())
    key: Kind | None = "other" if required > 1 else None
    for row in _ROWS:
        if _takes_fields(function, key, row):
            refused = Listed if makes_tuples else tuple
            is_refused = makes_columns and _returns_a(refused, function, key, row)
            return (
                "returns a list or a set" if is_refused and makes_tuples else "returns a tuple" if is_refused else None
            )
    tried = [trace(function, {"value": kind}, row="value", key=None if key is None else kind) for kind in _SCALARS]
    return None if any(isinstance(one, Traced) for one in tried) else str(tried[-1])


_ROWS: Final[Sequence[RowKind]] = ("dict", "class", "tuple")
_SCALARS: Final[Sequence[Kind]] = ("int", "float", "bool", "time", "date", "str")


def _takes_fields(function: Callable[[Any], Any], key: Kind | None, row: RowKind) -> bool:
    """Whether ``function`` uses its row by its fields; the kinds of these may decide."""
    checking = Checking(replaced, OVERLAY)
    own = checking.checked(function)
    try:
        own(*_Paths(own, _AnyFields("other"), frozenset(), checking.outside, row=row, key=key).arguments())
    except (NoFields, AttributeError, TypeError):  # a row has nothing but fields
        return False
    except (NotTraceable, Exception):
        """The kinds decide."""
    return True


def _returns_a(type_: type, function: Callable[[Any], Any], key: Kind | None, row: RowKind) -> bool:
    """Whether ``function`` is known to return a ``type_`` for all rows: with fields of each kind that it takes."""
    tried = [trace(function, _AnyFields(kind), row=row, key=None if key is None else kind) for kind in _SCALARS]
    trees = [one.tree for one in tried if isinstance(one, Traced)]
    ends = [leaf for tree in trees for leaf in leaves(tree) if isinstance(leaf, Result)]
    return bool(ends) and all(isinstance(leaf.value, type_) for leaf in ends)


class _Paths:
    """The paths of a function, one after the other."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        kinds: Mapping[str, Kind],
        nullable: frozenset[str],
        outside: Outside,
        *,
        row: RowKind = "dict",
        key: Kind | None = None,
        arguments: Callable[[Questions], tuple[Any, ...]] | None = None,
    ) -> None:
        self._function = function
        self._row: RowKind = row
        self._key: Kind | None = key
        self._arguments = arguments
        self.kinds = kinds
        self.nullable = nullable
        self.outside = outside
        self.fields: set[str] = set()
        self._nodes: dict[Any, Node] = {}
        self._given: Sequence[bool] = ()
        self._tests: list[Node] = []
        self._answers: dict[Node, bool] = {}
        self._risky: dict[Node, None] = {}
        self._count = 0

    def explored(self, answers: list[bool]) -> Tree:
        """Return the tree below ``answers``."""
        self._count += 1
        if self._count > _PATHS_MAX:
            raise NotTraceable("has too many branches")
        self._given, self._tests, self._answers, self._risky = answers, [], {}, {}
        tree: Tree
        try:
            tree = Result(_result(self._function(*self.arguments())), tuple(self._risky))
        except (RecursionError, MemoryError):
            raise NotTraceable("calls itself") from None
        except Exception:
            tree = Failing()
        tests = self._tests
        for place in range(len(tests) - 1, len(answers) - 1, -1):
            others = [*answers, *([True] * (place - len(answers))), False]
            tree = self._chosen(tests[place], tree, self.explored(others))
        return tree

    def arguments(self) -> Sequence[Any]:
        """Return what the function is called with."""
        if self._arguments is not None:
            return self._arguments(self)
        value = row_of(self._row, self)
        return [value] if self._key is None else [field_of(KEY, self), value]

    def _chosen(self, test: Node, yes: Tree, no: Tree) -> Tree:
        """Return a choice; a test itself if it is the result, and one test for a value among several constants."""
        if test.kind == "bool" and isinstance(yes, Result) and isinstance(no, Result) and yes.risky == no.risky:  # noqa: SIM102
            if yes.value is True and no.value is False:
                return Result(test, yes.risky)
        if isinstance(no, Choice) and _alike(yes, no.yes):
            (one, some), (other, more) = _among(test), _among(no.test)
            if one is not None and one is other:
                return self._chosen(self.node("in", (one, some + more), "bool"), yes, no.no)
        return Choice(test, yes, no)

    def answer(self, test: Node) -> bool:
        """Return whether ``test`` is true on the present path."""
        if test not in self._answers:
            place = len(self._tests)
            self._tests.append(test)
            self._answers[test] = self._given[place] if place < len(self._given) else True
        return self._answers[test]

    def read(self, name: str) -> Node:
        """Return the node of a field, which the function reads."""
        self.fields.add(name)
        if name == KEY and self._key is not None:
            return self.node("field", (name,), self._key)
        return self.node("field", (name,), self.kinds[name])

    def node(self, operation: str, arguments: tuple[Any, ...], kind: Kind) -> Node:
        """Return the node of an operation: the same for the same arguments, so that a question is asked once."""
        same = (operation, kind, *((type(one), _exact(one)) for one in arguments))
        node = self._nodes.setdefault(same, Node(operation, arguments, kind))
        if operation in _RISKY:
            self._risky[node] = None
        return node


def _alike(one: Tree, other: Tree) -> bool:
    """Whether two trees are certainly the same: results of equal constants, or of the same node."""
    if isinstance(one, Failing) and isinstance(other, Failing):
        return True
    if not isinstance(one, Result) or not isinstance(other, Result) or one.risky != other.risky:
        return False
    left, right = one.value, other.value
    return left is right or (type(left) is type(right) and type(left) in (bool, int, str) and left == right)


def _among(test: Node) -> tuple[Node | None, tuple[Any, ...]]:
    """Return the value and the constants of a test for one of several constants of the value's own type, or None."""
    if test.operation == "in":
        value, constants = test.arguments
        return value, constants
    if test.operation == "eq":
        value, constant = test.arguments
        kinds = {"int": int, "str": str}
        if isinstance(value, Node) and type(constant) is kinds.get(value.kind):
            return value, (constant,)
    return None, ()


def _exact(constant: Any) -> Any:
    return repr(constant) if type(constant) is float else constant


def _result(value: Any) -> Any:
    """Return a result with nodes in place of proxies."""
    if isinstance(value, Value):
        return value._node
    if type(value) is Table:
        raise NotTraceable("returns a dict from outside, which a later step could change for all rows")
    if type(value) is dict:
        if not all(type(name) is str for name in value):
            raise NotTraceable("returns a dict with keys that are not constant names")
        return {name: _result(one) for name, one in value.items()}
    if type(value) is tuple:
        return tuple(map(_result, value))
    if type(value) in (list, set):
        return Listed(map(_result, value))
    if type(value) in (Row, Places):
        return value._nodes()
    if type(value) in KINDS or value is None:
        return value
    is_outside = isinstance(value, list | frozenset)
    if type(value) is Instance:
        raise NotTraceable("returns its row, which is of a class")
    raise NotTraceable("returns a list or a set from outside" if is_outside else f"returns a {type(value).__name__}")
