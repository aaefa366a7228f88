"""`LawError`, the error of a broken law or contract. It is an AssertionError, not a `MalstromError`."""

from __future__ import annotations


class LawError(AssertionError):
    """A law of operators, or a clause of a contract, is broken.

    ``law``: its name (one of `malstrom_py.testing.LAWS`, or a clause of ``check_source``, ``check_sink``,
    ``check_partitioner`` or ``check_checkpointer``). ``case``: the minimal case, as text.

    >>> print(LawError("key isolation", "what comes out for a key depends on its own records only", case="..."))
    law 'key isolation' is broken: what comes out for a key depends on its own records only
    ...
    """

    def __init__(self, law: str, what: str, *, case: str = "") -> None:
        super().__init__(f"law {law!r} is broken: {what}" + (f"\n{case}" if case else ""))
        self.law = law
        self.what = what
        self.case = case
