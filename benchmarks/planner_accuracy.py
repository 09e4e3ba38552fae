"""How far the planner's estimate is from the simulator's truth, and what that costs. Run by hand, hours for all of it:

    OMP_NUM_THREADS=1 python benchmarks/planner_accuracy.py errors >benchmarks/results/planner_accuracy_DATE.txt
    OMP_NUM_THREADS=1 python benchmarks/planner_accuracy.py regret >>benchmarks/results/planner_accuracy_DATE.txt

`errors`: random jobs under random plans (`experiments/accuracy/cases.py` says from what distribution), the estimate's
rates fitted to the first few runs, the others judged. `regret`: for each of some jobs, the step of the planner's choice
against the best of many random plans of that job, all on the same trajectories, which the planner never saw. Finished
simulations are kept in `--cache` and are not run again while the sources stay the same.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import spearmanr

from experiments.accuracy.cases import Case, draw_case, draw_plan
from experiments.accuracy.judge import Errors, Judged, errors, learn
from experiments.accuracy.measure import Measured, measure
from experiments.accuracy.store import fingerprint, kept
from experiments.accuracy.worlds import WORLDS, World
from libra.core.errors import CapacityError
from libra.core.policy import Finished, Statistics
from libra.core.rng import stream
from libra.cost.rates import Rates
from libra.models import load_model
from libra.planning.search import JointPlanner

HEAD = "                                       mean  median   p90    max  <=5%  <=10%   bias  Spearman  Kendall"


class Lab:
    """Simulates cases of a world, or finds them in the cache."""

    def __init__(self, cache: Path, num_steps: int) -> None:
        self._cache, self._num_steps = cache, num_steps
        self._code = fingerprint()
        cache.mkdir(parents=True, exist_ok=True)

    def measure(self, case: Case, world: World) -> Measured | None:
        def run() -> Measured:
            return measure(case, self._num_steps, world.sim_options(), world.tail)

        return kept(self._cache, self._code, case, world, self._num_steps, run)

    def cases(self, seed: int, world: World, num: int) -> Iterator[Judged]:
        """The first `num` cases of a series that the truth has room for."""
        index = found = 0
        while found < num:
            case = draw_case(seed, index)
            measured = self.measure(case, world)
            index += 1
            if measured is not None:
                found += 1
                say(f"{world.name}: {found} of {num}")
                yield Judged(case, measured)


def say(text: str) -> None:
    """Progress, apart from the results; only where somebody can see it."""
    if not sys.stderr.isatty():
        return
    print(f"\r{text}   ", end="", file=sys.stderr, flush=True)


def line(name: str, found: Errors) -> str:
    shares = "".join(f"{value:7.1%}" for value in (found.mean, found.median, found.p90, found.largest))
    return (
        f"{name:36}{shares}{found.within_5:6.0%}{found.within_10:7.0%}{found.bias:+7.1%}"
        f"{found.spearman:10.3f}{found.kendall:9.3f}"
    )


def judge_world(lab: Lab, args: argparse.Namespace, world: World, base: Rates | None) -> Rates:
    """Print a world's errors; returns the rates learned in it."""
    judged = list(lab.cases(args.seed, world, args.calibrate + args.cases))
    known, others = judged[: args.calibrate], judged[args.calibrate :]
    rates = learn(known)
    measured_s = [each.measured.mean("step_s") for each in others]
    floor = float(np.mean([each.measured.error_of_mean for each in others]))
    print(f"\n{world.name}: {world.what}")
    print(f"{len(others)} configurations, {args.steps} steps each, {len(known)} others to calibrate on; standard error "
          f"of a measured mean step {floor:.1%}")  # fmt: skip
    print(HEAD)
    for name, which, is_blind in (
        ("lengths that were trained", rates, False), ("lengths of other draws", rates, True),
        ("not calibrated, trained lengths", Rates(), False),
        *((("calibrated in base, trained lengths", base, False),) if base else ()),
    ):  # fmt: skip
        print(line(name, errors([each.step_s(which, is_blind=is_blind) for each in others], measured_s)))
    for kind in ("barrier", "colocated", "async"):
        some = [each for each in others if each.case.job.pipeline.kind == kind]
        if len(some) > 1:
            print(line(f"  of these, {kind} ({len(some)})", _errors(some, rates)))
    print("rates: " + ", ".join(f"{name} {value:.3g}" for name, value in msgspec.structs.asdict(rates).items()))
    if args.worst:
        print_worst(others, rates, args.worst)
    return rates


def _errors(some: list[Judged], rates: Rates) -> Errors:
    expected = [each.step_s(rates, is_blind=False) for each in some]
    return errors(expected, [each.measured.mean("step_s") for each in some])


def print_worst(judged: list[Judged], rates: Rates, num: int) -> None:
    """The cases with the largest errors."""
    found = [(each.step_s(rates, is_blind=False) / each.measured.mean("step_s") - 1, each) for each in judged]
    for error, each in sorted(found, key=lambda pair: -abs(pair[0]))[:num]:
        job, pipeline, plan = each.case.job, each.case.job.pipeline, each.case.plan
        sizes = [i.tp for i in plan.instances]
        rollout = " + ".join(f"{sizes.count(tp)} x TP{tp}" for tp in sorted(set(sizes)))
        print(f"  {error:+.1%} (noise {each.measured.error_of_mean:.1%}): {job.model}, {pipeline.kind} eta "
              f"{pipeline.staleness} cap {pipeline.in_flight_cap}, {job.batch} x {job.mean_tok:.0f} tokens, sigma "
              f"{job.sigma:.2f}, tools {job.tool_s:.1f} s, rollout {rollout}, training TP{plan.train.tp} "
              f"PP{plan.train.pp} EP{plan.train.ep} DP{plan.train.dp}, "
              f"{each.measured.num_preemptions} preemptions")  # fmt: skip


