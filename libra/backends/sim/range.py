"""Where a run leaves the calibrated range: one warning each, with the nearest measured point and the extrapolation.

All limits are read off the tables that calibrate, so a new row there moves them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from libra.backends.sim.blind import BLIND
from libra.backends.sim.gpus import fit_of, table_of
from libra.backends.sim.gpus.check import whole_runs
from libra.backends.sim.measured import Stage, measured_model, rows, sources
from libra.backends.sim.validation import A100, A800
from libra.core.hardware import Cluster, Gpu, Model
from libra.core.plan import Plan, TrainLayout

DATA_SHEETS = (A100.gpu, A800.gpu)
"""GPUs whose tables calibrate the truth."""
CALIBRATED_GPUS = tuple(gpu.name for gpu in DATA_SHEETS)

DEGREES = {"tp": "tensor", "pp": "pipeline", "vpp": "interleaved pipeline", "cp": "context", "ep": "expert"}
"""Columns of the training tables, as `TrainLayout` names them; a table without one ran without that parallelism."""


@dataclass(frozen=True)
class Run:
    """What one measured end-to-end row spans."""

    table: str
    stage: Stage
    model: str
    context_tok: int
    gpus: int
    degrees: dict[str, int]

    @property
    def num_params(self) -> int:
        return measured_model(self.model).num_params


def outside(cluster: Cluster, model: Model, plans: Iterable[Plan], max_context_tok: int) -> tuple[str, ...]:
    """Warnings about a run, each once; empty for one inside the calibrated range."""
    found = [*_gpu(cluster.gpu), *_size(model), *_experts(model), *_context(max_context_tok)]
    for plan in plans:
        found += [*_rollout(plan), *_training(plan)]
    return tuple(dict.fromkeys(found))


@functools.cache
def runs() -> Sequence[Run]:
    """Every row that calibrates; the blind tests only judge."""
    return tuple(
        _run(table, source.stage, row)
        for table, source in sources().items()
        if source.stage in ("serving", "training")
        for row in rows(table)
    )


def _run(table: str, stage: Stage, row: dict[str, str]) -> Run:
    degrees = {name: int(row.get(name, 1)) for name in DEGREES}
    if stage == "training":
        mpt = f"mpt-{row['model']}" if "model" in row else ""
        gpus = int(row["gpus"]) if "gpus" in row else degrees["tp"] * degrees["pp"] * int(row["dp"])
        return Run(table, stage, mpt, int(row["length_tok"]), gpus, degrees)
    if "num_requests" in row:
        context_tok = (int(row["total_prompt_tok"]) + int(row["total_generated_tok"])) // int(row["num_requests"])
    else:
        context_tok = int(row["prompt_tok"]) + int(row["generated_tok"])
    return Run(table, stage, row["model"], context_tok, degrees["tp"], degrees)


def _of(stage: Stage) -> list[Run]:
    return [run for run in runs() if run.stage == stage]


# -- what is outside ---------------------------------------------------------------------------------------------------


def _gpu(gpu: Gpu) -> Iterator[str]:
    table = table_of(gpu)
    if table is not None:
        yield f"GPU {gpu.name}: {_own_table(gpu, table.name)}"
        return
    if gpu.name in CALIBRATED_GPUS:
        return
    near = min(DATA_SHEETS, key=lambda other: sum(math.log(ratio) ** 2 for ratio in _ratios(gpu, other)))
    peak, memory, link = (f"x{ratio:.3g}" for ratio in _ratios(gpu, near))
    yield (
        f"GPU {gpu.name}: not calibrated; nearest calibrated {near.name}; peak {peak}, memory bandwidth {memory}, "
        f"link {link} extrapolated with A100's efficiencies{''.join(f'; {text}' for text in _blind(gpu))}"
    )


def _own_table(gpu: Gpu, name: str) -> str:
    """What the GPU's own table determines and what it does not, and how far whole runs on it are met."""
    found = fit_of(gpu)
    parts = [f"measured in {name}: {', '.join(found.kinds) or 'nothing'}"]
    if found.kept:
        parts.append(f"taken from A100: {', '.join(found.kept)}")
    return "; ".join([*parts, *_blind(gpu)])


@functools.cache
def _blind(gpu: Gpu) -> tuple[str, ...]:
    """Mean errors in the blind tests that ran on a GPU of this name, with the constants that its runs have."""
    found = ((table, list(whole_runs(gpu, table, fit_of(gpu).constants).values())) for table in BLIND)
    return tuple(
        f"{len(errors)} runs of {table} are predicted {sum(errors) / len(errors):+.0%} on average"
        for table, errors in found
        if errors
    )


