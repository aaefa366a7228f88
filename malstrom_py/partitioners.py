"""Partitioners: how the keys of a ``key_by`` become slots, the units that are assigned to workers and move between
them.

- `stable_hash`, the default, spreads any keys evenly;
- `index` is for keys that are evenly distributed integers: slot = key modulo the number of slots;
- your own function, key -> slot, from 0 to the job's ``slots`` - 1. Equal keys must get equal slots, in every
  process: do not use ``hash()`` in it, which differs from process to process.

``docs/key-hash.md`` describes legal keys and the hash.

>>> stable_hash.bind(1024).slots_of(["user-0001", 1, True])
[365, 193, 193]
>>> index.bind(1024).slots_of([0, 1, 1025])
[0, 1, 1]
"""

from __future__ import annotations

from typing import Final

from malstrom_py.rescale.partitioners import Index, KeySlots, Partitioner, StableHash

__all__ = ["KeySlots", "Partitioner", "index", "stable_hash"]

stable_hash: Final = StableHash()
"""The default: a documented hash of the key, the same in every process and Python version, modulo the slots."""

index: Final = Index()
"""For integer keys: key modulo the number of slots."""
