"""The contract of partitioners: equal keys get equal slots, each in range, in every process."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

import cloudpickle

from malstrom_py.builder.plan import PartitionerLike
from malstrom_py.errors import CodecError, OperatorError
from malstrom_py.rescale.partitioners import partitioner_of
from malstrom_py.testing.contracts.clauses import require

RANGE: Final = "slots in range"
STABLE: Final = "stable slots"
EQUAL: Final = "equal keys, equal slots"

SLOTS: Final = (1, 7, 1024)

_EQUAL_KEYS: Final[Sequence[Sequence[Any]]] = (
    (1, 1.0, True, Decimal(1)),
    (0, -0.0, False, Decimal("0.0")),
    (("a", 1), ("a", 1.0), ("a", True)),
)
_KEYS: Final[Sequence[Any]] = ("a", "user-0001", "", b"a", None, -1, 2**40, 2.5, ("a", None), *range(40))

_CHILD: Final = """
import base64, sys, cloudpickle
sys.path[:0] = {path!r}
slots_of, partitioner, keys, slots = cloudpickle.loads(base64.b64decode(sys.stdin.read()))
print(slots_of(partitioner, keys, slots))
"""


def check_partitioner(
    partitioner: PartitionerLike, keys: Iterable[Any] | None = None, *, slots: int = 1024, processes: bool = True
) -> None:
    """Check the contract of ``partitioner`` (as given to ``key_by``) for ``keys``, by default of many types.

    A function key -> slot is checked with ``slots`` slots, those of its job; a partitioner with ``bind`` also with
    other numbers of slots. A key that it rejects with a `CodecError` is left out. With ``processes`` two other
    processes call it too, which finds a dependence on Python's ``hash()``.

    >>> check_partitioner(lambda key: ord(key[0]) % 7, ["ant", "bee", "asp"], processes=False)
    >>> check_partitioner(lambda key: ord(key[0]), ["ant", "bee"], slots=10, processes=False)
    Traceback (most recent call last):
    malstrom_py.testing.law_error.LawError: law 'slots in range' is broken: each legal key gets a slot from 0 to 9...
    >>> from malstrom_py import partitioners
    >>> check_partitioner(partitioners.stable_hash, processes=False)

    Raises:
        LawError: a clause is broken: "slots in range", "stable slots" or "equal keys, equal slots".
    """
    given = list(keys) if keys is not None else [*_KEYS, *(key for group in _EQUAL_KEYS for key in group)]
    for count in (slots, *SLOTS) if hasattr(partitioner, "bind") else (slots,):
        known = _slots_of(partitioner, given, count)
        for key, slot in zip(given, known, strict=True):
            _check_key(partitioner, key, slot, count)
        again = _slots_of(partitioner, given[::-1], count)[::-1]
        require(known == again, STABLE, "a key gets the same slot each time", f"{count} slots: {known}, {again}")
        _check_equal(given, known, count)
    if processes:
        _check_processes(partitioner, given)


def _slots_of(partitioner: PartitionerLike, keys: Sequence[Any], slots: int) -> list[int | None]:
    """Return the slots of ``keys``; None for a rejected key."""
    found: list[int | None] = []
    for key in keys:
        # A new binding for each key: a bound partitioner may remember the slot of an equal key.
        bound = partitioner_of(partitioner, "contract").bind(slots, step="contract")
        try:
            found.append(bound.slot_of(key))
        except CodecError:
            found.append(None)
        except OperatorError as error:
            require(False, RANGE, f"each legal key gets a slot from 0 to {slots - 1}", f"{key!r}: {error}")
    return found


def _check_key(partitioner: PartitionerLike, key: Any, slot: int | None, slots: int) -> None:
    if slot is None:
        return
    require(
        type(slot) is int and 0 <= slot < slots,
        RANGE,
        f"a slot is a whole number from 0 to {slots - 1}",
        f"{key!r} gets {slot!r}",
    )
    together = partitioner_of(partitioner, "contract").bind(slots, step="contract").slots_of([key, key])
    require(together == [slot, slot], STABLE, "slots_of agrees with slot_of", f"{key!r}: {together}, {slot}")


def _check_equal(keys: Sequence[Any], found: Sequence[int | None], slots: int) -> None:
    first: dict[Any, tuple[Any, int | None]] = {}
    for key, slot in zip(keys, found, strict=True):
        other, known = first.setdefault(key, (key, slot))
        require(
            known == slot,
            EQUAL,
            "keys that are equal in Python get one slot (F4)",
            f"{slots} slots: {other!r} gets {known}, {key!r} gets {slot}",
        )


def _check_processes(partitioner: PartitionerLike, keys: Sequence[Any]) -> None:
    slots = SLOTS[-1]
    here = _slots_of(partitioner, keys, slots)
    task = base64.b64encode(cloudpickle.dumps((_slots_of, partitioner, list(keys), slots)))
    child = _CHILD.format(path=sys.path)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", child],
            input=task,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=False,
            timeout=60,
        )
        stderr = done.stderr.decode(errors="replace")[-500:]
        require(done.returncode == 0, STABLE, "another process can call it", stderr)
        require(
            done.stdout.decode().strip() == repr(here),
            STABLE,
            "a key gets the same slot in every process; hash() gives another in each",
            f"PYTHONHASHSEED={seed}: {done.stdout.decode().strip()}\n  here: {here}",
        )
