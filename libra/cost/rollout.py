"""Rollout time of an instance or a pool from first principles: roofline of a decode step, additive KV traffic, the
serial bound of the longest request, KV capacity (the paper's cost evaluator, without its fitted constants)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from libra.core.events import PipelineSpec
from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.cost.communication import all_reduce_s
from libra.cost.memory import kv_bytes_per_tok_per_gpu, kv_capacity_tok
from libra.cost.rates import Rates
from libra.cost.requests import Array, Batches, Requests

KERNELS_PER_LAYER = 10
"""Norms, projections, rotary, cache write, attention, activation of one decoder layer, counted."""
MOE_KERNELS = 5
"""More of an expert layer, counted: router, top-k, sorting by expert, two grouped products, activation and sum, where
a dense one has two products and an activation."""
MAX_SEQUENCES = 256
"""Running sequences of an engine: vLLM's long-standing default."""


@dataclass(frozen=True)
class Engine:
    """One rollout instance of `tp` GPUs."""

    cluster: Cluster
    model: Model
    tp: int
    rates: Rates = field(default_factory=Rates)

    @cached_property
    def capacity_tok(self) -> int:
        """KV tokens of the whole instance."""
        return kv_capacity_tok(self.cluster.gpu, self.model, self.tp)

    @cached_property
    def bytes_s(self) -> float:
        """Sustained memory bytes/s of *one* GPU; per-GPU bytes are divided by it, and by nothing else."""
        return self.cluster.gpu.memory_gb_s * 1e9 * self.rates.memory

    @cached_property
    def flop_s(self) -> float:
        """Sustained FLOP/s of the whole instance."""
        share = self.rates.moe if self.model.is_moe else self.rates.prefill
        return self.cluster.gpu.peak_tflops * 1e12 * share * self.tp

    @cached_property
    def kv_s_per_tok(self) -> float:
        """Time to read one context token in one decode step."""
        return kv_bytes_per_tok_per_gpu(self.model, self.tp) / self.bytes_s

    @property
    def num_kernels(self) -> int:
        """Kernels of one layer."""
        return KERNELS_PER_LAYER + (MOE_KERNELS if self.model.is_moe else 0)

    @cached_property
    def matmul_params(self) -> int:
        """Weights that one token is multiplied with: the input embedding is a look-up."""
        return self.model.num_active_params - (
            0 if self.model.tied_embeddings else self.model.vocab * self.model.hidden
        )

    @cached_property
    def experts_hit(self) -> Array:
        """Different experts that a step of 0, 1, 2 ... sequences needs, each chosen by its popularity."""
        popularity = np.arange(1, self.model.num_experts + 1) ** -self.rates.skew
        chosen = np.minimum(1.0, self.model.experts_per_tok * popularity / popularity.sum())
        return np.asarray((1 - (1 - chosen) ** np.arange(MAX_SEQUENCES + 1)[:, None]).sum(axis=1))

    def weight_read_bytes(self, batch: Any) -> Any:
        """Weight bytes that one step reads over the instance; the experts hit grow with the batch."""
        model = self.model
        if not model.is_moe:
            return self.matmul_params * BYTES_BF16 + 0.0 * batch
        hit = np.interp(batch, np.arange(len(self.experts_hit)), self.experts_hit)
        extra = model.num_layers * model.expert_params * (hit - model.experts_per_tok)
        return (self.matmul_params + np.maximum(0.0, extra)) * BYTES_BF16

    def step_s(self, batch: Any) -> Any:
        """A decode step of `batch` sequences less its KV reads: roofline, all-reduce, kernels, scheduler."""
        share = self.rates.moe_memory if self.model.is_moe else self.rates.memory
        read_s = self.weight_read_bytes(batch) / self.tp / (self.cluster.gpu.memory_gb_s * 1e9 * share)
        compute_s = 2 * self.matmul_params * batch / self.flop_s
        reduce_s = (
            2 * self.model.num_layers * all_reduce_s(batch * self.model.hidden * BYTES_BF16, self.tp, self.cluster)
        )
        kernels_s = self.model.num_layers * self.num_kernels * self.rates.kernel_s
        return np.maximum(read_s, compute_s) + reduce_s + kernels_s + self.rates.step_s + self.rates.sequence_s * batch

    def prefill_s(self, num_tok: Any, pairs: Any) -> Any:
        """Compute time of `num_tok` prefilled tokens with `pairs` query-key pairs, plus their all-reduces."""
        model = self.model
        attention = 4 * model.num_layers * model.num_heads * model.head_dim * pairs
        flops_s = (2 * self.matmul_params * num_tok + attention) / self.flop_s
        # Bandwidth only: chunks are long, so the latency floor of each all-reduce is paid by decode steps.
        one_tok_s = 2 * model.num_layers * _bandwidth_part_s(model.hidden * BYTES_BF16, self.tp, self.cluster)
        return flops_s + num_tok * one_tok_s


