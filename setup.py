"""Says where the two rooms at the top of the repository are, and builds the accelerator; all else is in pyproject.toml.

Rule: a build takes them from where they are, so that it never depends on the links malstrom_py/workers and
malstrom_py/rescale. An editable install goes by the links, where there are any: then it is one line in a .pth file,
which type checkers of other projects follow. Without them it is an import hook, which they cannot see through.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup

ROOMS = {"malstrom_py.workers": "workers", "malstrom_py.rescale": "rescale"}

linked = all(Path(*room.split("."), "__init__.py").is_file() for room in ROOMS)
# Without a compiler there is none, and numpy or Python do the same. Its folder is not a package: the library and the
# module in it are loaded by `malstrom_py.accelerator`. The library can be built without the headers of Python.
NATIVE = "malstrom_py/native"
HASH = [f"{NATIVE}/key_hash.h"]
library = Extension(
    "malstrom_py.native.groups", [f"{NATIVE}/{name}.c" for name in ("groups", "csv")], depends=HASH, optional=True
)
rows = Extension("malstrom_py.native.rows", [f"{NATIVE}/rows.c"], depends=HASH, optional=True)
setup(ext_modules=[library, rows], package_dir={"": "."} if linked and "editable_wheel" in sys.argv else ROOMS)
