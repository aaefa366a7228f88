"""What an import brings along, and what happens to who imports a room by its bare name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_packaging import NOT_SOURCE
from tests.tree import ROOT

HEAVY = {
    *("ray", "zmq", "pyspark", "polars", "pyarrow", "pandas", "numpy", "rich", "typer", "cloudpickle"),
    *("asyncio", "ssl"),
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


DEFINES_A_JOB = """
import malstrom_py as mp
from malstrom_py import sinks, sources
job = mp.Job("letters")
words = job.source("words", sources.Memory(["ant", "bee"]))
words.key_by("letter", lambda word: word[0]).count("seen").sink("out", sinks.Memory())
job.explain()
"""
RUNNING = ("malstrom_py.workers.", "malstrom_py.rescale.", "malstrom_py.connectors.", "malstrom_py.spark")


def loaded_after(code: str) -> tuple[list[str], set[str]]:
    """Return the modules of ours that ``code`` loads, and the heavy libraries."""
    done = python(f"{code}\nimport sys; print(*sys.modules)")
    assert done.stderr == ""
    names = done.stdout.split()
    return [name for name in names if name.startswith("malstrom_py")], HEAVY & set(names)


def test_an_import_loads_the_names_of_the_package_and_no_heavy_library() -> None:
    ours, heavy = loaded_after("import malstrom_py")
    assert (len(ours) <= 5, heavy) == (True, set())
    assert loaded_after("import malstrom_py.workers, malstrom_py.rescale")[1] == set()


def test_a_job_is_defined_without_what_runs_it_and_without_heavy_libraries() -> None:
    ours, heavy = loaded_after(DEFINES_A_JOB)
    assert (len(ours) <= 120, heavy) == (True, set())
    assert [name for name in ours if name.startswith((*RUNNING, "malstrom_py.capture.checks"))] == []


def test_the_help_of_the_command_line_loads_no_command() -> None:
    ours, _ = loaded_after(
        "import contextlib, io, sys\n"
        "from malstrom_py.cli.app import app\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as help: app(['--help'])\n"
        "assert 'rebalance' in help.getvalue()"
    )
    assert {name for name in ours if ".cli." in name} == {"malstrom_py.cli.app", "malstrom_py.cli.commands"}
    assert len(ours) <= 10


@pytest.mark.parametrize("room", ["workers", "rescale"])
def test_a_room_is_one_module_and_cannot_be_imported_by_its_bare_name(room: str) -> None:
    imported = f"import sys; from malstrom_py import {room} as room; print(room.__name__, '{room}' in sys.modules)"
    done = python(f"{imported}; import {room}")
    assert (done.stdout.strip(), done.returncode) == (f"malstrom_py.{room} False", 1)
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line.startswith(f"ImportError: this folder is the package `malstrom_py.{room}`")
    assert f"Write `from malstrom_py import {room}`" in last_line


@pytest.fixture(scope="module", params=["text", "nothing"])
def linkless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that has lost its links: as git without links writes them, or an archive that leaves them out."""
    folder = tmp_path_factory.mktemp("linkless") / "repo"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=NOT_SOURCE)
    for link in (folder / "malstrom_py" / "workers", folder / "malstrom_py" / "rescale"):
        link.unlink()
        if request.param == "text":
            link.write_text(f"../{link.name}")
    return folder


def in_checkout(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python as one in which nothing of ours is installed but what is in ``folder``."""
    hidden = "import sys; sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in str(one).lower()]; "
    command = ["-c", hidden + arguments[1], *arguments[2:]] if arguments[0] == "-c" else list(arguments)
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=400
    )


@pytest.mark.long("nothing-neither", "text-neither")
@pytest.mark.parametrize("there", [[], ["rescale"]], ids=["neither", "one"])
def test_a_checkout_without_links_says_what_is_missing_and_what_to_do(linkless: Path, there: list[str]) -> None:
    for room in there:
        (linkless / "malstrom_py" / room).unlink(missing_ok=True)
        (linkless / "malstrom_py" / room).symlink_to(f"../{room}")
    done = in_checkout(linkless, "-c", "import malstrom_py")
    last_line = done.stderr.strip().splitlines()[-1]
    missing = "workers" if there else "rescale"
    assert last_line.startswith(
        f"ImportError: malstrom_py/{missing} is missing: in a clone it is a link to ../{missing}"
    )
    assert "pip install ." in last_line
    advice = "ln -sfn " + last_line.partition("ln -sfn ")[2]
    contributing = (linkless / "CONTRIBUTING.md").read_text().splitlines()
    assert [command for command in advice.split("; ") if command not in contributing] == []
    subprocess.run(advice, shell=True, cwd=linkless, check=True, timeout=60)
    done = in_checkout(linkless, "-c", "import malstrom_py; print(malstrom_py.Job('x').name)")
    assert (done.stdout.strip(), done.stderr) == ("x", "")
    for room in ("rescale", "workers"):
        (linkless / "malstrom_py" / room).unlink()
        (linkless / "malstrom_py" / room).write_text(f"../{room}")


def test_the_tests_of_a_checkout_without_links_do_not_leave_a_part_out(linkless: Path) -> None:
    done = in_checkout(linkless, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider")
    assert done.returncode == 4, done.stdout
    assert "malstrom_py/rescale is not a folder, so its examples would not be run" in done.stderr


def test_what_a_room_itself_misses_is_told_as_it_is(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "malstrom_py", tmp_path / "malstrom_py", ignore=NOT_SOURCE)
    (tmp_path / "malstrom_py" / "workers" / "__init__.py").write_text("import not_there\n")
    done = in_checkout(tmp_path, "-c", "import malstrom_py")
    assert done.stderr.strip().splitlines()[-1] == "ModuleNotFoundError: No module named 'not_there'"


def test_a_system_without_fcntl_is_told_what_to_use_instead() -> None:
    done = python("import sys; sys.modules['fcntl'] = None; import malstrom_py")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ImportError")]
    assert "Windows Subsystem for Linux" in line
    assert "malstrom_py/workers" not in done.stderr
