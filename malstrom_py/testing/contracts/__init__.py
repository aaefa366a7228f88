"""Contracts: test suites that every source, sink, partitioner or checkpointer must pass.

`LawError` names the broken clause. Contracts need neither pytest nor hypothesis.
"""

from malstrom_py.testing.contracts.checkpointers import check_checkpointer
from malstrom_py.testing.contracts.partitioners import check_partitioner
from malstrom_py.testing.contracts.sinks import check_sink
from malstrom_py.testing.contracts.sources import check_source

__all__ = ["check_checkpointer", "check_partitioner", "check_sink", "check_source"]
