"""Rollout time of an instance or a pool from first principles: decode steps at the achieved batch, additive KV traffic,
the serial bound of the longest request (the paper's cost evaluator, without its fitted constants)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from libra.core.events import PipelineSpec
from libra.cost.engine import MAX_SEQUENCES, Engine
from libra.cost.loads import TINY, Decline, Load
from libra.cost.requests import Requests


@dataclass(frozen=True)
class Schedule:
    """How a step's requests reach the engines: all at once, or `live` of them continuously.

    `live_share` is live trajectories per trajectory of the batch; `staleness` counts the versions that a trajectory
    may span beside its own (None: the step waits for all).
    """

    live_share: Any = 1.0
    staleness: int | None = None

    @property
    def most_live(self) -> float:
        """`live_share` without a cap."""
        return 1.0 if self.staleness is None else self.staleness + 1.0


def schedule_of(pipeline: PipelineSpec, batch: int) -> Schedule:
    """With staleness eta at most `(eta + 1) batch` trajectories are live (AReaL's gate), and never above the cap."""
    overlapped = pipeline.kind == "async" and pipeline.staleness > 0
    live = float(batch * (pipeline.staleness + 1 if overlapped else 1))
    if pipeline.in_flight_cap > 0:
        live = min(live, float(pipeline.in_flight_cap))
    return Schedule(live / batch, pipeline.staleness if overlapped else None)


class Pace(NamedTuple):
    """Seconds of an instance for a batch: what its throughput allows, and from a request's start to its end for the
    one that ends last (0 where the former has it already)."""

    work_s: Any
    life_s: Any


def rollout_s(engine: Engine, requests: Requests, load: Load, schedule: Schedule, share: Any = 1.0) -> Any:
    """Seconds a batch until an instance that takes `share` of the load is through with it, training aside."""
    pace = rollout_pace(engine, requests, load, schedule, share)
    return np.maximum(pace.work_s, pace.life_s / ((schedule.staleness or 0) + 1))


def rollout_pace(engine: Engine, requests: Requests, load: Load, schedule: Schedule, share: Any = 1.0) -> Pace:
    """The two limits of an instance that takes `share` of the load; inf where a request is too long.

    `share` below 1 is one of several equal instances behind one bucket. The limits are the work (steps at the achieved
    batch, KV traffic, prefill) and the serial time of the longest request, slowed by the others' KV reads and prefills
    while it decodes.
    """
    live = np.maximum(load.num * share * schedule.live_share, 1.0)
    own = _own_of(engine, requests, load.longest)
    if schedule.staleness is None:
        # A batch that starts together holds each request's own mean context.
        work = _work_of(engine, load, share, live * _mean_of(load, load.context_tok))
        others = _others_beside(load, share)
        pace = _batch_pace(engine, load, _beside_last(work, own, share, others), own, live, others)
    else:
        pace = _stream_pace(engine, load, own, live, share, schedule.staleness)
    impossible, some = load.upper_tok > engine.capacity_tok, np.asarray(load.num) > TINY
    return Pace(*(np.where(some, np.where(impossible, np.inf, seconds), 0.0) for seconds in pace))


class _Own(NamedTuple):
    """What a request takes by itself: KV reads and prefills, decode steps, tools."""

    read_s: Any
    steps: Any
    tool_s: Any


class _Work(NamedTuple):
    """An instance's part of a batch. `fitting` sequences decode at once; `context_tok` is the mean over steps."""

    generated_tok: Any
    other_s: Any
    tool_s: Any
    num: Any
    fitting: Any
    context_tok: Any


def _own_of(engine: Engine, requests: Requests, point: Any) -> _Own:
    """Of the points of these indices; of nothing where a point weighs nothing."""
    is_there = requests.weight[point] > 0
    prefill_s = engine.prefill_s(requests.prefill_tok[point], requests.prefill_pairs[point])
    read_s = engine.kv_s_per_tok * requests.traffic_tok[point] + prefill_s
    steps = requests.generated_tok[point] + requests.num_turns[point]
    return _Own(read_s * is_there, np.maximum(steps * is_there, 1.0), requests.tool_s[point] * is_there)


def _work_of(engine: Engine, load: Load, share: Any, held_tok: Any) -> _Work:
    """Live trajectories hold `held_tok`; those whose KV does not fit lose it while they wait for their tool and prefill
    it again."""
    context_tok = np.maximum(load.traffic_tok / np.maximum(load.generated_tok, TINY), 1.0)
    miss_tok = np.maximum(0.0, 1 - engine.capacity_tok / np.maximum(held_tok, 1.0)) * load.returned_tok
    prefill_s = engine.prefill_s(load.prefill_tok + miss_tok, load.prefill_pairs + miss_tok * context_tok / 2)
    return _Work(
        generated_tok=np.maximum(load.generated_tok * share, TINY),
        other_s=share * (engine.kv_s_per_tok * load.traffic_tok + prefill_s),
        tool_s=share * load.tool_s,
        num=load.num * share,
        fitting=_clip(engine.capacity_tok / context_tok, MAX_SEQUENCES),
        context_tok=context_tok,
    )


def _others_beside(load: Load, share: Any) -> Any:
    """Share of the other requests that an instance has beside the last one: a router that places a batch at once evens
    out counts, not lengths."""
    return np.maximum(share * load.num - 1.0, 0.0) / np.maximum(load.num - 1.0, 1.0)


def _beside_last(work: _Work, own: _Own, share: Any, others: Any) -> _Work:
    """Of the instance that has the last request: that one whole, and its share of the others."""
    return work._replace(
        generated_tok=own.steps + others / share * np.maximum(work.generated_tok - share * own.steps, 0.0),
        other_s=own.read_s + others / share * np.maximum(work.other_s - share * own.read_s, 0.0),
    )


def _batch_pace(engine: Engine, load: Load, work: _Work, own: _Own, live: Any, others: Any) -> Pace:
    """All requests start together, and the step waits for the last."""
    most = np.minimum(work.fitting, live)
    num_steps = np.maximum(own.steps, work.generated_tok / most)
    step_s = engine.step_s(_clip(work.generated_tok / num_steps, work.fitting))
    if load.decline is not None:
        step_s = _mean_step_s(engine, load.decline, most, others)
    last_s = _life_s(own, step_s, work.other_s)
    bound = np.maximum(num_steps * step_s + work.other_s, last_s)
    return Pace(bound, np.zeros_like(bound))


def _mean_step_s(engine: Engine, decline: Decline, most: Any, others: Any) -> Any:
    """Over the steps of the instance that has the last request. Experts read grow ever slower with the batch, so that
    a step of the mean batch reads more than the mean step."""
    most, others = (np.broadcast_to(each, len(decline.left))[:, None] for each in (most, others))
    wanted = 1.0 + others * np.maximum(decline.left - 1.0, 0.0)
    batch = np.minimum(wanted, np.maximum(most, 1.0))
    steps = decline.steps * wanted / batch
    return (steps * engine.step_s(batch)).sum(axis=1) / np.maximum(steps.sum(axis=1), TINY)


def _stream_pace(engine: Engine, load: Load, own: _Own, live: Any, share: Any, staleness: int) -> Pace:
    """Batches follow one another. Where the last request sets the pace, `staleness + 1` batches are decoded beside it,
    as far as live ones go; by Little's law as many requests are under way as the mean one's life is of the last one's.
    Where work sets it, they queue, at most all that may live.

    Those under way hold KV, seen weighted by time, the long more. A refresh of the weights drops the KV of all but the
    batch that it waited for, and no more than the cache holds; it is prefilled again (AReaL's rule, assumed of any
    engine).
    """
    work = _work_of(engine, load, share, 0.0)
    most = np.minimum(work.fitting, live)
    beside = _clip((staleness + 1) * work.generated_tok / own.steps, most)
    step_s, num_batches = engine.step_s(beside), beside * own.steps / work.generated_tok
    alike = _life_s(_mean_own(engine, load), step_s, 0.0) / _life_s(own, step_s, 0.0)
    pace, queueing = Pace(0.0, 0.0), 1.0
    for _ in range(QUEUE_ROUNDS):
        num_batches_live = (staleness + 1) * alike * queueing
        present = np.minimum(num_batches_live * work.num, live)
        kept = np.minimum(np.minimum(num_batches_live, staleness) * work.num, live)
        work = _work_of(engine, load, share, present * work.context_tok)
        lost_tok = np.minimum(kept * work.context_tok, engine.capacity_tok)
        again_s = engine.prefill_s(lost_tok, lost_tok * work.context_tok / 2)
        pace = _stream_times(
            engine, work._replace(other_s=work.other_s + again_s), own, most, live, step_s, num_batches
        )
        queueing = np.maximum(1.0, pace.work_s * (staleness + 1) / np.maximum(pace.life_s, TINY))
    return pace


QUEUE_ROUNDS = 2
"""First as if nothing queued, then with the queues that the first round shows."""


def _stream_times(engine: Engine, work: _Work, own: _Own, most: Any, live: Any, step_s: Any, num_batches: Any) -> Pace:
    full_s = engine.step_s(most)
    steady_s = _steady_s(work.generated_tok * full_s, work.other_s, work.tool_s, live)
    saturated_s = work.generated_tok / most * full_s + work.other_s
    return Pace(np.maximum(steady_s, saturated_s), _life_s(own, step_s, work.other_s * num_batches))


def _life_s(own: _Own, step_s: Any, other_s: Any) -> Any:
    """From a request's start to its end, slowed by the others' work while it does not wait for a tool.

    That work is even over its life, so a decoding time D meets `D / (D + tool)` of it and D is the root of a quadratic.
    """
    decode_s = own.read_s + own.steps * step_s
    excess = decode_s + np.maximum(0.0, other_s - own.read_s) - own.tool_s
    return own.tool_s + (excess + np.sqrt(excess**2 + 4 * decode_s * own.tool_s)) / 2


def _mean_own(engine: Engine, load: Load) -> _Own:
    """Of the mean request; turns that start with a prefill are no steps of their own here."""
    read_s = engine.kv_s_per_tok * load.traffic_tok + engine.prefill_s(load.prefill_tok, load.prefill_pairs)
    return _Own(_mean_of(load, read_s), _mean_of(load, load.generated_tok), _mean_of(load, load.tool_s))


def _mean_of(load: Load, total: Any) -> Any:
    return total / np.maximum(load.num, TINY)


def _clip(value: Any, most: Any) -> Any:
    """Between 1 and `most`; `np.clip` takes ten times as long for a scalar."""
    return np.minimum(np.maximum(value, 1.0), most)


def _steady_s(stepping_s: Any, other_s: Any, tool_s: Any, live: Any) -> Any:
    """Steady state of `live` trajectories that decode or wait for tools, per batch.

    Little's law gives the decoding ones as `b = live - tool_s / T`, the engine `T = stepping_s / b + other_s`: a
    quadratic in T, whose larger root has b > 0.
    """
    middle = live * other_s + tool_s + stepping_s
    return (middle + np.sqrt(np.maximum(0.0, middle**2 - 4 * live * tool_s * other_s))) / (2 * live)
