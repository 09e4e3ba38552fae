"""From a plan to moves of hybrid replicas: desired against observed (paper, elastic hybrid pool)."""

from __future__ import annotations

from collections.abc import Sequence

from libra.core.plan import Allocation, InstanceSpec, Move, Plan


def same_core(plan: Plan, allocation: Allocation) -> bool:
    """Whether plan and allocation differ in nothing but the side on which hybrid replicas work."""
    there = {InstanceSpec(i.id, i.tp, i.bucket, i.hybrid) for i in allocation.instances}
    return (
        plan.train == allocation.train
        and set(plan.instances) == there
        and plan.bounds_tok == allocation.bounds_tok
        and plan.colocated == allocation.colocated
    )


class HybridPool:
    """Reaches a plan by moves where only the hybrid replicas' side differs; everything else is a repartition."""

    def reconcile(self, plan: Plan, allocation: Allocation) -> Sequence[Move]:
        """Moves in the order of the replicas' numbers; empty for a plan that is reached or out of reach."""
        if not same_core(plan, allocation):
            return ()
        wanted, there = set(plan.hybrid_training), set(allocation.hybrid_training)
        return tuple(Move(hybrid, "train" if hybrid in wanted else "rollout") for hybrid in sorted(wanted ^ there))
