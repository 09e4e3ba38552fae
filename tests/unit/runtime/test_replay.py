"""Replay finds the first decision that differs, and says nothing differs when nothing does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from libra.core.commands import Command, Place
from libra.core.events import Event, Placed, TrajectoryStart
from libra.runtime.event_log import LOG_NAME, LogWriter
from libra.runtime.replay import Difference, replay


class Alternate:
    """Places starts on instances 0, 1, 0, ...; from the `wrong_from`-th start on it sticks to 0."""

    def __init__(self, wrong_from: int = 10**9) -> None:
        self.wrong_from, self.num = wrong_from, 0

    def decide(self, event: Event) -> Sequence[Command]:
        if not isinstance(event, TrajectoryStart):
            return ()
        self.num += 1
        return [Place(event.trajectory, 0 if self.num > self.wrong_from else self.num % 2)]


def start(number: int) -> TrajectoryStart:
    return TrajectoryStart(float(number), number, "p", number, 0, 10, 0)


def record(folder: Path) -> None:
    log, policy = LogWriter(folder / LOG_NAME), Alternate()
    for number in range(4):
        event = start(number)
        log.write(event, policy.decide(event))
        log.write(Placed(float(number), number, 0, "start"), ())
    log.close()


def test_the_same_policy_decides_the_same(tmp_path: Path) -> None:
    record(tmp_path)
    report = replay(tmp_path, Alternate)
    assert report.same and (report.num_events, report.num_commands) == (8, 4)
    assert report.text() == "same: 8 events gave the same 4 commands"
    assert report.to_dict() == {"same": True, "num_events": 8, "num_commands": 4, "difference": None}


def test_the_first_difference_is_shown(tmp_path: Path) -> None:
    record(tmp_path)
    report = replay(tmp_path, lambda: Alternate(wrong_from=2))
    assert report.difference == Difference(4, start(2), (Place(2, 1),), (Place(2, 0),))
    assert not report.same
    text = report.text()
    assert text.startswith("different at event 4, after 2 equal commands")
    assert '"trajectory":2,"instance":1}' in text.splitlines()[2]
    assert '"trajectory":2,"instance":0}' in text.splitlines()[3]
    assert report.to_dict()["difference"]["got"] == ({"type": "place", "trajectory": 2, "instance": 0},)


def test_an_empty_log_replays(tmp_path: Path) -> None:
    LogWriter(tmp_path / LOG_NAME).close()
    assert replay(tmp_path, Alternate).num_events == 0
