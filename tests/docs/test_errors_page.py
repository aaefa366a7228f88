"""docs/errors.md has every error class, in the tree of the code, and shows the real messages."""

from __future__ import annotations

import inspect
import re

import pytest
from ray.exceptions import RayActorError

from malstrom_py import errors
from malstrom_py.errors import InternalError
from malstrom_py.testing import OperatorTester
from malstrom_py.workers.ray.worker_actor import worker_died
from tests.pages import blocks_of, headings_of
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()

ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
}


def section_of(name: str) -> str:
    """What the page says under the heading of one error."""
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_has_its_place_on_the_page(name: str) -> None:
    assert name in headings_of(PAGE)
    section = section_of(name)
    if name != "MalstromError":
        assert "**When**: " in section
        assert re.search(r"^```text\n\w+: ", section, flags=re.MULTILINE), f"no message of {name} is shown"


def test_the_page_knows_no_error_that_there_is_not() -> None:
    named = {heading for heading in headings_of(PAGE) if heading.endswith(("Error", "Record")) or "Job" in heading}
    assert named <= set(ERRORS)


def test_the_tree_is_the_one_of_the_module() -> None:
    tree = next(block.text for block in blocks_of(PAGE) if block.text.startswith("MalstromError\n"))

    def drawn(text: str) -> list[str]:
        lines = (re.match(r"[│├└─ ]*[A-Z]\w+", line) for line in text.splitlines())
        return [line[0] for line in lines if line and line[0].strip("│├└─ ") in ERRORS]

    assert drawn(tree) == drawn((errors.__doc__ or "").partition("tree:")[2])


def test_the_message_of_a_lost_worker_is_what_its_coordinator_says() -> None:
    said, shown = f"PeerError: {worker_died(1, RayActorError())}", flat(section_of("PeerError"))
    before, after = "PeerError: worker 1 died: ", ". Its log, and Ray's"
    assert said.startswith(before)
    assert f"{before}...{said[said.index(after) :]}" in shown


def test_the_message_of_an_internal_error_is_what_state_that_comes_twice_says() -> None:
    tester = OperatorTester(lambda stream: stream.mean("mean"), keyed=True)
    state = tester.send_local([("kitchen", 1)]).step().collect({"kitchen"})
    tester.acquire(state)
    with pytest.raises(InternalError) as raised:
        tester.acquire(state)
    assert f"InternalError: {raised.value}" in flat(section_of("InternalError"))
