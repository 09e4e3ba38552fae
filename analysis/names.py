"""Names and numbers that figures and report share: the metric, the systems, the length of a whole training."""

from __future__ import annotations

RATE = "trajectory_tok_per_s"
"""The throughput of every comparison, unless a table says otherwise: prompt, generated and observed tokens a second."""

LIBRA, UNIFORM, HOMOGENEOUS = "libra", "verl-static-uniform", "best-homogeneous"
"""What is compared with what: the base of the paper's ablation, and the best plan with equal instances."""

STATIC_OPTIMAL = "areal-static-optimal"
"""Stands for the best homogeneous plan where that did not run."""

PLAIN_STUDIES = ("smoke", "demo", "end_to_end", "ablation", "routing", "throughput_bound")
"""Studies whose cells all have the same overrides, if any: another variant there comes from `--set`."""

WORKLOAD_TITLES = {"search-r1": "Search-R1", "r2e-gym": "R2E-Gym", "dapo-math": "DAPO-Math-17K"}

MAIN_STUDIES = ("end_to_end", "demo")
"""The full comparison where it has been run, else the newcomer's."""

REAL_STUDIES = ("traces", "demo")
"""Where real input has been run, the full study first."""

RECORDED = "recorded:"
REAL_INPUT = ("trace:", RECORDED)
"""How workloads are named that replay real input instead of generating it."""

TRAINING_STEPS = 500
"""Steps of a whole training, which the steps of a run are spread over: 63.2 h / 454.16 s of the paper's R2E-Gym run."""
