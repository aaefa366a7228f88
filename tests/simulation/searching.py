"""The search for the first seed that shows each of some wrong protocols."""

from __future__ import annotations

import argparse
import multiprocessing as mp
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol


class Wrong(Protocol):
    """A wrong protocol."""

    def caught(self, seed: int) -> str | None:
        """What the oracle says of this seed; None if it sees nothing."""


Found = tuple[str, int | None, str]
"""The name of a wrong protocol, the first seed that catches it, and what the oracle says."""


def first_seed(wrong: Mapping[str, Wrong], seeds: int, name: str) -> Found:
    """Search for a seed that catches the wrong protocol of this name."""
    for seed in range(seeds):
        if (said := wrong[name].caught(seed)) is not None:
            return name, seed, said
    return name, None, ""


def search(find: Callable[[str], Found], names: Iterable[str], description: str | None) -> int:
    """The program: search for those that are named, or for all."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", default=[*names])
    given = parser.parse_args()
    missed = []
    with mp.get_context("spawn").Pool() as pool:
        for name, seed, said in pool.imap_unordered(find, given.names):
            print(f'    "{name}": {seed},  # {said[:150]}', flush=True)
            if seed is None:
                missed.append(name)
    print(f"{len(given.names)} wrong protocols, not caught: {', '.join(missed) or 'none'}")
    return 1 if missed else 0
