"""Metrics of a run from its three tables, as the glossary defines them. What is undefined is absent, with a reason.

Everything here may be recomputed from a stored cell, so a mended definition needs no new run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from libra.results.glossary import METRICS, MIN_STEPS_TO_TRIM, WARMUP_SHARE, WARMUP_STEPS
from libra.results.schemas import Bounds, Facts

Array = np.ndarray
Columns = dict[str, Array]

TAIL_SHARE = 0.1
"""The paper speaks of the longest 10 % of trajectories."""


@dataclass
class Summary:
    """`metrics` by name in the glossary's order; `absent` says why the others are not there."""

    metrics: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, numerator: float, denominator: float = 1.0, why: str = "its denominator is 0") -> None:
        """One metric; absent where the quotient is undefined."""
        assert name in METRICS, name
        value = numerator / denominator if denominator else math.nan
        if math.isfinite(value):
            self.metrics[name] = float(value)
        else:
            self.absent[name] = why

    def skip(self, why: str, *names: str) -> None:
        """These metrics are undefined, for one reason."""
        self.absent.update(dict.fromkeys(names, why))


def summarise(steps: pa.Table, trajectories: pa.Table, decisions: pa.Table, facts: Facts) -> Summary:
    """All metrics of a run. Tables as `tables.table_of` makes them."""
    found = Summary()
    step, rows = _columns(steps), _columns(trajectories, without=("reward", "prompt_id"))
    if len(step["step"]) == 0:
        found.skip("no training step ended", *METRICS)
        return found
    rows["total_tok"] = rows["prompt_tok"] + rows["generated_tok"] + rows["observed_tok"]
    window = steady_window(len(step["step"]))
    _throughput(found, step, rows, facts.num_gpus, window)
    _rollout_rate(found, step, facts, window)
    _times(found, step, facts.num_gpus, window)
    _bubbles(found, step, facts, window)
    _lengths(found, step, rows)
    _cache(found, rows)
    _staleness(found, step, rows)
    _routing(found, rows, decisions, facts.bounds)
    missing = [name for name in METRICS if name not in found.metrics and name not in found.absent]
    assert not missing, f"metrics in the glossary that nothing computes: {missing}"
    return Summary({name: found.metrics[name] for name in METRICS if name in found.metrics}, found.absent)


def steady_window(num_steps: int) -> tuple[int, int]:
    """First and past-the-end step of the steady state (see `glossary.STEADY_STATE`)."""
    if num_steps < MIN_STEPS_TO_TRIM:
        return 0, num_steps
    return min(WARMUP_STEPS, int(num_steps * WARMUP_SHARE)), num_steps - 1


def _columns(table: pa.Table, without: tuple[str, ...] = ()) -> Columns:
    return {name: table[name].to_numpy() for name in table.column_names if name not in without}


def _throughput(found: Summary, step: Columns, rows: Columns, num_gpus: int, window: tuple[int, int]) -> None:
    first, past = window
    start_s, end_s = float(step["start_s"][first]), float(step["end_s"][past - 1])
    numbers = step["step"][first:past]
    trained = np.isin(rows["trained_step"], numbers)
    lost = (rows["trained_step"] < 0) & (rows["end_s"] > start_s) & (rows["end_s"] <= end_s)
    makespan_s = float(step["end_s"][-1] - step["start_s"][0])
    ever = rows["trained_step"] >= 0
    everyone = np.ones_like(ever)
    for name, column, inside, whole in (
        ("generated", "generated_tok", trained | lost, everyone),
        ("trajectory", "total_tok", trained | lost, everyone),
        ("trained", "total_tok", trained, ever),
    ):
        tok = float(rows[column][inside].sum())
        found.put(f"{name}_tok_per_s", tok, end_s - start_s)
        found.put(f"{name}_tok_per_s_per_gpu", tok, (end_s - start_s) * num_gpus)
        found.put(f"{name}_tok_per_s_whole_run", float(rows[column][whole].sum()), makespan_s)


