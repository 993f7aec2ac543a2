"""Answers as `vllm serve` does, for as much of it as the engine uses; started as its subprocess."""

import json
import sys
from pathlib import Path

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


async def health(_: web.Request) -> web.Response:
    return web.Response()


app = web.Application()
app.router.add_get("/health", health)
app.router.add_post("/v1/load_lora_adapter", load)
app.router.add_post("/v1/unload_lora_adapter", unload)
app.router.add_post("/v1/completions", complete)
if "--fail" in sys.argv:
    print("no GPU to be found", flush=True)
    sys.exit(3)
print("loading\r" * 200_000, flush=True)  # a progress bar is one long line
web.run_app(app, host="127.0.0.1", port=int(sys.argv[sys.argv.index("--port") + 1]), print=None)
