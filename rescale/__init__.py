"""Rescale: slots, routing and how state moves between workers. Pure: nothing here does I/O.

Installed and imported as ``malstrom_py.rescale``, never as ``rescale``.
"""

from __future__ import annotations

if __name__ != "malstrom_py.rescale":
    # A second copy under a bare name would have its own classes and its own state, and a user's own `rescale`
    # folder must never be mixed up with this one.
    raise ImportError(
        f"this folder is the package `malstrom_py.rescale`, it cannot be imported as `{__name__}`. "
        "Write `from malstrom_py import rescale`. If you meant a `rescale` package of your own, take the root of "
        "the malstrom-py repository off sys.path, or start Python in another folder."
    )
