"""Random configurations to judge the planner's estimate on: what is drawn, from which distribution, by which seed.

A case is a job (model, cluster, lengths, tools, pipeline) with a plan for it. Cases that nobody could run are drawn
again: plans that do not fit by the estimate's own memory rule, which is the stricter one.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec
from libra.core.hardware import Cluster, Model
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.rng import stream
from libra.cost.memory import engine_fits, train_fits
from libra.models import load_model
from libra.planning.layout import ascending
from libra.planning.topology import layouts, packs_into_nodes, tensor_sizes

MODELS = ("qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b")
NETWORKS = ("nic15", "nic22", "nic176")
CONTEXTS_TOK = (16384, 32768, 40960)
MEAN_TOK = (1500.0, 12000.0)
"""Mean total length, log-uniform: the paper's workloads run from 2,000 to 11,500."""
SIGMA = (0.4, 1.2)
"""Log standard deviation of the lengths, up to R2E-Gym's."""
TOOL_S = (0.2, 8.0)
TURN_TOK = (100.0, 800.0)
PAYLOAD_TOK = (50.0, 1000.0)
PROMPT_TOK = (100.0, 1000.0)
GROUPS = (2, 32)
"""Prompts a step, log-uniform; 16 samples each (half of the cases: 8)."""

Tail = Literal["lognormal", "pareto", "weibull"]


class Job(msgspec.Struct, frozen=True):
    """What is to be trained on what. `tool_s` 0: one generation a trajectory, no tool."""

    model: str
    num_nodes: int
    network: str
    pipeline: PipelineSpec
    context_tok: int
    prompts: int
    group_size: int
    mean_tok: float
    sigma: float
    prompt_tok: int
    turn_tok: int = 0
    payload_tok: int = 0
    tool_s: float = 0.0

    @property
    def batch(self) -> int:
        return self.prompts * self.group_size

    def cluster(self) -> Cluster:
        return msgspec.structs.replace(load_cluster("a800x48", network=self.network), num_nodes=self.num_nodes)


class Case(msgspec.Struct, frozen=True):
    """A job with a plan. `seed` draws its trajectories."""

    job: Job
    plan: Plan
    seed: int


def draw_case(seed: int, index: int) -> Case:
    """Case `index` of a series."""
    rng = stream("planner-accuracy", seed, index)
    while True:
        job = draw_job(rng)
        plan = draw_plan(rng, job)
        if plan is not None:
            return Case(job, plan, int(rng.integers(2**31)))


def draw_job(rng: np.random.Generator) -> Job:
    def log_uniform(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    context_tok = int(rng.choice(CONTEXTS_TOK))
    prompts, group_size = round(log_uniform(*GROUPS)), int(rng.choice([8, 16]))
    has_tools = rng.random() < 0.7
    mean_tok = min(log_uniform(*MEAN_TOK), context_tok / 3)
    prompt_tok = min(log_uniform(*PROMPT_TOK), context_tok / 16, mean_tok / 3)
    return Job(
        model=str(rng.choice(MODELS)),
        num_nodes=int(rng.choice([2, 4, 6])),
        network=str(rng.choice(NETWORKS)),
        pipeline=draw_pipeline(rng, prompts * group_size),
        context_tok=context_tok,
        prompts=prompts,
        group_size=group_size,
        mean_tok=round(mean_tok, 1),
        sigma=round(rng.uniform(*SIGMA), 3),
        prompt_tok=round(prompt_tok),
        turn_tok=round(log_uniform(*TURN_TOK)) if has_tools else 0,
        payload_tok=round(log_uniform(*PAYLOAD_TOK)) if has_tools else 0,
        tool_s=round(log_uniform(*TOOL_S), 3) if has_tools else 0.0,
    )


def draw_pipeline(rng: np.random.Generator, batch: int) -> PipelineSpec:
    """Barrier and asynchronous in two of five each, colocated in one. Half of the asynchronous ones have a cap."""
    kind = str(rng.choice(["barrier", "barrier", "async", "async", "colocated"]))
    if kind != "async":
        return PipelineSpec("barrier" if kind == "barrier" else "colocated", 1 if kind == "barrier" else 0)
    staleness = int(rng.integers(0, 5))
    cap = int(batch * rng.uniform(0.5, 1.5)) if rng.random() < 0.5 else 0
    return PipelineSpec("async", staleness, cap)


def draw_plan(rng: np.random.Generator, job: Job) -> Plan | None:
    """A split, a training layout and instances, all at random among those that fit; None where the draw has none."""
    cluster, model, total = job.cluster(), load_model(job.model), job.num_nodes * 8
    colocated = job.pipeline.kind == "colocated"
    num_train = total if colocated else 4 * int(rng.integers(1, total // 4))
    train = draw_training(rng, cluster, model, num_train, job)
    instances, bounds = draw_rollout(rng, cluster, model, total if colocated else total - num_train, job)
    if train is None or not instances:
        return None
    sizes = [i.tp for i in instances]
    groups = [] if colocated else [train.tp] * (num_train // train.tp)
    if not packs_into_nodes(cluster, groups + sizes):
        return None
    return Plan(train, instances, bounds, colocated=colocated)


def draw_training(
    rng: np.random.Generator, cluster: Cluster, model: Model, num_gpus: int, job: Job
) -> TrainLayout | None:
    """Any layout that fits and has a sequence for each replica."""
    fitting = [
        layout
        for layout in layouts(cluster, model, num_gpus, job.context_tok)
        if train_fits(cluster.gpu, model, layout) and layout.dp <= job.batch
    ]
    return fitting[int(rng.integers(len(fitting)))] if fitting else None


def draw_rollout(
    rng: np.random.Generator, cluster: Cluster, model: Model, num_gpus: int, job: Job
) -> tuple[tuple[InstanceSpec, ...], tuple[int, ...]]:
    """Equal instances (half of the draws), or two or three sizes with a length bucket each, larger ones for longer."""
    fitting = [tp for tp in tensor_sizes(cluster) if engine_fits(cluster.gpu, model, tp, job.context_tok)]
    num_sizes = min(int(rng.choice([1, 1, 2, 3])), len(fitting))
    sizes = sorted(rng.choice(fitting, num_sizes, replace=False).tolist())
    if num_sizes == 1:
        count = num_gpus // sizes[0]
        return tuple(InstanceSpec(i, sizes[0]) for i in range(count)), (job.context_tok,)
    shares = rng.dirichlet([2.0] * num_sizes)
    counts = [int(num_gpus * share // tp) for share, tp in zip(shares, sizes, strict=True)]
    if not all(counts):
        return (), ()
    all_sizes = [tp for tp, count in zip(sizes, counts, strict=True) for _ in range(count)]
    instances = tuple(InstanceSpec(i, tp, sizes.index(tp)) for i, tp in enumerate(all_sizes))
    # Half-normal steps up from the mean length: every bucket has something to do, none is balanced on purpose.
    cuts = [
        job.mean_tok * math.exp(job.sigma * (z - job.sigma / 2)) for z in sorted(rng.normal(0.5, 0.7, num_sizes - 1))
    ]
    return instances, ascending([int(cut) for cut in cuts], job.context_tok)