def print_regret(lab: Lab, args: argparse.Namespace) -> None:
    """The planner's choice among random plans of the same job."""
    world = WORLDS["base"]
    rates = learn(list(lab.cases(args.seed, world, args.calibrate)))
    found = []
    print(f"\nregret: random plans a job, {args.steps} steps each, true lengths for buckets; planner calibrated on "
          f"{args.calibrate} other runs, profile on other draws")  # fmt: skip
    print("job                                                    plans   best s  chosen s  regret  assumed  Spearman")
    index = args.calibrate + args.cases
    while len(found) < args.jobs:
        case = draw_case(args.seed, index)
        index += 1
        row = regret_of(lab, case, world, rates, args)
        if row is not None:
            found.append(row)
    calibrated, assumed = (np.array([row[i] for row in found]) for i in (0, 1))
    for name, regret in (("calibrated", calibrated), ("as assumed", assumed)):
        print(f"{name}: mean {regret.mean():.1%}, median {np.median(regret):.1%}, max {regret.max():.1%}")


def regret_of(lab: Lab, case: Case, world: World, rates: Rates, args: argparse.Namespace) -> tuple[float, float] | None:
    """Calibrated and uncalibrated regret; None where the truth has no room for what the planner chose."""
    rng, plans = stream("planner-regret", args.seed, case.seed), {case.plan: None}
    for _ in range(20 * args.plans):
        if len(plans) >= args.plans:
            break
        plan = draw_plan(rng, case.job)
        if plan is not None:
            plans[plan] = None
    measured, judged = [], []
    for number, plan in enumerate(plans):
        each = msgspec.structs.replace(case, plan=plan)
        result = lab.measure(each, world)
        if result is not None:
            measured.append(result.mean("step_s"))
            judged.append(Judged(each, result))
        say(f"{case.job.model} {case.job.batch}: {number + 1} of {len(plans)} plans")
    chosen = [chosen_s(lab, case, world, judged[0], each) for each in (rates, Rates())]
    if None in chosen:
        return None
    best_s = min(*measured, *chosen)
    expected = [each.step_s(rates, is_blind=True) for each in judged]
    rank = float(spearmanr(expected, measured).statistic)
    job = case.job
    name = (f"{job.model} {job.pipeline.kind} eta {job.pipeline.staleness} cap {job.pipeline.in_flight_cap}, "
            f"{job.batch} x {job.mean_tok:.0f}, {job.num_nodes * 8} GPUs")  # fmt: skip
    regret, assumed = (each / best_s - 1 for each in chosen)
    print(f"{name:55}{len(measured):5} {best_s:8.1f} {chosen[0]:9.1f} {regret:7.1%} {assumed:8.1%} {rank:9.3f}",
          flush=True)  # fmt: skip
    return regret, assumed


def chosen_s(lab: Lab, case: Case, world: World, judged: Judged, rates: Rates) -> float | None:
    """Measured step of what the planner chooses from the profile."""
    profile: tuple[Finished, ...] = judged.measured.profile
    planner = JointPlanner(case.job.cluster(), load_model(case.job.model), rates=rates)
    try:
        plan = planner.plan(Statistics(judged.measured.run, profile), None)
    except CapacityError:
        return None
    plain = msgspec.structs.replace(plan, expected=type(plan.expected)(), note="")
    measured = lab.measure(msgspec.structs.replace(case, plan=plain), world)
    return None if measured is None else measured.mean("step_s")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("errors", "regret"))
    parser.add_argument("--cases", type=int, default=100, help="configurations to judge")
    parser.add_argument("--calibrate", type=int, default=10, help="others to calibrate on")
    parser.add_argument("--steps", type=int, default=64, help="measured steps of a simulation")
    parser.add_argument("--seed", type=int, default=0, help="of the series of configurations")
    parser.add_argument("--world", choices=(*WORLDS, "all"), default="all", help="truths to judge in")
    parser.add_argument("--worst", type=int, default=5, help="cases to print, largest errors first")
    parser.add_argument("--jobs", type=int, default=10, help="jobs whose plans are compared (regret)")
    parser.add_argument("--plans", type=int, default=1000, help="random plans a job (regret)")
    parser.add_argument("--cache", type=Path, default=Path("runs/planner_accuracy"), help="finished simulations")
    return parser.parse_args()


def main() -> None:
    args = parse()
    started = time.perf_counter()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    print(f"# python benchmarks/{Path(__file__).name} {' '.join(sys.argv[1:])}")
    print(f"# commit {commit.stdout.strip()}, Python {platform.python_version()}, {platform.machine()}, "
          f"{os.cpu_count()} cores, one used; seed {args.seed}")  # fmt: skip
    lab = Lab(args.cache, args.steps)
    if args.part == "regret":
        print_regret(lab, args)
    else:
        base = None
        for world in WORLDS.values() if args.world == "all" else (WORLDS[args.world],):
            rates = judge_world(lab, args, world, base)
            base = base or (rates if world.name == "base" else None)
    say(f"{time.perf_counter() - started:.0f} s\n")


if __name__ == "__main__":
    main()
