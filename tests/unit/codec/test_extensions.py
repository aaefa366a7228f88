"""Extensions: exact bytes, and malformed ones are rejected."""

from __future__ import annotations

import decimal
import struct

import numpy as np
import pytest

from malstrom_py.codec import extensions
from malstrom_py.codec.encoding_errors import NotDecodable
from malstrom_py.codec.extensions import MARKS, extension_of, value_of


def test_no_code_is_used_twice_and_none_is_msgpacks_own() -> None:
    codes = [*MARKS, *(code for code, _ in extensions.TO_BYTES.values()), 26, 27]
    assert len(set(codes)) == len(codes)
    assert min(codes) >= 0


def test_decimals_are_read_exactly_whatever_the_context() -> None:
    precise = decimal.Decimal("1." + "3" * 60)
    with decimal.localcontext() as context:
        context.prec = 3
        context.traps[decimal.InvalidOperation] = False
        found = extension_of(precise)
        assert found is not None
        assert value_of(*found) == precise
        with pytest.raises(decimal.InvalidOperation):
            value_of(extensions.DECIMAL, b"no number")


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (99, b""),
        (extensions.ZONE, b"../../etc/passwd"),
        (extensions.ZONE, b"/etc/localtime"),
        (extensions.ZONE, b"Europe/Nowhere"),
        (extensions.ZONE, b"America"),
        (extensions.DATETIME, bytes.fromhex("e807010100000000000000") + b"\x00?"),
        (extensions.NUMPY_SCALAR, b"\x01O"),
        (extensions.NUMPY_SCALAR, b"\x03<i8" + bytes(16)),
        (extensions.NUMPY_ARRAY, b"\x02|O\x00"),
        (extensions.NUMPY_ARRAY, b"\x03<i8\x40" + bytes(8 * 64)),
    ],
)
def test_malformed_pieces_are_refused(code: int, data: bytes) -> None:
    with pytest.raises(NotDecodable):
        value_of(code, data)


def test_the_shape_of_an_array_is_checked_against_its_bytes() -> None:
    huge = b"\x03<i8\x02" + struct.pack("<2Q", 1 << 40, 1 << 10) + bytes(8)
    with pytest.raises(ValueError, match="reshape"):
        value_of(extensions.NUMPY_ARRAY, huge)


def test_a_bool_of_numpy_is_true_or_false_whatever_the_byte() -> None:
    assert value_of(extensions.NUMPY_SCALAR, b"\x03|b1\x07").tobytes() == np.bool_(True).tobytes()


@pytest.mark.parametrize("text", [np.str_("a\0"), np.bytes_(b"a\0"), np.str_(""), np.str_("\ud800")])
def test_text_of_numpy_keeps_every_character(text: np.str_ | np.bytes_) -> None:
    found = extension_of(text)
    assert found is not None
    back = value_of(*found)
    assert type(back) is type(text)
    assert list(back) == list(text)
