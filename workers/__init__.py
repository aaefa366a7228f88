"""The workers that run a planned job. Installed and imported as ``malstrom_py.workers``, never as ``workers``."""

from __future__ import annotations

if __name__ != "malstrom_py.workers":
    # A second copy under a bare name would have its own classes and its own state, and a user's own `workers`
    # folder must never be mixed up with this one.
    raise ImportError(
        f"this folder is the package `malstrom_py.workers`, it cannot be imported as `{__name__}`. "
        "Write `from malstrom_py import workers`. If you meant a `workers` package of your own, take the root of "
        "the malstrom-py repository off sys.path, or start Python in another folder."
    )
