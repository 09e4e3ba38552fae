"""`python -m libra.integrations.verl.main`: verl's own entry point, with Libra's trainer among the choices."""

from __future__ import annotations

from typing import Any

import hydra
import ray
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

_Runner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class LibraTaskRunner(_Runner):
    def run(self, config: Any) -> None:
        from libra.integrations.verl import trainer  # noqa: F401 - registers itself

        super().run(config)


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
def main(config: Any) -> None:
    auto_set_device(config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=ray.remote(LibraTaskRunner))


if __name__ == "__main__":
    main()
