"""The public names of partitioners."""

from __future__ import annotations

import re

import pytest

from malstrom_py import partitioners
from malstrom_py.rescale.partitioners import Index, StableHash, partitioner_of
from tests.tree import ROOT


def test_the_public_partitioners_are_what_a_runtime_takes() -> None:
    assert partitioner_of(partitioners.stable_hash, "s") == partitioner_of(None, "s") == StableHash()
    assert partitioner_of(partitioners.index, "s") == Index()


@pytest.mark.parametrize("name", partitioners.__all__)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    assert getattr(partitioners, name).__doc__
    pages = (ROOT / "docs" / "key-hash.md").read_text()
    assert name in ("KeySlots", "Partitioner") or re.search(rf"partitioners\.{name}\b", pages)
