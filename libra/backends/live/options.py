"""Options of live cells: `--set live.OPTION=VALUE`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from libra.core.registry import Options
from libra.integrations.settings import OnRefresh


class LiveOptions(Options):
    """What a live run may change beside policy, pipeline and workload."""

    model_path: str = ""
    """Folder of a model with its tokenizer; empty: the tiny policy that Libra warms up itself."""
    data: str = ""
    """Folder of `libra data prepare`; empty: tasks that the workload generates."""
    num_steps: int = Field(60, gt=0)
    """Training steps."""
    prompts: int = Field(8, gt=0)
    """Prompts a training step."""
    samples: int = Field(16, gt=1)
    """Trajectories a prompt: the group that GRPO compares."""
    learning_rate: float = Field(-1.0)
    """Of AdamW; negative: the workload's own for the tiny policy, 1e-6 for others; 0 is a control."""
    rewards: Literal["true", "shuffled"] = "true"
    """`shuffled` gives each trajectory a reward drawn among the last 256: a control that must not learn."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of the tiny policy's supervised warm-up; 0: the workload's own."""
    max_response_tok: int = Field(0, ge=0)
    """Generated and observed tokens of a trajectory; 0: what the environment's turns come to."""
    test_every: int = Field(10, ge=0)
    """Steps between evaluations on held-out tasks; 0: never."""
    test_tasks: int = Field(128, gt=0)
    """Held-out tasks of an evaluation, one sample each at temperature 1."""
    save_every: int = Field(10, ge=0)
    """Steps between checkpoints in the cell's folder, from which an interrupted run goes on; 0: never."""
    restarts: int = Field(5, ge=0)
    """Times that a job which died is started again, if a checkpoint was written since its last start."""
    telemetry_s: float = Field(2.0, ge=0)
    """Seconds between looks at the engines' own metrics; 0: never, and vLLM keeps none."""
    on_refresh: OnRefresh = "abort"
    """What becomes of turns under way when new weights come: `abort` ends them and asks for the rest again; `keep`
    holds them in the engine, which computes their context anew; `keep_kv` holds them with the old weights' KV cache."""
    logprob_check_every: int = Field(0, ge=0)
    """Steps between comparisons of the engines' log-probabilities with the trainer's; 0: never."""