def _bandwidth_part_s(num_bytes: float, tp: int, cluster: Cluster) -> float:
    return float(all_reduce_s(num_bytes, tp, cluster) - all_reduce_s(0.0, tp, cluster))


@dataclass(frozen=True)
class Load:
    """Sums over a set of requests, and the request that ends last; arrays of one shape, or scalars."""

    num: Any
    generated_tok: Any
    traffic_tok: Any
    prefill_tok: Any
    prefill_pairs: Any
    context_tok: Any
    returned_tok: Any
    tool_s: Any
    longest: Any
    """Index of the point with the largest serial time."""
    upper_tok: Any
    """Longest total."""


SUMMED = ("generated_tok", "traffic_tok", "prefill_tok", "prefill_pairs", "context_tok", "returned_tok", "tool_s")


def serial_parts(engine: Engine, requests: Requests) -> tuple[Array, Array]:
    """Per point on an idle instance: its own KV and prefill time, and its step count (turns start with a prefill)."""
    own_s = engine.kv_s_per_tok * requests.traffic_tok + engine.prefill_s(requests.prefill_tok, requests.prefill_pairs)
    return own_s, requests.generated_tok + requests.num_turns


def serial_s(engine: Engine, requests: Requests) -> Array:
    """Serial bound of each point: every token waits for the one before, and every turn for its tool."""
    own_s, num_steps = serial_parts(engine, requests)
    return own_s + num_steps * engine.step_s(1.0) + requests.tool_s


def whole_load(engine: Engine, requests: Requests) -> Load:
    """All points together."""
    sums = {name: requests.sum(name) for name in SUMMED}
    longest = int(np.argmax(serial_s(engine, requests)))
    return Load(num=requests.batch, longest=longest, upper_tok=requests.upper_tok.max(), **sums)


def batch_loads(engine: Engine, batches: Batches, staleness: int = 0) -> Load:
    """Every batch by itself: arrays of shape [num]. With `staleness`, sums are the mean over a batch and as many mean
    ones, which are under way beside it; the longest request stays its own."""
    requests = batches.requests

    def beside(column: Array) -> Array:
        own = batches.sums(column)
        if not staleness:
            return own
        return np.asarray((own + staleness * own.mean()) / (staleness + 1))

    return Load(
        num=beside(np.ones(len(requests))),
        longest=batches.largest(serial_s(engine, requests)),
        upper_tok=requests.upper_tok[batches.largest(requests.upper_tok)],
        **{name: beside(getattr(requests, name)) for name in SUMMED},
    )


def interval_loads(engine: Engine, requests: Requests) -> Load:
    """Every interval at once by prefix sums: entry [j, i] holds points j to i - 1; entries with i <= j are void."""
    n = len(requests)

    def between(column: Array) -> Array:
        running = np.concatenate([[0.0], np.cumsum(requests.weight * column)])
        return running[None, :] - running[:, None]

    serial = serial_s(engine, requests)
    from_low = np.where(np.tri(n, k=-1, dtype=bool), -np.inf, serial)
    is_longest = from_low >= np.maximum.accumulate(from_low, axis=1)
    longest = np.zeros((n + 1, n + 1), dtype=int)
    longest[:n, 1:] = np.maximum.accumulate(np.where(is_longest, np.arange(n), 0), axis=1)
    sums = {name: between(getattr(requests, name)) for name in SUMMED}
    upper_tok = np.concatenate([[0.0], requests.upper_tok])[None, :]
    return Load(num=between(np.ones(n)), longest=longest, upper_tok=upper_tok, **sums)


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
        pace = _batch_pace(engine, work, own, live)
    else:
        pace = _stream_pace(engine, load, own, live, share, schedule.staleness)
    impossible, some = load.upper_tok > engine.capacity_tok, np.asarray(load.num) > TINY
    return Pace(*(np.where(some, np.where(impossible, np.inf, seconds), 0.0) for seconds in pace))


TINY = 1e-12


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


def _batch_pace(engine: Engine, work: _Work, own: _Own, live: Any) -> Pace:
    """All requests start together, and the step waits for the last."""
    num_steps = np.maximum(own.steps, work.generated_tok / np.minimum(work.fitting, live))
    step_s = engine.step_s(_clip(work.generated_tok / num_steps, work.fitting))
    last_s = _life_s(own, step_s, work.other_s)
    bound = np.maximum(num_steps * step_s + work.other_s, last_s)
    return Pace(bound, np.zeros_like(bound))


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
    """From a request's start to its end, slowed by the others' work while it does not wait for a tool."""
    decode_s = own.read_s + own.steps * step_s
    wait_free = decode_s / np.maximum(decode_s + own.tool_s, TINY)
    return decode_s + own.tool_s + np.maximum(0.0, other_s - own.read_s) * wait_free


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
