"""The timing truth against measurements: one error a row, by table, with what is fitted and what is held out.

Serving and training rows are predicted end to end by the code that simulates: `StepModel` and `Instance` for engines,
`TrainModel` for training. Operators are compared kernel by kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from libra.backends.sim.clock import Clock
from libra.backends.sim.constants import Constants, load_constants
from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.measured import Stage, measured_model, rows, sources
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import StepModel, Truth
from libra.backends.sim.truth_network import Network
from libra.backends.sim.truth_ops import Kernels, tile_area
from libra.core.hardware import Cluster, Gpu, Model
from libra.core.plan import TrainLayout
from libra.core.rng import stream

A100 = Cluster("a100x64", 8, 8, Gpu("A100-SXM4-80GB", 312.0, 80.0, 2039.0, 300.0), "eight NICs", 200.0)
A800 = Cluster("a800x8", 1, 8, Gpu("A800-SXM4-80GB", 312.0, 80.0, 2039.0, 200.0), "none", 22.0)

GPUSTACK_OPTIONS = SimOptions(max_num_seqs=256, max_batched_tok=2048)
"""vLLM's defaults on an A100."""

SHAREGPT_SIGMA = (1.3, 0.9)
"""Spread of the logarithms of ShareGPT's prompts and answers (assumed); its benchmark drops those above 1,024."""
SHAREGPT_CAP_TOK = 1024

LONG_MODEL_CHUNK_TOK = 512
"""vLLM 0.6 prefilled in chunks of 512 wherever the limit was set above 32,768 (its arg_utils.py and start-up log). That
the longest rows ran so is assumed, and was looked up because they erred."""
LONG_MODEL_TOK = 32_768


@dataclass(frozen=True, slots=True)
class Point:
    """A measured time (s) and ours for it. `group` is what is held out together; `is_development` says that some
    assumption was chosen with this row in view."""

    table: str
    stage: Stage
    name: str
    group: str
    measured_s: float
    predicted_s: float
    is_development: bool = False

    @property
    def error(self) -> float:
        """Relative; positive where we are too slow."""
        return self.predicted_s / self.measured_s - 1.0


def points(constants: Constants | None = None, stage: Stage | None = None) -> list[Point]:
    """Every measured row with our prediction under `constants` (default: those that ship)."""
    chosen = constants or load_constants()
    return [
        point
        for table, source in sources().items()
        if source.stage != "blind" and stage in (None, source.stage)
        for point in PREDICTORS[table](table, source.stage, chosen)
    ]


# -- operators ---------------------------------------------------------------------------------------------------------

Predictor = Callable[[str, Stage, Constants], Iterator[Point]]


def _kernels(constants: Constants, heads: int = 40, kv_heads: int = 8) -> Kernels:
    return Kernels(A100.gpu, Model("op", 1, 5120, heads, kv_heads, 128, 13824, 151936, 1 << 17), constants)


