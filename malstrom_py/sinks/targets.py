"""What sinks write to, and which sinks of one job get in each other's way there.

Rule: what is replaced as a whole has one writer. Those that add to a folder or a table may be many.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from malstrom_py.errors import PlanError


@dataclass(frozen=True, slots=True)
class Target:
    """A folder, or a table of Spark's. ``replaces``: whether all that is there goes, or nothing may be there.

    A sink with an attribute ``target`` of this type is compared with the others of its job.
    """

    place: Path | str
    replaces: bool

    def meets(self, other: Target) -> bool:
        """Whether both are one, or one folder is in the other."""
        if isinstance(self.place, Path) and isinstance(other.place, Path):
            here, there = Path(os.path.realpath(self.place)), Path(os.path.realpath(other.place))
            return here == there or here in there.parents or there in here.parents
        if isinstance(self.place, str) and isinstance(other.place, str):
            return _plain(self.place) == _plain(other.place)
        return False

    def may_show_rows(self) -> bool:
        """Whether rows that are there already stay beside those that are added: all but an empty folder may have some.

        Entries that begin with a dot or ``_`` are no rows.
        """
        if self.replaces or isinstance(self.place, str):
            return not self.replaces
        try:
            return any(not entry.name.startswith((".", "_")) for entry in Path(self.place).iterdir())
        except FileNotFoundError:
            return False
        except OSError:
            return True


def check_targets(sinks: Mapping[str, object]) -> None:
    """`PlanError` if of two sinks, by the names of their steps, one replaces what the other writes to.

    >>> check_targets({"a": Target(Path("/out"), replaces=False), "b": Target(Path("/out"), replaces=False)})
    """
    told = {name: getattr(sink, "target", sink) for name, sink in sinks.items()}
    targets = {name: target for name, target in told.items() if isinstance(target, Target)}
    for (name, target), (other_name, other) in combinations(targets.items(), 2):
        if (target.replaces or other.replaces) and target.meets(other):
            alike = "the same" if target.place == other.place else f"{str(target.place)!r} and"
            raise PlanError(
                f"sinks {name!r} and {other_name!r} write to {alike} {str(other.place)!r}, and "
                f"{' and '.join(repr(n) for n in (name, other_name) if targets[n].replaces)} would replace it: "
                f"give each a place of its own, or all of them mode 'append'"
            )


def _plain(table: str) -> str:
    """The name of a table without what Spark takes for nothing: case, quotes and its default catalog."""
    return table.replace("`", "").lower().removeprefix("spark_catalog.").removeprefix("default.")
