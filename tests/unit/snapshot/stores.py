"""All stores, for the tests of the common behaviour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.store import MemoryStore, Store
from tests.unit.snapshot.forgetful_disk import ForgetfulDisk


def _object_store_in(folder: Path) -> Store:
    folder.mkdir(parents=True, exist_ok=True)  # obstore does not make the folder
    return ObjectStore(folder.as_uri())


STORES: Final[dict[str, Callable[[Path], Store]]] = {
    "memory": lambda folder: MemoryStore(),
    "local": LocalStore,
    "local on a forgetful disk": lambda folder: LocalStore(folder, disk=ForgetfulDisk()),
    "objects in memory": lambda folder: ObjectStore("memory:///"),
    "objects in files": _object_store_in,
}
