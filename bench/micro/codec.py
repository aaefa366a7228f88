"""What encoding costs, per record, each way: the candidates for one column, the batches of the product, stored values.

Run with ``python -m bench.micro.codec``; it compares our encodings with others. Best of several runs, one process.
"""

from __future__ import annotations

import array
import marshal
import pickle
import random
import struct
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgpack

from malstrom_py.codec import Codec
from malstrom_py.codec.in_flight import FIELDS, decode_column, decode_fields, encode_column, encode_fields
from malstrom_py.data.batch import Batch

ROWS = 8192
DISTINCT = 5000

Encode = Callable[[list[Any]], Any]
Decode = Callable[[Any], Any]

pack = msgpack.Packer(strict_types=True).pack


def unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False)


def best_ns(call: Callable[[], object], rows: int, repeats: int = 60) -> float:
    """The shortest of ``repeats`` calls, per row."""
    best_s = float("inf")
    for _ in range(repeats):
        started_s = time.perf_counter()
        call()
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s / rows * 1e9


def columns() -> dict[str, list[Any]]:
    chance = random.Random(1)
    names = [f"user-{chance.randrange(DISTINCT):06d}" for _ in range(ROWS)]
    ints = [chance.randrange(-(10**6), 10**6) for _ in range(ROWS)]
    floats = [chance.random() for _ in range(ROWS)]
    few = ["UA", "B6", "DL", "AA", "EV", "MQ"]
    return {
        "str": names,
        "str, 6 distinct objects": [chance.choice(few) for _ in range(ROWS)],
        "int": ints,
        "float": floats,
        "bool and None": [chance.choice((True, False, None)) for _ in range(ROWS)],
        "bytes": [name.encode() for name in names],
        "tuple (str, int)": list(zip(names, ints, strict=True)),
        "dict of 4 fields": [
            {"id": n, "name": name, "amount": x, "ok": True} for n, name, x in zip(ints, names, floats, strict=True)
        ],
    }


def with_lengths(column: list[str]) -> bytes:
    lengths = array.array("I", map(len, column)).tobytes()
    return lengths + "".join(column).encode()


def from_lengths(data: bytes) -> list[str]:
    ends = list(accumulate(memoryview(data)[: 4 * ROWS].cast("I")))
    text = data[4 * ROWS :].decode()
    return list(map(text.__getitem__, map(slice, [0, *ends], ends)))


def dictionary(column: list[str]) -> tuple[bytes, bytes]:
    numbers = {text: number for number, text in enumerate(dict.fromkeys(column))}
    return pack(list(numbers)), array.array("I", map(numbers.__getitem__, column)).tobytes()


def from_dictionary(data: tuple[bytes, bytes]) -> list[str]:
    return list(map(unpack(data[0]).__getitem__, memoryview(data[1]).cast("I")))


def transposed(column: list[tuple[Any, ...]]) -> list[tuple[int, bytes]]:
    return [encode_column(list(part)) for part in zip(*column, strict=True)]


def from_transposed(data: list[tuple[int, bytes]]) -> list[tuple[Any, ...]]:
    return list(zip(*(decode_column(tag, memoryview(part), ROWS) for tag, part in data), strict=True))


def from_array(code: str) -> Decode:
    return lambda data: memoryview(data).cast(code).tolist()  # type: ignore[call-overload]  # "q" or "d"


GENERAL: dict[str, tuple[Encode, Decode]] = {
    "pickle 5": (lambda column: pickle.dumps(column, 5), pickle.loads),
    "marshal": (marshal.dumps, marshal.loads),
    "msgpack": (pack, unpack),
}

SPECIAL: dict[str, dict[str, tuple[Encode, Decode]]] = {
    "str": {
        "joined by NUL": (
            lambda column: "\0".join(column).encode("utf-8", "surrogatepass"),
            lambda data: str(data, "utf-8", "surrogatepass").split("\0"),
        ),
        "joined, with lengths": (with_lengths, from_lengths),
        "dictionary": (dictionary, from_dictionary),
    },
    "int": {
        "struct": (lambda column: struct.pack(f"{len(column)}q", *column), from_array("q")),
        "array": (lambda column: array.array("q", column).tobytes(), from_array("q")),
    },
    "float": {
        "struct": (
            lambda column: struct.pack(f"{len(column)}d", *column),
            lambda data: list(struct.unpack(f"{len(data) // 8}d", data)),
        ),
        "array": (lambda column: array.array("d", column).tobytes(), from_array("d")),
    },
    "tuple (str, int)": {"transposed columns": (transposed, from_transposed)},
}
SPECIAL["str, 6 distinct objects"] = SPECIAL["str"]


