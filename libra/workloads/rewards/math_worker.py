"""One verifier of answers: a program of its own that reads JSON lines (`answer`, `truth`) and writes verdicts.

A program, because math-verify bounds its time by signals, which only a main thread gets, and because what hangs or
dies here can be ended without harm. It is started by its path and imports nothing of ours: no torch, no package set-up.
"""

from __future__ import annotations

import json
import os
import resource
import sys

MEMORY_BYTES = 2 << 30
"""sympy takes 0.2 GiB; a tower of powers takes all that there is."""

STEP_S = 3
"""Limit of each step inside math-verify (parse twice, compare once); signals do not interrupt long arithmetic in C."""


def verdict(answer: str, truth: str) -> bool:
    """Whether the two are the same mathematical object."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    how = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    found, wanted = (
        parse(f"$\\boxed{{{text}}}$", how, fallback_mode="no_fallback", parsing_timeout=STEP_S)
        for text in (answer, truth)
    )
    return bool(found and wanted) and bool(verify(wanted, found, timeout_seconds=STEP_S))


def limit_cpu(more_s: int) -> None:
    """From now on; the process is ended by the kernel, even with nobody left to end it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft_s = int(used.ru_utime + used.ru_stime) + more_s
    resource.setrlimit(resource.RLIMIT_CPU, (soft_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    """Verdicts until the input ends. What libraries print goes to the error stream, not into the verdicts."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    verdict("1", "1")
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        limit_cpu(4 * STEP_S)
        try:
            found: dict[str, object] = {"right": verdict(asked["answer"], asked["truth"])}
        except Exception as error:  # whatever the verifier trips over is its verdict's failure, not ours
            found = {"failed": repr(error)[:200]}
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
