"""What is built and installed: one top-level name, every module, the same from a tree, an archive and in place.

Every environment is new, and sees the libraries of the one that runs the tests: nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from malstrom_py import __version__
from tests.tree import ROOT, modules
from tests.unit.state.accelerators import COMPILER

Python = Callable[..., str]
"""Runs the Python of a fresh environment with these arguments and returns what it printed."""

NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", ".coverage*", "__pycache__", "build", "dist", "*.egg-info"
)

WALK = """
import pkgutil, malstrom_py
print("malstrom_py")
for module in pkgutil.walk_packages(malstrom_py.__path__, "malstrom_py."):
    print(module.name)
"""

TYPED_JOB = """
import malstrom_py as mp
from malstrom_py.workers.engine.flow_limits import Batching

reveal_type(mp.Job("x"))
reveal_type(mp.InProcess(2, batch=Batching(rows_max=5)))
reveal_type(mp.partitioners.stable_hash)
mp.Job(5)
"""

OWN_ROOMS_JOB = """
import malstrom_py as mp
from malstrom_py import sinks, sources
from workers.pool import double
from rescale import RATIO

out = sinks.Memory()
job = mp.Job("own-rooms")
job.source("numbers", sources.Memory([1, 2, 3])).map("scale", lambda n: double(n) * RATIO).sink("out", out)
mp.run(job)
print(out.items)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command, and show what it said when it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, links kept, so that no build leaves files in the original."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("tree") / "repo", symlinks=True, ignore=NOT_SOURCE))


@pytest.fixture(scope="module")
def archives(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, the wheel built from that sdist)."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=out)
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def make_environment(home: Path) -> Path:
    """A separate environment that also sees the libraries (not the packages in development) of this one."""
    venv.create(home, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    behind = own | {path for path in sys.path if Path(path).name == "site-packages"}  # an environment on another's
    (packages / "libraries.pth").write_text("".join(f"{folder}\n" for folder in sorted(behind)))
    return home / "bin" / "python"


@pytest.fixture(scope="module", params=["wheel", "sdist", "folder", "editable"])
def python(request: pytest.FixtureRequest, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Python:
    """A fresh environment into which the package was installed in one of the ways that users have."""
    home = tmp_path_factory.mktemp(request.param)
    executable = make_environment(home / "venv")
    if request.param in ("wheel", "sdist"):
        sdist, wheel = request.getfixturevalue("archives")
        target = [wheel if request.param == "wheel" else sdist]
    else:
        target = [tree] if request.param == "folder" else ["--editable", tree]
    quick = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--no-compile"]
    run(sys.executable, "-m", "pip", "--python", executable, "install", *quick, *target, cwd=home)

    def python_there(*arguments: str | Path, cwd: Path = home) -> str:
        return run(executable, *arguments, cwd=cwd)

    return python_there


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def test_the_wheel_has_one_top_level_name_and_every_module(archives: tuple[Path, Path]) -> None:
    names = names_in(archives[1])
    assert {name.split("/")[0] for name in names} == {"malstrom_py", f"malstrom_py-{__version__}.dist-info"}
    assert sorted(module_of(name) for name in names if name.endswith(".py")) == sorted(modules())
    assert "malstrom_py/py.typed" in names
    static = ROOT / "workers" / "monitoring" / "static"
    page = {f"malstrom_py/workers/monitoring/{file.relative_to(static.parent)}" for file in static.rglob("*.*")}
    assert "malstrom_py/workers/monitoring/static/vendor/LICENSES.txt" in page
    assert page <= names, "the dashboard with its libraries and their licences"
    assert [
        name for name in names if name.endswith(".dist-info/licenses/workers/monitoring/static/vendor/LICENSES.txt")
    ]


def test_the_sdist_holds_each_room_once_and_no_link(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as archive:
        members = archive.getmembers()
    paths = {member.name.partition("/")[2] for member in members}
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert {"workers/__init__.py", "rescale/__init__.py", "LICENSE", "README.md", "CHANGELOG.md"} <= paths
    assert {"workers/monitoring/static/index.html", "workers/monitoring/static/vendor/LICENSES.txt"} <= paths
    assert not [path for path in paths if path.startswith(("malstrom_py/workers", "malstrom_py/rescale"))]


def test_a_build_needs_neither_the_links_nor_a_compiler(
    tree: Path, archives: tuple[Path, Path], tmp_path: Path
) -> None:
    """Without one it says that the wheel is pure."""
    linkless = Path(shutil.copytree(tree, tmp_path / "repo", symlinks=True, ignore=NOT_SOURCE))
    for link in (linkless / "malstrom_py" / "workers", linkless / "malstrom_py" / "rescale"):
        link.unlink()
        link.write_text("../" + link.name)  # what a zip archive makes of a link
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, linkless],
        env={**os.environ, "CC": "/no/compiler"},
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    assert "no C compiler works here, so the wheel is pure" in built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"malstrom_py-{__version__}-py3-none-any.whl"
    assert {
        name for name in names_in(archives[1]) ^ names_in(wheel) if not name.startswith("malstrom_py/native")
    } == set()
    assert not [name for name in names_in(wheel) if name.startswith("malstrom_py/native")]


@pytest.mark.long(but=("wheel",))
def test_the_accelerator_is_built_where_there_is_a_compiler(python: Python) -> None:
    code = "from malstrom_py import accelerator; print(accelerator.library() and accelerator.rows() and 'built')"
    assert python("-c", code) == ("built\n" if COMPILER else "None\n")


@pytest.mark.long("folder", "sdist")
def test_every_module_is_found_once_installed(python: Python) -> None:
    assert sorted(python("-c", WALK).split()) == sorted(modules())


@pytest.mark.long(but=("wheel",))
def test_a_job_runs_beside_the_users_own_rooms(python: Python, tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("")
    (tmp_path / "workers" / "pool.py").write_text("def double(n):\n    return 2 * n\n")
    (tmp_path / "rescale").mkdir()
    (tmp_path / "rescale" / "__init__.py").write_text("RATIO = 10\n")
    (tmp_path / "job.py").write_text(OWN_ROOMS_JOB)
    assert python("job.py", cwd=tmp_path).strip() == "[20, 40, 60]"


@pytest.mark.long(but=("wheel-pyright",))
@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_type_checkers_of_another_project_see_the_package(tool: str, python: Python, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(TYPED_JOB)
    executable = python("-c", "import sys; print(sys.executable)").strip()
    there = ["--python-executable" if tool == "mypy" else "--pythonpath", executable]
    done = subprocess.run(
        [sys.executable, "-m", tool, *there, "job.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    said = [line for line in done.stdout.splitlines() if "job.py:" in line]
    for line, kind in ((5, "Job"), (6, "InProcess"), (7, "StableHash")):
        assert [one for one in said if f"job.py:{line}:" in one and f'{kind}"' in one], f"{kind} in:\n{done.stdout}"
    assert len([one for one in said if "error" in one]) == 1, done.stdout
    assert [one for one in said if "job.py:8:" in one and "error" in one and '"str"' in one], done.stdout


@pytest.mark.long("folder", "sdist")
def test_the_command_is_installed(python: Python) -> None:
    script = python("-c", "import sys; print(sys.prefix)").strip() + "/bin/malstrom"
    assert "run" in run(script, "--help", cwd=Path(script).parent)


@pytest.mark.long("folder", "sdist")
def test_the_installed_version_is_the_one_of_the_source(python: Python) -> None:
    assert python("-c", "from importlib.metadata import version; print(version('malstrom-py'))").strip() == __version__
