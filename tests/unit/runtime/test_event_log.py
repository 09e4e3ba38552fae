"""The log keeps every event and command exactly; a log that was cut off still has its whole lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from libra.core.commands import ApplyPlan, Place, Switch, Why
from libra.core.errors import StoreError
from libra.core.events import (
    AllocationChanged,
    Event,
    PipelineSpec,
    Placed,
    PlannerTick,
    RunStart,
    StepEnd,
    ToolReturned,
    TrajectoryEnd,
    TrajectoryStart,
)
from libra.core.plan import Allocation, InstanceSpec, InstanceStatus, Move, Plan, TrainLayout
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.rng import stream
from libra.runtime.event_log import LOG_NAME, LogWriter, read_log

LAYOUT = TrainLayout(tp=2, dp=3)
ALLOCATION = Allocation(LAYOUT, 3, (InstanceStatus(0, 4, 1, "up", 2),), (1000, 2000), (2,))
PLAN = Plan(LAYOUT, (InstanceSpec(0, 4, 1, 2),), (1000, 2000), note="why")
PROFILE = (Trajectory("p", 0, 1, 10, (Turn(5, ToolReturn("search", 3, "ok", 0.1)), Turn(2)), reward=1.0),)
EXCHANGES: list[tuple[Event, tuple]] = [
    (RunStart(0.0, "c", "m", PipelineSpec("async", 4, 9), 2, 1, 1, 100, PROFILE), (ApplyPlan(PLAN),)),
    (AllocationChanged(0.0, ALLOCATION, "plan", "reason"), ()),
    (TrajectoryStart(0.1, 7, "p", 0, 1, 10, 0, 17), (Place(7, 0, "transfer", Why("prefix", 1.5, 2.5, 3.0, 1)),)),
    (Placed(0.1, 7, 0, "start"), ()),
    (ToolReturned(1 / 3, 7, 0, 1, "search", 3, "timeout", 0.1, 18), (Place(7, 0),)),
    (TrajectoryEnd(0.7, 7, 0, "aborted", 7, 20, 2, 0.1, 0.5), ()),
    (StepEnd(1.0, 0, 0.6, 0.2, 0.1, 1.0, 20, LAYOUT, 3, 1), ()),
    (PlannerTick(1.0, 0, ALLOCATION), (Switch((Move(2, "train"),)), Place(1, 2))),
]


def write(path: Path, times: int = 1) -> LogWriter:
    log = LogWriter(path)
    for _ in range(times):
        for event, commands in EXCHANGES:
            log.write(event, commands)
    log.close()
    return log


def test_everything_comes_back_exactly(tmp_path: Path) -> None:
    log = write(tmp_path / LOG_NAME)
    expected = [entry for event, commands in EXCHANGES for entry in (event, *commands)]
    assert list(read_log(tmp_path / LOG_NAME)) == expected
    assert (log.num_events, log.num_commands) == (8, 5)


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a", 3000)
    write(tmp_path / "b", 3000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_ordinary_zstd_reads_it(tmp_path: Path) -> None:
    write(tmp_path / "a")
    text = zstandard.ZstdDecompressor().stream_reader((tmp_path / "a").read_bytes()).read()
    assert text.startswith(b'{"e":{"type":"run_start"') and text.count(b"\n") == 13


def test_a_log_that_was_cut_off_has_its_whole_lines(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "whole")
    for t_s in stream("test", "log").random(20_000):  # irregular, so that every block has a size of its own
        log.write(TrajectoryStart(float(t_s), 7, "p", 0, 1, 10, 0), (Place(7, 0),))
    log.close()
    whole = list(read_log(tmp_path / "whole"))
    content = (tmp_path / "whole").read_bytes()
    lengths = []
    for share in (0.3, 0.6, 0.99):
        (tmp_path / "cut").write_bytes(content[: int(len(content) * share)])
        cut = list(read_log(tmp_path / "cut"))
        assert cut == whole[: len(cut)]
        lengths.append(len(cut))
    assert 0 < lengths[0] < lengths[1] < lengths[2] < len(whole)


def test_an_unfinished_log_is_readable_while_it_grows(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "a")
    for _ in range(2000):
        log.write(*EXCHANGES[4])
    assert 0 < len(list(read_log(tmp_path / "a"))) <= 4000
    log.close()
    assert len(list(read_log(tmp_path / "a"))) == 4000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no zstd at all", "cannot read the event log"),
        (zstandard.compress(b'{"e":{"type":"unknown"}}\n'), "unreadable line 1"),
        (zstandard.compress(b"{}\n"), "line 1 holds neither"),
    ],
)
def test_damage_is_a_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(StoreError, match=words):
        list(read_log(tmp_path / "a"))


def test_an_absent_log_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no event log"):
        list(read_log(tmp_path / "absent"))
