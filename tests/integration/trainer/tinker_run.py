"""A whole run on the tinker backend, started by test_tinker.py in an environment that has the SDK."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp

from clotho_contract.config import Endpoints, RunConfig, RunIdentity, render
from clotho_contract.settings import Checkpoint, Lora, Model, Training
from clotho_trainer.process.app import Options, train
from integration.trainer.api_stand_in import TOKEN, ApiStandIn, api_server

LETTERS = "abcd"
GROUP = 8


async def sample_group(session: aiohttp.ClientSession, port: int, letter: str) -> dict[str, Any]:
    """What an environment does: ask the policy, score, and hand in tokens with their log-probabilities."""
    body = {"text": f"{letter}>", "sampling_params": {"n": GROUP, "max_new_tokens": 4}, "return_logprob": True}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with session.post(f"http://127.0.0.1:{port}/generate", json=body, headers=headers) as response:
        response.raise_for_status()
        answers = await response.json()
        version = int(response.headers["X-Clotho-Policy-Version"])
    async with session.post(
        f"http://127.0.0.1:{port}/v1/completions", json={"prompt": f"{letter}>", "max_tokens": 1}, headers=headers
    ) as response:
        prompt = (await response.json())["choices"][0]["prompt_token_ids"]
    pairs = [[(lp, token) for lp, token, _ in answer["meta_info"]["output_token_logprobs"]] for answer in answers]
    return {
        "tokens": [prompt + [token for _, token in pair] for pair in pairs],
        "masks": [[-100] * len(prompt) + [token for _, token in pair] for pair in pairs],
        "inference_logprobs": [[1.0] * len(prompt) + [lp for lp, _ in pair] for pair in pairs],
        "scores": [answer["text"].count(letter) / 4 for answer in answers],
        "generation_params": {"policy_version": version},
    }


async def feed(api: ApiStandIn, port: int, rewards: list[float], versions: list[int]) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            while not api.registrations or len(api.acknowledged) < len(rewards):  # noqa: ASYNC110 - a stand-in's clock
                await asyncio.sleep(0.05)
            try:
                groups = [await sample_group(session, port, letter) for letter in LETTERS]
            except aiohttp.ClientError:
                await asyncio.sleep(0.2)
                continue
            scores = [score for group in groups for score in group["scores"]]
            rewards.append(sum(scores) / len(scores))
            versions.append(groups[0]["generation_params"]["policy_version"])
            api.batches.append(groups)


async def run(model: str, folder: Path, steps: int, ports: tuple[int, int]) -> dict[str, Any]:
    rewards: list[float] = []
    versions: list[int] = []
    async with api_server([]) as api:
        settings = RunConfig(
            run=RunIdentity(name="tinker", namespace="default", id="tinker-1"),
            endpoints=Endpoints(api_server=api.url, inference="http://127.0.0.1:1"),
            model=Model(name=model),
            training=Training(
                backend="tinker",
                steps=steps,
                batch_size=len(LETTERS) * GROUP,
                max_tokens=32,
                learning_rate=1e-2,
                lora=Lora(rank=8),
                checkpoint=Checkpoint(every_steps=3, keep=2),
            ),
        )
        (folder / "run.yaml").write_text(render(settings))
        feeding = asyncio.create_task(feed(api, ports[0], rewards, versions))
        end = await train(Options(folder / "run.yaml", "127.0.0.1", *ports))
        feeding.cancel()
        return {
            "reason": end.reason,
            "message": end.message,
            "step": end.step,
            "acknowledged": api.acknowledged,
            "registered_at": [registration["starting_step"] for registration in api.registrations],
            "rewards": rewards,
            "versions": versions,
        }


if __name__ == "__main__":
    model, folder, steps, *ports = sys.argv[1:]
    result = asyncio.run(run(model, Path(folder), int(steps), (int(ports[0]), int(ports[1]))))
    Path(folder, "result.json").write_text(json.dumps(result))
    os._exit(0)
