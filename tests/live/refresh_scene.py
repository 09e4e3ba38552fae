"""One vLLM engine behind verl's server; new weights come while it generates, once for each thing to do with requests.

`python refresh_scene.py FOLDER`: `FOLDER/model` and `FOLDER/other` are two policies of one shape, `FOLDER/lines.json`
holds verl's configuration. Writes `FOLDER/found.json`: of each way the requests, and how many tokens the engine's
forward passes took in. Its folder must be on the path of the engine's processes, too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

PROMPTS, LIMIT_TOK, BEFORE_TOK = 4, 320, 40
WAYS = ("abort", "keep", "keep_kv")


def refresh(worker: Any, policy: Path, version: int) -> Any:
    """verl's own refresh of one engine's weights, which are read from a folder and not received."""

    def weights(path: str) -> Any:
        from safetensors.torch import load_file

        return lambda **_: iter(load_file(path).items())

    def give(self: Any, path: str) -> None:
        self.checkpoint_engine.receive_weights = weights(path)

    worker.__ray_call__.remote(give, str(policy / "model.safetensors"))
    return worker.update_weights.remote(version)


async def play(replica: Any, config: Any, folder: Path, way: str, version: int) -> dict[str, Any]:
    """The steps around the weights are those of `CheckpointEngineManager.update_weights`."""
    server, (worker,) = replica.server_handle, replica.workers
    await refresh(worker, folder / "model", version)
    before_tok = await scheduled(server)
    asked = [asyncio.create_task(turn(config, server, number)) for number in range(PROMPTS)]
    while min(await so_far(server), default=0) < BEFORE_TOK:
        assert not any(each.done() for each in asked), "they ended before the refresh"
    await server.__ray_call__.remote(lambda self: setattr(self, "way", way))
    await replica.abort_all_requests()
    await replica.release_kv_cache()
    await refresh(worker, folder / "other", version + 1)
    await replica.resume_kv_cache()
    await replica.resume_generation()
    turns = await asyncio.gather(*asked)
    return {"turns": turns, "scheduled_tok": await scheduled(server) - before_tok, "versions": [version, version + 1]}


async def so_far(server: Any) -> list[int]:
    def count(self: Any) -> list[int]:
        return [each.generated_tok for each in self._under_way.values()]

    found = await server.__ray_call__.remote(count)
    return found if len(found) == PROMPTS else [0]


async def scheduled(server: Any) -> int:
    (found,) = await server.scheduled_tok.remote()
    return found


async def turn(config: Any, server: Any, number: int) -> dict[str, Any]:
    from stubs import balancer

    from libra.integrations.verl.agent_loop import CURRENT, LibraClient, Trajectory

    trajectory = Trajectory(f"t{number}", "p", "g", number, 0, is_evaluation=False)
    CURRENT.set(trajectory)
    prompt = [3 + (7 * place + 11 * number) % 200 for place in range(36 + number)]
    params = {"temperature": 1.0, "logprobs": True, "ignore_eos": True, "max_tokens": LIMIT_TOK}
    output = await LibraClient(config, balancer(server)).generate("r", prompt_ids=prompt, sampling_params=params)
    return {
        "prompt": prompt, "tokens": list(output.token_ids), "log_probs": output.log_probs,
        "spans": [[span.version, span.num_tok] for span in trajectory.spans],
        "steps": [output.extra_fields[name] for name in ("min_global_steps", "max_global_steps")],
        "refilled_tok": trajectory.refilled_tok,
    }  # fmt: skip


def configuration(folder: Path) -> Any:
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=json.loads((folder / "lines.json").read_text()))


async def main(folder: Path) -> None:
    import ray
    from counting import CountingServer

    from libra.core.plan import InstanceSpec, Plan, TrainLayout
    from libra.integrations.verl.replicas import PlannedServers

    config = configuration(folder)
    ray.init(num_cpus=256, num_gpus=1, include_dashboard=False, object_store_memory=128 << 20)
    plan = Plan(TrainLayout(1, 1), (InstanceSpec(0, 1),), (512,))
    replica = PlannedServers(config, plan, None, "keep").replica(1, 0)
    replica.server_class = ray.remote(CountingServer)
    await replica.init_standalone()
    found = {way: await play(replica, config, folder, way, 10 * rank) for rank, way in enumerate(WAYS)}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
