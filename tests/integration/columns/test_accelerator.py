"""The accelerator in C: safe with any buffers, found where it was built, and off when asked."""

from __future__ import annotations

import subprocess
import sys
from array import array
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from malstrom_py import accelerator
from tests.integration.commands import python
from tests.unit.state.accelerators import COMPILER, FOLDER, MODULE, PATHS, compiled, rows_of

DRIVERS = [Path(__file__).with_name(f"{name}_driver.c") for name in ("groups", "csv")]
CHECKED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.parametrize("source", DRIVERS if COMPILER else [], ids=lambda path: path.stem)
def test_no_call_leaves_its_buffers_and_all_agree_with_a_loop(source: Path, tmp_path: Path) -> None:
    driver = compiled(tmp_path / "driver", [source], *CHECKED)
    done = subprocess.run([driver], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def test_it_is_off_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(accelerator.VARIABLE, "off")
    assert python("-c", "from malstrom_py import accelerator; print(accelerator.library())").stdout == "None\n"


@pytest.mark.parametrize("what", [accelerator.library, accelerator.rows], ids=["library", "rows"])
@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_what_is_not_a_library_is_logged_and_not_used(
    what: Any, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(content)
    monkeypatch.setattr(accelerator, "built", lambda name="groups": broken)
    assert what.__wrapped__() is None
    assert f"{broken} was built for another machine or version" in caplog.text


@pytest.mark.parametrize("source", ["groups.c"] if COMPILER else [])
def test_a_library_of_another_version_is_logged_and_not_used(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = compiled(tmp_path / "groups.so", [FOLDER / source], "-shared", "-fPIC")
    monkeypatch.setenv(accelerator.VARIABLE, str(old))
    assert accelerator.library.__wrapped__() is None
    assert "ms_csv_cut" in caplog.text


ROWS = [path for path in PATHS if path == "C"]


@pytest.mark.parametrize("path", ROWS)
def test_rows_are_split_by_the_part_of_their_slot(path: str) -> None:
    rows: Any = rows_of(path)
    slots, by_slot = array("I", [3, 0, 1, 3]), array("H", [1, 0, 0, 2])
    values, keys = ["a", "b", "c", "d"], [1, 2, 3, 4]
    assert rows.split(slots, by_slot, 3, (values, None, keys)) == [[["c"], ["b"], ["a", "d"]], None, [[3], [2], [1, 4]]]
    assert rows.split(array("I"), by_slot, 2, ([],)) == [[[], []]]


@pytest.mark.parametrize("path", ROWS)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([4], [0, 0], 1, ([1],)), "IndexError: slot 4 of 2"),
        (([0], [5], 2, ([1],)), "IndexError: part 5 of 2"),
        (([0, 0], [0], 1, ([1],)), "ValueError: 2 slots for 1 rows"),
        (([0], [0], 0, ([1],)), "ValueError: parts is 0"),
        (([0], [0], 1, ((1,),)), "TypeError: a column is a list, not tuple"),
        (([0], [0], 1, [[1]]), "TypeError: columns is a tuple"),
    ],
    ids=str,
)
def test_what_cannot_be_split_is_an_error(path: str, arguments: Any, error: str) -> None:
    slots, by_slot, *rest = arguments
    rows: Any = rows_of(path)
    with pytest.raises((IndexError, ValueError, TypeError)) as raised:
        rows.split(array("I", slots), array("H", by_slot), *rest)
    assert f"{type(raised.value).__name__}: {raised.value}" == error


@pytest.mark.parametrize("path", ROWS)
def test_what_finds_the_slots_of_rarer_keys_may_do_anything(path: str) -> None:
    rows: Any = rows_of(path)

    def fails(key: object) -> int:
        raise KeyError(key)

    def clears(key: object) -> int:
        keys.clear()
        return 0

    keys: list[Any] = [1.5, "a"]
    for find, error in ((fails, KeyError), (lambda key: 8, ValueError), (lambda key: -1, OverflowError)):
        with pytest.raises(error):
            rows.slots(keys, 8, find)
    with pytest.raises(TypeError):
        rows.slots(keys, 8, lambda key: "a")
    with pytest.raises(RuntimeError, match="the list of keys has changed"):
        rows.slots(keys, 8, clears)
    for wrong in ((("a",), 8, fails), (["a"], 0, fails), (["a"], -1, fails), (["a"], 8)):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            rows.slots(*wrong)


