"""Inside vLLM's worker: takes new weights in place, which verl's own extension can do on GPUs only.

vLLM packs linear weights for the CPU's kernels after loading, so they can't be copied into; its layer-wise reload
rebuilds each layer from checkpoint-shaped weights and packs it again (vLLM 0.32,
vllm/model_executor/model_loader/reload).
"""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive a full set of weights through shared memory. LoRA adapters are not supported on a CPU."""
        assert not peft_config, "LoRA weights cannot be refreshed on a CPU"
        runner = self.model_runner
        receiver = BucketedWeightReceiver(self._get_zmq_handle(), torch.device("cpu"), use_shm=use_shm)
        received: list[tuple[str, torch.Tensor]] = []
        # Copied: the sender reuses its buffer, and a layer may need weights of two buckets.
        receiver.receive_weights(lambda weights, is_last: received.extend((n, w.clone()) for n, w in weights))
        initialize_layerwise_reload(runner.model)
        runner.model.load_weights(received)
        finalize_layerwise_reload(runner.model, runner.vllm_config.model_config)
