"""A plain decoder in torch, of any dense model's shape: its training steps, and its decode steps where no engine is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from libra.backends.calibrate.timing import Bench
from libra.backends.sim.gpus.points import GpuPoint
from libra.core.errors import ConfigError
from libra.core.hardware import Model


def decoder(bench: Bench, model: Model) -> Any:
    """RMSNorm, grouped-query attention, gated feed-forward; random weights. Raises `ConfigError` for experts."""
    if model.is_moe:
        raise ConfigError("no plain decoder of a mixture of experts", where="--model", value=model.name,
                          mend="take a dense model; its steps calibrate the same constants")  # fmt: skip
    nn, functional = bench.torch.nn, bench.torch.nn.functional
    heads, kv_heads, size = model.num_heads, model.num_kv_heads, model.head_dim

    class Layer(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.RMSNorm(model.hidden), nn.RMSNorm(model.hidden)])
            self.qkv = nn.Linear(model.hidden, (heads + 2 * kv_heads) * size, bias=False)
            self.out = nn.Linear(heads * size, model.hidden, bias=False)
            self.up = nn.Linear(model.hidden, 2 * model.ffn, bias=False)
            self.down = nn.Linear(model.ffn, model.hidden, bias=False)

        def forward(self, hidden: Any, kept: Any = None) -> Any:
            """`kept` are keys and values of one context, to which a decode step attends."""
            rows, length, _ = hidden.shape
            parts = self.qkv(self.norms[0](hidden)).view(rows, length, -1, size).transpose(1, 2)
            query, key, value = parts.split((heads, kv_heads, kv_heads), dim=1)
            if kept is not None:
                kept[0][:, :, -1:], kept[1][:, :, -1:] = key, value
                key, value = kept
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=kept is None, enable_gqa=True)
            hidden = hidden + self.out(seen.transpose(1, 2).reshape(rows, length, -1))
            gate, up = self.up(self.norms[1](hidden)).chunk(2, dim=-1)
            return hidden + self.down(functional.silu(gate) * up)

    class Decoder(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(model.vocab, model.hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(model.num_layers))
            self.norm = nn.RMSNorm(model.hidden)

        def forward(self, tokens: Any, kept: Any = None) -> Any:
            hidden = self.embedding(tokens)
            for number, layer in enumerate(self.layers):
                hidden = layer(hidden, None if kept is None else kept[number])
            return functional.linear(self.norm(hidden), self.embedding.weight)

    return Decoder().to(device=bench.device, dtype=bench.dtype)


def train_step(bench: Bench, model: Model, point: GpuPoint) -> Callable[[], object]:
    """Forward, backward over micro-batches, and AdamW."""
    network = decoder(bench, model)
    optimizer = bench.torch.optim.AdamW(network.parameters(), fused=bench.device == "cuda")
    rows = point["micro_batch_tok"] // point["length_tok"]
    tokens = bench.torch.randint(model.vocab, (rows, point["length_tok"]), device=bench.device)

    def step() -> None:
        for _ in range(point["seqs"] // rows):
            logits = network(tokens)
            bench.torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def decode_step(bench: Bench, model: Model, point: GpuPoint) -> Callable[[], object]:
    """A token for each sequence, over contexts of one length."""
    network = decoder(bench, model)
    shape = point["seqs"], model.num_kv_heads, point["context_tok"], model.head_dim
    kept = [(bench.tensor(*shape), bench.tensor(*shape)) for _ in range(model.num_layers)]
    tokens = bench.torch.randint(model.vocab, (point["seqs"], 1), device=bench.device)

    def step() -> Any:
        with bench.torch.inference_mode():
            return network(tokens, kept).argmax(-1)

    return step
