"""verl's Megatron engine on CPU cores, for dense Qwen3: verl imports this file as the model's `external_lib`.

Megatron-Core takes its device from CUDA and its layers from TransformerEngine; here the CPU and torch stand in. Nothing
else of the engine, of Megatron's parallelism or of its optimizer is replaced. Beside each part stands the upstream line
that asks for it (verl 0.9.1, megatron-core 0.16.1, mbridge 0.15.1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from mbridge.core import register_model
from mbridge.models.qwen3 import Qwen3Bridge
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel import random as generators
from megatron.core.transformer.module import MegatronModule
from torch.overrides import TorchFunctionMode
from verl.workers.engine import EngineRegistry, MegatronEngineWithLMHead

from libra.core.errors import ConfigError

CPU = torch.device("cpu")


class CudaMeansCpu(TorchFunctionMode):
    """Inside it, what Megatron spells out as CUDA is on the CPU: `device="cuda"`, `.cuda()`, the name of a type.

    pipeline_parallel/schedules.py 596 and 983, optimizer/clip_grads.py 90, 115 and 167, optimizer/distrib_optimizer.py
    361 and 420, optimizer/optimizer.py 473.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs = {**kwargs, "device": CPU}
        elif func is torch.Tensor.cuda:
            return args[0]
        elif func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **kwargs)


def _inside(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with CudaMeansCpu():
            return method(*args, **kwargs)

    return inner


def stand_in_for_cuda() -> None:
    """Megatron's device is the CPU, and its generators are torch's own (tensor_parallel/random.py 41 and 74)."""

    def state(*_: Any, **__: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(new: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.set_rng_state(new)

    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.synchronize = lambda *_: None
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = generators._get_cuda_rng_state = state
    cuda.set_rng_state = generators._set_cuda_rng_state = set_state


class CausalAttention(MegatronModule):
    """Padded and packed sequences; Megatron's own refuses packed ones (transformer/dot_product_attention.py 153)."""

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        super().__init__(config=config)
        assert config.attention_dropout == 0

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        packed_seq_params: Any = None,
        **__: Any,
    ) -> torch.Tensor:
        """`[token, batch, head, dim]`, or `[token, head, dim]` when packed. Padding is last: none attends to it."""
        if packed_seq_params is None:
            return _attend(query, key, value)
        bounds = packed_seq_params.cu_seqlens_q_padded.tolist()
        rows = [[each[start:end].unsqueeze(1) for each in (query, key, value)] for start, end in pairwise(bounds)]
        return torch.cat([_attend(*row).squeeze(1) for row in rows])


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return found.permute(2, 0, 1, 3).flatten(2)


class RmsNorm(torch.nn.RMSNorm):
    """Marks its weight for sequence parallelism, which Megatron's wrapper refuses (transformer/torch_norm.py 32)."""

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010 - Megatron's own mark


@register_model("qwen3")
class TorchQwen3Bridge(Qwen3Bridge):
    """Layers of torch instead of TransformerEngine's (mbridge core/llm_bridge.py 150), whose norms have other names."""

    _MLP_MAPPING = Qwen3Bridge._MLP_MAPPING | {
        "pre_mlp_layernorm.weight": ["model.layers.{layer_number}.post_attention_layernorm.weight"]
    }
    _OTHER_MAPPING = {"input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"]}  # noqa: RUF012

    def _build_config(self) -> Any:
        return self._build_base_config(
            qk_layernorm=True, use_cpu_initialization=True, masked_softmax_fusion=False, bias_dropout_fusion=False
        )

    def _get_transformer_layer_spec(self, vp_stage: int | None = None) -> Any:
        self.has_vp_stage = True
        block = get_gpt_decoder_block_spec(self.config, False, normalization="RMSNorm", vp_stage=vp_stage)
        block.layer_norm = RmsNorm
        for spec in block.layer_specs:
            layer, attention = spec.submodules, spec.submodules.self_attention.submodules
            layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
            attention.q_layernorm = attention.k_layernorm = RmsNorm
            attention.core_attention = CausalAttention
        return block


@EngineRegistry.register(model_type="language_model", backend="megatron", device="cuda", vendor="cpu")
class CpuMegatronEngine(MegatronEngineWithLMHead):
    """In float32, which verl's configuration does not offer (workers/config/engine.py 218)."""

    def __init__(self, model_config: Any, engine_config: Any, *args: Any, **kwargs: Any) -> None:
        check(model_config.hf_config, engine_config)
        stand_in_for_cuda()
        object.__setattr__(engine_config, "dtype", "float32")  # the field is frozen
        super().__init__(model_config, engine_config, *args, **kwargs)
        generators.model_parallel_cuda_manual_seed(engine_config.seed)  # workers/engine/megatron/utils.py 35: GPUs only

    initialize = _inside(MegatronEngineWithLMHead.initialize)
    forward_backward_batch = _inside(MegatronEngineWithLMHead.forward_backward_batch)
    optimizer_step = _inside(MegatronEngineWithLMHead.optimizer_step)
    save_checkpoint = _inside(MegatronEngineWithLMHead.save_checkpoint)

    @_inside
    @torch.no_grad()
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Megatron loads torch's Adam only into a state that is there, and loses its step counts.

        optimizer/distrib_optimizer.py 642, 823 (one tensor for all parameters) and 940.
        """
        parts = self.optimizer.chained_optimizers
        for part in parts:
            part._init_optimizer_states_with_dummy_values()
        super().load_checkpoint(*args, **kwargs)
        for part in parts:
            for group in part.optimizer.param_groups:
                for parameter in group["params"]:
                    part.optimizer.state[parameter]["step"] = torch.tensor(float(group["step"]))


def check(hf_config: Any, engine_config: Any) -> None:
    """Raise `ConfigError` for what only TransformerEngine can do, or what no layer here was made for."""
    where, mend = "verl's Megatron engine on a CPU", "use a GPU, or the trainer fsdp2"
    if hf_config.model_type != "qwen3":
        raise ConfigError(
            "model of another family", where=where, value=hf_config.model_type, allowed=("qwen3",), mend=mend
        )
    if engine_config.context_parallel_size > 1:
        raise ConfigError("no context parallelism", where=where, value=engine_config.context_parallel_size, mend=mend)
