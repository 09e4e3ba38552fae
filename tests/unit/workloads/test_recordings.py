"""The recordings that ship with the product: whole, typed, without text, and of runs that learned."""

from __future__ import annotations

import gzip
import re
from collections import Counter

import pytest

from libra.core.errors import ConfigError
from libra.core.registry import Registry, parse_options
from libra.workloads.recordings import FOLDER, NAMES, PREFIX, recording_in, trace_path
from libra.workloads.trace_file import read_trace

TOOLS = {"search-r1": {"search"}, "r2e-gym": {"bash", "edit"}, "dapo-math": {"python"}}
MAX_BYTES = 20_000


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_holds_512_trajectories_in_whole_groups(name: str) -> None:
    _, rows = read_trace(trace_path(name))
    assert len(rows) == 512
    assert set(Counter(row.group for row in rows).values()) == {16}
    assert all(len({row.prompt_id for row in rows if row.group == group}) == 1 for group in {row.group for row in rows})
    assert trace_path(name).stat().st_size < MAX_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_its_tool_returns_have_type_size_status_and_time(name: str) -> None:
    _, rows = read_trace(trace_path(name))
    returns = [turn.tool for row in rows for turn in row.turns if turn.tool]
    assert {tool.tool for tool in returns} == TOOLS[name]
    assert {tool.status for tool in returns} <= {"ok", "error", "timeout"}
    assert all(tool.payload_tok >= 0 and tool.latency_s is not None and tool.latency_s >= 0 for tool in returns)
    assert len(returns) > 100


@pytest.mark.parametrize("name", NAMES)
def test_its_policy_learned_while_it_was_recorded(name: str) -> None:
    _, rows = read_trace(trace_path(name))
    rewards = [row.reward or 0.0 for row in sorted(rows, key=lambda row: row.group)]
    assert sum(rewards[-128:]) > sum(rewards[:128]) + 128 * 0.12


@pytest.mark.parametrize("name", NAMES)
def test_its_header_says_where_it_comes_from(name: str) -> None:
    header, _ = read_trace(trace_path(name))
    assert name in header.source
    assert re.search(r"Run of \d{4}-\d\d-\d\d at commit [0-9a-f]{12} on 2 CPU cores", header.notes[0])
    text = gzip.decompress(trace_path(name).read_bytes())
    assert max(len(word) for word in re.findall(rb'"([^"]*)"', text.split(b"\n", 1)[1])) < 40  # names, no texts
    assert f"`{name}.jsonl.gz`" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_workload_that_says_what_it_is(name: str) -> None:
    spec = Registry().get("workload", f"{PREFIX}{name}")
    workload = spec.build(parse_options(spec.options, {}, name), 0, 40960)
    assert workload.group_size == 16
    assert "tiny policy" in workload.warnings[0]
    assert len({row.prompt_id for row in workload.group(0)}) == 1


def test_names_lead_to_files_and_back() -> None:
    assert recording_in(trace_path("recorded:search-r1")) == "search-r1"
    assert recording_in(FOLDER / "README.md") is None
    with pytest.raises(ConfigError, match="did you mean 'search-r1'"):
        trace_path("recorded:serach-r1")
