"""Runs in llama.cpp's own environment: loads one GGUF file and answers on standard output."""

import json
import os
import sys
import urllib.request

import xllamacpp  # type: ignore[import-not-found, unused-ignore]


def main(job):  # type: ignore[no-untyped-def]
    settings = xllamacpp.CommonParams()
    settings.model.path = job["model"]
    settings.n_ctx = 256
    settings.n_parallel = 1
    settings.warmup = False
    settings.verbosity = 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # exact, not fast
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(settings)  # lives as long as the variable does

    def ask(path, body):  # type: ignore[no-untyped-def]
        request = urllib.request.Request(  # noqa: S310
            server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            return json.load(answer)

    def next_token(prompt):  # type: ignore[no-untyped-def]
        """The bias only makes sure that a plain token is drawn: an end token would come without probabilities."""
        body = {"prompt": prompt, "n_predict": 1, "n_probs": job["size"], "logit_bias": [[job["plain"], 1000.0]]}
        answer = ask("/completion", body | {"samplers": [], "cache_prompt": False})
        return {each["id"]: each["logprob"] for each in answer["completion_probabilities"][0]["top_logprobs"]}

    return {
        "tokens": [
            ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
            for text in job["texts"]
        ],
        "logprobs": [next_token(prompt) for prompt in job["prompts"]],
    }


if __name__ == "__main__":
    keep = os.dup(1)
    os.dup2(2, 1)  # what the library prints is not the answer
    answer = json.dumps(main(json.load(sys.stdin)))
    os.write(keep, answer.encode() + b"\n")
    os._exit(0)
