"""The test kit for jobs, and for your own steps, sources, sinks, partitioners and checkpointers. Public.

`OperatorTester` runs a step alone. ``malstrom_py.testing.check_operator`` checks a step against the laws of all steps;
``malstrom_py.testing.contracts`` checks sources, sinks, partitioners and checkpointers. No part needs pytest;
``check_operator`` and ``malstrom_py.testing.strategies`` need hypothesis.
"""

from malstrom_py.clock import VirtualClock
from malstrom_py.testing import contracts
from malstrom_py.testing.check_operator import LawReport, check_operator
from malstrom_py.testing.law_error import LawError
from malstrom_py.testing.laws import LAWS
from malstrom_py.testing.single_step import as_step
from malstrom_py.testing.tester import CapturingPersistenceBackend, OperatorTester, Persisted

__all__ = [
    "LAWS",
    "CapturingPersistenceBackend",
    "LawError",
    "LawReport",
    "OperatorTester",
    "Persisted",
    "VirtualClock",
    "as_step",
    "check_operator",
    "contracts",
]
