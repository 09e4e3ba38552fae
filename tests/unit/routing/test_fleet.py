from __future__ import annotations

import pytest

from libra.core.errors import LibraError
from libra.core.events import Placed, TrajectoryEnd
from libra.core.plan import InstanceStatus
from libra.routing.fleet import Fleet
from libra.routing.least_loaded import LeastLoaded
from tests.unit.routing.scene import ENGINES, Scene, engine


def blind(*engines: InstanceStatus) -> Scene:
    return Scene(LeastLoaded(), engines)


def test_load_is_live_trajectories_per_gpu_with_ties_by_number() -> None:
    scene = blind(engine(7, 1, 0), engine(2, 2, 0), engine(5, 1, 0))
    # Per GPU 2 holds 0, then 1/2; 5 and 7 hold 0: 2, 5, 7, then 2 again (1/2 < 1), then all are at 1.
    assert [scene.start(number).instance for number in range(5)] == [2, 5, 7, 2, 2]


def test_an_ended_trajectory_makes_room() -> None:
    scene = blind(engine(0, 1, 0), engine(1, 1, 0))
    assert [scene.start(0).instance, scene.start(1).instance] == [0, 1]
    scene.end(1, 900)
    assert scene.start(2).instance == 1


def test_an_acknowledgement_corrects_where_a_trajectory_went() -> None:
    scene = blind(engine(0, 1, 0), engine(1, 1, 0))
    assert scene.start(0).instance == 0
    scene.router.on(Placed(0.0, 0, 1, "start"))
    assert scene.start(1).instance == 0


@pytest.mark.parametrize(
    ("up", "wanted", "served"),
    [((0, 1, 2), 1, 1), ((0, 2), 1, 2), ((0,), 1, 0), ((0, 1), 2, 1), ((2,), 0, 2)],
)
def test_a_bucket_without_engine_is_served_by_the_next_larger_then_the_next_smaller(
    up: tuple[int, ...], wanted: int, served: int
) -> None:
    fleet = Scene(LeastLoaded(), tuple(engine(b, 1, b) for b in up)).router.fleet  # type: ignore[attr-defined]
    assert fleet.serving(wanted) == served
    assert fleet.least_loaded(wanted) == served


def test_no_engine_up_is_an_error_that_says_so() -> None:
    scene = blind(engine(0, 1, 0, "starting"), engine(1, 1, 0, "down"))
    with pytest.raises(LibraError, match="no instance is up"):
        scene.start(0)


def test_an_unknown_trajectory_changes_nothing() -> None:
    fleet = Fleet()
    fleet.on(Placed(0.0, 3, 0, "stay"))
    fleet.on(TrajectoryEnd(0.0, 3, 0, "completed", 10, 20, 1, 0.0))
    assert not fleet.knows(3) and fleet.live(0) == 0


def test_the_bucket_of_a_lost_engine_is_remembered_but_never_too_small_for_the_context() -> None:
    scene = blind(*ENGINES)
    fleet = scene.router.fleet  # type: ignore[attr-defined]
    scene.start(0)
    home = fleet.bucket_at(0, 0)
    scene.allocate(tuple(e for e in ENGINES if e.id != scene.where[0]))
    assert fleet.bucket_at(0, 0) == home == 0
    assert fleet.bucket_at(0, 13000) == 2
