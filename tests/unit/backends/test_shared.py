"""Processes that share cores, and the fit of a machine's table to a run whose table is known."""

from __future__ import annotations

import msgspec
import pytest

from libra.backends.sim.cores import make_clock
from libra.backends.sim.options import SimOptions
from libra.backends.sim.shared.cores import SLICE_S, SharedClock, Station
from libra.backends.sim.shared.fit import Calibration, fit
from libra.backends.sim.shared.observe import window
from libra.backends.sim.shared.play import Played, Recorded, Scene, drawn, play
from libra.backends.sim.shared.table import Engine, Table, Trainer, read_table
from libra.clusters import load_cluster
from libra.core.errors import ConfigError
from libra.core.events import PipelineSpec
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import PolicyContext, Registry
from libra.core.rng import stream
from libra.models import load_model

TRUE = Table("a test", 1.5, Engine(0.01, 0.0004, 0.0001), Trainer(0.5, 0.0006), 0.004, 0.009, 0.15, 0.3)
CLUSTER, MODEL = load_cluster("cpu2"), load_model("tiny")
PROMPTS, SAMPLES = 4, 8


def scene(kind: str, policy: str = "hand-blind") -> Scene:
    spec = Registry().get("policy", policy)
    context = PolicyContext(CLUSTER, MODEL, spec.options(engines="1"))
    return Scene(CLUSTER, MODEL, PipelineSpec(kind), lambda: spec.build(context))  # type: ignore[arg-type]


def group(number: int) -> tuple[Trajectory, ...]:
    rng = stream("test", number)

    def one(sample: int) -> Trajectory:
        calls = (
            Turn(int(rng.integers(5, 20)), ToolReturn("search", 20, "ok", 0.02)) for _ in range(rng.integers(0, 3))
        )
        return Trajectory(f"p{number}", number, sample, 10, (*calls, Turn(int(rng.integers(3, 25)))))

    return tuple(one(sample) for sample in range(SAMPLES))


GROUPS = [group(number) for number in range(40)]


def played(kind: str, table: Table, steps: int = 8, groups: list = GROUPS) -> Played:  # type: ignore[type-arg]
    return play(scene(kind), table, Recorded(groups, PROMPTS, steps, 512, GROUPS[0]))


def run(clock: SharedClock) -> None:
    assert not clock.run(lambda: False)


def test_as_many_as_there_are_cores_work_at_full_speed_and_more_share_them() -> None:
    ends: dict[str, float] = {}
    for names, cores in ((("a",), 2), (("a", "b"), 2), (("a", "b", "c", "d"), 2)):
        clock = SharedClock(cores)
        for name in names:
            clock.work(name, 1.0, lambda name=name, clock=clock: ends.__setitem__(name, clock.now_s))  # type: ignore[misc]
        run(clock)
        assert max(ends.values()) == pytest.approx(max(1, len(names) / cores), abs=4 * SLICE_S)
        ends.clear()


def test_who_is_left_alone_speeds_up() -> None:
    clock, ends = SharedClock(1), list[float]()
    clock.work("short", 0.2, lambda: ends.append(clock.now_s))
    clock.work("long", 1.0, lambda: ends.append(clock.now_s))
    run(clock)
    assert ends == pytest.approx([0.4, 1.2], abs=4 * SLICE_S)


def test_a_station_serves_in_order() -> None:
    clock, ends = SharedClock(2), list[tuple[str, float]]()
    station = Station("loop", clock)
    for name in ("first", "second", "third"):
        station.serve(0.1, lambda name=name: ends.append((name, round(clock.now_s, 6))))  # type: ignore[misc]
    run(clock)
    assert ends == [("first", 0.1), ("second", 0.2), ("third", 0.3)]


