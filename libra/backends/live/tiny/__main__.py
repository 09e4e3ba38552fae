"""`python -m libra.backends.live.tiny WORKLOAD OUT`: makes a policy and says how often it is right."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from libra.core.errors import LibraError


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the same inputs find the policy that they made before."""
    parser = argparse.ArgumentParser(
        prog="python -m libra.backends.live.tiny",
        description="Warm up a tiny policy on a workload's demonstrations (one core, a minute or two).",
    )
    parser.add_argument("workload", metavar="WORKLOAD", help="search-r1, r2e-gym or dapo-math")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the policy; new, empty or of the same inputs")
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations (default 0)")
    parser.add_argument("--steps", type=int, help="of the warm-up (default: found by experiment for the workload)")
    parser.add_argument("--tasks", type=int, default=128, help="held-out tasks to try; 0 tries none (default 128)")
    given = parser.parse_args(argv)
    try:
        _make(given)
    except LibraError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _make(given: argparse.Namespace) -> None:
    """Imports late: `--help` waits for no torch."""
    from transformers.utils import logging

    from libra.backends.live.tiny.environments import opened
    from libra.backends.live.tiny.policy import load_policy, make_policy
    from libra.backends.live.tiny.rollout import roll_out, success
    from libra.backends.live.tiny.settings import settings_of

    logging.disable_progress_bar()  # files of this size are written and read in no time
    settings = settings_of(given.workload)
    steps = settings.warmup_steps if given.steps is None else given.steps
    with opened(given.workload) as environment:
        make_policy(given.out, [environment], given.seed, steps, lambda line: print(line, flush=True))
        tasks = environment.tasks("held_out")[: max(0, given.tasks)]
        if not tasks:
            return
        model, tokenizer = load_policy(given.out)
        for how, temperature in (("sampled", settings.temperature), ("greedy", 0.0)):
            share = success(roll_out(model, tokenizer, environment, tasks, given.seed, temperature))
            print(f"held-out success, {how}: {share:.3f} of {len(tasks)} tasks", flush=True)


if __name__ == "__main__":
    sys.exit(main())
