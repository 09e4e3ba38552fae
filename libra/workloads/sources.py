"""Provenance of the options that the generators share; each workload adds its own or says better."""

from __future__ import annotations

from libra.workloads.base import Provenance

TRACES = "analysis of public traces (coding-agent sessions, tau-bench airline)"

COMMON: dict[str, tuple[Provenance, str]] = {
    "group_size": ("reported", "The articles on the paper: 16 samples per prompt."),
    "num_steps": ("derived", "63.2 h of 454.16 s a step make 501 steps for R2E-Gym; any number spans the same drift."),
    "between_share": ("derived", "Half: 0.43 to 0.66 of the log-variance lies between prompts in public traces."),
    "prompt_sigma": ("assumed", "Prompts of one data set are alike in length; no source gives their spread."),
    "initial_reward": ("assumed", "No source gives the reward curve; the same for all policies."),
    "final_reward": ("assumed", "No source gives the reward curve; it saturates, its time mean two thirds of the way."),
}

TURNS: dict[str, tuple[Provenance, str]] = {
    "turn_sigma": ("derived", "0.85 to 0.89 in " + TRACES + "."),
    "tool_signal": (
        "assumed",
        "Off: in public traces tool states say nearly nothing about the tokens left. The paper claims that they do; "
        "with s, what is left after a failed or large return is 1 + s times that after another.",
    ),
}
