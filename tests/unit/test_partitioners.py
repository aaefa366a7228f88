"""The public names of partitioners."""

from __future__ import annotations

from malstrom_py import partitioners
from malstrom_py.rescale.partitioners import Index, StableHash, partitioner_of


def test_the_public_partitioners_are_what_a_runtime_takes() -> None:
    assert partitioner_of(partitioners.stable_hash, "s") == partitioner_of(None, "s") == StableHash()
    assert partitioner_of(partitioners.index, "s") == Index()
