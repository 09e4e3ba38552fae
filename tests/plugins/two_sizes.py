"""TP-1 beside TP-2 and one training device: C-MLFQ routes between them."""

from libra.core.policy import ComposedPolicy
from libra.core.registry import PolicyContext, PolicySpec
from libra.integrations.given import GivenLayout
from libra.routing.cmlfq import CMlfq

SHORT_TOK = 30
"""About the median length of a small search trajectory."""


def build(context: PolicyContext) -> ComposedPolicy:
    return ComposedPolicy("two-sizes", GivenLayout((1, 2), (SHORT_TOK, context.model.max_context_tok)), CMlfq())


POLICY = PolicySpec("two-sizes", "One TP-1 and one TP-2 engine beside one training device", build)
