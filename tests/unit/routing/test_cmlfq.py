from __future__ import annotations

import pytest

from libra.core.commands import Place, Why
from libra.core.errors import ConfigError
from libra.routing.cmlfq import CMlfq, state_of
from tests.unit.routing.scene import ENGINES, Scene, engine


def test_everything_starts_in_the_smallest_bucket() -> None:
    scene = Scene(CMlfq())
    assert [scene.start(n) for n in range(3)] == [Place(n, n % 2, why=Why(bucket=0)) for n in range(3)]


def test_without_history_it_stays_and_says_that_it_knows_nothing() -> None:
    scene = Scene(CMlfq())
    scene.start(0)
    assert scene.tool(0, 13000) == Place(0, 0, why=Why("none", bucket=0))


@pytest.mark.parametrize(("total_tok", "bucket", "instance"), [(3000, 0, 0), (9000, 1, 2), (30000, 2, 3)])
def test_it_moves_at_the_first_return_to_the_bucket_of_the_expected_total(
    total_tok: int, bucket: int, instance: int
) -> None:
    scene = Scene(CMlfq())
    scene.history([total_tok] * 4)
    scene.start(0)
    place = scene.tool(0, 1000)
    assert place == Place(0, instance, why=Why("prefix", total_tok, total_tok, 4, bucket))


def test_it_stays_where_mean_and_p90_disagree() -> None:
    scene = Scene(CMlfq())
    scene.history([3000] * 8 + [30000] * 2)
    scene.start(0)
    place = scene.tool(0, 1000)
    assert place.instance == 0 and place.why
    assert (place.why.bucket, place.why.mean_tok, place.why.p90_tok) == (0, pytest.approx(8400), 30000)


def test_it_moves_down_when_little_more_is_to_come_than_the_smaller_bucket_holds() -> None:
    scene = Scene(CMlfq())
    scene.history([30000] * 4, payload_tok=100)
    scene.start(0)
    assert scene.tool(0, 1000).instance == 3
    for number in range(2000, 2004):
        scene.start(number)
        scene.tool(number, 1000)
        scene.tool(number, 2000, status="error")
        scene.end(number, 2500)
    assert scene.tool(0, 2000, status="error") == Place(0, 0, why=Why("prefix", 2500, 2500, 4, 0))


def test_it_stays_on_its_engine_within_the_bucket() -> None:
    scene = Scene(CMlfq())
    scene.history([3000] * 4)
    assert [scene.start(n).instance for n in range(3)] == [0, 1, 0]
    scene.end(1, 900)
    assert scene.tool(2, 1000).instance == 0


def test_it_learns_only_when_a_trajectory_ends() -> None:
    scene = Scene(CMlfq())
    for number in range(4):
        scene.start(number)
        scene.tool(number, 1000)
    scene.start(9)
    assert scene.tool(9, 1000).why == Why("none", bucket=0)


def test_payload_classes_have_stated_bounds() -> None:
    sizes = (0, 500, 501, 5000, 5001)
    assert [state_of("bash", tok, "ok").split(":")[1] for tok in sizes] == ["small"] * 2 + ["medium"] * 2 + ["large"]


def test_payload_bounds_must_rise() -> None:
    with pytest.raises(ConfigError, match="payload bounds must rise"):
        CMlfq(payload_bounds_tok=(500, 500))


def test_a_dead_engine_is_left_for_the_least_loaded_of_its_bucket() -> None:
    scene = Scene(CMlfq())
    assert scene.start(0).instance == 0
    scene.allocate(ENGINES[1:])
    assert scene.tool(0, 1000).instance == 1


def test_it_follows_a_repartition() -> None:
    scene = Scene(CMlfq())
    scene.history([9000] * 4)
    scene.start(0)
    scene.allocate((engine(0, 1, 0), engine(10, 2, 1)), (8000, 40960))
    assert scene.tool(0, 1000) == Place(0, 10, why=Why("prefix", 9000, 9000, 4, 1))
    scene.allocate((engine(0, 1, 0), engine(10, 2, 1)), (10000, 40960))
    scene.start(1)
    assert scene.tool(1, 1000) == Place(1, 0, why=Why("prefix", 9000, 9000, 4, 0))


def test_a_fallback_engine_is_not_left_for_a_less_loaded_equal() -> None:
    scene = Scene(CMlfq())
    scene.allocate((engine(0, 1, 0), engine(3, 4, 2), engine(4, 4, 2)))
    for number in range(100, 104):
        scene.start(number)
        scene.tool(number, 1000)
        scene.tool(number, 1200)
        scene.end(number, 9000)
    for number in range(3):
        scene.start(number)
    # Bucket 1 has no engine, so bucket 2 serves its trajectories.
    assert [scene.tool(number, 1000).instance for number in range(3)] == [3, 4, 3]
    scene.end(1, 9000)
    assert scene.tool(0, 1200) == Place(0, 3, why=Why("prefix", 9000, 9000, 4, 1))


def test_a_truncated_trajectory_does_not_make_others_look_short() -> None:
    scene = Scene(CMlfq())
    scene.history([30000] * 8)
    for number in range(8):
        scene.start(number)
        scene.tool(number, 1000)
        scene.end(number, 2000, "truncated" if number % 2 else "aborted")
    scene.start(20)
    why = scene.tool(20, 1000).why
    # The eight cut short after 1,000 tokens hand their mass to the eight that went on; aborted ones are no evidence.
    assert why == Why("prefix", pytest.approx(30000), 30000, 12, 2)
