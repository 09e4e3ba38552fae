"""What the simulator says of a case: mean stage and step times after the warm-up, and the telemetry behind them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from baselines.routers.oracle import Oracle
from experiments.accuracy.cases import Case, Job, Tail
from libra.backends.sim.engine import make_simulator
from libra.backends.sim.options import SimOptions
from libra.core.commands import Command
from libra.core.events import Event, RunStart, StepEnd
from libra.core.plan import Allocation, Plan
from libra.core.policy import ComposedPolicy, Finished, Router, Statistics
from libra.models import load_model
from libra.routing.least_loaded import LeastLoaded
from libra.runtime.controller import Controller
from libra.workloads import dapo_math, r2e_gym
from libra.workloads.synthetic import NORMAL, SyntheticWorkload

PARETO_INDEX = 1.8
"""Tail index of the Pareto law: finite mean, no variance before the context's limit (assumed)."""
WEIBULL_SHAPE = 0.7
"""Shape of the Weibull law: a stretched exponential, lighter than a lognormal of sigma 1 (assumed)."""


class Measured(msgspec.Struct, frozen=True):
    """Telemetry of the steps between warm-up and run-out, the lengths that they trained and those of a profile.

    `lengths` and `profile` hold (prompt, generated, observed, turns, tool seconds, censored) a trajectory.
    """

    run: RunStart
    steps: tuple[StepEnd, ...]
    lengths: tuple[Finished, ...]
    profile: tuple[Finished, ...]
    num_preemptions: int
    wall_s: float

    def mean(self, name: str) -> float:
        return float(np.mean([getattr(step, name) for step in self.steps]))

    @property
    def error_of_mean(self) -> float:
        """Standard error of the mean step time over the mean: the noise floor of a comparison."""
        times = np.array([step.step_s for step in self.steps])
        return float(times.std(ddof=1) / np.sqrt(len(times)) / times.mean())


class TailedWorkload(SyntheticWorkload):
    """The generator with another law of lengths, of the same median and mean-free spread where it has one."""

    tail: Tail = "lognormal"

    def _split(self, wanted_tok: NDArray[np.float64], limit_tok: int, rng: np.random.Generator) -> Any:
        if self.tail != "lognormal":
            mu, sigma = self.mu(0.0), self.options.sigma
            z = (np.log(wanted_tok) - mu) / sigma
            wanted_tok = np.exp(mu) * _quantile(z, self.tail)
        return super()._split(wanted_tok, limit_tok, rng)


def _quantile(z: NDArray[np.float64], tail: Tail) -> NDArray[np.float64]:
    """Of a law with median 1, at the standard normal's quantile `z`."""
    survival = np.array([max(1e-12, 1 - NORMAL.cdf(value)) for value in z.tolist()])
    if tail == "pareto":
        return (2 * survival) ** (-1 / PARETO_INDEX)
    return (-np.log(survival) / np.log(2)) ** (1 / WEIBULL_SHAPE)


def workload_of(job: Job, seed: int, num_steps: int, tail: Tail = "lognormal") -> TailedWorkload:
    """No drift: the law stays what it is."""
    values: dict[str, Any] = {
        "prompts": job.prompts, "group_size": job.group_size, "num_steps": num_steps, "prompt_tok": job.prompt_tok,
        "initial_tok": job.mean_tok, "final_tok": job.mean_tok, "mean_tok": job.mean_tok, "sigma": job.sigma,
    }  # fmt: skip
    if not job.tool_s:
        options: Any = dapo_math.DapoMathOptions(**values)
        sources = dapo_math.SOURCES
    else:
        tools: dict[str, Any] = {"turn_tok": job.turn_tok, "payload_tok": job.payload_tok, "tool_s": job.tool_s}
        options, sources = r2e_gym.R2EGymOptions(**values, **tools), r2e_gym.SOURCES
    workload = TailedWorkload("accuracy", options, sources, seed, job.context_tok)
    workload.tail = tail
    return workload


class Given:
    """A planner that has its plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        return self._plan


class Steps:
    """A recorder that keeps step ends and counts preemptions."""

    def __init__(self) -> None:
        self.run: RunStart | None = None
        self.ends: list[StepEnd] = []
        self.num_preemptions = 0

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None:
        if isinstance(event, StepEnd):
            self.ends.append(event)
        elif isinstance(event, RunStart):
            self.run = event

    def trajectory(self, row: Any, versions: Sequence[Any] = ()) -> None:
        self.num_preemptions += row.num_preemptions

    def step(self, row: Any) -> None:
        pass


def margins(case: Case) -> tuple[int, int]:
    """Steps dropped at the start, until the pipeline is full and its initial burst is over, and at the end, where
    nothing more is launched."""
    pipeline = case.job.pipeline
    if pipeline.kind == "colocated":
        return 0, 0
    ahead = pipeline.staleness if pipeline.kind == "async" else 1
    return 2 * ahead + 1, ahead + 1


def router_of(plan: Plan) -> tuple[Router, bool]:
    """Buckets by true length, or the least loaded engine where there is one bucket; and whether it sees lengths."""
    return (Oracle(), True) if len(plan.bounds_tok) > 1 else (LeastLoaded(), False)


def measure(
    case: Case, num_steps: int, options: SimOptions, tail: Tail = "lognormal", router: Router | None = None
) -> Measured:
    """`num_steps` steps of the case's own draws. Raises `CapacityError` where the truth has no room for its plan."""
    started = time.perf_counter()
    first, last = margins(case)
    workload = workload_of(case.job, case.seed, first + num_steps + last, tail)
    chosen, uses_oracle = (router, False) if router is not None else router_of(case.plan)
    policy, recorder = ComposedPolicy("given", Given(case.plan), chosen), Steps()
    simulator = make_simulator(
        case.job.cluster(), load_model(case.job.model), workload, case.job.pipeline,
        uses_oracle=uses_oracle, options=options,
    )  # fmt: skip
    simulator.run(Controller(policy, recorder, clock=lambda: 0.0))
    simulator.close()
    assert recorder.run is not None
    groups = range(first * case.job.prompts, (first + num_steps) * case.job.prompts)
    lengths = [Finished.of(row) for index in groups for row in workload.group(index)]
    profile = [Finished.of(row) for row in workload.profile(num_steps * case.job.prompts)]
    return Measured(
        run=msgspec.structs.replace(recorder.run, profile=()),
        steps=tuple(recorder.ends[first : first + num_steps]),
        lengths=tuple(lengths),
        profile=tuple(profile),
        num_preemptions=recorder.num_preemptions,
        wall_s=time.perf_counter() - started,
    )
