"""A plan in the words of a framework: overrides for verl, a configuration for AReaL, flags for slime, servers for vLLM.

Only what the plan decides is written; data, model and algorithm stay the job's own. A plan that a framework has no
words for is refused with `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from libra.core.errors import ConfigError, unknown_name
from libra.core.events import RunStart
from libra.core.hardware import Cluster
from libra.core.plan import Plan

FIRST_PORT = 8000


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made for."""

    plan: Plan
    cluster: Cluster
    run: RunStart

    @property
    def prompts(self) -> int:
        """Groups a step; a batch that is no whole number of groups is rounded up."""
        return -(-self.run.batch // self.run.group_size)

    def equal_size(self, framework: str) -> int:
        """The one tensor-parallel size of all instances."""
        sizes = sorted({i.tp for i in self.plan.instances})
        if len(sizes) > 1:
            raise ConfigError(f"{framework} starts engines of one size", where="--emit", value=sizes,
                              mend="emit `vllm`, or let Libra start verl's engines: docs/verl.md")  # fmt: skip
        return sizes[0]

    def nodes_of(self, num_gpus: int, what: str) -> tuple[int, int]:
        """Nodes, and GPUs on each of them."""
        per_node = self.cluster.gpus_per_node
        if num_gpus < per_node:
            return 1, num_gpus
        if num_gpus % per_node:
            raise ConfigError(f"{what} takes no whole number of nodes, which frameworks ask for", where="--emit",
                              value=num_gpus, mend=f"plan with a split in multiples of {per_node}")  # fmt: skip
        return num_gpus // per_node, per_node


def settings(framework: str, planned: Planned) -> str:
    """Settings as text. Raises `ConfigError` for an unknown framework."""
    if framework not in FRAMEWORKS:
        raise unknown_name("framework", framework, FRAMEWORKS)
    return "\n".join(FRAMEWORKS[framework](planned)) + "\n"


def verl(planned: Planned) -> Iterator[str]:
    """Overrides of `python -m verl.trainer.main_ppo` (verl 0.9.1)."""
    plan, train, rollout = planned.plan, planned.plan.train, "actor_rollout_ref.rollout"
    nodes, per_node = planned.nodes_of(train.num_gpus, "training")
    yield from (f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={per_node}")
    yield f"{rollout}.tensor_model_parallel_size={planned.equal_size('verl')}"
    if plan.colocated:
        yield "trainer.v1.trainer_mode=sync"
    else:
        nodes, per_node = planned.nodes_of(plan.rollout_gpus, "rollout")
        yield "trainer.v1.trainer_mode=separate_async"
        yield "actor_rollout_ref.hybrid_engine=False"
        yield from (f"{rollout}.nnodes={nodes}", f"{rollout}.n_gpus_per_node={per_node}")
        staleness = planned.run.pipeline.staleness if planned.run.pipeline.kind == "async" else 1
        yield f"trainer.v1.sampler.max_off_policy_threshold={staleness + 1}"
    yield "model_engine=megatron"
    degrees = {"tensor": train.tp, "pipeline": train.pp, "context": train.cp, "expert": train.ep}
    for name, degree in degrees.items():
        kind = f"{name}_model_parallel_size" if name != "context" else "context_parallel_size"
        yield f"actor_rollout_ref.actor.megatron.{kind}={degree}"
    yield "actor_rollout_ref.actor.use_dynamic_bsz=True"
    yield f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={train.micro_batch_tok // train.cp}"
    yield f"data.train_batch_size={planned.prompts}"
    yield f"{rollout}.n={planned.run.group_size}"


def areal(planned: Planned) -> Iterator[str]:
    """YAML; `allocation_mode` is AReaL's own notation: replicas, pipeline, tensor, context and expert degrees."""
    plan, train = planned.plan, planned.plan.train
    if plan.colocated:
        raise ConfigError("AReaL keeps rollout and training apart", where="--emit", value="colocated",
                          mend="plan with --pipeline async")  # fmt: skip
    tp = planned.equal_size("AReaL")
    degrees = {"d": train.dp, "p": train.pp, "t": train.tp, "c": train.cp, "e": train.ep}
    training = "".join(f"{name}{size}" for name, size in degrees.items() if name in "dpt" or size > 1)
    yield f"allocation_mode: vllm:d{len(plan.instances)}p1t{tp}+megatron:{training}"
    yield "cluster:"
    yield f"  n_nodes: {planned.cluster.num_nodes}"
    yield f"  n_gpus_per_node: {planned.cluster.gpus_per_node}"
    yield "rollout:"
    yield f"  max_head_offpolicyness: {planned.run.pipeline.staleness}"
    yield "gconfig:"
    yield f"  n_samples: {planned.run.group_size}"
    yield "train_dataset:"
    yield f"  batch_size: {planned.prompts}"


def slime(planned: Planned) -> Iterator[str]:
    """Flags of `train.py` (colocated) or `train_async.py`."""
    plan, train = planned.plan, planned.plan.train
    nodes, per_node = planned.nodes_of(train.num_gpus, "training")
    yield from (f"--actor-num-nodes {nodes}", f"--actor-num-gpus-per-node {per_node}")
    yield "--colocate" if plan.colocated else f"--rollout-num-gpus {plan.rollout_gpus}"
    yield f"--rollout-num-gpus-per-engine {planned.equal_size('slime')}"
    yield f"--tensor-model-parallel-size {train.tp}"
    if train.tp > 1:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {train.pp}"
    yield f"--context-parallel-size {train.cp}"
    yield f"--expert-model-parallel-size {train.ep}"
    yield "--use-dynamic-batch-size"
    yield f"--max-tokens-per-gpu {train.micro_batch_tok // train.cp}"
    if train.recompute:
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    yield f"--rollout-batch-size {planned.prompts}"
    yield f"--n-samples-per-prompt {planned.run.group_size}"


def vllm(planned: Planned) -> Iterator[str]:
    """One server an instance, packed into nodes largest first; training's nodes come before them."""
    per_node = planned.cluster.gpus_per_node
    first = 0 if planned.plan.colocated else planned.plan.train.num_gpus
    free = [per_node] * planned.cluster.num_nodes
    for node in range(planned.cluster.num_nodes):
        free[node] -= min(max(0, first - node * per_node), per_node)
    yield "MODEL=${MODEL:?folder or name of the model}"
    for number, each in enumerate(sorted(planned.plan.instances, key=lambda i: (-i.tp, i.id))):
        node = next(n for n, room in enumerate(free) if room >= each.tp)
        gpus = range(per_node - free[node], per_node - free[node] + each.tp)
        free[node] -= each.tp
        yield f"# node {node}: instance {each.id}, up to {planned.plan.bounds_tok[each.bucket]:,} tokens"
        yield (
            f'CUDA_VISIBLE_DEVICES={",".join(map(str, gpus))} vllm serve "$MODEL" --port {FIRST_PORT + number} '
            f"--tensor-parallel-size {each.tp} --max-model-len {planned.run.max_context_tok} --enable-prefix-caching"
        )


FRAMEWORKS: dict[str, Callable[[Planned], Iterator[str]]] = {"verl": verl, "areal": areal, "slime": slime, "vllm": vllm}