def _gemm(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    kernels = _kernels(c)
    for row in rows(table):
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        yield Point(table, stage, f"{m} x {n} x {k}", table, float(row["time_s"]), kernels.gemm_s(m, n, k))


def _decode(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    for row in rows(table):
        batch, context, heads, kv_heads = (int(row[k]) for k in ("batch", "context_tok", "heads", "kv_heads"))
        read_s = 2 * kv_heads * 128 * 2 * batch * context / (c.decode_memory_share * A100.gpu.memory_gb_s * 1e9)
        seconds = c.decode_overhead_s + batch * heads * c.decode_per_seq_head_s + read_s
        name = f"{batch} x {context}, {heads}/{kv_heads} heads"
        yield Point(table, stage, name, table, float(row["time_s"]), seconds)


def _prefill(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    for row in rows(table):
        batch, length, heads, kv_heads = (int(row[k]) for k in ("batch", "length_tok", "heads", "kv_heads"))
        kernels, area = _kernels(c, heads, kv_heads), batch * tile_area(0, length)
        seconds = c.prefill_overhead_s + kernels.prefill_attention_s(area, length, batch * length, 1)
        name = f"{batch} x {length}, {heads}/{kv_heads} heads"
        yield Point(table, stage, name, table, float(row["time_s"]), seconds)


def _moe(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    kernels = Kernels(A100.gpu, measured_model("qwen3-30b-a3b"), c)
    for row in rows(table):
        tok, tp = int(row["tok"]), int(row["tp"])
        yield Point(table, stage, f"{tok} tokens, TP-{tp}", table, float(row["time_s"]), kernels.moe_s(tok, tp))


def _engine_all_reduce(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    network = Network(A100, c)
    for row in rows(table):
        gpus, size = int(row["gpus"]), float(row["num_bytes"])
        seconds = network.engine_all_reduce_s(size, gpus)
        yield Point(table, stage, f"{gpus} GPUs, {size:g} B", table, float(row["time_s"]), seconds)


def _eager_all_reduce(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    network = Network(A100, c)
    for row in rows(table):
        gpus, size = int(row["gpus"]), float(row["num_bytes"])
        seconds = network.engine_all_reduce_s(size, gpus, eager=True)
        yield Point(table, stage, f"{gpus} GPUs, {size:g} B", table, float(row["time_s"]), seconds)


def _eager_decode(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    """Mean decode step of a fixed batch, half of the answer behind the prompt."""
    for row in rows(table):
        tp, batch, prompt, new = (int(row[key]) for key in ("tp", "batch", "prompt_tok", "generated_tok"))
        step = StepModel(A100, measured_model(row["model"]), tp, c, eager=True)
        seconds = step.decode_s(batch, batch * (prompt + new // 2))
        yield Point(table, stage, f"TP-{tp}, {batch} sequences", table, float(row["time_s"]), seconds)


def _nccl(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    network = Network(A800, c)
    for row in rows(table):
        gpus, size = int(row["gpus"]), float(row["num_bytes"])
        yield Point(table, stage, f"{gpus} GPUs, {size:g} B", table, float(row["time_s"]),
                    network.nccl_all_reduce_s(size, gpus))  # fmt: skip


# -- serving -----------------------------------------------------------------------------------------------------------


def _qwen_speed(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    """One request alone: prefill, then a decode step a token."""
    for row in rows(table):
        model, tp, prompt, new = row["model"], int(row["tp"]), int(row["prompt_tok"]), int(row["generated_tok"])
        step = StepModel(A100, measured_model(model), tp, c)
        chunk = LONG_MODEL_CHUNK_TOK if prompt + new > LONG_MODEL_TOK else prompt
        seconds = step.prefill_s(prompt, chunk) + new * step.alpha(1) + step.beta * new * (prompt + (new - 1) / 2)
        name = f"{model} TP-{tp}, prompt {prompt}"
        yield Point(table, stage, name, table, new / float(row["tok_per_s"]), seconds, prompt + new > LONG_MODEL_TOK)


def _gpustack(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    """A burst through the simulator's own engine. The API server takes requests one by one before the engine sees any
    (mean time to first token of 128-token prompts)."""
    for row in rows(table):
        model, case = row["model"], row["case"]
        seconds = burst_s(StepModel(A100, measured_model(model), 1, c), request_lengths(row), c.api_s_per_request)
        is_development = case in ("sharegpt", "random-128")
        yield Point(table, stage, f"{model}, {case}", f"{table} {model}", float(row["duration_s"]), seconds,
                    is_development)  # fmt: skip


def burst_s(
    step: StepModel,
    lengths: tuple[tuple[int, int], ...],
    api_s: float,
    options: SimOptions = GPUSTACK_OPTIONS,
    concurrency: int = 0,
) -> float:
    """Time until requests of (prompt, answer) lengths are over: all sent at once, or `concurrency` at a time."""
    clock, todo, num_done = Clock(), deque(enumerate(lengths)), 0

    def done(engine: Instance, request: Request) -> None:
        nonlocal num_done
        num_done += 1
        if concurrency and todo:
            clock.at(clock.now_s + api_s, submit)

    engine = Instance(0, step, options, clock.now, clock.at, done)

    def submit() -> None:
        number, (prompt, new) = todo.popleft()
        engine.submit(Request(number, (f"p{number}", prompt), prompt, new))

    for number in range(concurrency or len(lengths)):
        clock.at(api_s * (number + 1 if concurrency else len(lengths)), submit)
    clock.run(lambda: num_done == len(lengths))
    return clock.now_s


def request_lengths(row: dict[str, str]) -> tuple[tuple[int, int], ...]:
    """(prompt, answer) tokens of each request of a benchmark's row."""
    num = int(row["num_requests"])
    total = int(row["total_prompt_tok"]), int(row["total_generated_tok"])
    if row["prompt_tok"]:
        return ((int(row["prompt_tok"]), max(1, round(total[1] / num))),) * num
    return _sharegpt(num, total[0] / num, total[1] / num)


@lru_cache
def _sharegpt(num: int, mean_prompt_tok: float, mean_answer_tok: float) -> tuple[tuple[int, int], ...]:
    """Stands for ShareGPT: lognormal lengths of the right means, cut as the benchmark cuts them."""
    columns = []
    for name, mean, sigma in (("p", mean_prompt_tok, SHAREGPT_SIGMA[0]), ("a", mean_answer_tok, SHAREGPT_SIGMA[1])):
        normal, shift = stream("sharegpt", name).normal(0.0, sigma, 8 * num), np.log(mean)
        for _ in range(60):
            drawn = np.exp(shift + normal)
            kept = drawn[(drawn >= 4) & (drawn <= SHAREGPT_CAP_TOK)][:num]
            shift += np.log(mean / kept.mean())
        columns.append(np.rint(kept).astype(int).tolist())
    return tuple(zip(*columns, strict=True))


# -- training ----------------------------------------------------------------------------------------------------------


def _llm_foundry(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    constants = msgspec.structs.replace(c, backward_compute_share=c.triton_backward_share)
    for row in rows(table):
        gpus, length, micro = (int(row[k]) for k in ("gpus", "length_tok", "micro_batch"))
        layout = TrainLayout(tp=1, dp=gpus, micro_batch_tok=length * micro, recompute=row["recompute"] == "1")
        num_seqs = micro * int(row["accumulation"]) * gpus
        model = measured_model(f"mpt-{row['model']}")
        measured_s = num_seqs * length / gpus / float(row["tok_per_s_gpu"])
        seconds = plain_step_s(A100, model, constants, layout, [length] * num_seqs)
        seconds += int(row["accumulation"]) * fully_sharded_s(A100, model, gpus, constants)
        yield Point(table, stage, f"{row['model']}, {gpus} GPUs, {num_seqs} x {length}", f"{table} {row['model']}",
                    measured_s, seconds, gpus > A100.gpus_per_node)  # fmt: skip


def fully_sharded_s(cluster: Cluster, model: Model, gpus: int, c: Constants) -> float:
    """Exposed part of FSDP's traffic in a micro-batch: weights gathered forward and backward, gradients scattered.

    Added when the rows of several nodes erred, so those are development rows.
    """
    wire_bytes = 3.0 * model.weight_bytes * (gpus - 1) / gpus
    return c.gradient_exposed_share * wire_bytes / Network(cluster, c).rank_bytes_per_s(gpus, 1)


def _megatron(table: str, stage: Stage, c: Constants) -> Iterator[Point]:
    constants = msgspec.structs.replace(c, backward_compute_share=c.triton_backward_share)
    for row in rows(table):
        layers, hidden, heads, kv_heads, vocab, length, micro, batch, tp, pp, vpp, dp = (
            int(row[k])
            for k in ("layers", "hidden", "heads", "kv_heads", "vocab", "length_tok", "micro_batch", "batch", "tp",
                      "pp", "vpp", "dp")
        )  # fmt: skip
        model = Model("gpt3-7b", layers, hidden, heads, kv_heads, hidden // heads, round(2 * int(row["ffn"]) / 3),
                      vocab, length)  # fmt: skip
        layout = TrainLayout(tp=tp, dp=dp, pp=pp, vpp=vpp, micro_batch_tok=micro * length, recompute=False)
        yield Point(table, stage, row["case"], table, float(row["step_s"]),
                    plain_step_s(A100, model, constants, layout, [length] * batch))  # fmt: skip


def plain_step_s(
    cluster: Cluster, model: Model, constants: Constants, layout: TrainLayout, lengths: list[int]
) -> float:
    """A plain training step: no old log-probs, and none of the fixed cost that RL frameworks add."""
    time = Truth(cluster, model, constants).train_step_s(layout, lengths, logprobs=False)
    return time.total_s - time.fixed_s


PREDICTORS: dict[str, Predictor] = {
    "gemm": _gemm,
    "decode_attention": _decode,
    "prefill_attention": _prefill,
    "moe": _moe,
    "engine_all_reduce": _engine_all_reduce,
    "eager_all_reduce": _eager_all_reduce,
    "eager_decode": _eager_decode,
    "nccl_all_reduce": _nccl,
    "qwen_speed": _qwen_speed,
    "gpustack": _gpustack,
    "llm_foundry": _llm_foundry,
    "megatron": _megatron,
}
