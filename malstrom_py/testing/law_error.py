"""`LawError`: what a law or a contract raises when it is broken. An AssertionError, apart from `MalstromError`."""

from __future__ import annotations


class LawError(AssertionError):
    """A law of operators, or a clause of a contract, is broken.

    ``law`` names it (one of `malstrom_py.testing.LAWS`, or a clause of ``check_source``, ``check_sink`` or
    ``check_partitioner``), ``case`` is the minimal case as text.

    >>> print(LawError("key isolation", "what comes out for a key depends on its own records only", case="..."))
    law 'key isolation' is broken: what comes out for a key depends on its own records only
    ...
    """

    def __init__(self, law: str, what: str, *, case: str = "") -> None:
        super().__init__(f"law {law!r} is broken: {what}" + (f"\n{case}" if case else ""))
        self.law = law
        self.what = what
        self.case = case
