"""What tests of jobs need: time that passes when the test says so."""

from malstrom_py.testing.virtual_clock import VirtualClock

__all__ = ["VirtualClock"]
