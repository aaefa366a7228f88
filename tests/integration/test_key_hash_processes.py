"""The hash of keys in other processes, under other hash seeds, and in the other Pythons of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tree import ROOT
from tests.vectors.key_hash_keys import published

RECOMPUTE = """
import json, sys, types
from pathlib import Path
try:
    import xxhash
except ImportError:
    # A bare Python: the published algorithm in plain Python instead, and of the package only the modules that hash.
    from tests.vectors import xxh64
    sys.modules["xxhash"] = xxh64
package = types.ModuleType("malstrom_py")
package.__path__ = [str(Path.cwd() / "malstrom_py")]
sys.modules["malstrom_py"] = package
from tests.vectors.key_hash_keys import recompute
print(json.dumps({"version": sys.version_info[:2], "rows": recompute()}))
"""


def recomputed(python: str, hash_seed: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", RECOMPUTE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def version_of(python: str) -> tuple[int, int] | None:
    """The version of an interpreter; None if it does not start (a shim may point nowhere)."""
    command = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = done.stdout.split()
    return (int(found[0]), int(found[1])) if done.returncode == 0 and len(found) == 2 else None


def pythons() -> dict[tuple[int, int], str]:
    """One interpreter of each supported version on this machine: this one, those on the PATH, those of pyenv."""
    own = (sys.version_info.major, sys.version_info.minor)
    found = {own: sys.executable}
    named = (shutil.which(f"python3.{minor}") for minor in range(11, 20))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in [*filter(None, named), *map(str, sorted(pyenv.glob("3.*/bin/python")))]:
        version = version_of(python)
        if version is not None and version >= (3, 11):
            found.setdefault(version, python)
    return found


@pytest.mark.parametrize("hash_seed", ["0", "4294967295"])
def test_f3_the_hash_is_the_same_in_another_process_under_any_hash_seed(hash_seed: str) -> None:
    assert recomputed(sys.executable, hash_seed)["rows"] == published()


def test_f3_the_hash_is_the_same_in_every_python_of_this_machine() -> None:
    for version, python in pythons().items():
        answer = recomputed(python, "random")
        assert tuple(answer["version"]) == version
        assert answer["rows"] == published(), f"Python {version[0]}.{version[1]} disagrees"
