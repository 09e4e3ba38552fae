"""What is written is read back exactly, in both formats, with equal bytes for equal input."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.records import TOOL_STATUSES, TRAJECTORY_STATUSES, ToolReturn, Trajectory, Turn, VersionSpan
from libra.workloads.trace_file import MAX_INT, SUFFIXES, TraceHeader, read_trace, write_trace

counts = st.integers(0, MAX_INT)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
seconds = st.none() | st.floats(0, allow_infinity=False, allow_nan=False)
tools = st.builds(ToolReturn, texts, counts, st.sampled_from(TOOL_STATUSES), seconds)
headers = st.builds(
    TraceHeader, texts, texts, st.lists(texts, max_size=3).map(tuple), st.lists(texts, max_size=3).map(tuple)
)


@st.composite
def turns(draw: st.DrawFn, is_last: bool) -> Turn:
    tool = None if is_last else draw(tools)
    sizes = draw(st.lists(st.integers(0, 2**40), max_size=3))
    spans = tuple(VersionSpan(draw(counts), size) for size in sizes)
    return Turn(sum(sizes) if spans else draw(counts), tool, spans)


@st.composite
def trajectories(draw: st.DrawFn) -> tuple[Trajectory, ...]:
    keys = draw(st.lists(st.tuples(counts, counts), min_size=1, max_size=5, unique=True))
    reward = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    return tuple(
        Trajectory(
            draw(texts),
            group,
            sample,
            draw(counts),
            (*draw(st.lists(turns(is_last=False), max_size=3)), draw(turns(is_last=True))),
            draw(reward),
            draw(st.sampled_from(TRAJECTORY_STATUSES)),
        )
        for group, sample in keys
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60, deadline=None)
@given(header=headers, rows=trajectories())
def test_round_trip_is_exact(suffix: str, header: TraceHeader, rows: tuple[Trajectory, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, again = Path(folder) / f"a{suffix}", Path(folder) / f"b{suffix}"
        write_trace(path, header, rows)
        found = read_trace(path)
        assert found == (header, rows)
        write_trace(again, *found)
        assert again.read_bytes() == path.read_bytes()
