"""`libra plan` from stage times: which split of the same GPUs two measured numbers speak for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.commands.output import console, figure, print_json, table
from libra.core.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libra.planning.stages import Advice, Option

PIPELINES = ("serial", "colocated", "barrier", "async")
NUM_RUNNERS_UP = 5
DEFINITIONS = {
    "step": "seconds from one update of the weights to the next, sync included",
    "serial": "rollout, then training; on separate GPUs or (colocated) on the same ones",
    "barrier": "one batch trains while the next is rolled out; both wait for the slower (one-step-off)",
    "idle": "share of a step in which a pool has nothing to do",
    "interval": "from perfect scaling of both stages to a serial share of 30 % in each (Amdahl)",
    "gain": "share of today's step that is saved; sure when the whole interval is above 0",
    "bound": "no split of the same GPUs is faster, however finely it moves them, at perfect scaling",
}


@dataclass(frozen=True)
class Times:
    """What the user measured; `gpus` is ROLLOUT:TRAIN, or one number for colocated stages."""

    rollout_s: float | None
    train_s: float | None
    gpus: str | None
    longest_s: float
    pipeline: str
    move_s: float


def plan_times(times: Times, *, as_json: bool) -> None:
    """Raises `ConfigError` for figures that contradict one another."""
    from libra.planning.stages import Stages, advise

    if times.rollout_s is None or times.train_s is None or times.gpus is None:
        raise ConfigError(
            "stage times are incomplete", where="libra plan", allowed=("--rollout-s, --train-s and --gpus",),
            mend="for example: libra plan --rollout-s 2252 --train-s 1800 --gpus 16:16 --pipeline serial",
        )  # fmt: skip
    rollout, train, colocated = gpus_of(times.gpus)
    pipeline = times.pipeline or ("colocated" if colocated else "barrier")
    if pipeline not in PIPELINES:
        raise unknown_name("pipeline", pipeline, PIPELINES)
    if colocated and pipeline in ("barrier", "async"):
        raise ConfigError("stages on the same GPUs take turns", where="--pipeline", value=pipeline,
                          allowed=("colocated",), mend="give --gpus as ROLLOUT:TRAIN for separate pools")  # fmt: skip
    if not colocated and pipeline == "colocated":
        raise ConfigError("colocated stages have the same GPUs", where="--gpus", value=times.gpus,
                          mend="give one number, or another --pipeline")  # fmt: skip
    stages = Stages(times.rollout_s, times.train_s, rollout, train, colocated, longest_s=times.longest_s)
    is_serial = pipeline in ("serial", "colocated")
    advice = advise(stages, "serial" if is_serial else "overlapped")
    if as_json:
        return print_json(_json(advice, times.move_s))
    screen = console()
    for line in (*_answer(advice, times, is_serial=is_serial), ""):
        screen.print(line)
    screen.print(table("Splits", COLUMNS, _rows(advice)))
    screen.print()
    for line in (*_mechanisms(advice, stages.longest_s), "", *(f"{k}: {v}" for k, v in DEFINITIONS.items())):
        screen.print(line)


def gpus_of(text: str) -> tuple[int, int, bool]:
    """Rollout, training, colocated. Raises `ConfigError`."""
    parts = text.split(":")
    if not (len(parts) in (1, 2) and all(part.isdigit() and int(part) > 0 for part in parts)):
        allowed = ("ROLLOUT:TRAIN, for example 16:16", "one number when both use the same GPUs")
        raise ConfigError("no GPU counts", where="--gpus", value=text, allowed=allowed)
    return int(parts[0]), int(parts[-1]), len(parts) == 1


COLUMNS = ("", "rollout:training", "rollout s", "training s", "step s", "with poor scaling", "idle", "gain", "why")


def _rows(advice: Advice) -> Sequence[Sequence[object]]:
    shown = [("today", advice.today), *((("best", advice.best),) if advice.best is not advice.today else ())]
    others = [each for each in advice.options if each not in (advice.best, advice.today)]
    shown += [("", each) for each in others[:NUM_RUNNERS_UP]]
    return [
        (
            name, split_of(each), figure(each.rollout_s), figure(each.train_s), figure(each.step_s),
            f"{figure(each.step.low)} to {figure(each.step.high)}",
            "" if each.colocated else f"{each.rollout_idle:.0%} : {each.train_idle:.0%}",
            f"{each.gain.low:+.0%} to {each.gain.high:+.0%}", "" if name else _why(each, advice),
        )
        for name, each in shown
    ]  # fmt: skip


def split_of(option: Option) -> str:
    return f"{option.rollout_gpus} colocated" if option.colocated else f"{option.rollout_gpus}:{option.train_gpus}"


def _why(option: Option, advice: Advice) -> str:
    """Why it lost."""
    if option.colocated:
        return "the stages take turns"
    stage = "rollout" if option.rollout_s > option.train_s else "training"
    if option.step_s < advice.best.step_s:
        return f"faster only at perfect scaling; bound by {stage}"
    return f"bound by {stage}"


def _answer(advice: Advice, times: Times, *, is_serial: bool) -> list[str]:
    today, best = advice.today, advice.best
    lines = []
    if best is today:
        lines.append(f"Stay at {split_of(today)}: no split in steps of {advice.unit} GPUs gains for sure.")
        fastest = advice.options[0]
        if fastest.step_s < today.step_s * 0.99:
            lines.append(
                f"At perfect scaling {split_of(fastest)} would take {figure(fastest.step_s)} s instead of "
                f"{figure(today.step_s)} s; at poor scaling it gains {fastest.gain.low:+.0%}. Try it for a few steps."
            )
    else:
        where = f"Move from {split_of(today)} to {split_of(best)}"
        if split_of(today) == split_of(best):
            where = f"Keep {split_of(best)}"
        overlap = " and overlap the stages" if is_serial and not best.colocated else ""
        lines.append(
            f"{where}{overlap}: {figure(today.step_s)} s -> "
            f"{figure(best.step_s)} s a step, {best.gain.low:.0%} to {best.gain.high:.0%} saved."
        )
        steps = advice.pays_back_after(times.move_s)
        plural = "s" * (steps != 1)
        lines.append(
            f"A move that stalls the job for {figure(times.move_s)} s is paid back after {steps} step{plural}."
        )
    lines.append(
        f"Bound: {figure(advice.bound_s)} s a step on these GPUs; the recommendation is within {advice.gap:.0%} of it."
    )
    return lines


def _mechanisms(advice: Advice, longest_s: float) -> list[str]:
    """What each mechanism could save of today's step at most."""
    today, unit = advice.today, advice.unit
    overlapped = [each for each in advice.options if not each.colocated]
    same = max(today.rollout_s, today.train_s)
    lines = ["What each mechanism would buy, at perfect scaling (share of today's step):"]
    if not today.colocated:
        lines.append(f"  overlapping the stages on today's split   {max(0.0, 1 - same / today.step_s):.0%}")
    lines.append(f"  the best split in steps of {unit} GPUs, overlapped   "
                 f"{max(0.0, 1 - overlapped[0].step_s / today.step_s):.0%}")  # fmt: skip
    lines.append(f"  moving GPUs between the pools within a step, at most   {1 - advice.bound_s / today.step_s:.0%}")
    tail = (
        f"rollout waits {figure(longest_s)} s for the longest trajectory" if longest_s else "unknown; give --longest-s"
    )
    lines.append(f"  a shorter tail (routing, larger instances)   {tail}")
    return lines


def _json(advice: Advice, move_s: float) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "today": asdict(advice.today),
        "best": asdict(advice.best),
        "stay": advice.best is advice.today,
        "options": [asdict(each) for each in advice.options],
        "bound_s": advice.bound_s,
        "gap": advice.gap,
        "unit_gpus": advice.unit,
        "move_s": move_s,
        "pays_back_after_steps": advice.pays_back_after(move_s),
        "definitions": DEFINITIONS,
    }
