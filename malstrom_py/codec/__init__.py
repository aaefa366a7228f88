"""Encoding of keys, values and state; decoding restores the exact types.

*At rest* (snapshots, captures): msgpack with limits and extension types, never pickle. *In flight* (between the workers
of one job): the fastest format for the data. `Codec` is the only entry point.
"""

from __future__ import annotations

from malstrom_py.codec.encoding_errors import Limits
from malstrom_py.codec.job_codec import Codec
from malstrom_py.codec.types import TypeTable, can_register

__all__ = ["Codec", "Limits", "TypeTable", "can_register"]
