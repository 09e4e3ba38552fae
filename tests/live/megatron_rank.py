"""One rank of verl's Megatron engine on a CPU, beside plain torch on the same weights: `POLICY OUT TP PP VPP`.

Run by `test_megatron_engine.py` under the variables that torch.distributed reads; what was found goes to `OUT` as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "libra.integrations.verl.plugin"}

import torch
import verl  # noqa: F401 - loads the plugin
from transformers import AutoModelForCausalLM
from verl import DataProto
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import (
    HFModelConfig,
    McoreActorConfig,
    McoreEngineConfig,
    McoreOptimizerConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

ROWS, PROMPT_TOK, RESPONSE_TOK = 8, 12, 20
MICRO_BATCH_TOK = 100
"""Some three rows: every layout accumulates gradients over micro-batches."""
RATE = 1e-3


def batch() -> dict[str, torch.Tensor]:
    """Random tokens; some prompts begin late and some responses end early."""
    chance = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 500, (ROWS, PROMPT_TOK + RESPONSE_TOK), generator=chance)
    mask = torch.ones_like(ids)
    mask[:4, :4] = 0
    mask[3:6, -5:] = 0
    return {
        "input_ids": ids,
        "prompts": ids[:, :PROMPT_TOK],
        "responses": ids[:, PROMPT_TOK:],
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp_min(0),
        "response_mask": mask[:, PROMPT_TOK:],
        "advantages": torch.randn((ROWS, RESPONSE_TOK), generator=chance),
    }


class Reference:
    """The same policy and the same step in plain torch, on the whole batch in one process."""

    def __init__(self, policy: Path, data: dict[str, torch.Tensor]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
        self.data = data

    def log_probs(self) -> torch.Tensor:
        data = self.data
        logits = self.model(
            data["input_ids"], attention_mask=data["attention_mask"], position_ids=data["position_ids"]
        ).logits[:, PROMPT_TOK - 1 : -1]
        return logits.log_softmax(-1).gather(-1, data["responses"][..., None])[..., 0]

    def step(self) -> float:
        """GRPO's at a ratio of one, where it is the policy gradient; returns the gradient's norm."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        mask = self.data["response_mask"]
        loss = -(self.log_probs() * self.data["advantages"] * mask).sum() / mask.sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        optimizer.step()
        return float(norm)


