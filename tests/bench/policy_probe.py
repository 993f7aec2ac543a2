"""Whether a replica serves what the trainer has: both score the same tokens, version by version."""

import json
import random
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

_TOKENS = 48


class PolicyProbe:
    """The trainer scores with its own modules. A version is known when two answers in a row agree on it."""

    def __init__(self, token: str, model: str) -> None:
        chooser = random.Random(7)  # noqa: S311
        prompt = [chooser.randrange(5, 40) for _ in range(_TOKENS)]
        fields = {"model": model, "prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 1}
        self._body, self._token = json.dumps(fields).encode(), token
        self._last: dict[str, int] = {}
        self._scores: dict[str, dict[int, Sequence[float]]] = {"trainer": {}, "replica": {}}

    def observe(self, side: str, port: int) -> bool:
        """Whether it serves."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = Request(f"http://127.0.0.1:{port}/v1/completions", data=self._body, headers=headers)
        try:
            with urlopen(request, timeout=60) as response:  # noqa: S310 - loopback
                choice = json.loads(response.read())["choices"][0]
        except (HTTPError, URLError, OSError):  # it does not serve yet, or no longer
            return False
        version = choice["policy_version"]
        if self._last.get(side) == version:
            self._scores[side][version] = choice["logprobs"]["token_logprobs"][1:_TOKENS]
        self._last[side] = version
        return True

    def figures(self) -> dict[str, Any]:
        """`apart`: the two at the same version. `moved`: how far training took the replica's policy meanwhile."""
        trainer, replica = self._scores["trainer"], self._scores["replica"]
        both = sorted(trainer.keys() & replica.keys())
        if not both:
            return {"versions": []}
        apart = [_difference(trainer[version], replica[version]) for version in both]
        moved = [_difference(replica[both[0]], replica[version]) for version in both]
        return {"versions": both, "apart": apart, "moved": moved}


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    return round(sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one), 5)