@pytest.mark.parametrize("kind", ["barrier", "async"])
def test_the_same_table_and_trajectories_give_the_same_run(kind: str) -> None:
    one, other = played(kind, TRUE), played(kind, TRUE)
    assert (one.steps, one.events) == (other.steps, other.events)
    assert len(one.steps) == 8
    assert all(row.num_trajectories == PROMPTS * SAMPLES for row in one.steps)
    assert max(row.max_staleness for row in one.steps) == 1


def test_a_machine_twice_as_fast_takes_half_the_time() -> None:
    tools_out = [
        tuple(
            msgspec.structs.replace(
                row,
                turns=tuple(
                    turn if turn.tool is None else Turn(turn.generated_tok, ToolReturn("search", 20, "ok", 0.0))
                    for turn in row.turns
                ),
            )
            for row in rows
        )
        for rows in GROUPS
    ]
    slow = played("barrier", TRUE, groups=tools_out)
    halved = msgspec.convert(_halved(msgspec.to_builtins(TRUE)), Table)
    fast = played("barrier", halved, groups=tools_out)
    assert window(fast.steps)[0] == pytest.approx(window(slow.steps)[0] / 2, rel=0.02)
    assert window(fast.steps)[1] == window(slow.steps)[1]


def _halved(values: dict) -> dict:  # type: ignore[type-arg]
    kept = ("source", "cores")
    return {
        name: value if name in kept else _halved(value) if isinstance(value, dict) else value / 2
        for name, value in values.items()
    }


@pytest.mark.slow
def test_the_fit_finds_what_a_longer_run_of_another_pipeline_takes() -> None:
    """Calibrated on 8 steps behind the barrier; asked for 20 of either pipeline on other draws.

    While everything is always busy only a time over the cores is determined, so that is what is compared.
    """
    seen = played("barrier", TRUE)
    found = fit([Calibration(scene("barrier"), GROUPS, PROMPTS, 512, GROUPS[0], seen.steps, seen.events)], "a test")
    for ours, theirs in (
        (found.engine.step_s, TRUE.engine.step_s), (found.trainer.tok_s, TRUE.trainer.tok_s),
        (found.start_s, TRUE.start_s), (found.turn_s, TRUE.turn_s),
    ):  # fmt: skip
        assert ours / found.cores == pytest.approx(theirs / TRUE.cores, rel=0.3)
    assert found.between_s == pytest.approx(TRUE.between_s, rel=0.05)
    for kind in ("barrier", "async"):
        groups = drawn(GROUPS, PROMPTS, 21, seed=1)
        truth, guess = (window(played(kind, table, 20, groups).steps)[0] for table in (TRUE, found))
        assert guess == pytest.approx(truth, rel=0.03)


def test_draws_depend_on_the_seed_alone_and_keep_batches_whole() -> None:
    found = drawn(GROUPS, PROMPTS, 10, 1)
    assert found == drawn(GROUPS, PROMPTS, 10, 1)
    assert found != drawn(GROUPS, PROMPTS, 10, 2)
    for first in range(0, len(found), PROMPTS):
        number = found[first][0].group
        assert number % PROMPTS == 0
        assert found[first : first + PROMPTS] == GROUPS[number : number + PROMPTS]


def test_a_table_is_read_from_a_file_or_as_text(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "table.json").write_bytes(msgspec.json.encode(TRUE))
    assert read_table(str(tmp_path / "table.json")) == TRUE
    assert read_table(msgspec.json.encode(TRUE).decode()) == TRUE


def test_a_wrong_table_is_the_users_mistake(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "table.json").write_text('{"cores": 2}')
    for text in (str(tmp_path / "table.json"), str(tmp_path / "absent.json"), "{}"):
        with pytest.raises(ConfigError, match=r"sim\.table: no table of a live machine"):
            read_table(text)


def test_a_table_has_a_core_of_its_own() -> None:
    text = msgspec.json.encode(TRUE).decode()
    with pytest.raises(ConfigError, match=r"sim\.engine"):
        make_clock(SimOptions(table=text, engine="stepwise"))
