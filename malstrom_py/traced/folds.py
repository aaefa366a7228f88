"""What a function with a state does to it with each row: adds something, keeps the largest, the smallest or the last.

Rule: a change is returned only if the function does nothing else with the state on any path, so that arrays can do for
many rows what the function does one row after the other. ``part``, what is added or compared, depends on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from malstrom_py.traced.nodes import Choice, Failing, Kind, Node, Result, Tree, leaves
from malstrom_py.traced.proxies import KINDS, Questions, Row, RowKind, field_of, row_of
from malstrom_py.traced.tracing import KEY, Traced, trace

STATE: Final = "\0state"
"""The name of the field that is the state; with a dot and a name, a field of it."""

How = Literal["sum", "largest", "smallest", "last", "kept", "any"]
"""The last two are of paths: one returns the state, and one fails, which may do anything."""


@dataclass(frozen=True, slots=True)
class Change:
    """A state becomes itself ``how`` combined with ``part``, of ``kind``.

    ``is_begun``: a state that is None becomes ``part`` itself, not a sum with 0.
    """

    how: How
    part: Tree
    kind: Kind
    is_begun: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """The changes of a state by the name of a field, of a state without fields under ``""``.

    ``output``: what the function returns beside the new state, None if that is its result.
    """

    changes: dict[str, Change]
    output: Tree | None
    traced: Traced


@dataclass(frozen=True, slots=True)
class Form:
    """How a function is called. ``kinds``: of the fields of a row. ``default``: the state of a new key, a constant.

    ``row``: what values are. ``takes_key``: the arguments are key, value and state,
    the result is an output and the new state; otherwise the arguments are state and value.
    """

    kinds: Mapping[str, Kind]
    nullable: frozenset[str]
    default: Any
    row: RowKind = "dict"
    takes_key: bool = False

    def arguments(self, paths: Questions) -> tuple[Any, ...]:
        """Return the proxies for the arguments."""
        given = row_of(self.row, paths, [name for name in self.kinds if name != KEY])
        state: Any = None
        if type(self.default) is dict:
            state = Row(paths, {name: f"{STATE}.{name}" for name in self.default})
        else:
            state = field_of(STATE, paths)
        return (field_of(KEY, paths), given, state) if self.takes_key else (state, given)

    def has_default(self, name: str) -> bool:
        """Return whether a new key has a value in the field ``name`` of its state, or has a state without fields."""
        return (self.default[name] if type(self.default) is dict else self.default) is not None

    def fields_of_state(self) -> dict[str, Any]:
        """Return the fields of the default, by the names under which they are read."""
        if type(self.default) is dict:
            return {f"{STATE}.{name}": value for name, value in self.default.items()}
        return {STATE: self.default}


def fold_of(function: Callable[..., Any], form: Form) -> Fold | str:
    """Return what ``function`` does to its state; a text says why that is not known.

    >>> form = Form({"price": "int"}, frozenset(), default=0)
    >>> fold_of(lambda total, row: total + row["price"], form).changes[""].how
    'sum'
    >>> fold_of(lambda total, row: total * row["price"], form)
    'does more with its state than to add to it, or to keep the largest, the smallest or the last'
    """
    if any(name.startswith(STATE) for name in form.kinds):
        return "has a column with a name that is not compiled"
    guess: dict[str, Kind] = {name: KINDS.get(type(value), _UNKNOWN) for name, value in form.fields_of_state().items()}
    first = _traced(function, form, guess)
    if isinstance(first, str):
        return first
    kinds: dict[str, Kind] = {name: first.changes[name.removeprefix(STATE).removeprefix(".")].kind for name in guess}
    if kinds == guess:
        return first
    # A state of 0 becomes a float with the first float that is added: both must be the same change.
    again = _traced(function, form, kinds)
    if isinstance(again, str):
        return again
    if again.output is not None and not all(value is None for value in form.fields_of_state().values()):
        return "has a state that begins as another type"
    return again if _shown(again.changes) == _shown(first.changes) else "does something else with another state"


_UNKNOWN: Final[Kind] = "int"
"""The kind of a state that is None, at first."""

_WHY: Final = "does more with its state than to add to it, or to keep the largest, the smallest or the last"


def _traced(function: Callable[..., Any], form: Form, of_state: Mapping[str, Kind]) -> Fold | str:
    nothing = {name for name, value in form.fields_of_state().items() if value is None}
    traced = trace(function, {**form.kinds, **of_state}, form.nullable | nothing, arguments=form.arguments)
    if isinstance(traced, str):
        return traced
    tree, output = traced.tree, None
    if form.takes_key:
        values = [leaf.value for leaf in leaves(tree) if isinstance(leaf, Result)]
        if any(type(value) is not tuple or len(value) != 2 for value in values):
            return "does not return an output and a state"
        is_state = all(_is_same(*value) for value in values)
        output, tree = None if is_state else _item(tree, 0), _item(tree, 1)
        tree = tree if is_state else _without_risks(tree)  # the output has them
    changes: dict[str, Change] = {}
    for name, of_field in _of_fields(tree, form).items():
        field = f"{STATE}.{name}" if name else STATE
        found = _change(of_field, field)
        change = None if found is None else _settled(found, of_state[field], may_be_none=field in nothing)
        if change is None:
            return _WHY
        changes[name] = change
    return Fold(changes, output, traced) if changes else _WHY


def _of_fields(tree: Tree, form: Form) -> dict[str, Tree]:
    """Return a tree for each field of the state; nothing if paths differ in its fields."""
    values = [leaf.value for leaf in leaves(tree) if isinstance(leaf, Result)]
    if type(form.default) is not dict:
        return {} if any(type(value) in (dict, tuple) for value in values) else {"": tree}
    names = list(values[0]) if values and type(values[0]) is dict else []
    if set(names) != set(form.default) or any(type(value) is not dict or list(value) != names for value in values):
        return {}
    return {name: _item(tree, name) for name in names}


def _item(tree: Tree, place: Any) -> Tree:
    """Return a tree with one item of what ``tree`` returns."""
    if isinstance(tree, Choice):
        return Choice(tree.test, _item(tree.yes, place), _item(tree.no, place))
    return replace(tree, value=tree.value[place]) if isinstance(tree, Result) else tree


def _without_risks(tree: Tree) -> Tree:
    if isinstance(tree, Choice):
        return Choice(tree.test, _without_risks(tree.yes), _without_risks(tree.no))
    return replace(tree, risky=()) if isinstance(tree, Result) else tree


# The change of one field, from the ends of the paths to the first question


@dataclass(frozen=True, slots=True)
class _Found:
    """A change so far. ``is_alike``: a state of 0 becomes ``part``, so they must be of one kind."""

    how: How
    part: Tree
    is_begun: bool = False
    is_alike: bool = False

    def with_part(self, part: Tree, other: _Found) -> _Found:
        """Return the change of two paths."""
        return replace(
            self, part=part, is_begun=self.is_begun or other.is_begun, is_alike=self.is_alike or other.is_alike
        )


def _change(tree: Tree, state: str) -> _Found | None:
    if isinstance(tree, Failing):
        return _Found("any", tree)
    if isinstance(tree, Result):
        return _of_result(tree, state)
    yes, no = _change(tree.yes, state), _change(tree.no, state)
    if yes is None or no is None:
        return None
    if _reads_state(tree.test):
        return _of_state_test(tree.test, yes, no, state)
    pair = _alike(yes, no)
    if pair is None:
        return None
    yes, no = pair
    return yes.with_part(Choice(tree.test, yes.part, no.part), no)


def _of_result(result: Result, state: str) -> _Found | None:
    if any(map(_reads_state, result.risky)):
        return None
    value = result.value
    if not _reads_state(value):
        return _Found("last", result)
    if _is_field(value, state):
        return _Found("kept", replace(result, value=None))
    part = _added(value, state)
    return None if part is None else _Found("sum", replace(result, value=part))


def _added(node: Any, state: str) -> Any:
    """Return what ``node`` adds to the state; None if it does something else."""
    if node.operation not in ("add", "sub"):
        return None
    left, right = node.arguments
    if node.operation == "sub":
        if not _is_field(left, state) or _reads_state(right) or type(right) is bool:
            return None
        if not isinstance(right, Node):
            return -right
        # NaN keeps its sign where it is subtracted, not where it is negated.
        return Node("sub", (-0.0, right), "float") if right.kind == "float" else Node("neg", (right,), "int")
    for one, other in ((left, right), (right, left)):
        if _is_field(one, state) and not _reads_state(other):
            return other
    if node.kind == "int" and isinstance(left, Node) and isinstance(right, Node) and not _reads_state(right):
        inner = _added(left, state)  # (state + a) + b: whole numbers add up in any order
        return None if inner is None else Node("add", (inner, right), "int")
    return None


def _of_state_test(test: Node, yes: _Found, no: _Found, state: str) -> _Found | None:
    """Return the change that depends on a question about the state."""
    same = _joined(yes.part, no.part) if yes.how == no.how else None
    if same is not None:  # the question is about another field
        return yes.with_part(same, no)
    if test.operation == "null" and test.arguments == (state,):
        return _begun(yes, no)
    if _is_field(test, state) and test.kind in ("int", "float"):  # (state or 0) + part
        return _without_zero(yes, no)
    return _extreme(test, yes, no, state)


def _begun(at_none: _Found, else_: _Found) -> _Found | None:
    """Return the change of a state that may be None."""
    if at_none.how != "last" or else_.how in ("kept", "any"):
        return None
    part, is_sum = at_none.part, else_.how == "sum"
    if is_sum and (rest := _less_zero(part)) is not None and (same := _joined(rest, else_.part)) is not None:
        return else_.with_part(same, at_none)
    same = _joined(part, else_.part)
    return None if same is None else replace(else_, part=same, is_begun=True)


def _without_zero(else_: _Found, at_zero: _Found) -> _Found | None:
    if at_zero.how != "last" or else_.how != "sum":
        return None
    rest = _less_zero(at_zero.part)
    same = None if rest is None else _joined(rest, else_.part)
    return None if same is None else replace(else_, part=same, is_alike=True)


def _less_zero(part: Tree) -> Tree | None:
    """Return ``part`` without the 0 to which it is added; of a constant that was: the constant."""
    if not isinstance(part, Result):
        return None
    value = part.value
    if type(value) is int:
        return part
    if not isinstance(value, Node) or value.operation != "add":
        return None
    left, right = value.arguments
    for one, other in ((left, right), (right, left)):
        if type(one) is int and one == 0:
            return replace(part, value=other)
    return None


def _extreme(test: Node, yes: _Found, no: _Found, state: str) -> _Found | None:
    """Return the change if the test is whether a part of the row is larger than the state, or smaller."""
    if test.operation not in ("gt", "ge", "lt", "le") or {yes.how, no.how} != {"last", "kept"}:
        return None
    taken, kept = (yes, no) if yes.how == "last" else (no, yes)
    left, right = test.arguments
    state_first = _is_field(left, state)
    part = right if state_first else left
    if not (state_first or _is_field(right, state)) or not isinstance(taken.part, Result):
        return None
    if not _is_same(part, taken.part.value) or not isinstance(kept.part, Result):
        return None
    takes_larger = (test.operation in ("gt", "ge")) is not state_first
    how: How = "largest" if takes_larger is (taken is yes) else "smallest"
    return _Found(how, _with_risks(taken.part, kept.part))


def _alike(yes: _Found, no: _Found) -> tuple[_Found, _Found] | None:
    """Return the changes of two paths as changes of one kind."""
    if yes.how == no.how:
        return yes, no
    if "any" in (yes.how, no.how):
        how = no.how if yes.how == "any" else yes.how
        return replace(yes, how=how), replace(no, how=how)
    if {yes.how, no.how} == {"kept", "sum"}:
        return _summed(yes), _summed(no)
    return None


_NOTHING: Final = object()
"""Is added on paths that keep a sum unchanged."""


def _summed(found: _Found) -> _Found:
    """Return "kept" as a sum of nothing."""
    return found if found.how == "sum" else _Found("sum", _mapped(found.part, lambda _: _NOTHING))


def _mapped(tree: Tree, change: Callable[[Any], Any]) -> Tree:
    """Return ``tree`` with other results."""
    if isinstance(tree, Choice):
        return Choice(tree.test, _mapped(tree.yes, change), _mapped(tree.no, change))
    return replace(tree, value=change(tree.value)) if isinstance(tree, Result) else tree


def _settled(found: _Found, of_state: Kind, *, may_be_none: bool) -> Change | None:
    """Return the change with its kind; None if that is not always the same, or one that is not compiled."""
    if found.how in ("kept", "any"):
        return None
    values = [leaf.value for leaf in leaves(found.part) if isinstance(leaf, Result)]
    added = [value for value in values if value is not _NOTHING]
    keeps = len(added) < len(values)
    kinds: set[Kind | None] = {value.kind if isinstance(value, Node) else KINDS.get(type(value)) for value in added}
    if found.how != "sum":
        (kind, *more) = kinds
        return None if more or kind in (None, "other") else Change(found.how, found.part, kind, found.is_begun)
    if not kinds <= {"int", "float", "bool"} or of_state not in ("int", "float") or (keeps and may_be_none):
        return None
    if of_state == "int" and "float" in kinds and (keeps or len(kinds) > 1):
        return None  # an integer at first, or for longer
    number: Kind = "float" if "float" in kinds or of_state == "float" else "int"
    if (found.is_begun or found.is_alike) and kinds != {number}:
        return None  # True, and then 2
    part = _mapped(found.part, _as_float if number == "float" else lambda value: 0 if value is _NOTHING else value)
    return Change("sum", part, number, found.is_begun)


def _as_float(value: Any) -> Any:
    """Return what is added to a float as a float: so does Python."""
    if value is _NOTHING:
        return -0.0  # which changes no float
    if not isinstance(value, Node):
        return float(value)
    return value if value.kind == "float" else Node("float", (value,), "float")


def _joined(one: Tree, other: Tree) -> Tree | None:
    """Return two trees as one that fails where either does; None if they may differ."""
    if isinstance(one, Choice) and isinstance(other, Choice) and one.test is other.test:
        yes, no = _joined(one.yes, other.yes), _joined(one.no, other.no)
        return None if yes is None or no is None else Choice(one.test, yes, no)
    if isinstance(one, Failing) and isinstance(other, Failing):
        return one
    if isinstance(one, Result) and isinstance(other, Result) and _is_same(one.value, other.value):
        return _with_risks(one, other)
    return None


def _with_risks(one: Result, other: Result) -> Result:
    return replace(one, risky=tuple(dict.fromkeys((*one.risky, *other.risky))))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Node) or type(one) is not type(other):
        return one is other
    if type(one) is dict:
        return list(one) == list(other) and all(map(_is_same, one.values(), other.values()))
    return repr(one) == repr(other)


def _is_field(thing: Any, name: str) -> bool:
    return isinstance(thing, Node) and thing.operation == "field" and thing.arguments == (name,)


def _reads_state(thing: Any) -> bool:
    if isinstance(thing, Node):
        if thing.operation in ("field", "null"):
            return str(thing.arguments[0]).startswith(STATE)
        return any(map(_reads_state, thing.arguments))
    return isinstance(thing, tuple) and any(map(_reads_state, thing))


def reads_state(tree: Tree) -> bool:
    """Whether ``tree`` asks for the state, or returns something of it."""
    if isinstance(tree, Choice):
        return _reads_state(tree.test) or reads_state(tree.yes) or reads_state(tree.no)
    if isinstance(tree, Failing):
        return False
    values = tree.value.values() if type(tree.value) is dict else (tree.value,)
    return any(map(_reads_state, (*values, *tree.risky)))


def _shown(thing: Any) -> Any:
    """Return what two tracings have in common if they found the same."""
    if isinstance(thing, Mapping):
        return {name: _shown(one) for name, one in thing.items()}
    if isinstance(thing, Change):
        return (thing.how, thing.kind, thing.is_begun, _shown(thing.part))
    if isinstance(thing, Node):
        return (thing.operation, thing.kind, *map(_shown, thing.arguments))
    if isinstance(thing, Choice):
        return (_shown(thing.test), _shown(thing.yes), _shown(thing.no))
    if isinstance(thing, Result):
        return (_shown(thing.value), frozenset(map(_shown, thing.risky)))
    return (type(thing), repr(thing)) if not isinstance(thing, tuple) else tuple(map(_shown, thing))
