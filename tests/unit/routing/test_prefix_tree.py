from __future__ import annotations

import pytest

from libra.routing.prefix_tree import ROOT, Found, Level, PrefixTree, Visit, extend
from libra.routing.sample import Summary


def visits(*states: str, step_tok: int = 1000) -> list[Visit]:
    path, out = ROOT, []
    for depth, state in enumerate(states, 1):
        path = extend(path, state)
        out.append(Visit(path, depth, depth * step_tok))
    return out


def learned(tree: PrefixTree, prompt_id: str, states: tuple[str, ...], total_tok: int, times: int = 4) -> None:
    for _ in range(times):
        tree.learn(prompt_id, visits(*states), total_tok)


def test_a_path_depends_on_the_order_of_states() -> None:
    assert visits("a", "b")[-1].path != visits("b", "a")[-1].path


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
    assert tree.find(prompt_id, visits(*states)[-1]) == Found(level, summary)


def test_deeper_than_anything_seen_is_unknown() -> None:
    tree = PrefixTree()
    learned(tree, "p", ("a",), 5000)
    assert tree.find("p", visits("a", "a")[-1]) is None


def test_a_cut_trajectory_never_lowers_an_estimate() -> None:
    tree = PrefixTree()
    learned(tree, "p", ("a",), 9000, times=8)
    before = tree.find("p", visits("a")[-1])
    for _ in range(8):
        tree.learn("p", visits("a"), 2000, is_censored=True, is_evidence=False)
    after = tree.find("p", visits("a")[-1])
    assert before and after
    assert after.remaining.mean_tok >= before.remaining.mean_tok
    assert after.remaining.p90_tok >= before.remaining.p90_tok


def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    tree = PrefixTree(max_nodes=12, levels=("prefix", "prompt"))
    learned(tree, "old", ("a",), 5000)
    for number in range(20):
        learned(tree, f"p{number}", ("a",), 5000)
        assert len(tree) <= 12
    assert tree.find("old", visits("a")[-1]) is None
    assert tree.find("p19", visits("a")[-1]) is not None


def test_a_look_up_keeps_a_node_alive() -> None:
    tree = PrefixTree(max_nodes=3, levels=("prefix",))
    learned(tree, "wanted", ("a",), 5000)
    for number in range(10):
        learned(tree, f"p{number}", ("a",), 5000)
        assert tree.find("wanted", visits("a")[-1]) is not None
