"""Decode steps through vLLM itself: a short run of equal requests with random weights."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from libra.backends.sim.gpus.points import GpuPoint
from libra.core.hardware import Model

SHORT_TOK, LONG_TOK = 8, 40
"""Answers of the two runs whose difference is that many pure decode steps: prefills and start-up cancel out."""


def has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def decode_steps_s(model: Model, points: Sequence[GpuPoint], dtype: str) -> Iterator[tuple[GpuPoint, float]]:
    """Each point with its time; one engine serves all of them, as vLLM sets itself up."""
    from vllm import LLM, SamplingParams

    longest = max(point["context_tok"] for point in points) + LONG_TOK
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_config(model, longest, dtype)))
        engine = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype=dtype,
            max_model_len=longest,
            enable_prefix_caching=False,
            max_num_seqs=max(point["seqs"] for point in points),
        )

        def run_s(point: GpuPoint, answer_tok: int) -> float:
            prompts = [{"prompt_token_ids": [seq % model.vocab] * point["context_tok"]} for seq in range(point["seqs"])]
            answers = SamplingParams(max_tokens=answer_tok, ignore_eos=True, detokenize=False, temperature=0.0)
            started_s = time.perf_counter()
            engine.generate(prompts, answers, use_tqdm=False)
            return time.perf_counter() - started_s

        for point in points:
            run_s(point, SHORT_TOK)
            differences = [run_s(point, LONG_TOK) - run_s(point, SHORT_TOK) for _ in range(3)]
            seconds = sorted(differences)[1] / (LONG_TOK - SHORT_TOK)
            if seconds > 0:
                yield point, seconds


def _config(model: Model, max_tok: int, dtype: str) -> dict[str, Any]:
    """What Hugging Face calls a Qwen3 of this shape."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": model.hidden,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": max_tok,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "torch_dtype": dtype,
        "eos_token_id": 0,
        "bos_token_id": 0,
    }
