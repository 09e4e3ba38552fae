"""Any order of events over any fleet: every router places each trajectory once, on an engine that is up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.routers.least_loaded import LeastLoaded
from baselines.routers.mlfq import Mlfq
from baselines.routers.oracle import Oracle
from baselines.routers.prompt_history import PromptHistory
from baselines.routers.prompt_history_promote import PromptHistoryPromote
from baselines.routers.turn_index import TurnIndex
from libra.core.commands import Place
from libra.core.events import AllocationChanged, Event, Placed, StepEnd, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.plan import Allocation, InstanceStatus, TrainLayout
from libra.routing.buckets import bucket_of
from libra.routing.cmlfq import CMlfq
from libra.routing.router import BucketRouter
from libra.routing.sample import CENSORED, EVIDENCE, QUANTILE, TOK_SHIFT, Length, Sample, Summary, length, summarize

ROUTERS = (CMlfq, LeastLoaded, Mlfq, Oracle, PromptHistory, PromptHistoryPromote, TurnIndex)
LAYOUT = TrainLayout(tp=4, dp=2)
STATES = ("up", "starting", "draining", "training", "down")

bounds = st.lists(st.integers(500, 40000), min_size=1, max_size=4, unique=True).map(lambda b: (*sorted(b), 40960))


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    bounds_tok = draw(bounds)
    engines = draw(
        st.lists(
            st.tuples(st.sampled_from((1, 2, 4, 8)), st.integers(0, len(bounds_tok) - 1), st.sampled_from(STATES)),
            min_size=1,
            max_size=6,
        )
    )
    first = draw(st.integers(0, 3))
    statuses = [InstanceStatus(first + n, *engine) for n, engine in enumerate(engines)]
    statuses.append(InstanceStatus(first + len(engines), 1, 0, "up"))  # a backend asks only while someone is up
    return Allocation(LAYOUT, 2, tuple(statuses), bounds_tok)


words = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from("pqr"), st.integers(500, 40000)),
        st.tuples(st.just("tool"), st.integers(0, 20), st.integers(1, 9000)),
        st.tuples(st.just("end"), st.integers(0, 20), st.sampled_from(("completed", "truncated", "aborted"))),
        st.tuples(st.just("allocation"), allocations(), st.none()),
        st.tuples(st.just("step"), st.none(), st.none()),
    ),
    max_size=60,
)


def play(router: BucketRouter, first: Allocation, script: list[Any]) -> list[Place]:
    """Feed a script and check each answer; words about nobody are skipped."""
    live: dict[int, tuple[int, int, int]] = {}
    placed: list[Place] = []
    allocation, number = first, 0

    def tell(event: Event) -> None:
        assert tuple(router.on(event)) == ()

    def ask(event: TrajectoryStart | ToolReturned, context_tok: int, turns: int) -> None:
        (place,) = router.on(event)
        assert isinstance(place, Place) and place.trajectory == event.trajectory
        assert place.instance in {i.id for i in allocation.up()}
        placed.append(place)
        live[event.trajectory] = (place.instance, context_tok, turns)
        tell(Placed(0.0, place.trajectory, place.instance, "stay"))

    tell(AllocationChanged(0.0, allocation, "plan"))
    for word, what, value in script:
        chosen = sorted(live)[what % len(live)] if word in ("tool", "end") and live else None
        if word == "start":
            ask(TrajectoryStart(0.0, number, what, 0, 0, 500, 0, value), 500, 0)
            number += 1
        elif word == "tool" and chosen is not None:
            instance, context_tok, turns = live[chosen]
            context_tok += value
            ask(
                ToolReturned(0.0, chosen, instance, turns + 1, "bash", value // 2, "ok", 1.0, context_tok),
                context_tok,
                turns + 1,
            )
        elif word == "end" and chosen is not None:
            instance, context_tok, turns = live.pop(chosen)
            tell(TrajectoryEnd(0.0, chosen, instance, value, 1, context_tok + 300, turns, 0.0))
        elif word == "allocation":
            allocation = what
            tell(AllocationChanged(0.0, allocation, "plan"))
        elif word == "step":
            tell(StepEnd(0.0, 0, 10.0, 10.0, 1.0, 11.0, 100, LAYOUT, 2))
        loads = Counter(instance for instance, _, _ in live.values())
        assert all(router.fleet.live(i.id) == loads[i.id] for i in allocation.instances), "live trajectories add up"
    return placed


@pytest.mark.parametrize("router", ROUTERS)
@settings(max_examples=60, deadline=None)
@given(first=allocations(), script=words)
def test_one_placement_each_on_an_engine_that_is_up(
    router: Callable[[], BucketRouter], first: Allocation, script: list[Any]
) -> None:
    placed = play(router(), first, script)
    assert play(router(), first, script) == placed, "the same events, the same placements"


@settings(max_examples=60, deadline=None)
@given(first=allocations(), script=words)
def test_cmlfq_never_predicts_less_than_what_is_there(first: Allocation, script: list[Any]) -> None:
    for place in play(CMlfq(min_evidence=1), first, script):
        assert place.why is not None
        if place.why.level != "none":
            assert place.why.mean_tok >= 500 and place.why.p90_tok >= 500 and place.why.evidence >= 1


@given(st.floats(0, 50000), bounds)
def test_a_bucket_serves_the_length_or_is_the_last(total_tok: float, bounds_tok: tuple[int, ...]) -> None:
    bucket = bucket_of(total_tok, bounds_tok)
    assert total_tok <= bounds_tok[bucket] or bucket == len(bounds_tok) - 1
    assert bucket == 0 or total_tok > bounds_tok[bucket - 1]


lengths = st.lists(st.builds(length, st.integers(0, 40000), st.booleans()), min_size=1, max_size=40)


@given(lengths, st.integers(0, 40000))
def test_a_lower_bound_never_lowers_an_estimate(known: list[Length], cut_tok: int) -> None:
    before, after = summarize(known), summarize([*known, length(cut_tok, True, False)])
    assert after.mean_tok >= before.mean_tok - 1e-6 and after.p90_tok >= before.p90_tok


@given(lengths)
def test_an_estimate_lies_within_its_sample(known: list[Length]) -> None:
    summary = summarize(known)
    low, high = min(known) >> TOK_SHIFT, max(known) >> TOK_SHIFT
    assert low - 1e-6 <= summary.mean_tok <= high + 1e-6 and low <= summary.p90_tok <= high


def by_recursion(known: list[Length]) -> Summary:
    """The Kaplan-Meier estimator as it is defined, over all lengths in order."""
    surviving, mean_tok, p90_tok = 1.0, 0.0, None
    for rank, each in enumerate(sorted(known)):
        at_risk = len(known) - rank
        if each & CENSORED and at_risk > 1:
            continue
        mass = surviving / at_risk
        mean_tok += mass * (each >> TOK_SHIFT)
        surviving -= mass
        if p90_tok is None and surviving <= 1 - QUANTILE + 1e-9:
            p90_tok = float(each >> TOK_SHIFT)
    return Summary(mean_tok, p90_tok or 0.0, sum(each & EVIDENCE for each in known))


observed = st.builds(length, st.integers(0, 300), st.booleans(), st.booleans())


@given(st.lists(observed, max_size=40), st.integers(1, 12), st.integers(1, 5))
def test_a_window_kept_in_order_summarises_as_one_made_anew(known: list[Length], window: int, every: int) -> None:
    sample = Sample()
    for number, each in enumerate(known, 1):
        sample.add(each, window)
        expected = by_recursion(known[max(0, number - window) : number])
        assert sample.evidence == expected.evidence
        if number % every == 0:
            assert sample.summary() == expected, "to the last bit"
