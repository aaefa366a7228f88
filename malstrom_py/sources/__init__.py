"""Where records come from. `base` holds the contracts for your own sources."""

from malstrom_py.sources.base import Part, PartitionedSource, PinnedSource, SourcePart, StatelessSource
from malstrom_py.sources.files import Files
from malstrom_py.sources.generator import Generator
from malstrom_py.sources.memory import Memory
from malstrom_py.sources.spark import Spark

__all__ = [
    "Files",
    "Generator",
    "Memory",
    "Part",
    "PartitionedSource",
    "PinnedSource",
    "SourcePart",
    "Spark",
    "StatelessSource",
]
