"""pyproject.toml lists what the repository has, and names no details of the machine it was made on."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from malstrom_py import __version__
from malstrom_py.errors import EXTRAS as ADVISED
from tests.tree import ROOT, modules, pyproject

PROJECT = pyproject()["project"]

EXTRAS = {"metrics", "dashboard", "objects", "ray", "spark", "demo", "testing", "dev"} | {
    *("postgres", "delta", "iceberg", "kafka", "redis", "nats", "formats", "sql", "state"),
}

FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w.~<-])/(?:work|root)(?:/|\b)(?!ers)"),
    "a registry": re.compile("|".join(("pypi" + r"\.org", "python" + "hosted", "index" + "-url", "find" + "-links"))),
}


def requirement_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found
    return found[0].lower()


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_every_package_is_listed() -> None:
    packages = {name for name, file in modules().items() if file.name == "__init__.py"}
    assert sorted(pyproject()["tool"]["setuptools"]["packages"]) == sorted(packages)


def test_no_folder_of_modules_lacks_its_init() -> None:
    folders = {file.parent for file in modules().values()}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_extras_are_named_as_documented() -> None:
    assert set(PROJECT["optional-dependencies"]) == EXTRAS


@pytest.mark.parametrize("extra", sorted(ADVISED))
def test_what_is_advised_for_an_extra_is_what_the_extra_brings(extra: str) -> None:
    assert list(ADVISED[extra]) == PROJECT["optional-dependencies"][extra]


def test_no_advice_needs_an_index_that_does_not_have_malstrom_py() -> None:
    by_name = "malstrom-py" + "["
    files = [name for name in tracked_files() if name.endswith((".py", ".md")) and name != "CHANGELOG.md"]
    lines = [(name, line) for name in files for line in (ROOT / name).read_text().splitlines()]
    advice = [(name, line) for name, line in lines if "install" in line and by_name in line]
    assert [(name, line) for name, line in advice if "@ file:///" not in line] == []


def test_every_dependency_has_its_reason() -> None:
    page = "\n".join((ROOT / name).read_text() for name in ("docs/dependencies.md", "CONTRIBUTING.md"))
    explained = {name.lower() for name in re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)}
    extras = PROJECT["optional-dependencies"].values()
    needed = {requirement_name(r) for r in [*PROJECT["dependencies"], *(r for extra in extras for r in extra)]}
    assert explained == needed


def test_every_dependency_has_a_bound() -> None:
    bounded = re.compile(r"[<>]=?\d")
    assert [r for r in PROJECT["dependencies"] if not bounded.search(r)] == []
    assert [r for e in PROJECT["optional-dependencies"].values() for r in e if not bounded.search(r)] == []


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("what", sorted(FOREIGN))
def test_no_tracked_file_speaks_of_the_machine_it_was_made_on(what: str) -> None:
    own = str(__file__).removeprefix(f"{ROOT}/")
    found = []
    for name in tracked_files():
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{n}" for n, line in enumerate(text.splitlines(), 1) if FOREIGN[what].search(line)]
    assert [place for place in found if not place.startswith(f"{own}:")] == []


def test_the_links_are_links() -> None:
    for room in ("workers", "rescale"):
        link = ROOT / "malstrom_py" / room
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{room}"


def announcements(source: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return what a module deprecates: the first name in backticks of each warning, and the version that removes it."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        if any(isinstance(one, ast.Name) and one.id == "DeprecationWarning" for one in call.args):
            text = ast.unparse(call.args[0])
            name, version = re.search(r"`([^`]+)`", text), re.search(r"removed in (\d+)\.(\d+)", text)
            assert name, f"a deprecation names no replaced name in backticks: {text}"
            assert version, f"a deprecation names no version ('will be removed in 0.4'): {text}"
            found.append((name[1], tuple(map(int, version.groups()))))
    return found


def test_each_deprecation_is_announced_one_minor_version_ahead() -> None:
    announced = " ".join(
        re.findall(r"### Deprecated\n(.*?)\n##", (ROOT / "CHANGELOG.md").read_text() + "\n##", re.DOTALL)
    )
    this = tuple(map(int, __version__.split(".")[:2]))
    for file in modules().values():
        for name, removed_in in announcements(file.read_text()):
            assert f"`{name}`" in announced, f"{file}: the changelog lists no deprecation of `{name}`"
            assert removed_in > this, f"{file}: `{name}` was to be gone in this version"


def test_a_deprecation_is_found() -> None:
    warning = 'warnings.warn("`old` is `new` now, and will be removed in 0.4", DeprecationWarning, stacklevel=2)'
    assert announcements(warning) == [("old", (0, 4))]
    with pytest.raises(AssertionError, match="names no version"):
        announcements(warning.replace("0.4", "time"))
