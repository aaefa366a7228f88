"""docs/errors.md has every error class, in the tree of the code, and shows the real messages."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path

import pytest
from ray.exceptions import RayActorError

from malstrom_py import errors
from malstrom_py.errors import ControlError, DeadlineError, FencedError, InternalError, PeerError, SnapshotError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.selection import latest_manifest
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.testing import OperatorTester
from malstrom_py.worker_context import LoopThread
from malstrom_py.workers.control.registry import check_directory
from malstrom_py.workers.ray.worker_handle import worker_died
from malstrom_py.workers.transport.messages import Connected
from malstrom_py.workers.transport.wire import InStreams, OutStream
from tests.pages import blocks_of, headings_of
from tests.tree import ROOT
from tests.unit.snapshot.taken import JOB, Start

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
        assert "**What to do**: " in section
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


def test_the_message_of_a_peer_error_is_what_a_gap_says() -> None:
    out, streams = OutStream(1, 0, incarnation=1), InStreams(0, incarnation=1)
    messages = [next(out.messages([Connected(1)])) for _ in range(9)]
    for message in messages[:7]:
        streams.open(message)
    with pytest.raises(PeerError) as raised:
        streams.open(messages[8])
    assert f"PeerError: {raised.value}" in flat(section_of("PeerError"))


def test_the_message_of_a_lost_worker_is_what_its_coordinator_says() -> None:
    said, shown = f"PeerError: {worker_died(1, RayActorError())}", flat(section_of("PeerError"))
    before, after = "PeerError: worker 1 died: ", ". Its log, and Ray's"
    assert said.startswith(before)
    assert f"{before}...{said[said.index(after) :]}" in shown


def test_the_message_of_a_deadline_error_is_what_a_coroutine_without_end_says() -> None:
    loop = LoopThread("docs")
    what = "closing what per_worker(connect at shop.py:3) made"
    with pytest.raises(DeadlineError) as raised:
        loop.run(asyncio.Event().wait(), timeout_s=0.01, what=what)
    loop.close()
    assert (raised.value.wait, raised.value.deadline_s) == (what, 0.01)
    assert f"DeadlineError: {raised.value}".replace("0.01 s", "10 s") in flat(section_of("DeadlineError"))


def test_the_message_of_a_control_error_is_what_a_folder_says_that_is_open_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ControlError) as raised:
        check_directory(tmp_path)
    said = str(raised.value).replace(str(tmp_path), "/run/user/1000/malstrom")
    assert f"ControlError: {said}" in flat(section_of("ControlError"))


def test_the_messages_of_snapshots_are_what_a_checkpointer_says() -> None:
    store = MemoryStore()
    start = Start(StoreCheckpointer(store, JOB))
    for made in (start.take(b"one"), start.take(b"two")):
        store.put(f"{JOB}/{made.artefacts[0].path}", b"???")
    with pytest.raises(SnapshotError) as damaged:
        latest_manifest(start.checkpointer, job=JOB)
    said = str(damaged.value).replace(start.ids[1], "20261122T042242123456Z-1a2b3c4d")
    said = said.replace("the memory of this process", "/data/snapshots")
    before, after = said[: said.index(start.ids[0])], said[said.rindex("Restore one") :]
    assert f"SnapshotError: {before}20261122T042142123456Z-5e6f7a8b/... {after}" in flat(section_of("SnapshotError"))
    Start(start.checkpointer)
    with pytest.raises(FencedError) as fenced:
        made = start.take(b"three")
    said = re.sub(r"\d{8}T\w+Z-\w+", "20261122T042242123456Z-1a2b3c4d", str(fenced.value))
    said = said.replace("incarnation 2", "incarnation 4").replace("incarnation 1", "incarnation 3")
    assert f"FencedError: {said}" in flat(section_of("FencedError"))


def test_the_message_of_an_internal_error_is_what_state_that_comes_twice_says() -> None:
    tester = OperatorTester(lambda stream: stream.mean("mean"), keyed=True)
    state = tester.send_local([("kitchen", 1)]).step().collect({"kitchen"})
    tester.acquire(state)
    with pytest.raises(InternalError) as raised:
        tester.acquire(state)
    assert f"InternalError: {raised.value}" in flat(section_of("InternalError"))
