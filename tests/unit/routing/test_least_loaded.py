from __future__ import annotations

from libra.core.commands import Place, Why
from libra.core.events import ToolReturned
from libra.routing.least_loaded import LeastLoaded
from tests.unit.routing.scene import ENGINES, Scene


def test_it_spreads_over_all_engines_whatever_their_bucket() -> None:
    scene = Scene(LeastLoaded())
    assert [scene.start(n).instance for n in range(8)] == [0, 1, 2, 3, 3, 2, 3, 3]


def test_it_stays_after_tool_returns_however_long_the_context() -> None:
    scene = Scene(LeastLoaded())
    first = scene.start(0)
    assert scene.tool(0, 30000) == Place(0, first.instance, why=Why())


def test_it_leaves_an_engine_that_is_gone() -> None:
    scene = Scene(LeastLoaded())
    assert scene.start(0).instance == 0
    scene.allocate(ENGINES[1:])
    assert scene.tool(0, 1000).instance == 1


def test_it_has_nothing_to_say_about_a_trajectory_that_it_never_placed() -> None:
    assert LeastLoaded().on(ToolReturned(0.0, 9, 0, 1, "bash", 10, "ok", 1.0, 700)) == ()
