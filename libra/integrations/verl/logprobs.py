"""Whether engines and trainer hold the same policy: both score the same trajectories with the weights of one version.

GRPO's ratio divides the trainer's probability by the engine's, so a gap between the two is a bias that no other metric
shows. Engines score a whole trajectory as a prompt; the trainer as it would train it.
"""

from __future__ import annotations

import uuid
from typing import Any

import ray
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.workers.utils.padding import response_from_nested

NUM_SCORED = 8
"""Trajectories a check: some hundred tokens, a second on a CPU."""


def logprob_gap(trainer: Any, batch: KVBatchMeta) -> float:
    """Largest absolute difference over the generated tokens and over all engines, in nats."""
    some = _sample(batch)
    temperature = trainer.config.actor_rollout_ref.rollout.temperature
    some.extra_info.update({"calculate_entropy": True, "compute_loss": False, "temperature": temperature})
    trainer.actor_rollout_wg.compute_log_prob(some)
    fields = ["log_probs", "response_mask", "input_ids", "prompts"]
    data = tq.kv_batch_get(keys=some.keys, partition_id=some.partition_id, select_fields=fields)
    trained = response_from_nested(data["log_probs"], data["response_mask"])
    rows = [
        (data["input_ids"][i].tolist(), len(data["prompts"][i]), data["response_mask"][i].tolist(), trained[i].tolist())
        for i in range(len(some.keys))
    ]
    gaps = [
        _gap(ray.get(_score(server, ids, temperature)), num_prompt, mask, ours)
        for server in trainer.standalone_server_manager.server_handles
        for ids, num_prompt, mask, ours in rows
        if len(ids) < trainer.config.actor_rollout_ref.rollout.max_model_len
    ]
    return max(gaps, default=0.0)


def _sample(batch: KVBatchMeta) -> KVBatchMeta:
    keys, tags = batch.keys[:NUM_SCORED], batch.tags[:NUM_SCORED]
    return KVBatchMeta(partition_id=batch.partition_id, keys=list(keys), tags=list(tags))


def _score(server: Any, ids: list[int], temperature: float) -> Any:
    params = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": temperature}
    return server.generate.remote(prompt_ids=ids, sampling_params=params, request_id=uuid.uuid4().hex)


def _gap(output: Any, num_prompt: int, mask: list[int], ours: list[float]) -> float:
    """Entry k of the engine's list scores token k + 1."""
    theirs = [pair[0] for pair in output.extra_fields["prompt_logprobs"]][num_prompt - 1 : num_prompt - 1 + len(mask)]
    return max((abs(a - b) for a, b, used in zip(theirs, ours, mask, strict=True) if used), default=0.0)
