"""Shapes of jobs in the model: which exchange is fed by what, and which exchanges feed each region."""

from __future__ import annotations

from dataclasses import dataclass

from malstrom_py.workers.coordinator.machine import Topology


@dataclass(frozen=True)
class Shape:
    """A job. ``exchanges``: name -> sources and regions that feed it; ``regions``: name -> exchanges that feed it."""

    name: str
    exchanges: dict[str, tuple[str, ...]]
    regions: dict[str, tuple[str, ...]]
    sources: tuple[str, ...]

    def fed_by(self, feeder: str) -> tuple[str, ...]:
        """The exchanges that a source or region feeds."""
        return tuple(name for name, feeders in self.exchanges.items() if feeder in feeders)

    def region_of(self, exchange: str) -> str:
        """The region that ``exchange`` feeds."""
        return next(name for name, exchanges in self.regions.items() if exchange in exchanges)

    def topology(self) -> Topology:
        """As the coordinator knows it."""
        return Topology(
            tuple(self.exchanges),
            {name: self.fed_by(name) for name in self.regions},
            {name: self.fed_by(name) for name in self.sources},
        )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("chain", {"A": ("S",)}, {"R": ("A",)}, ("S",)),
        Shape("two stages", {"A": ("S",), "B": ("R",)}, {"R": ("A",), "Q": ("B",)}, ("S",)),
        Shape("three stages", {"A": ("S",), "B": ("R",), "C": ("Q",)}, {"R": ("A",), "Q": ("B",), "P": ("C",)}, ("S",)),
        Shape("join", {"A": ("S",), "B": ("T",)}, {"R": ("A", "B")}, ("S", "T")),
        Shape("join and stage", {"A": ("S",), "B": ("T",), "C": ("R",)}, {"R": ("A", "B"), "Q": ("C",)}, ("S", "T")),
        Shape("diamond", {"A": ("S",), "B": ("S",), "C": ("R",)}, {"R": ("A",), "Q": ("B", "C")}, ("S",)),
        Shape("split", {"A": ("S",), "B": ("S",)}, {"R": ("A",), "Q": ("B",)}, ("S",)),
        Shape("mixed", {"A": ("S",), "C": ("R", "T")}, {"R": ("A",), "Q": ("C",)}, ("S", "T")),
        Shape("two sources", {"A": ("S",), "B": ("T",)}, {"R": ("A",), "Q": ("B",)}, ("S", "T")),
    )
}
