from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.routing.prefix_tree import FACTOR, LEVELS, PRIME, Found, Level, PrefixTree, Visit, Walk, number_of
from libra.routing.sample import MIN_EVIDENCE, WINDOW, Length, Summary, length, summarize


def visits(prompt_id: str, *states: str, step_tok: int = 1000) -> list[Visit]:
    walk = Walk(prompt_id)
    for depth, state in enumerate(states, 1):
        walk.on(state, depth * step_tok)
    return walk.visits


def learned(tree: PrefixTree, prompt_id: str, states: tuple[str, ...], total_tok: int, times: int = 4) -> None:
    for _ in range(times):
        tree.learn(visits(prompt_id, *states), total_tok)


def test_a_path_depends_on_the_order_of_states() -> None:
    one, other = visits("p", "a", "b")[-1], visits("p", "b", "a")[-1]
    assert one.prefix != other.prefix and one.shared_prefix != other.shared_prefix
    assert (one.prompt, one.shared) == (other.prompt, other.shared)


@pytest.mark.parametrize(
    ("prompt_id", "states", "level", "remaining_tok"),
    [
        ("p", ("a", "b"), "prefix", 8000),  # seen as it is
        ("p", ("c", "d"), "prompt", 8000),  # other states, same prompt, two returns
        ("q", ("a", "b"), "shared-prefix", 8000),  # same states, other prompt
        ("q", ("x", "y"), "shared", 8000),  # only the number of returns is known
    ],
)
def test_the_ladder_of_levels(prompt_id: str, states: tuple[str, ...], level: Level, remaining_tok: int) -> None:
    tree = PrefixTree()
    learned(tree, "p", ("a", "b"), 10000)
    summary = Summary(pytest.approx(remaining_tok), remaining_tok, 4)
    assert tree.find(visits(prompt_id, *states)[-1]) == Found(level, summary)


def test_deeper_than_anything_seen_is_unknown() -> None:
    tree = PrefixTree()
    learned(tree, "p", ("a",), 5000)
    assert tree.find(visits("p", "a", "a")[-1]) is None


def test_a_cut_trajectory_never_lowers_an_estimate() -> None:
    tree = PrefixTree()
    learned(tree, "p", ("a",), 9000, times=8)
    before = tree.find(visits("p", "a")[-1])
    for _ in range(8):
        tree.learn(visits("p", "a"), 2000, is_censored=True, is_evidence=False)
    after = tree.find(visits("p", "a")[-1])
    assert before and after
    assert after.remaining.mean_tok >= before.remaining.mean_tok
    assert after.remaining.p90_tok >= before.remaining.p90_tok


def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    tree = PrefixTree(max_nodes=12, levels=("prefix", "prompt"))
    learned(tree, "old", ("a",), 5000)
    for number in range(20):
        learned(tree, f"p{number}", ("a",), 5000)
        assert len(tree) <= 12
    assert tree.find(visits("old", "a")[-1]) is None
    assert tree.find(visits("p19", "a")[-1]) is not None


def test_a_look_up_keeps_a_node_alive() -> None:
    tree = PrefixTree(max_nodes=3, levels=("prefix",))
    learned(tree, "wanted", ("a",), 5000)
    for number in range(10):
        learned(tree, f"p{number}", ("a",), 5000)
        assert tree.find(visits("wanted", "a")[-1]) is not None


def test_names_are_polynomials_of_prompt_and_states() -> None:
    _, visit = visits("p", "a", "b")
    prompt, a, b = map(number_of, ("p", "a", "b"))
    assert visit.shared_prefix == (a * FACTOR + b) % PRIME
    assert visit.prompt == prompt * FACTOR**2 % PRIME
    assert visit.prefix == (prompt * FACTOR**2 + a * FACTOR + b) % PRIME


trajectories = st.lists(
    st.tuples(
        st.sampled_from("pqr"),
        st.lists(st.sampled_from("ab"), min_size=1, max_size=4),
        st.integers(0, 9000),
        st.sampled_from(((False, True), (True, True), (True, False))),
    ),
    max_size=40,
)


def keys(prompt_id: str, states: list[str]) -> tuple[object, ...]:
    """The keys that the names stand for, in the order of `LEVELS`."""
    return (prompt_id, *states), (prompt_id, len(states)), (None, *states), (None, len(states))


@given(trajectories)
def test_what_it_learned_is_what_a_recomputation_from_all_trajectories_gives(
    finished: list[tuple[str, list[str], int, tuple[bool, bool]]],
) -> None:
    tree, known = PrefixTree(), defaultdict[object, list[Length]](list)
    for prompt_id, states, total_tok, (is_censored, is_evidence) in finished:
        walk = visits(prompt_id, *states)
        for depth, visit in enumerate(walk, 1):
            found, expected = tree.find(visit), None
            for level, key in zip(LEVELS, keys(prompt_id, states[:depth]), strict=True):
                summary = summarize(known[key][-WINDOW:])
                if expected is None and summary.evidence >= MIN_EVIDENCE:
                    expected = Found(level, summary)
            assert found == expected
        tree.learn(walk, total_tok, is_censored=is_censored, is_evidence=is_evidence)
        for depth, visit in enumerate(walk, 1):
            left = length(max(0, total_tok - visit.context_tok), is_censored, is_evidence)
            for key in keys(prompt_id, states[:depth]):
                known[key].append(left)
