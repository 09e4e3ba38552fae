"""What one transition costs, by closed forms from what it does: engines that drain, start or wake, contexts that lose
their cache, training state that moves, hybrid replicas that join (paper, replanning trigger and elastic pool).

The figures are data sheet, estimate and telemetry: how long engines took to come up in earlier transitions corrects
the assumed start times. Costs are *step seconds*, by which the first step under the new plan is longer, and GPU
seconds, in which a GPU does nothing for either stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from libra.core.plan import InstanceSpec, Plan
from libra.core.telemetry import Started
from libra.cost.calibration import moving_factor
from libra.cost.communication import link_bytes_s, network_bytes_s
from libra.planning.estimate import Demand, Estimator

ENGINE_START_S = 60.0
"""An engine from nothing to its first request, less its weights: published cold starts take 30 to 100 s, most of it
compilation and graph capture (vLLM's sleep-mode blog of 2025-10-26; a round figure between, assumed)."""
WAKE_S = 3.0
"""An engine between asleep and awake, weights apart: 0.1 to 6 s in the same source (middle, assumed)."""
REBUILD_S = 15.0
"""New process groups of the trainer: what the authors' released code takes for any reconfiguration."""
STATE_BYTES = 14
"""Of a parameter of training state: BF16 weight, FP32 master weight and Adam's two moments."""


@dataclass(frozen=True)
class Away:
    """Instances of the new plan that serve late: `tp` GPUs each, and the seconds until they do."""

    instance: InstanceSpec
    seconds: float


@dataclass(frozen=True)
class Transition:
    """A transition and its price. `rollout_s` and `train_s` are what each stage loses, in seconds of its whole pool."""

    drain_s: float = 0.0
    """Until the engines that leave have finished their turns."""
    up_s: float = 0.0
    """From the decision until the last engine serves."""
    reprefill_s: float = 0.0
    """Until the contexts that lose their cache are prefilled elsewhere."""
    state_s: float = 0.0
    """Until training state is where it is wanted: groups rebuilt and state moved, or snapshots fetched."""
    rollout_s: float = 0.0
    train_s: float = 0.0
    stall_s: float = 0.0
    """Step seconds: by how much the first step under the new plan is longer."""
    gpu_s: float = 0.0


@dataclass(frozen=True)
class TransitionCost:
    """Prices the transition from `current` to `candidate` under a demand."""

    estimator: Estimator

    def of(self, candidate: Plan, current: Plan, demand: Demand, started: Sequence[Started] = ()) -> Transition:
        """`started` are earlier transitions, oldest first. A standstill costs nothing."""
        leaving, away = changed(candidate, current)
        drain_s = self._drain_s(current, leaving, demand)
        cold_s, wake_s = self._up_s(demand, drain_s, started)
        late = [*(Away(i, cold_s) for i in away if not _was(i, current)),
                *(Away(i, wake_s) for i in away if _was(i, current))]  # fmt: skip
        reprefill_s = self._reprefill_s(candidate, current, leaving, demand)
        rollout_s = _bucket_loss_s(candidate, late) + reprefill_s
        state_s, train_s, state_gpus = self._training(candidate, current, drain_s)
        return Transition(
            drain_s,
            max((each.seconds for each in late), default=0.0),
            reprefill_s,
            state_s,
            rollout_s,
            train_s,
            _stall_s(candidate, demand, rollout_s, train_s),
            sum(each.instance.tp * each.seconds for each in late) + state_gpus * state_s,
        )

    def _up_s(self, demand: Demand, drain_s: float, started: Sequence[Started]) -> tuple[float, float]:
        """Until a cold engine, and until one that was lent to training, serves; each corrected by its own kind."""
        cold_s, wake_s = drain_s + ENGINE_START_S + demand.sync_s, WAKE_S + demand.sync_s

        def factor(cause: str, expected_s: float) -> float:
            return moving_factor([each.up_s / expected_s for each in started if each.cause == cause])

        return cold_s * factor("plan", cold_s), wake_s * factor("switch", wake_s)

    def _drain_s(self, current: Plan, leaving: Sequence[InstanceSpec], demand: Demand) -> float:
        """Time of the last of the turns in flight on any engine that leaves; none is in flight behind a barrier.

        Turns are taken as exponential, so those in flight last on as long as new ones and the last of n ends after
        H_n means. All live trajectories count as decoding, the worst case.
        """
        if demand.run.pipeline.kind != "async" or not leaving:
            return 0.0
        turn_tok = demand.requests.sum("generated_tok") / demand.requests.sum("num_turns")
        context_tok = demand.requests.sum("context_tok") / demand.requests.batch
        longest = 0.0
        for tp in {i.tp for i in leaving}:
            engine, num = self.estimator.engines[tp], max(1, round(_live_per_gpu(current, demand) * tp))
            step_s = float(engine.step_s(float(num))) + num * context_tok * engine.kv_s_per_tok
            longest = max(longest, turn_tok * step_s * sum(1 / n for n in range(1, num + 1)))
        return longest

    def _reprefill_s(self, candidate: Plan, current: Plan, leaving: Sequence[InstanceSpec], demand: Demand) -> float:
        """Contexts of live trajectories on engines that leave, prefilled by the engines that serve on, at once."""
        if demand.run.pipeline.kind != "async" or not leaving:
            return 0.0
        num = _live_per_gpu(current, demand) * sum(i.tp for i in leaving)
        context_tok = demand.requests.sum("context_tok") / demand.requests.batch
        rates = [
            1 / self.estimator.engines[i.tp].prefill_s(context_tok, context_tok**2 / 2) for i in serving(candidate)
        ]
        return float(num / sum(rates)) if rates else 0.0

    def _training(self, candidate: Plan, current: Plan, drain_s: float) -> tuple[float, float, int]:
        """Seconds until the state is there, seconds that training loses by it, GPUs that wait for it.

        A new layout stops the trainer until the engines whose GPUs it takes have drained, the groups are rebuilt and
        the whole state has crossed a node's network once. A hybrid replica that joins does not stop the core: only its
        own part is missing while it falls asleep and fetches its snapshot.
        """
        cluster, model = self.estimator.cluster, self.estimator.model
        rate = link_bytes_s(cluster) if cluster.num_nodes == 1 else network_bytes_s(cluster, self.estimator.rates)
        move_s = model.num_params * STATE_BYTES / rate
        if candidate.train != current.train:
            state_s = drain_s + REBUILD_S + move_s
            return state_s, state_s, candidate.train.num_gpus
        joining = set(candidate.hybrid_training) - set(current.hybrid_training)
        if not joining:
            return 0.0, 0.0, 0
        state_s = drain_s + WAKE_S + move_s
        replicas = candidate.train.dp + len(candidate.hybrid_training)
        return state_s, state_s * len(joining) / replicas, len(joining) * candidate.train.replica_gpus


def serving(plan: Plan) -> tuple[InstanceSpec, ...]:
    """Instances that roll out in the plan's state."""
    return tuple(i for i in plan.instances if i.hybrid not in plan.hybrid_training)


def changed(candidate: Plan, current: Plan) -> tuple[list[InstanceSpec], list[InstanceSpec]]:
    """Instances that serve now and will not, and those that will serve and do not; an instance is its id and size."""
    now, then = serving(current), serving(candidate)
    return _without(now, then), _without(then, now)


def _without(some: Iterable[InstanceSpec], others: Iterable[InstanceSpec]) -> list[InstanceSpec]:
    known = {(i.id, i.tp) for i in others}
    return [i for i in some if (i.id, i.tp) not in known]


def _was(instance: InstanceSpec, plan: Plan) -> bool:
    return any((i.id, i.tp) == (instance.id, instance.tp) for i in plan.instances)


def _live_per_gpu(plan: Plan, demand: Demand) -> float:
    """Live trajectories for each GPU that serves."""
    live = demand.schedule.live_share * demand.requests.batch
    return live / max(1, sum(i.tp for i in serving(plan)))


def _bucket_loss_s(candidate: Plan, late: Sequence[Away]) -> float:
    """Seconds that the worst bucket loses: the share of its GPUs that is away, as long as it is."""
    lost: dict[int, float] = {}
    for each in late:
        bucket = each.instance.bucket
        lost[bucket] = lost.get(bucket, 0.0) + each.instance.tp * each.seconds
    there = {bucket: sum(i.tp for i in serving(candidate) if i.bucket == bucket) for bucket in lost}
    return max((gpu_s / there[bucket] for bucket, gpu_s in lost.items()), default=0.0)


def _stall_s(candidate: Plan, demand: Demand, rollout_s: float, train_s: float) -> float:
    """By how much longer the first step is: what a stage loses while the other is busy anyway costs nothing."""
    expected, pipeline = candidate.expected, demand.run.pipeline
    if pipeline.kind == "colocated" or (pipeline.kind == "async" and pipeline.staleness == 0):
        return rollout_s + train_s
    before_s = max(expected.rollout_s, expected.train_s)
    return max(expected.rollout_s + rollout_s, expected.train_s + train_s) - before_s
