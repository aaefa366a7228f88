"""The options of a step for resuming from a snapshot of an earlier version of the job: former name, migration, state.

Rule: a snapshot notes by name which ``migrate`` has been applied to a state. So a ``migrate`` needs a stable, unique
name: that of its file and that of the function, however the program is started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from malstrom_py.data.time import Unit, to_span
from malstrom_py.errors import PlanError, shown
from malstrom_py.validation import check_name, function_of

Migrate = Callable[[Any, Any], Any]
"""``migrate(key, state)`` returns the state for the new version of the step, or None to drop it. Runs once per key."""

_LOADED_AS: Final = "malstrom_job_"
"""The prefix that the command line adds to a file's module name if a module of that name exists."""


class Upgrade(TypedDict, total=False):
    """Options of every step that keeps state. ``renamed_from``: its former name; ``migrate``: see `Migrate`.

    ``initial_state``: the initial state of its keys, rows of (key, state), a dict, a DataFrame with the columns key and
    state, or a function that returns one of these.
    """

    renamed_from: str | None
    migrate: Migrate | None
    initial_state: Any


class Kept(Upgrade, total=False):
    """Options of a step whose state can expire. ``ttl``: a key's state is dropped once event time has passed its last
    record + ``ttl``; on a stream without watermarks once the runtime's clock has.
    """

    ttl: timedelta | int | None


EXPIRING: Final = (
    *("aggregate", "count", "distinct", "fold", "max", "mean", "min", "reduce"),
    *("stateful_flat_map", "stateful_map", "stateful_op", "sum", "top_n"),
)
"""The kinds of steps that take ``ttl``."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A user's ``migrate`` function and its name in snapshots."""

    name: str
    function: Migrate


def former_name(renamed_from: object, step: str) -> str | None:
    """Return ``renamed_from`` if it is another step's name or None; raise `PlanError` otherwise."""
    if renamed_from is None:
        return None
    check_name(step, "step")
    try:
        former = check_name(renamed_from, "step")
    except PlanError as error:
        raise PlanError(f"step {step!r}: renamed_from is the former name of the step: {error}") from None
    if former == step:
        raise PlanError(f"step {step!r}: renamed_from is the former name of the step, not its present one")
    return former


def migration_of(migrate: object, step: str) -> Migration | None:
    """Return ``migrate`` with its name, None if it is None; raise `PlanError` if its name is not unique.

    >>> def to_cents(key, euros):
    ...     return euros * 100
    >>> migration_of(to_cents, "sum").name.endswith(":to_cents")
    True
    """
    if migrate is None:
        return None
    function = function_of(migrate, step)
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or "<lambda>" in name:
        raise PlanError(
            f"step {step!r}: migrate needs a unique name, which snapshots record once it has been applied: "
            f"define it with def, and give the next migration another name"
        )
    return Migration(f"{_file_of(function)}:{name}", function)


def refuse_unknown(upgrade: Upgrade, kind: str, step: str) -> Kept:
    """Return ``upgrade``; raise `TypeError` for an unknown option, as Python does for arguments."""
    for name in upgrade:
        if name not in Upgrade.__annotations__ and not (name == "ttl" and kind in EXPIRING):
            raise TypeError(f"step {step!r} got an unexpected keyword argument {name!r}")
    return cast(Kept, upgrade)


def time_to_live(ttl: object, unit: Unit | None, step: str) -> int:
    """Return ``ttl`` in ``unit``, or in ms if the step goes by the clock (None). `PlanError` if it is not possible.

    >>> time_to_live(timedelta(minutes=1), "s", "docs"), time_to_live(timedelta(minutes=1), None, "docs")
    (60, 60000)
    """
    if isinstance(ttl, bool) or not isinstance(ttl, timedelta | int):
        raise PlanError(f"step {step!r}: ttl must be a timedelta, or an int in the stream's unit, got {shown(ttl)}")
    if unit is None and isinstance(ttl, int):
        raise PlanError(
            f"step {step!r}: the stream has no event time, so ttl goes by the clock: give a timedelta, got {ttl!r}"
        )
    span = to_span(ttl, unit or "ms")
    if span <= 0:
        raise PlanError(f"step {step!r}: ttl must be positive, got {ttl!r}")
    return span


def _file_of(function: object) -> str:
    """Return the last part of the name of a function's module; for the main program, that of its file."""
    module = str(getattr(function, "__module__", None) or "")
    if module == "__main__":
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return module.rpartition(".")[2].removeprefix(_LOADED_AS)
