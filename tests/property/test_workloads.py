"""Invariants of every workload: sizes, sums, the limit, sound records, and equal groups whatever was asked before."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import WorkloadSpec, parse_options
from libra.workloads import dapo_math, fixed_length, r2e_gym, search_r1, trace
from libra.workloads.base import Workload
from libra.workloads.trace_file import TraceHeader, problem_in, write_trace

GENERATORS = (search_r1.WORKLOAD, r2e_gym.WORKLOAD, dapo_math.WORKLOAD)
MAX_EXAMPLES = 40


def check(workload: Workload, spec: WorkloadSpec, again: Workload, indices: list[int]) -> None:
    assert isinstance(workload, Workload), spec.name
    groups = {index: workload.group(index) for index in indices}
    assert {index: again.group(index) for index in reversed(indices)} == groups
    assert workload.batch % workload.group_size == 0
    for index, group in groups.items():
        assert [(t.group, t.sample) for t in group] == [(index, k) for k in range(workload.group_size)]
    for row in [t for group in groups.values() for t in group] + list(workload.profile(2)):
        assert problem_in(row) is None
        assert row.prompt_tok + row.generated_tok + row.observed_tok == row.total_tok <= workload.max_context_tok
        assert min(turn.generated_tok for turn in row.turns) >= 1
        assert all(turn.tool.latency_s is not None for turn in row.turns[:-1] if turn.tool)
        assert all(not turn.spans for turn in row.turns)


@settings(max_examples=MAX_EXAMPLES, deadline=None)
@given(
    spec=st.sampled_from(GENERATORS),
    seed=st.integers(0, 2**31),
    limit_tok=st.integers(12_000, 100_000),
    group_size=st.integers(1, 20),
    num_prompts=st.integers(1, 50),
    sigma=st.floats(0.05, 2.5),
    between=st.floats(0, 1),
    signal=st.floats(0, 1),
    fail=st.floats(0, 1),
    indices=st.lists(st.integers(0, 10_000), min_size=1, max_size=3, unique=True),
)
def test_generators(spec, seed, limit_tok, group_size, num_prompts, sigma, between, signal, fail, indices) -> None:
    values = {"num_steps": 100, "group_size": group_size, "num_prompts": num_prompts, "sigma": sigma}
    values["between_share"] = between
    if spec is not dapo_math.WORKLOAD:
        values |= {"tool_signal": signal, "fail_prob": fail}
    options = parse_options(spec.options, values, spec.name)
    check(spec.build(options, seed, limit_tok), spec, spec.build(options, seed, limit_tok), indices)


@settings(max_examples=MAX_EXAMPLES, deadline=None)
@given(data=st.data(), turns=st.integers(1, 50), prompt_tok=st.integers(1, 500), group_size=st.integers(1, 16))
def test_fixed_length(data, turns, prompt_tok, group_size) -> None:
    length_tok = data.draw(st.integers(prompt_tok + turns, 2_000))
    spec = fixed_length.WORKLOAD
    values = {"length_tok": length_tok, "prompt_tok": prompt_tok, "turns": turns, "group_size": group_size}
    workload = spec.build(parse_options(spec.options, values | {"batch": 3 * group_size}, ""), 0, 2_000)
    check(workload, spec, workload, [0, 7])
    assert {t.total_tok for t in workload.group(5)} == {length_tok}


def trajectories() -> st.SearchStrategy[list[Trajectory]]:
    tool = st.builds(
        ToolReturn, st.just("t"), st.integers(0, 400), st.just("ok"), st.none() | st.floats(0, 1e4, allow_nan=False)
    )
    called = st.lists(st.builds(Turn, st.integers(0, 400), tool), max_size=6)
    turns = st.builds(lambda head, last: (*head, Turn(last)), called, st.integers(0, 400))
    drawn = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 300), turns), min_size=1, max_size=30)
    return drawn.map(lambda rows: [Trajectory(f"p{g}", g, k, prompt, turn) for k, (g, prompt, turn) in enumerate(rows)])


@settings(max_examples=MAX_EXAMPLES, deadline=None)
@given(
    rows=trajectories(),
    seed=st.integers(0, 2**31),
    over_limit=st.sampled_from(("truncate", "rescale")),
    group_size=st.integers(1, 20),
    indices=st.lists(st.integers(0, 1_000), min_size=1, max_size=3, unique=True),
)
def test_traces(rows, seed, over_limit, group_size, indices) -> None:
    spec = trace.WORKLOAD
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl.gz"
        write_trace(path, TraceHeader("made", "exact"), rows)
        values = {"file": str(path), "over_limit": over_limit, "group_size": group_size}
        options = parse_options(spec.options, values, "")
        check(spec.build(options, seed, 500), spec, spec.build(options, seed, 500), indices)