def _rollout_rate(found: Summary, step: Columns, facts: Facts, window: tuple[int, int]) -> None:
    name, steady = "rollout_generated_tok_per_s", slice(*window)
    if facts.pipeline.kind == "async":
        return found.skip("rollouts of several steps overlap", name, f"{name}_per_gpu")
    generated_tok = float(step["generated_tok"][steady].sum())
    makespan_s = step["rollout_s"][steady]
    found.put(name, generated_tok, float(makespan_s.sum()), "no rollout took time")
    gpu_s = float((makespan_s * step["rollout_gpus"][steady]).sum())
    found.put(f"{name}_per_gpu", generated_tok, gpu_s, "no rollout took time")


def _times(found: Summary, step: Columns, num_gpus: int, window: tuple[int, int]) -> None:
    steady = slice(*window)
    makespan_s = float(step["end_s"][-1] - step["start_s"][0])
    found.put("makespan_s", makespan_s)
    found.put("steps", len(step["step"]))
    found.put("step_s", float((step["end_s"] - step["start_s"])[steady].mean()))
    for name in ("rollout_s", "train_s", "sync_s"):
        found.put(name, float(step[name][steady].mean()))
    found.put("gpu_hours", makespan_s * num_gpus / 3600.0)


def _bubbles(found: Summary, step: Columns, facts: Facts, window: tuple[int, int]) -> None:
    steady = slice(*window)
    time_s = (step["end_s"] - step["start_s"])[steady]
    rollout = float(step["rollout_busy_gpu_s"][steady].sum())
    train = float(step["train_busy_gpu_s"][steady].sum())
    everything = float(time_s.sum()) * facts.num_gpus
    found.put("bubble_share", everything - rollout - train, everything)
    found.put("transition_share", float(step["moving_gpu_s"][steady].sum()), everything)
    if facts.pipeline.kind == "colocated":
        why = "rollout and training share the GPUs; see bubble_share"
        found.skip(why, "bubble_share_rollout", "bubble_share_train")
        return
    for name, busy in (("rollout", rollout), ("train", train)):
        pool = float(step[f"{name}_pool_gpu_s"][steady].sum())
        found.put(f"bubble_share_{name}", pool - busy, pool, f"no GPU in the {name} pool")


