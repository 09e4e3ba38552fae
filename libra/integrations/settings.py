"""The one settings file of a live run: what policy, on which cluster, over what work, and where to write.

A framework's job names this file; everything else is the framework's own configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from libra.clusters import load_cluster
from libra.core.errors import ConfigError, nearest_match
from libra.core.events import PipelineSpec, RunStart
from libra.core.policy import ComposedPolicy, Policy
from libra.core.registry import PolicyContext, PolicySpec, Registry, parse_options
from libra.models import load_model
from libra.workloads.trace_file import read_trace

OnRefresh = Literal["abort", "keep", "keep_kv"]
"""Requests under way are ended and asked for again, or held and computed anew, or held with their old KV cache."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`policy` with `options`, `cluster` and `model` as anywhere else; `out` is an existing folder for the records.

    `batch` counts trajectories a step. `instances` (sizes of the engines that a job starts itself) and `bounds_tok`
    replace the planner: then the policy only routes. `profile` is a canonical trace for the first plan.
    `environment` with `environment_options` names a function `module:function` that opens the tasks of our own agent
    loop. `poll_s` is how often the trainer looks for finished groups; `logprob_check_every` counts steps between
    comparisons of the engines' and the trainer's log-probabilities (0: never).
    `telemetry_s` is how often engines' own metrics are recorded (0: never).
    `on_refresh` says what becomes of requests under way when libra's trainer refreshes the engines' weights.
    `resume` is a checkpoint's folder with our own state in it; the run goes on from there.
    `shuffle_rewards` is a control that must not learn: each trained trajectory of our loop gets one of the last 256.
    """

    policy: str
    cluster: str
    model: str
    out: str
    batch: int
    group_size: int
    num_steps: int
    max_context_tok: int
    options: dict[str, Any] = {}
    pipeline: PipelineSpec = PipelineSpec(kind="async")
    plugins: tuple[str, ...] = ()
    instances: tuple[int, ...] = ()
    bounds_tok: tuple[int, ...] = ()
    profile: str = ""
    environment: str = ""
    environment_options: dict[str, Any] = {}
    poll_s: float = 2.0
    logprob_check_every: int = 0
    telemetry_s: float = 2.0
    shuffle_rewards: bool = False
    on_refresh: OnRefresh = "abort"
    resume: str = ""
    router_class: str = ""
    """What verl's own loader looks for; `libra.integrations.verl.router.LibraRouter`."""

    def run_start(self) -> RunStart:
        """The run's first event, at time 0. Raises `TraceError` for a profile that cannot be read."""
        profile = read_trace(Path(self.profile))[1] if self.profile else ()
        return RunStart(
            0.0, self.cluster, self.model, self.pipeline, self.batch, self.group_size, self.num_steps,
            self.max_context_tok, profile,
        )  # fmt: skip

    def build_policy(self) -> Policy:
        """A fresh policy. Raises `ConfigError` for names that mean nothing."""
        registry = Registry(tuple(Path(plugin) for plugin in self.plugins))
        spec: PolicySpec = registry.get("policy", self.policy)
        if spec.uses_oracle:
            raise ConfigError("an oracle policy cannot run live: nobody knows the lengths", where="policy",
                              value=self.policy)  # fmt: skip
        options = parse_options(spec.options, self.options, f"policy {self.policy}")
        policy = spec.build(PolicyContext(load_cluster(self.cluster), load_model(self.model), options))
        if not self.instances:
            return policy
        if not isinstance(policy, ComposedPolicy):
            raise ConfigError("only a composed policy can route without its planner", where="instances",
                              value=self.policy)  # fmt: skip
        if len(self.bounds_tok) > len(self.instances):
            raise ConfigError("a bucket needs an engine: there are more bounds than engines", where="bounds_tok",
                              value=list(self.bounds_tok), mend=f"at most {len(self.instances)} bounds")  # fmt: skip
        from libra.integrations.given import GivenLayout

        return policy.with_(planner=GivenLayout(self.instances, self.bounds_tok))


def read_settings(path: Path) -> Settings:
    """Raises `ConfigError` for a file that is absent, no YAML or JSON, or has unknown or impossible values."""
    try:
        found = msgspec.yaml.decode(path.read_bytes())
        return msgspec.convert(found, Settings, strict=False)
    except FileNotFoundError:
        raise ConfigError("no such settings file", where=str(path), mend="`libra train` writes one; docs/verl.md shows "
                          "one for your own job") from None  # fmt: skip
    except (msgspec.MsgspecError, ValueError) as error:
        text = str(error)
        unknown = text.rpartition("unknown field `")[2].partition("`")[0] if "unknown field" in text else ""
        names = Settings.__struct_fields__
        raise ConfigError(f"settings cannot be read: {text}", where=str(path), allowed=names if unknown else (),
                          nearest=nearest_match(unknown, names) if unknown else None) from error  # fmt: skip
