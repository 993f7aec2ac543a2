"""Environments with the faults that real ones have."""

import asyncio
import os

from clotho_environment import Completion, Config, Environment, Group, SamplingClient


class Broken(Environment[Config, int]):
    def items(self):
        return range(100)


class Raises(Broken):
    async def rollout(self, item: int, client: SamplingClient):
        raise ZeroDivisionError("the scorer divides by nothing")


class Hangs(Broken):
    async def rollout(self, item: int, client: SamplingClient):
        await asyncio.Event().wait()


class Blocks(Broken):
    async def rollout(self, item: int, client: SamplingClient):
        while True:
            pass


class Garbage(Broken):
    async def rollout(self, item: int, client: SamplingClient):
        completions = await client.complete("a>")
        return Group(completions, [float("nan")] * len(completions))


class LeavesThreadsBehind(Broken):
    """Non-daemon threads would keep an ordinary Python process alive."""

    async def setup(self):
        import threading

        threading.Thread(target=threading.Event().wait).start()

    async def rollout(self, item: int, client: SamplingClient):
        completions = await client.complete("a>")
        return Group(completions, [1.0] * len(completions))


class Curious(Broken):
    """Shows whether the outside world can be seen from an attempt made by hand."""

    async def rollout(self, item: int, client: SamplingClient):
        return Group([Completion(text=os.environ.get("CLOTHO_ENVIRONMENT", ""))], [1.0])
