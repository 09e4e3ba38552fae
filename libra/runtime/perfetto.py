"""A cell as a Chrome trace for ui.perfetto.dev: what every engine, tool and the trainer did, and when.

Each instance is a process whose lanes hold its concurrent turns; a turn's span includes its wait for the engine.
"""

from __future__ import annotations

import gzip
import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from libra.core.errors import StoreError
from libra.core.events import AllocationChanged, Placed, RunStart, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.plan import Allocation
from libra.results.atomic import write_bytes
from libra.results.tables import read_table
from libra.runtime.event_log import LOG_NAME, read_log

TRAINER_PID, TOOLS_PID, INSTANCE_PID = 1, 2, 100
"""Process numbers: instance i is process 100 + i."""

_US = 1e6
"""Chrome traces count microseconds."""


class Span(NamedTuple):
    """Something that took from `start_s` to `end_s` in process `pid`."""

    pid: int
    start_s: float
    end_s: float
    name: str
    args: dict[str, Any]


class _Reader:
    """Collects spans, live trajectories and instances from the events."""

    def __init__(self) -> None:
        self.turns: list[Span] = []
        self.tools: list[Span] = []
        self.live: list[tuple[float, int]] = []
        self.instances: dict[int, str] = {}
        self.marks: list[tuple[float, str]] = []
        self.pipeline = ""
        self._placed: dict[int, Placed] = {}
        self._num_live = 0

    def read(self, log: Path) -> None:
        for event in read_log(log):
            if isinstance(event, Placed):
                self._placed[event.trajectory] = event
            elif isinstance(event, ToolReturned):
                called_s = event.t_s - event.latency_s
                self._turn(event.trajectory, called_s, f"turn {event.turn}", {"context_tok": event.context_tok})
                call = {"trajectory": event.trajectory, "status": event.status, "payload_tok": event.payload_tok}
                self.tools.append(Span(TOOLS_PID, called_s, event.t_s, event.tool, call))
            elif isinstance(event, TrajectoryStart):
                self._count(event.t_s, +1)
            elif isinstance(event, TrajectoryEnd):
                end = {"status": event.status, "total_tok": event.total_tok}
                self._turn(event.trajectory, event.t_s, f"turn {event.num_turns}", end)
                self._count(event.t_s, -1)
            elif isinstance(event, AllocationChanged):
                self._allocation(event.allocation)
                self.marks.append((event.t_s, f"{event.cause} {event.reason}".strip()))
            elif isinstance(event, RunStart):
                self.pipeline = event.pipeline.kind

    def _turn(self, trajectory: int, end_s: float, name: str, args: dict[str, Any]) -> None:
        placed = self._placed.pop(trajectory, None)
        if placed is not None:
            args = {"trajectory": trajectory, "how": placed.how, "moved_tok": placed.moved_tok, **args}
            pid = INSTANCE_PID + placed.instance
            self.turns.append(Span(pid, placed.t_s, end_s, f"#{trajectory} {name}", args))

    def _count(self, t_s: float, change: int) -> None:
        self._num_live += change
        if self.live and self.live[-1][0] == t_s:
            self.live.pop()
        self.live.append((t_s, self._num_live))

    def _allocation(self, allocation: Allocation) -> None:
        for each in allocation.instances:
            self.instances[each.id] = f"instance {each.id} (TP {each.tp}, bucket {each.bucket})"


def write_perfetto(cell_dir: Path, out: Path) -> int:
    """Write `out` (`.json.gz`, or `.json` uncompressed) from a cell's event log and steps table; returns the number
    of spans (turns, tool calls, training, syncs).

    Raises `StoreError` when the cell has no event log or `out` cannot be written.
    """
    reader = _Reader()
    reader.read(cell_dir / LOG_NAME)
    steps = _steps(cell_dir)
    events = [*_names(reader), *_lanes(reader.turns), *_lanes(reader.tools), *_trainer(steps, reader.pipeline)]
    events += [
        {"ph": "C", "pid": TRAINER_PID, "name": "live trajectories", "ts": t_s * _US, "args": {"live": num}}
        for t_s, num in reader.live
    ]
    events += [
        {"ph": "i", "s": "g", "pid": TRAINER_PID, "tid": 0, "name": f"allocation: {text}", "ts": t_s * _US}
        for t_s, text in reader.marks
    ]
    content = msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})
    write_bytes(out, gzip.compress(content, 6, mtime=0) if out.suffix == ".gz" else content, durable=False)
    return sum(event["ph"] == "X" for event in events)


def _steps(cell_dir: Path) -> list[dict[str, Any]]:
    """Rows of the steps table; none for a run that was cut off."""
    try:
        return read_table(cell_dir, "steps").to_pylist()
    except StoreError:
        return []


def _names(reader: _Reader) -> Iterator[dict[str, Any]]:
    processes = {TRAINER_PID: "trainer", TOOLS_PID: "tools"}
    processes |= {INSTANCE_PID + number: name for number, name in sorted(reader.instances.items())}
    for order, (pid, name) in enumerate(processes.items()):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": order}}
    for tid, name in ((0, "allocation"), (1, "training"), (2, "weight sync")):
        yield {"ph": "M", "pid": TRAINER_PID, "tid": tid, "name": "thread_name", "args": {"name": name}}


def _lanes(spans: list[Span]) -> Iterator[dict[str, Any]]:
    """Spans of one process side by side: each takes the lowest lane that is free when it starts."""
    busy: dict[int, list[tuple[float, int]]] = {}
    free: dict[int, list[int]] = {}
    for span in sorted(spans, key=lambda each: (each.start_s, each.end_s)):
        running, idle = busy.setdefault(span.pid, []), free.setdefault(span.pid, [])
        while running and running[0][0] <= span.start_s:
            heapq.heappush(idle, heapq.heappop(running)[1])
        lane = heapq.heappop(idle) if idle else len(running)
        heapq.heappush(running, (span.end_s, lane))
        yield _complete(span, lane)


def _complete(span: Span, lane: int) -> dict[str, Any]:
    start_us = span.start_s * _US
    duration_us = max(0.0, span.end_s * _US - start_us)
    times = {"ts": start_us, "dur": duration_us}
    return {"ph": "X", "pid": span.pid, "tid": lane, "name": span.name, **times, "args": span.args}


def _trainer(steps: list[dict[str, Any]], pipeline: str) -> Iterator[dict[str, Any]]:
    """The table holds durations. A barrier's trainer starts with its step (but for the first, which waits for a
    rollout), any other works until the sync that ends the step."""
    for row in steps:
        sync_s = row["end_s"] - row["sync_s"]
        start_s = sync_s - row["train_s"]
        if pipeline == "barrier" and row["step"] > 0:
            start_s = row["start_s"]
        args = {name: row[name] for name in ("num_trajectories", "max_total_tok", "wait_rollout_s", "max_staleness")}
        train = Span(TRAINER_PID, start_s, start_s + row["train_s"], f"train step {row['step']}", args)
        yield _complete(train, 1)
        yield _complete(Span(TRAINER_PID, sync_s, row["end_s"], f"sync {row['step']}", {}), 2)
