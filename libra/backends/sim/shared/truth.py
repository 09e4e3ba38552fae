"""The table's figures in the places of the timing truth: engine steps, training steps, weight refresh."""

from __future__ import annotations

from collections.abc import Sequence

from libra.backends.sim.shared.table import Engine, Table
from libra.backends.sim.truth import StepModel, Truth
from libra.backends.sim.truth_train import TrainTime
from libra.core.hardware import Cluster, Model
from libra.core.plan import TrainLayout


class SharedStepModel(StepModel):
    """One engine's steps. They don't depend on contexts, which are short here; `slowdown` is set for each segment."""

    def __init__(self, cluster: Cluster, model: Model, tp: int, truth: Truth, figures: Engine) -> None:
        shape = truth.step_model(tp)
        self.tp, self.model, self.kv_capacity_tok = tp, model, shape.kv_capacity_tok
        self.beta, self.slowdown, self._figures = 0.0, 1.0, figures

    def alpha(self, num_seqs: int) -> float:
        return self.slowdown * (self._figures.step_s + num_seqs * self._figures.seq_s)

    def mixed_s(self, prefill_tok: int, area: int, longest_tok: int, num_seqs: int, kv_tok: int) -> float:
        return self.alpha(num_seqs) + self.slowdown * prefill_tok * self._figures.tok_s


class SharedTruth(Truth):
    """Sizes and memory are the plain truth's; engines carry a state, so each gets a step model of its own."""

    def __init__(self, cluster: Cluster, model: Model, table: Table) -> None:
        super().__init__(cluster, model)
        self._table, self._plain = table, Truth(cluster, model)

    def step_model(self, tp: int) -> SharedStepModel:
        """Raises `CapacityError` when the model does not fit on `tp` devices."""
        return SharedStepModel(self.cluster, self.model, tp, self._plain, self._table.engine)

    def train_step_s(self, layout: TrainLayout, lengths_tok: Sequence[int], *, logprobs: bool = True) -> TrainTime:
        """The engines' log-probabilities serve, so `logprobs` costs nothing. One device trains."""
        trainer = self._table.trainer
        compute_s = trainer.tok_s * sum(lengths_tok)
        total_s = trainer.fixed_s + compute_s
        return TrainTime(total_s, compute_s, 0.0, 0.0, 0.0, 0.0, trainer.fixed_s, compute_s / total_s)

    def weight_sync_s(self) -> float:
        return self._table.sync_s
