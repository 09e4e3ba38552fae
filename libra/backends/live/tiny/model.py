"""The tiny Qwen3: a shape that vLLM's CPU kernels and two tensor-parallel ranks accept, born able to copy.

Copying a name from the context takes an induction head (Olsson et al., 2022: attend to what followed the previous
occurrence of this token). Two layers find one after some 10^8 tokens; two minutes on one core are 10^6. So the first
head of layers 0 and 1 is set to that circuit by hand, all other weights are random, and everything is trained.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

NUM_LAYERS = 2
HIDDEN = 128
NUM_HEADS = 2
NUM_KV_HEADS = 2
HEAD_DIM = 64
"""vLLM's CPU attention takes 32, 64, ...; half of 64 turn so slowly that they can compare tokens at any distance."""
FFN = 256
MAX_CONTEXT_TOK = 1_024
ROPE_BASE = 1e6
"""Qwen3's own. With 1e4 too few dimensions of a head are blind to distance."""
SPREAD = 0.05
"""Standard deviation of random weights: about 1/sqrt(hidden)/2. Qwen3's 0.02 is for hidden sizes of thousands."""
QUIET = 0.2
"""Of that, what random heads and feed-forward layers add to the residual stream, or they would drown the circuit."""

# The residual stream: a constant, what this token is, what the token before it was, what comes next.
ONE, THIS, BEFORE, NEXT = 0, slice(1, 48), slice(48, 80), slice(80, 127)

NEAR_SHARPNESS = 3.0
"""Gain of the attention to the token before: the logit falls by about 6 from there to its neighbours."""
MATCH_SHARPNESS = 2.5
"""Gain of the comparison: an equal token's logit stands near 20, the spread of unequal ones is near 3."""
NEAR_POWER = (0.4, 0.25, 0.15, 0.1, 0.1)
"""Share of each of RoPE's fastest frequencies: the fast tell neighbours apart, the slow tell periods apart."""


def config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """The shape in `libra/models/tiny.toml`."""
    return Qwen3Config(
        num_hidden_layers=NUM_LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=FFN,
        max_position_embeddings=MAX_CONTEXT_TOK,
        vocab_size=len(tokenizer),
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        initializer_range=SPREAD,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


@torch.no_grad()
def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Float32 weights that depend on the seed alone; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config(tokenizer)).to(torch.float32)
        meaning = torch.nn.functional.normalize(torch.randn(len(tokenizer), width(THIS)))
        view = torch.linalg.qr(torch.randn(width(THIS), width(THIS)))[0][: width(BEFORE)]
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(QUIET)
        layer.mlp.down_proj.weight.mul_(QUIET)
    embed(model, meaning)
    attend_before(model.model.layers[0].self_attn, view)
    attend_match(model.model.layers[1].self_attn, view)
    return model


def width(part: slice) -> int:
    """Dimensions of a part of the residual stream."""
    return part.stop - part.start


def embed(model: Qwen3ForCausalLM, meaning: torch.Tensor) -> None:
    """The embedding writes what a token is; the output layer reads the same code where the next token is foretold."""
    table, out = model.model.embed_tokens.weight, model.lm_head.weight
    table.mul_(0.4)
    out.mul_(0.4)  # noise beside a code of norm 1
    table[:, ONE] = 1.0
    table[:, THIS] = meaning
    table[:, BEFORE] = table[:, NEXT] = 0.0
    out[:, NEXT] = meaning


def clear_first_head(attention: torch.nn.Module) -> None:
    """The first query and key-value head write and read nothing."""
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[:HEAD_DIM] = 0.0
    attention.o_proj.weight[:, :HEAD_DIM] = 0.0


def attend_before(attention: torch.nn.Module, view: torch.Tensor) -> None:
    """Query and key are constants; the key is turned by one position, so that RoPE is back at zero one token ago."""
    half, num = HEAD_DIM // 2, len(NEAR_POWER)
    angle = ROPE_BASE ** (-torch.arange(num) / half)
    size = 0.2 * torch.tensor(NEAR_POWER).sqrt()
    clear_first_head(attention)
    attention.q_proj.weight[:num, ONE] = size
    attention.k_proj.weight[:num, ONE] = size * angle.cos()
    attention.k_proj.weight[half : half + num, ONE] = size * angle.sin()
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.fill_(NEAR_SHARPNESS**0.5)
    attention.v_proj.weight[: len(view), THIS] = 0.15 * view
    attention.o_proj.weight[BEFORE, : len(view)] = torch.eye(len(view))


def attend_match(attention: torch.nn.Module, view: torch.Tensor) -> None:
    """Compares this token with what stood before each other one, on RoPE's slow half, and says that one comes next."""
    slow = len(view) // 2
    rows = torch.cat([torch.arange(HEAD_DIM // 2 - slow, HEAD_DIM // 2), torch.arange(HEAD_DIM - slow, HEAD_DIM)])
    this, before = torch.arange(THIS.start, THIS.stop), torch.arange(BEFORE.start, BEFORE.stop)
    clear_first_head(attention)
    attention.q_proj.weight[rows[:, None], this] = 0.2 * view
    attention.k_proj.weight[rows[:, None], before] = 0.2 * torch.eye(len(view))
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.fill_(MATCH_SHARPNESS**0.5)
    attention.v_proj.weight[torch.arange(width(THIS)), this] = 0.2
    attention.o_proj.weight[NEXT, : width(NEXT)] = torch.eye(width(NEXT))
