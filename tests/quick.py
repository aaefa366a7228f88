"""Runs the unit tests, doctests and laws of what has changed since main: ``python -m tests.quick [pytest options]``.

On main itself it takes what the last commit changed. Of the laws it takes those of the changed steps: all laws of all
steps take longer than all else here. Every test runs in ``make test``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

from tests.tree import ROOT


def git(*arguments: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def changed_files() -> set[str]:
    """Return the files that differ from main, or from the commit before on main itself; also what is uncommitted."""
    base = git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main")
    if base == git("rev-parse", "HEAD"):
        base = git("rev-parse", "HEAD~1")
    names = f"{git('diff', '--name-only', base)}\n{git('ls-files', '--others', '--exclude-standard')}"
    return {name for name in names.splitlines() if name.endswith(".py") and (ROOT / name).is_file()}


def tests_of(name: str) -> set[str]:
    """Return the tests of one file.

    >>> sorted(tests_of("malstrom_py/codec/types.py"))
    ['malstrom_py/codec/types.py', 'tests/unit/codec']
    >>> tests_of("tests/unit/codec/test_types.py")
    {'tests/unit/codec/test_types.py'}
    """
    path = PurePosixPath(name)
    if path.parts[0] == "tests":
        is_quick = name.startswith(("tests/unit/", "tests/laws/", "tests/tidy/")) and path.name.startswith("test_")
        return {name} if is_quick else set()
    if path.parts[0] not in {"malstrom_py", "workers", "rescale"}:
        return set()
    package = Path(*path.parent.parts[1:]) if path.parts[0] == "malstrom_py" else Path(path.parent)
    module = name if path.parts[0] == "malstrom_py" else f"malstrom_py/{name}"
    tests = ROOT / "tests" / "unit" / package
    if package == Path():
        return {module, *(str(file.relative_to(ROOT)) for file in tests.glob(f"test_{path.stem}*.py"))}
    return {module, str(tests.relative_to(ROOT))} if tests.is_dir() else {module}


def laws_of(changed: set[str]) -> set[str]:
    """Return the tests of laws of the changed steps; every eighth if what many steps share has changed.

    >>> sorted(laws_of({"malstrom_py/operators/stateful_op.py"}))[0]
    'tests/laws/test_all_operators.py::test_a_step_of_ours_obeys_every_law[stateful_op-...]'
    >>> laws_of({"malstrom_py/clock.py"})
    set()
    """
    subjects = {
        name for name in changed if name.startswith(("malstrom_py/operators/", "malstrom_py/state/", "malstrom_py/agg"))
    }
    if not subjects:
        return set()
    from tests.laws.test_all_operators import FURTHER, TABLE  # slow imports, for a change of a step only
    from tests.laws.test_forms import CASES, modules_of

    every_law = "tests/laws/test_all_operators.py::test_a_step_of_ours_obeys_every_law"
    every_form = "tests/laws/test_forms.py::test_columns_rows_and_a_mix_give_the_same"
    cases = {
        f"{every_law}[{row.step}-{n}]": modules_of(row.factory, row.options) for n, row in enumerate(TABLE + FURTHER)
    }
    cases |= {f"{every_form}[{name}]": modules_of(*case) for name, case in CASES.items()}
    steps = {f"malstrom_py/operators/{module}.py" for modules in cases.values() for module in modules}
    chosen = {
        test for test, modules in cases.items() if {f"malstrom_py/operators/{one}.py" for one in modules} & changed
    }
    return chosen if subjects <= steps else chosen | set(sorted(cases)[::8])


def main(options: list[str]) -> int:
    """Run pytest on the tests of what has changed."""
    changed = changed_files()
    chosen = laws_of(changed).union(*(tests_of(name) for name in changed))
    if not chosen:
        print("No module has changed since main, so there is nothing to test; make test runs every test.")
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", *options, *sorted(chosen)], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