def _lengths(found: Summary, step: Columns, rows: Columns) -> None:
    makespan = step["rollout_s"] > 0
    tail = ((step["rollout_s"] - step["rollout_90_s"])[makespan] / step["rollout_s"][makespan]).mean()
    found.put("tail_share_makespan", float(tail) if makespan.any() else math.nan, why="no rollout took time")
    num = len(rows["trajectory"])
    if num == 0:
        names = ("tail_share_top10", "mean_length_tok", "mean_length_first_decile_tok", "mean_length_last_decile_tok")
        return found.skip("no trajectory ended", *names)
    duration_s = np.sort(rows["end_s"] - rows["start_s"])[::-1]
    longest_s = float(duration_s[: math.ceil(TAIL_SHARE * num)].sum())
    found.put("tail_share_top10", longest_s, float(duration_s.sum()), "no rollout took time")
    found.put("mean_length_tok", float(rows["total_tok"].mean()))
    decile = max(1, len(step["step"]) // 10)
    for name, numbers in (("first", step["step"][:decile]), ("last", step["step"][-decile:])):
        inside = np.isin(rows["trained_step"], numbers)
        total_tok = float(rows["total_tok"][inside].sum())
        found.put(f"mean_length_{name}_decile_tok", total_tok, float(inside.sum()), "no trajectory trained in it")


def _cache(found: Summary, rows: Columns) -> None:
    cached, num = float(rows["cached_tok"].sum()), len(rows["trajectory"])
    found.put("prefix_hit_share", cached, cached + float(rows["prefilled_tok"].sum()), "nothing was prefilled")
    found.put("migrated_token_ratio", float(rows["moved_tok"].sum()), float(rows["total_tok"].sum()))
    found.put("moves_per_trajectory", float(rows["num_moves"].sum()), num, "no trajectory ended")
    found.put("preemptions_per_trajectory", float(rows["num_preemptions"].sum()), num, "no trajectory ended")


def _staleness(found: Summary, step: Columns, rows: Columns) -> None:
    weights = step["num_trajectories"]
    mean = float((step["mean_staleness"] * weights).sum())
    found.put("staleness_mean", mean, float(weights.sum()), "no trajectory was trained")
    found.put("staleness_max", float(step["max_staleness"].max()))
    num = len(rows["trajectory"])
    found.put("censored_share", float((rows["status"] != "completed").sum()), num, "no trajectory ended")
    found.put("untrained_share", float((rows["trained_step"] < 0).sum()), num, "no trajectory ended")


def _routing(found: Summary, rows: Columns, decisions: pa.Table, bounds: tuple[Bounds, ...]) -> None:
    levels = decisions["level"].to_numpy()
    found.put("prediction_coverage", float((levels != "none").sum()), len(levels), "nothing was placed")
    if (levels == "none").all():
        found.skip("the router estimates no lengths", "prefix_coverage")
    else:
        found.put("prefix_coverage", float((levels == "prefix").sum()), len(levels))
    chosen = {"routing_accuracy": _one_shot, "routing_accuracy_first": _first, "routing_accuracy_final": _last}
    judged = _judged_decisions(rows, decisions, bounds)
    if judged is None:
        return found.skip("the layout never had two buckets", *chosen)
    trajectory, bucket, realised = judged
    starts = np.flatnonzero(np.r_[True, trajectory[1:] != trajectory[:-1]]) if len(trajectory) else np.array([], int)
    for name, pick in chosen.items():
        at = pick(starts, bucket)
        at = at[realised[at] >= 0]
        found.put(name, float((bucket[at] == realised[at]).sum()), len(at), "no decision can be judged")


def _judged_decisions(
    rows: Columns, decisions: pa.Table, bounds: tuple[Bounds, ...]
) -> tuple[Array, Array, Array] | None:
    """(trajectory, chosen bucket, realised bucket) of decisions under two or more buckets, by trajectory and in order.

    The realised bucket is -1 where nobody knows it: the trajectory never ended, or is censored below the last bucket.
    None when no layout had two buckets.
    """
    if not any(len(each.bounds_tok) > 1 for each in bounds):
        return None
    trajectory = decisions["trajectory"].to_numpy()
    bucket = decisions["bucket"].to_numpy()
    in_force = np.searchsorted([each.t_s for each in bounds], decisions["t_s"].to_numpy(), side="right") - 1
    total_tok, censored = _by_trajectory(rows, trajectory)
    realised = np.full(len(trajectory), -1)
    usable = np.zeros(len(trajectory), bool)
    for number, each in enumerate(bounds):
        here, last = in_force == number, len(each.bounds_tok) - 1
        true = np.minimum(np.searchsorted(each.bounds_tok, total_tok[here], side="left"), last)
        realised[here] = np.where((total_tok[here] < 0) | (censored[here] & (true < last)), -1, true)
        usable |= here & (last >= 1)
    order = np.argsort(trajectory[usable], kind="stable")
    return trajectory[usable][order], bucket[usable][order], realised[usable][order]


def _by_trajectory(rows: Columns, wanted: Array) -> tuple[Array, Array]:
    """Total length (-1 where the trajectory never ended) and censoring of each wanted trajectory."""
    order = np.argsort(rows["trajectory"])
    known = rows["trajectory"][order]
    if len(known) == 0:
        return np.full(len(wanted), -1), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    total_tok = np.where(known[at] == wanted, rows["total_tok"][order][at], -1)
    return total_tok, (rows["status"] != "completed")[order][at]


def _first(starts: Array, bucket: Array) -> Array:
    return starts


def _last(starts: Array, bucket: Array) -> Array:
    return np.r_[starts[1:], len(bucket)] - 1 if len(starts) else starts


def _one_shot(starts: Array, bucket: Array) -> Array:
    """Of each trajectory the decision that first changed its bucket, else its first one."""
    changed = np.r_[False, bucket[1:] != bucket[:-1]] if len(bucket) else np.array([], bool)
    changed[starts] = False
    changes = np.flatnonzero(changed)
    if len(changes) == 0:
        return starts
    at = np.searchsorted(changes, starts)
    found = changes[np.minimum(at, len(changes) - 1)]
    ends = np.r_[starts[1:], len(bucket)]
    return np.where((at < len(changes)) & (found < ends), found, starts)
