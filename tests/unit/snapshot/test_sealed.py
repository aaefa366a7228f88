"""Sealed bytes are opened, and all other bytes are rejected."""

from __future__ import annotations

import hashlib

import pytest

from malstrom_py.snapshot import manifest as sealed
from malstrom_py.snapshot.manifest import open_seal, seal


def sealed_by_hand(line: bytes) -> bytes:
    return line + b'\n{"sha256": "' + hashlib.sha256(line).hexdigest().encode() + b'"}\n'


def test_what_was_sealed_comes_back() -> None:
    fields = {"format": 1, "ä\ud800\n": [None, True, -0.5, {"a": "\u2028"}]}
    assert open_seal(seal(fields)) == fields
    assert seal(fields) == sealed_by_hand(seal(fields).partition(b"\n")[0])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b"{", "Expecting"),
        (b"", "Expecting"),
        (b'{"a": ' + b"9" * 5000 + b"}", "."),
        (b"\xff", "."),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_seal_never_writes_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        open_seal(sealed_by_hand(line))


def test_what_is_too_long_is_neither_written_nor_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    long = seal({"a": "x" * 3000})
    monkeypatch.setattr(sealed, "BYTES_MAX", 1000)
    for tried in (lambda: seal({"a": "x" * 3000}), lambda: open_seal(long)):
        with pytest.raises(ValueError, match="and the limit is 1000"):
            tried()


def test_what_is_no_json_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        seal({"a": float("nan")})
