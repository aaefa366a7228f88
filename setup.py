"""Says where the two rooms at the top of the repository are, and builds the accelerator; all else is in pyproject.toml.

Rule: a build takes the rooms from where they are, so that it never depends on the links malstrom_py/workers and
malstrom_py/rescale. An editable install goes by the links, where there are any: then it is one line in a .pth file,
which type checkers of other projects follow. Without them it is an import hook, which they cannot see through.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools._distutils.ccompiler import new_compiler  # where setuptools keeps it, with or without the stdlib's
from setuptools._distutils.errors import CCompilerError, DistutilsExecError, DistutilsPlatformError
from setuptools._distutils.sysconfig import customize_compiler, get_python_inc

ROOMS = {"malstrom_py.workers": "workers", "malstrom_py.rescale": "rescale"}
NATIVE = "malstrom_py/native"
HASH = [f"{NATIVE}/key_hash.h"]


def compiles(code: str) -> bool:
    """Return whether there is a C compiler here that takes ``code``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "probe.c")
        file.write_text(code)
        try:
            compiler = new_compiler()
            customize_compiler(compiler)
            compiler.compile([str(file)], output_dir=folder, include_dirs=[get_python_inc()])
        except (CCompilerError, DistutilsExecError, DistutilsPlatformError):
            return False
    return True


def accelerator() -> list[Extension]:
    """Return what can be built here; say so where it is not all, for then a wheel is pure, or slower.

    The folder of the two is not a package: they are loaded by `malstrom_py.accelerator`.
    """
    if not compiles("int probe;\n"):
        print("malstrom-py: no C compiler works here, so the wheel is pure: the same results, slower", file=sys.stderr)
        return []
    library = [f"{NATIVE}/groups.c", f"{NATIVE}/csv.c"]
    extensions = [Extension("malstrom_py.native.groups", library, depends=HASH, optional=True)]
    if not compiles("#include <Python.h>\n"):
        print("malstrom-py: the headers of Python are missing, so rows are routed in Python, slower", file=sys.stderr)
        return extensions
    return [*extensions, Extension("malstrom_py.native.rows", [f"{NATIVE}/rows.c"], depends=HASH, optional=True)]


linked = all(Path(*room.split("."), "__init__.py").is_file() for room in ROOMS)
setup(ext_modules=accelerator(), package_dir={"": "."} if linked and "editable_wheel" in sys.argv else ROOMS)
