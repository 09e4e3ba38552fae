"""verl on machines without a GPU: each file is one adapter, none of them touches the algorithm."""

from __future__ import annotations


def setup() -> None:
    """Register everything with verl, before any of its modules asks. Imported here: each pulls in torch and verl."""
    from libra.integrations.verl.cpu import platform, replica
    from libra.integrations.verl.cpu.vllm_name import alias_vllm

    alias_vllm()
    platform.register()
    replica.register()
