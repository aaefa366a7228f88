"""Which nodes are taken for silent."""

from __future__ import annotations

from malstrom_py.workers.ray.node_watch import MISSES, REACT_S, SilentNodes, reacting


def test_nobody_is_asked() -> None:
    assert reacting({}, 10.0) == set()


def test_one_miss_is_none_and_a_reaction_ends_the_silence() -> None:
    silence = SilentNodes()
    silence.note(["a", "b"], {"a", "b"})
    for _ in range(MISSES - 1):
        silence.note(["a", "b"], {"a"})
        assert silence.nodes == frozenset()
    silence.note(["a", "b"], {"a", "b"})
    for _ in range(MISSES):
        assert silence.nodes == frozenset()
        silence.note(["a", "b"], {"a"})
    assert silence.nodes == {"b"}
    silence.note(["a", "b"], {"b"})
    assert silence.nodes == frozenset()


def test_who_is_held_up_for_five_seconds_is_not_silent() -> None:
    silence = SilentNodes()
    silence.note(["a", "b"], {"a", "b"})
    for _ in range(int(5.0 / REACT_S)):  # so many questions begin and end in that time
        silence.note(["a", "b"], {"a"})
    assert silence.nodes == frozenset()


def test_who_has_been_given_up_by_ray_is_forgotten() -> None:
    silence = SilentNodes()
    for _ in range(MISSES):
        silence.note(["a", "b"], {"a"})
    silence.note(["a"], {"a"})
    assert silence.nodes == frozenset()


def test_where_no_node_has_ever_reacted_nothing_is_said_of_any() -> None:
    silence = SilentNodes()
    for _ in range(2 * MISSES):
        silence.note(["a", "b"], set())
    assert silence.nodes == frozenset()
    silence.note(["a", "b"], {"a"})
    assert silence.nodes == {"b"}
