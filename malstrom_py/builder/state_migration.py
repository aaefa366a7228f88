"""What a step says of its former self, for a job that goes on from a snapshot of an earlier version of itself.

Rule: whether a ``migrate`` has been applied to a state already is told by its name, which stands in the snapshot. So it
needs a name that is its own and stays: that of its file and that of the function, however the program is started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from malstrom_py.errors import PlanError
from malstrom_py.validation import check_name, function_of

Migrate = Callable[[Any, Any], Any]
"""``migrate(key, state)``: the state as the step takes it now, or None to drop it. Called once for each key."""

_LOADED_AS: Final = "malstrom_job_"
"""What the command line may put before the name of a file, where a module of that name is there already."""


class Upgrade(TypedDict, total=False):
    """Options of every step that keeps state. ``renamed_from``: the name it had; ``migrate``: see `Migrate`.

    ``initial_state``: what its keys begin with, rows of (key, state), a dict, a DataFrame with the columns key and
    state, or a function that returns one of these.
    """

    renamed_from: str | None
    migrate: Migrate | None
    initial_state: Any


@dataclass(frozen=True, slots=True)
class Migration:
    """A ``migrate`` of the user, and the name that it is known by in snapshots."""

    name: str
    function: Migrate


def former_name(renamed_from: object, step: str) -> str | None:
    """``renamed_from`` if it is the name of another step, None if it is None, else `PlanError`."""
    if renamed_from is None:
        return None
    check_name(step, "step")
    try:
        former = check_name(renamed_from, "step")
    except PlanError as error:
        raise PlanError(f"step {step!r}: renamed_from is the name that the step had: {error}") from None
    if former == step:
        raise PlanError(f"step {step!r}: renamed_from is the name that the step had before, and this is the one it has")
    return former


def migration_of(migrate: object, step: str) -> Migration | None:
    """``migrate`` with its name, None if it is None; `PlanError` if it has no name of its own.

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
            f"step {step!r}: migrate needs a name of its own, by which snapshots tell whether it has been applied: "
            f"make it a function with def, and give the next one another name"
        )
    return Migration(f"{_file_of(function)}:{name}", function)


def refuse_unknown(upgrade: Upgrade, step: str) -> Upgrade:
    """``upgrade``; `TypeError` for an option that there is not, as Python has it for arguments."""
    for name in upgrade:
        if name not in Upgrade.__annotations__:
            raise TypeError(f"step {step!r} got an unexpected keyword argument {name!r}")
    return upgrade


def _file_of(function: object) -> str:
    """The last part of the name of a function's module; of the program itself, that of its file."""
    module = str(getattr(function, "__module__", None) or "")
    if module == "__main__":
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return module.rpartition(".")[2].removeprefix(_LOADED_AS)
