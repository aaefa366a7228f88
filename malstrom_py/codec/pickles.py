"""Values of any type between the workers of one job: pickle 5, and cloudpickle where pickle gives up (lambdas, classes
made inside functions). Never at rest."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, Final

from malstrom_py.codec.refusal import Refused

_PROTOCOL: Final = 5


def dump(value: Any) -> bytes:
    """``value`` as pickle. `Refused` if neither pickle nor cloudpickle takes it."""
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception:
        try:
            return _by_cloudpickle(value)
        except Exception as error:
            why = f"neither pickle nor cloudpickle takes it ({type(error).__name__}). Send what it is made of instead"
            raise Refused(type(value), why) from error


def _by_cloudpickle(value: Any) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it is not annotated
        def reducer_override(self, obj: Any) -> Any:
            # cloudpickle would send it as bytes, and a value must come back as what it was.
            if type(obj) is memoryview:
                raise TypeError("a memoryview would come back as bytes")
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer, _PROTOCOL).dump(value)
    return buffer.getvalue()


def load(data: bytes | memoryview) -> Any:
    """The inverse of `dump`. Runs what the pickle says: only for what a worker of the same job has sent."""
    return pickle.loads(data)


def first_refused(values: Sequence[Any]) -> int | None:
    """The index of the first of ``values`` that cannot be dumped on its own; None if each can."""
    for index, value in enumerate(values):
        try:
            dump(value)
        except Refused:
            return index
    return None
