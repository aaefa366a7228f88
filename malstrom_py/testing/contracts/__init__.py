"""Contracts: suites that any source, sink or partitioner must pass. `LawError` names the clause that is broken.

They need neither pytest nor hypothesis.
"""

from malstrom_py.testing.contracts.partitioners import check_partitioner
from malstrom_py.testing.contracts.sinks import check_sink
from malstrom_py.testing.contracts.sources import check_source

__all__ = ["check_partitioner", "check_sink", "check_source"]