@pytest.mark.parametrize("path", ROWS)
def test_no_reference_is_lost_or_kept(path: str) -> None:
    rows: Any = rows_of(path)
    texts: list[Any] = [f"key {n}" for n in range(50)] + [f"\u00fc {n}" for n in range(50)]
    keys = texts + [(text, n) for n, text in enumerate(texts)] + [n + 0.5 for n in range(50)]

    def call_all() -> None:
        slots = rows.slots(keys, 4, lambda key: 3)
        parts = rows.split(slots, array("H", [0, 1, 0, 1]), 2, (keys, keys))
        assert sorted(map(str, chain(*parts[0]))) == sorted(map(str, keys))
        with pytest.raises(IndexError):
            rows.split(slots, array("H", [0]), 2, (keys, keys))
        with pytest.raises(ValueError, match="rows"):
            rows.split(slots, array("H", [0, 1, 0, 1]), 2, (keys, keys[1:]))
        for made in ([(text, 1) for text in texts], [{"a": text, "b": 1} for text in texts]):
            names, ((kind, column), (_, ones)) = rows.fields(made, texts)
            assert (kind, column, rows.kind(texts)) == (str, None, str)
            assert rows.join(names, (texts, ones)) == made
            assert rows.fields([*made, (keys, keys)], None) is None

    call_all()
    before = list(map(sys.getrefcount, keys))
    for _ in range(20):
        call_all()
    assert list(map(sys.getrefcount, keys)) == before


CALLS = """
import random, sys
from array import array
from pathlib import Path
from malstrom_py.accelerator import load_rows
from malstrom_py.rescale.keys.key_hash import hash_key
rows, draw = load_rows(sys.argv[1]), random.Random(1)
def text():
    return "".join(draw.choices("ab\u00fc\u4e2d\U0001f600", [9, 9, 1, 1, 1], k=draw.choice([0, 3, 23, 60, 600])))
def key(depth=0):
    kind = draw.randrange(6 if depth < 12 else 5)
    if kind == 5:
        return tuple(key(depth + 1) for _ in range(draw.randrange(4)))
    return (text(), text().encode(), draw.randrange(-(2**64), 2**64), None, draw.random())[kind]
for _ in range(400):
    keys, parts = [key() for _ in range(draw.randrange(20))], draw.randrange(1, 9)
    slots = array("I", rows.slots(keys, 50, lambda key: hash_key(key) % 50))
    assert slots.tolist() == [hash_key(key) % 50 for key in keys]
    by_slot = array("H", draw.choices(range(parts), k=50))
    split = rows.split(slots, by_slot, parts, (keys,))[0]
    assert split == [[key for key, slot in zip(keys, slots) if by_slot[slot] == part] for part in range(parts)]
    width = draw.choice([1, 2, 9, 64])
    names = tuple(str(n) for n in range(width)) if draw.random() < 0.5 else None
    plain = [[draw.choice([text(), n, None, b"b", 1.5]) for n in range(width)] for key in keys]
    made = [dict(zip(names, row)) if names else tuple(row) for row in plain]
    apart = rows.fields(made, [row[0] for row in plain])
    assert (apart is None) == (not made)
    if apart:
        whole = list(map(list, zip(*plain)))
        columns = tuple(column or whole[n] for n, (_, column) in enumerate(apart[1]))
        assert apart[0] == names and rows.join(names, columns) == made
    rows.fields([*made, [1]], None), rows.fields([*made, (1,) * (width - 1) + ([],)], None), rows.kind(keys)
print("equal")
"""


@pytest.mark.parametrize("path", ROWS)
def test_no_call_of_the_module_leaves_its_buffers(path: str, tmp_path: Path) -> None:
    built = compiled(tmp_path / "rows.so", [FOLDER / "rows.c"], *MODULE, *CHECKED)
    found = subprocess.run([str(COMPILER), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    checks = {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    done = python("-c", CALLS, built, **checks)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


@pytest.mark.parametrize("path", ROWS)
def test_a_module_of_another_version_is_logged_and_not_used(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = compiled(tmp_path / "rows.so", [FOLDER / "rows.c"], *MODULE)
    monkeypatch.setattr(accelerator, "built", lambda name: built)
    monkeypatch.setattr(accelerator, "ROWS_VERSION", -1)
    assert accelerator.rows.__wrapped__() is None
    assert "not -1" in caplog.text


def test_the_module_is_off_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(accelerator.VARIABLE, "off")
    assert python("-c", "from malstrom_py import accelerator; print(accelerator.rows())").stdout == "None\n"
