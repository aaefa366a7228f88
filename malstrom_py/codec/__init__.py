"""How keys, values and state become bytes and come back as exactly the types they were.

*At rest* (snapshots, captures): msgpack with limits and extension types, never pickle. *In flight* (between the workers
of one job): whatever is fastest. `Codec` is the one way in.
"""

from __future__ import annotations

from malstrom_py.codec.encoding_errors import Limits
from malstrom_py.codec.job_codec import Codec
from malstrom_py.codec.types import TypeTable, can_register

__all__ = ["Codec", "Limits", "TypeTable", "can_register"]
