"""Prompt-history routing: a trajectory will be as long as its prompt's finished samples were.

Not in the paper; the rival that its premise must beat. On public traces the prompt id carries nearly all that the whole
C-MLFQ key does, and systems such as Seer and RhymeRL schedule by it. Predicts the mean total length of the prompt's
last finished samples, of all prompts' while the prompt has fewer than four (the same evidence that C-MLFQ needs); with
neither, the smallest bucket. Placed at the start, and again at each tool return with what has finished since.
"""

from __future__ import annotations

from collections import OrderedDict

from libra.core.commands import Why
from libra.core.events import ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.routing.buckets import bucket_of
from libra.routing.router import BucketRouter
from libra.routing.sample import MIN_EVIDENCE, Sample, length

MAX_PROMPTS = 200_000
"""More than any of the workloads' data sets hold (Search-R1: 169,615); least recently finished out first."""


class PromptHistory(BucketRouter):
    """`Why.level` is `prompt`, `shared` or `none`."""

    def __init__(self) -> None:
        super().__init__()
        self._prompts: OrderedDict[str, Sample] = OrderedDict()
        self._all = Sample()
        self._prompt_of: dict[int, str] = {}

    def first(self, event: TrajectoryStart) -> Why:
        self._prompt_of[event.trajectory] = event.prompt_id
        return self._predict(event.prompt_id, fallback=0)

    def next(self, event: ToolReturned, current: int) -> Why:
        return self._predict(self._prompt_of[event.trajectory], fallback=current)

    def ended(self, event: TrajectoryEnd) -> None:
        prompt_id = self._prompt_of.pop(event.trajectory)
        total = length(event.total_tok, event.status != "completed", event.status != "aborted")
        self._prompts.setdefault(prompt_id, Sample()).add(total)
        self._prompts.move_to_end(prompt_id)
        self._all.add(total)
        if len(self._prompts) > MAX_PROMPTS:
            self._prompts.popitem(last=False)

    def _predict(self, prompt_id: str, fallback: int) -> Why:
        for level, sample in (("prompt", self._prompts.get(prompt_id)), ("shared", self._all)):
            if sample is not None and sample.evidence >= MIN_EVIDENCE:
                mean_tok, p90_tok, evidence = sample.summary()
                return Why(level, mean_tok, p90_tok, evidence, bucket_of(mean_tok, self.fleet.bounds_tok))
        return Why(bucket=fallback)
