from __future__ import annotations

from collections.abc import Sequence

from libra.core.events import AllocationChanged, PipelineSpec, RunStart, StepEnd, TrajectoryEnd, TrajectoryStart
from libra.core.plan import Allocation, TrainLayout
from libra.core.telemetry import WINDOW_STEPS, Finished, NoDetector, Started, Telemetry

CORE = TrainLayout(tp=4, dp=4)
RUN = RunStart(0.0, "a800x48", "qwen3-14b", PipelineSpec("barrier"), 4, 2, 100, 40960)
THERE = Allocation(CORE, 4, (), (40960,))


class Told:
    """Finds the changes that it is told of, and keeps what it was shown."""

    def __init__(self, alarms: dict[int, int]) -> None:
        self.alarms = alarms
        self.shown: list[tuple[int, list[int], bool]] = []

    def observe(self, step: StepEnd, finished: Sequence[Finished], *, disturbed: bool) -> int | None:
        self.shown.append((step.step, [row.generated_tok for row in finished], disturbed))
        return self.alarms.get(step.step)


def trajectory(telemetry: Telemetry, number: int, tok: int) -> None:
    telemetry.remember(TrajectoryStart(0.0, number, "p", 0, 0, 100, 0))
    telemetry.remember(TrajectoryEnd(1.0, number, 0, "completed", tok, tok + 150, 2, 1.0))


def step_end(telemetry: Telemetry, step: int) -> None:
    telemetry.remember(StepEnd(10.0, step, 9.0, 8.0, 1.0, 10.0, 1000, CORE, 4))


def after(num_steps: int, alarms: dict[int, int]) -> tuple[Telemetry, Told]:
    """Four trajectories a step, all of as many generated tokens as the step's number."""
    told = Told(alarms)
    telemetry = Telemetry(RUN, told)
    for step in range(num_steps):
        for sample in range(4):
            trajectory(telemetry, 4 * step + sample, step)
        step_end(telemetry, step)
    return telemetry, told


def test_without_a_change_the_window_holds_eight_steps() -> None:
    telemetry, told = after(20, {})
    statistics = telemetry.statistics()
    assert [row.generated_tok for row in statistics.finished] == [step for step in range(12, 20) for _ in range(4)]
    assert [step.step for step in statistics.steps] == list(range(12, 20))
    assert statistics.changes == () and not telemetry.has_changed
    assert told.shown[7] == (7, [7] * 4, False)


def test_a_change_cuts_the_window_to_the_new_regime() -> None:
    telemetry, _ = after(20, {19: 3})
    statistics = telemetry.statistics()
    assert telemetry.has_changed and statistics.changes == (17,)
    assert {row.generated_tok for row in statistics.finished} == {17, 18, 19} and len(statistics.finished) == 12
    assert [step.step for step in statistics.steps] == [17, 18, 19]


def test_the_window_grows_again_and_what_ends_between_steps_survives_the_next_cut() -> None:
    telemetry, _ = after(23, {19: 3, 22: 1})
    assert telemetry.statistics().changes == (17, 22)
    assert [row.generated_tok for row in telemetry.statistics().finished] == [22] * 4
    trajectory(telemetry, 999, 50)
    assert [row.generated_tok for row in telemetry.statistics().finished] == [22] * 4 + [50]
    step_end(telemetry, 23)
    assert not telemetry.has_changed and len(telemetry.statistics().steps) == 2


def test_a_change_before_the_window_needs_no_cut() -> None:
    telemetry, _ = after(20, {19: WINDOW_STEPS + 4})
    assert telemetry.statistics().changes == (8,) and len(telemetry.statistics().finished) == 32


def test_engines_that_come_and_go_disturb_the_step_in_which_they_do() -> None:
    told = Told({})
    telemetry = Telemetry(RUN, told)
    step_end(telemetry, 0)
    telemetry.remember(AllocationChanged(11.0, THERE, "plan"))
    step_end(telemetry, 1)
    telemetry.remember(AllocationChanged(21.0, THERE, "rejected", "no room"))
    step_end(telemetry, 2)
    assert [disturbed for _, _, disturbed in told.shown] == [False, True, False]


def test_what_transitions_took_is_remembered_until_the_first_engine_is_up() -> None:
    telemetry = Telemetry(RUN, NoDetector(RUN))
    telemetry.remember(AllocationChanged(0.0, THERE, "plan"))
    telemetry.remember(AllocationChanged(5.0, THERE, "up"))
    assert telemetry.statistics().started == (), "the first plan is no transition"
    step_end(telemetry, 0)
    for t_s, cause in ((10.0, "plan"), (20.0, "down"), (75.0, "up"), (76.0, "up"), (100.0, "switch"), (104.0, "up")):
        telemetry.remember(AllocationChanged(t_s, THERE, cause))
    assert telemetry.statistics().started == (Started("plan", 65.0), Started("switch", 4.0))