def product_column(column: list[Any]) -> tuple[int, bytes]:
    fields = encode_fields(column, None)
    return encode_column(column) if fields is None else (FIELDS, fields)


def from_product_column(data: tuple[int, bytes]) -> list[Any]:
    tag, encoded = data[0], memoryview(data[1])
    return decode_fields(encoded, ROWS, None) if tag == FIELDS else decode_column(tag, encoded, ROWS)


def candidates(kind: str) -> dict[str, tuple[Encode, Decode]]:
    general = {name: way for name, way in GENERAL.items() if name != "msgpack" or not kind.startswith("tuple")}
    return general | SPECIAL.get(kind, {}) | {"**the codec**": (product_column, from_product_column)}


def print_columns() -> None:
    print(f"| column of {ROWS} | candidate | encode ns | decode ns | sum |\n|---|---|---:|---:|---:|")
    for kind, column in columns().items():
        for name, (encode, decode) in candidates(kind).items():
            data = encode(column)
            assert decode(data) == column, (kind, name)
            there = best_ns(lambda encode=encode, column=column: encode(column), ROWS)  # type: ignore[misc]
            back = best_ns(lambda decode=decode, data=data: decode(data), ROWS)  # type: ignore[misc]
            print(f"| {kind} | {name} | {there:.0f} | {back:.0f} | {there + back:.0f} |")


def print_batches() -> None:
    codec, all_columns = Codec(), columns()
    print("\n| batch | rows | encode ns | decode ns | sum |\n|---|---:|---:|---:|---:|")
    for rows in (256, 1024, ROWS):
        for kind in ("int", "tuple (str, int)", "dict of 4 fields"):
            batch = Batch(all_columns[kind][:rows], keys=all_columns["str"][:rows])
            data = codec.encode_batch(batch, step="s")
            there = best_ns(lambda batch=batch: codec.encode_batch(batch, step="s"), rows)  # type: ignore[misc]
            back = best_ns(lambda data=data: codec.decode_batch(data), rows)  # type: ignore[misc]
            print(f"| str key, {kind} value | {rows} | {there:.0f} | {back:.0f} | {there + back:.0f} |")


def print_stored() -> None:
    codec, all_columns = Codec(), columns()
    state = {"count": 3, "sum": 1.5, "min": 0.0, "max": 2.0}
    values = {
        "one dict of 4": (state, 1),
        "one tuple (int, float)": ((3, 1.5), 1),
        "rows [str, dict of 4, []]": ([[key, state, []] for key in all_columns["str"]], ROWS),
        "rows [str, (int, float), []]": ([[key, (3, 1.5), []] for key in all_columns["str"]], ROWS),
        "rows [str, int, []]": ([[key, 3, []] for key in all_columns["str"]], ROWS),
    }
    print("\n| stored value | encode ns | decode ns | msgpack alone, encode / decode |\n|---|---:|---:|---:|")
    for name, (value, rows) in values.items():
        repeats = 60 if rows > 1 else 20_000
        data = codec.encode_at_rest(value, step="s")
        plain = "tuple" not in name and "(" not in name
        alone = "—"
        if plain:
            raw = pack(value)
            pack_ns = best_ns(lambda value=value: pack(value), rows, repeats)  # type: ignore[misc]
            alone = f"{pack_ns:.0f} / {best_ns(lambda raw=raw: unpack(raw), rows, repeats):.0f}"  # type: ignore[misc]
        there = best_ns(lambda value=value: codec.encode_at_rest(value, step="s"), rows, repeats)  # type: ignore[misc]
        back = best_ns(lambda data=data: codec.decode_at_rest(data), rows, repeats)  # type: ignore[misc]
        print(f"| {name} | {there:.0f} | {back:.0f} | {alone} |")


if __name__ == "__main__":
    print_columns()
    print_batches()
    print_stored()
