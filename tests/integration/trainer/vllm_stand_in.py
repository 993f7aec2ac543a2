"""Answers as `vllm serve` 0.26 does, for as much of it as the engine uses; started as its subprocess.

With `--enable-lora` it takes adapters and answers the same to everything. Without, it computes with the model's
weights, keeps the prefixes that they computed, and has the development routes that pause it and change them.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

adapters: dict[str, str] = {}


async def load(request: web.Request) -> web.Response:
    body = await request.json()
    if not (Path(body["lora_path"]) / "adapter_model.safetensors").exists():
        return web.Response(status=404, text="no adapter there")
    if len(adapters) >= int(sys.argv[sys.argv.index("--max-loras") + 1]):
        return web.Response(status=400, text="too many adapters")
    adapters[body["lora_name"]] = body["lora_path"]
    return web.Response(text="Success: LoRA adapter added")


async def unload(request: web.Request) -> web.Response:
    adapters.pop((await request.json())["lora_name"])
    return web.Response(text="Success: LoRA adapter removed")


async def complete(request: web.Request) -> web.Response:
    body = await request.json()
    if body["model"] not in adapters:
        return web.json_response({"message": f"The model `{body['model']}` does not exist."}, status=404)
    tokens = [7] * body["max_tokens"]
    top = {f"token_id:{7 + rank}": -0.5 - rank for rank in range(body.get("logprobs") or 0)}
    prompt_logprobs = [None] + [{str(token): {"logprob": -0.25}} for token in body["prompt"][1:]]
    choice = {
        "text": "c" * len(tokens),
        "token_ids": tokens,
        "prompt_token_ids": body["prompt"],
        "logprobs": {
            "token_logprobs": [-0.5] * len(tokens),
            "tokens": ["c"] * len(tokens),
            "top_logprobs": [top] * len(tokens),
        },
        "prompt_logprobs": prompt_logprobs if "prompt_logprobs" in body else None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    seen = json.dumps({"body": body, "adapters": sorted(adapters)})
    return web.json_response({"choices": [choice] * body.get("n", 1)}, headers={"X-Seen": seen.replace("\n", " ")})


class Computing:
    """Weights that can be changed under way: what is in flight then goes on with the new ones, as in vLLM."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch, self._name = torch, model
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._prefixes: dict[tuple[int, ...], Any] = {}  # what the weights of their time made of a prompt
        self._running = asyncio.Event()
        self._running.set()
        self._aborts = 0

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/completions", self.complete)
        if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            app.router.add_post("/pause", self.pause)
            app.router.add_post("/resume", self.resume)
            app.router.add_post("/collective_rpc", self.collective_rpc)

    async def pause(self, request: web.Request) -> web.Response:
        if request.query.get("mode", "abort") != "abort":
            return web.json_response({"error": "the stand-in knows the mode abort only"}, status=400)
        self._running.clear()
        self._aborts += 1
        if request.query.get("clear_cache", "true") == "true":
            self._prefixes.clear()
        return web.json_response({"status": "paused"})

    async def resume(self, _: web.Request) -> web.Response:
        self._running.set()
        return web.json_response({"status": "resumed"})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("method") != "reload_weights":
            return web.json_response({"detail": "Missing 'method' in request body"}, status=400)
        try:
            self._reload(Path(body["kwargs"]["weights_path"]))
        except Exception as error:
            return _problem(500, "InternalServerError", f"Call to collective_rpc method failed: {error}")
        return web.json_response({"results": [None]})

    def _reload(self, folder: Path) -> None:
        from safetensors.torch import load_file

        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise RuntimeError(f"Cannot find any model weights with `{folder}`")
        tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
        if unknown := self._model.load_state_dict(tensors, strict=False).unexpected_keys:
            raise ValueError(f"There is no module or parameter named {unknown[0]}")

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["model"] != self._name:
            return _problem(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
        choices = [await self._choice(body) for _ in range(body.get("n") or 1)]
        return web.json_response({"choices": choices})

    async def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, logprobs, aborts = list(body["prompt"]), [], self._aborts
        prompt_logprobs = self._prompt_logprobs(tokens) if "prompt_logprobs" in body else None
        reason = "length"
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0.001)
            if aborts != self._aborts and logprobs:
                reason = "abort"
                break
            await self._running.wait()
            distribution = self._next(tokens, is_prompt=not logprobs).div(body.get("temperature", 1.0)).log_softmax(-1)
            token = int(self._torch.multinomial(distribution.exp(), 1))
            tokens.append(token)
            logprobs.append(float(distribution[token]))
        sampled = tokens[len(body["prompt"]) :]
        return {
            "text": "c" * len(sampled),
            "token_ids": sampled,
            "logprobs": {"token_logprobs": logprobs, "tokens": ["c"] * len(sampled), "top_logprobs": None},
            "prompt_logprobs": prompt_logprobs,
            "finish_reason": reason,
            "stop_reason": None,
        }

    def _next(self, tokens: list[int], *, is_prompt: bool) -> Any:
        if not is_prompt:
            return self._logits(tokens)[-1]
        if tuple(tokens) not in self._prefixes:
            self._prefixes[tuple(tokens)] = self._logits(tokens)[-1]
        return self._prefixes[tuple(tokens)]

    def _prompt_logprobs(self, tokens: list[int]) -> list[dict[str, dict[str, float]] | None]:
        rows = self._logits(tokens).log_softmax(-1)
        scored = zip(tokens[1:], rows[:-1], strict=True)
        return [None, *({str(token): {"logprob": float(row[token])}} for token, row in scored)]

    def _logits(self, tokens: list[int]) -> Any:
        with self._torch.inference_mode():
            return self._model(self._torch.tensor([tokens])).logits[0].float()


def _problem(status: int, kind: str, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status
    )


async def health(_: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    if "--fail" in sys.argv:
        print("no GPU to be found", flush=True)
        sys.exit(3)
    print("loading\r" * 200_000, flush=True)  # a progress bar is one long line
    app = web.Application()
    app.router.add_get("/health", health)
    if "--enable-lora" not in sys.argv:
        Computing(sys.argv[1]).routes(app)
    elif os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1":
        app.router.add_post("/v1/load_lora_adapter", load)
        app.router.add_post("/v1/unload_lora_adapter", unload)
        app.router.add_post("/v1/completions", complete)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[sys.argv.index("--port") + 1]), print=None)


main()