def _ratios(gpu: Gpu, other: Gpu) -> tuple[float, float, float]:
    return (
        gpu.peak_tflops / other.peak_tflops,
        gpu.memory_gb_s / other.memory_gb_s,
        gpu.link_gb_s / other.link_gb_s,
    )


def _size(model: Model) -> Iterator[str]:
    stages: tuple[Stage, ...] = ("serving", "training")
    for what, pick, beyond in (("largest", max, lambda ratio: ratio > 1), ("smallest", min, lambda ratio: ratio < 1)):
        ends = [pick((run for run in _of(stage) if run.model), key=lambda run: run.num_params) for stage in stages]
        parts = [
            f"{_billions(run.num_params)} in {run.stage} ({run.model}, {run.table}), {_factor(ratio)} extrapolated"
            for run in ends
            if beyond(ratio := model.num_params / run.num_params)
        ]
        if parts:
            yield f"model {model.name} ({_billions(model.num_params)}): {what} calibrated is {'; '.join(parts)}"


def _experts(model: Model) -> Iterator[str]:
    if model.is_moe:
        yield (
            f"model {model.name}: no mixture of experts is among the calibrated runs; nearest is a kernel "
            f"alone: {sources()['moe'].what}"
        )


def _context(context_tok: int) -> Iterator[str]:
    stages: tuple[Stage, ...] = ("serving", "training")
    longest = [max(_of(stage), key=lambda run: run.context_tok) for stage in stages]
    parts = [
        f"{run.context_tok:,} in {run.stage} ({run.table}), {_factor(context_tok / run.context_tok)} extrapolated"
        for run in longest
        if context_tok > run.context_tok
    ]
    if parts:
        yield f"context {context_tok:,} tokens: longest calibrated {'; '.join(parts)}"


def _rollout(plan: Plan) -> Iterator[str]:
    widest = max(_of("serving"), key=lambda run: run.degrees["tp"])
    most = widest.degrees["tp"]
    for tp in sorted({engine.tp for engine in plan.instances if engine.tp > most}):
        yield (
            f"TP-{tp} rollout: end-to-end serving calibrated up to TP-{most} ({widest.table}), all-reduce kernels up "
            f"to {max(int(row['gpus']) for row in rows('engine_all_reduce'))} GPUs (engine_all_reduce)"
        )


def _training(plan: Plan) -> Iterator[str]:
    layout, measured = plan.train, _of("training")
    for name, words in DEGREES.items():
        widest, degree = max(measured, key=lambda run: run.degrees[name]), getattr(layout, name)
        most, letters = widest.degrees[name], name.upper()
        if degree > most == 1:
            near = _nearest(layout, measured)
            yield f"{letters}-{degree} training: no calibrated training run uses {words} parallelism; nearest {near}"
        elif degree > most:
            yield (
                f"{letters}-{degree} training: calibrated up to {letters}-{most} ({widest.table}), "
                f"{_factor(degree / most)} extrapolated"
            )
    most_gpus = max(measured, key=lambda run: run.gpus)
    num_gpus = layout.num_gpus + len(plan.hybrid_replicas) * layout.replica_gpus
    if num_gpus > most_gpus.gpus:
        yield (
            f"training on {num_gpus} GPUs: calibrated up to {most_gpus.gpus} ({most_gpus.table}), "
            f"{_factor(num_gpus / most_gpus.gpus)} extrapolated"
        )


def _nearest(layout: TrainLayout, measured: Sequence[Run]) -> str:
    """The measured training run whose degrees are nearest, of several the one with the nearest number of GPUs."""

    def distance(run: Run) -> tuple[float, float]:
        apart = sum(abs(math.log(getattr(layout, name) / degree)) for name, degree in run.degrees.items())
        return apart, abs(math.log(layout.num_gpus / run.gpus))

    run = min(measured, key=distance)
    return f"{run.table} with TP-{run.degrees['tp']} PP-{run.degrees['pp']} on {run.gpus} GPUs"


def _billions(num_params: int) -> str:
    return f"{num_params / 1e9:.3g}B" if num_params >= 1e8 else f"{num_params / 1e6:.3g}M"


def _factor(ratio: float) -> str:
    return f"x{ratio:.2g}"