class Rank:
    """verl's training worker with the Megatron engine, as its trainer drives it."""

    def __init__(self, policy: Path, sizes: tuple[int, int, int], data: dict[str, torch.Tensor]) -> None:
        tp, pp, vpp = sizes
        optimizer = McoreOptimizerConfig(
            lr=RATE, weight_decay=0.0, total_training_steps=100, lr_decay_style="constant",
            use_checkpoint_opt_param_scheduler=True,
        )  # fmt: skip
        engine = McoreEngineConfig(
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None, vanilla_mbridge=True, use_dynamic_bsz=True,
            max_token_len_per_gpu=MICRO_BATCH_TOK, infer_max_token_len_per_gpu=MICRO_BATCH_TOK,
        )  # fmt: skip
        model = HFModelConfig(path=str(policy), external_lib="libra.integrations.verl.cpu.megatron")
        self.worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model", model_config=model, engine_config=engine, optimizer_config=optimizer,
                checkpoint_config=CheckpointConfig(),
            )
        )  # fmt: skip
        self.worker.reset()
        actor = McoreActorConfig(
            rollout_n=4, ppo_micro_batch_size_per_gpu=4, ppo_mini_batch_size=ROWS, optim=optimizer, strategy="megatron"
        )
        self.worker.set_loss_fn(partial(ppo_loss, config=actor))
        self.engine = self.worker.engine
        self.data = data

    def mine(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's share of the batch."""
        return whole.chunk(self.engine.get_data_parallel_size())[self.engine.get_data_parallel_rank()]

    def _rows(self, **more: torch.Tensor) -> Any:
        rows = {name: self.mine(whole) for name, whole in (self.data | more).items()}
        lengths = self.data["attention_mask"].sum(1).tolist()
        meta = {"temperature": 1.0, "global_token_num": lengths, "compute_loss": bool(more)}
        return left_right_2_no_padding(DataProto.from_single_dict(rows, meta_info=meta).to_tensordict())

    def log_probs(self) -> torch.Tensor | None:
        rows = self._rows()
        found = self.worker.infer_batch(rows)
        if not self.engine.is_mp_src_rank_with_outputs():
            return None
        return no_padding_2_padding(tensordict_utils.get(found, "log_probs"), rows)

    def step(self, old: torch.Tensor) -> float | None:
        """One optimizer step; the gradient's norm on a rank that reports."""
        rows = self._rows(old_log_probs=old)
        tensordict_utils.assign_non_tensor(
            rows, global_batch_size=ROWS, mini_batch_size=ROWS, num_mini_batch=1, epochs=1, seed=1,
            dataloader_kwargs={"shuffle": False},
        )  # fmt: skip
        found = self.worker.train_mini_batch(rows)
        return None if found is None else float(tensordict_utils.get(found, "metrics")["grad_norm"][0])

    def weights(self) -> dict[str, torch.Tensor]:
        """As the engines get them: whole, under Hugging Face's names."""
        return {name: weight.detach().clone() for name, weight in self.engine.get_per_tensor_param()[0]}

    def state(self) -> str:
        """Hash of this rank's weights and optimizer state."""
        found = hashlib.sha256()
        parts = self.engine.optimizer.chained_optimizers
        tensors = [weight for module in self.engine.module for weight in module.parameters()]
        tensors += [
            each for part in parts for state in part.optimizer.state.values() for _, each in sorted(state.items())
        ]
        for each in tensors:
            found.update(each.detach().numpy().tobytes())
        return found.hexdigest()


def main(policy: Path, out: Path, sizes: tuple[int, int, int]) -> None:
    torch.set_num_threads(1)
    data, checkpoint = batch(), str(out.parent / "checkpoint")
    reference, rank = Reference(policy, data), Rank(policy, sizes, data)
    before = {name: weight.clone() for name, weight in reference.model.state_dict().items()}
    found: dict[str, Any] = {"dp": rank.engine.get_data_parallel_size(), "chunks": len(rank.engine.module)}
    with torch.no_grad():
        old = reference.log_probs()
    found["gap"] = _gap(rank, rank.log_probs(), old)
    found["norm"], found["reference_norm"] = rank.step(old), reference.step()
    moved, wanted = rank.weights(), reference.model.state_dict()
    found["update_error"] = _distance(moved, wanted) / _distance(before, wanted)
    with torch.no_grad():
        reference.model.load_state_dict(moved)
        found["gap_after"] = _gap(rank, rank.log_probs(), reference.log_probs())
    rank.engine.save_checkpoint(checkpoint, global_step=1)
    found["saved"] = rank.state()
    rank.step(old)
    found["end"] = rank.state()
    resumed = Rank(policy, sizes, data)
    resumed.engine.load_checkpoint(checkpoint)
    found["loaded"] = resumed.state()
    resumed.step(old)
    found["resumed_end"] = resumed.state()
    out.write_text(json.dumps(found))
    torch.distributed.barrier()
    time.sleep(1)  # gloo: a rank that leaves early breaks the others' barrier


def _gap(rank: Rank, found: torch.Tensor | None, wanted: torch.Tensor) -> float | None:
    if found is None:
        return None
    used = rank.mine(rank.data["response_mask"]).bool()
    return float((found - rank.mine(wanted))[used].abs().max())


def _distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in other)) ** 0.5


if __name__ == "__main__":
    tp, pp, vpp = (int(each) for each in sys.argv[3:6])
    main(Path(sys.argv[1]), Path(sys.argv[2]), (tp, pp, vpp))
