"""A live run of a cell: prepares the job, runs it under watch, and makes results of what it left behind."""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from libra.backends.live.checks import check_installed, check_memory, check_model, vllm_name
from libra.backends.live.curve import METRICS, keep_metrics, write_curve
from libra.backends.live.environment import EnvironmentOptions, environment_spec
from libra.backends.live.job import (
    MAX_PROMPT_TOK,
    PREPARED_PROMPT_TOK,
    Job,
    arguments,
    write_settings,
    write_tasks,
)
from libra.backends.live.options import LiveOptions
from libra.backends.live.process import JobFailed, run_job
from libra.backends.live.profile import write_expected_profile, write_profile
from libra.backends.live.records import new_records
from libra.backends.live.sandbox import open_sandbox
from libra.clusters.live import load_live
from libra.core.events import PipelineSpec
from libra.core.hardware import Cluster
from libra.integrations.saved import checkpoints, step_of
from libra.integrations.verl.version import VERL
from libra.results.store import CellDir
from libra.runtime.attempt import assemble, read_rows
from libra.workloads.environments.base import Environment, EnvironmentContext

LEARNING_RATE = 1e-6
"""For models that were pre-trained: the default of verl's GRPO examples."""

ONLY_HERE = ("RAY_ADDRESS", "RAY_TMPDIR")
"""Variables that would mean nothing to workers on other nodes."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class LiveRun:
    """One attempt at a cell. `on_step(step, num_steps)` as in simulated runs; `say` gets a line per stage."""

    cell_dir: CellDir
    cluster: Cluster
    pipeline: PipelineSpec
    options: LiveOptions
    plugins: tuple[Path, ...] = ()
    on_step: Callable[[int, int], None] = lambda step, num_steps: None
    say: Say = lambda line: None

    def run(self) -> None:
        """Raises `ConfigError` for what is missing or wrong, `JobFailed` when the job dies."""
        cell = self.cell_dir.cell
        live = load_live(cell.cluster)
        check_installed(live.platform, live.trainer)
        check_memory()
        if self.options.model_path:
            check_model(Path(self.options.model_path).expanduser())
        spec = environment_spec(cell.workload, self.plugins)
        assert spec.environment is not None, "environment_spec checks it"
        # verl's processes run in another folder: no path may depend on ours.
        folder = (self.cell_dir.path / "live").resolve()
        shutil.rmtree(folder / "episodes", ignore_errors=True)
        (folder / "episodes").mkdir(parents=True)
        with ExitStack() as stack:
            data = Path(self.options.data) if self.options.data else None
            context = EnvironmentContext(folder / "episodes", open_sandbox(), "", data, cell.seed)
            if spec.serving is not None:
                context = stack.enter_context(spec.serving(context))
            environment = spec.environment(context)
            model, learning_rate = self._model(environment)
            job = self._job(folder, live, model, learning_rate, environment)
            self.say(f"tasks, profile and settings -> {folder}")
            write_tasks(job, environment)
            profile = folder / "profile.jsonl.gz"
            if data is None:
                write_profile(profile, environment, cell.seed, _counter(model))
            else:
                write_expected_profile(profile, spec, cell.seed, job.max_context_tok)
            found = EnvironmentOptions(
                cell.workload, cell.seed, self.options.data, context.search_url,
                tuple(str(each.resolve()) for each in self.plugins),
            )  # fmt: skip
            records = self._until_done(job, lambda job, records: write_settings(
                job, cell, found, profile, records, self.plugins))  # fmt: skip
        write_curve(folder, self.cell_dir)
        assemble(records, self.cell_dir, self.cluster.num_gpus, self.pipeline)

    def _until_done(self, job: Job, write: Callable[[Job, Path], None]) -> Path:
        """Run the job, from its last checkpoint if there is one, and again when it dies; the folder of its records."""
        for start in count():
            saved = checkpoints(job.folder / "checkpoints")
            job = replace(job, resume=saved[-1] if saved else None)
            records = new_records(self.cell_dir.attempt_dir.resolve(), start)
            keep_metrics(job.folder, step_of(job.resume) if job.resume else -1)
            write(job, records)
            self.say(f"verl {VERL}, {vllm_name()}: starting trainer and engines (a minute on two cores)"
                     + (f", from step {step_of(job.resume)}" if job.resume else ""))  # fmt: skip
            env = {**_environment(job.live.platform, job.folder), **job.live.env}
            overrides = [*arguments(job), _runtime_env(env)]
            watch = partial(self._watch, records)
            try:
                run_job(overrides, job.folder, self.cell_dir.attempt_dir / "verl.log", env, watch)
                return records
            except JobFailed as error:
                is_newer = checkpoints(job.folder / "checkpoints")[-1:] != saved[-1:]
                if start == self.options.restarts or not is_newer:
                    raise
                self.say(f"{error}; starting it again ({start + 1} of {self.options.restarts})")
        raise AssertionError("count() does not end")

    def _model(self, environment: Environment) -> tuple[Path, float]:
        """Folder of the policy, and the learning rate for it."""
        given, rate = self.options.model_path, self.options.learning_rate
        if given:
            return Path(given).expanduser().resolve(), LEARNING_RATE if rate < 0 else rate
        from libra.backends.live.tiny.policy import fingerprint, make_policy
        from libra.backends.live.tiny.settings import settings_of
        from libra.backends.live.tiny.warmup import WarmupOptions

        settings, seed = settings_of(environment.name), self.cell_dir.cell.seed
        steps = self.options.warmup_steps or settings.warmup_steps
        name = f"{environment.name}-{fingerprint([environment], seed, WarmupOptions(steps=steps))}"
        folder = self.cell_dir.path.parent.parent / "policies" / name
        make_policy(folder, [environment], seed, steps, self.say)
        return folder.resolve(), settings.rate if rate < 0 else rate

    def _job(self, folder: Path, live: Any, model: Path, learning_rate: float, environment: Environment) -> Job:
        options = self.options
        prompt_tok = PREPARED_PROMPT_TOK if options.data else MAX_PROMPT_TOK
        response_tok = options.max_response_tok or 2 * environment.max_turns * environment.max_turn_tok
        return Job(
            folder.resolve(), model, self.cluster, live, options, self.pipeline, learning_rate, prompt_tok,
            response_tok, self.cell_dir.cell.seed,
        )  # fmt: skip

    def _watch(self, records: Path) -> None:
        steps, _ = read_rows(records)
        self.on_step(len(steps), self.options.num_steps)


def _counter(model: Path) -> Callable[[str], int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _environment(platform: str, folder: Path) -> dict[str, str]:
    """Variables of every process of the job."""
    found = {
        "VERL_USE_EXTERNAL_MODULES": "libra.integrations.verl.plugin",
        "VERL_FILE_LOGGER_PATH": str(folder.resolve() / METRICS),
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HYDRA_FULL_ERROR": "1",
    }
    # A Ray of its own, whatever other one runs here or is named in the environment: that has other devices.
    own_ray = {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled"}
    return found | ({"VERL_PLATFORM": "cpu", **own_ray} if platform == "cpu" else _outliving())


def _outliving() -> dict[str, str]:
    """What stays out of the job's folder for temporary files: a Ray that runs already is found by a file in its own
    folder, and compiled kernels serve the next job."""
    common = tempfile.gettempdir()
    places = {"RAY_TMPDIR": common, "TORCHINDUCTOR_CACHE_DIR": f"{common}/torchinductor_{getpass.getuser()}"}
    return {name: os.environ.get(name, place) for name, place in places.items()}


def _runtime_env(env: dict[str, str]) -> str:
    """The same for workers on other nodes, which inherit nothing."""
    pairs = ", ".join(f"{name}: '{value}'" for name, value in env.items() if name not in ONLY_HERE)
    return f"+ray_kwargs.ray_init.runtime_env.env_vars={{{pairs}}}"
