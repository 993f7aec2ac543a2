"""An inference replica: the model and an engine, without training. It follows the policy of the run's trainer."""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from msgspec import structs

from clotho_contract import config as run_config
from clotho_contract.config import RunConfig
from clotho_contract.names import DATA_PATH, DATA_VARIABLE, REPLICA_VARIABLE, TOKEN_VARIABLE
from clotho_contract.policy_updates import Load
from clotho_contract.serving import add_health_routes
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError, classify
from clotho_trainer.hardware import gpus
from clotho_trainer.inference.load_reports import report_load
from clotho_trainer.inference.server import InferenceServer
from clotho_trainer.inference.service import Service
from clotho_trainer.process import preflight
from clotho_trainer.process.app import Options, inference_tokens, listening
from clotho_trainer.process.stopping import stop_on_signals, unless_stopped
from clotho_trainer.process.training import loaded_within_memory, quiet_libraries
from clotho_trainer.reporting.replica import ReplicaMetrics

if TYPE_CHECKING:
    from clotho_trainer.inference.core.engine import Engine
    from clotho_trainer.inference.following import PolicyFollower
    from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

_VLLM_MEMORY_SHARE = 0.9  # of a GPU on which nothing trains


async def serve(options: Options) -> Termination:
    """Until a signal comes; returns how it ended."""
    replica: _Replica | None = None
    try:
        config = replica_config(run_config.load(options.config), os.environ.get(REPLICA_VARIABLE, "0"))
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise TrainerError("InvalidConfig", f"${TOKEN_VARIABLE} is not set; it is the token for the trainer")
        async with AsyncExitStack() as stack:
            replica = _Replica(config, options, token, stack)
            await replica.run(stop_on_signals())
            return Termination(reason="Stopped", message="stopped", step=replica.version)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        termination = classify(error, replica.version if replica else None)
        if termination.reason == "InternalError":
            log.exception("%s", termination.message)
        return termination


def replica_config(config: RunConfig, index: str) -> RunConfig:
    """Another seed than every rank and every other replica has: they would repeat each other's samples."""
    if not index.isdecimal():
        raise TrainerError("InvalidConfig", f"${REPLICA_VARIABLE} is {index!r}, not a number")
    preflight.check_replica(config)
    seed = config.training.seed + len(config.endpoints.rank_urls) + int(index)
    vllm = structs.replace(config.inference.vllm, memory_share=_VLLM_MEMORY_SHARE)
    return structs.replace(
        config,
        sharding="none",  # that is how the trainer has the model
        training=structs.replace(config.training, seed=seed),
        inference=structs.replace(config.inference, vllm=vllm),
    )


@dataclass(frozen=True)
class _Policy:
    live: "LiveWeights"
    names: frozenset[str]
    engine: "Engine"
    context: int
    vocabulary: int


def _load(config: RunConfig, work: Path) -> _Policy:
    gpus.train_on(0)
    quiet_libraries()
    from clotho_trainer.inference.choice import choose_engine
    from clotho_trainer.model import load, serving
    from clotho_trainer.model.live import LiveWeights
    from clotho_trainer.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(config.model)
    lora = config.training.lora
    if config.inference.engine != "vllm":
        model, names = serving.load_policy(config.model, lora, tokenizer)
    elif lora.rank:
        model, names = serving.load_adapters(config.model, lora)
    else:
        model, names = serving.load_names(config.model)
    live = LiveWeights(model, tokenizer)
    live.whole = {} if config.inference.engine == "vllm" and not lora.rank else None
    engine = choose_engine(config, live, load.end_tokens(model, tokenizer), work)
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    return _Policy(live, names, engine, load.context_length(model), vocabulary)


class _Replica:
    def __init__(self, config: RunConfig, options: Options, token: str, stack: AsyncExitStack) -> None:
        self._config, self._options, self._token, self._stack = config, options, token, stack
        self._metrics = ReplicaMetrics()
        self._inference = InferenceServer(*inference_tokens(token))
        self._inference.unready = self._unready
        self._follower: PolicyFollower | None = None
        self._engine: Engine | None = None

    @property
    def version(self) -> int | None:
        return self._follower.position.version if self._follower else None

    async def run(self, stop: asyncio.Event) -> None:
        host, options = self._options.host, self._options
        await self._stack.enter_async_context(listening(self._status(), host, options.status_port))
        application = self._inference.application()
        await self._stack.enter_async_context(listening(application, host, options.inference_port))
        await unless_stopped(stop, self._serve())

    async def _serve(self) -> None:
        config = self._config
        data = Path(os.environ.get(DATA_VARIABLE, str(DATA_PATH)))
        executor = ThreadPoolExecutor(1, thread_name_prefix="loading")  # of its own: a stop does not wait for it
        with loaded_within_memory(config.model.name):
            policy = await asyncio.get_running_loop().run_in_executor(executor, _load, config, data)
            await policy.engine.start()
        self._stack.push_async_callback(policy.engine.stop)
        self._engine = policy.engine
        headers = {"Authorization": f"Bearer {self._token}"}
        session = await self._stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        self._follower = self._make_follower(policy)
        self._inference.service = self._service(policy)
        index = os.environ.get(REPLICA_VARIABLE, "0")
        reports = asyncio.create_task(report_load(session, config.endpoints.policy, index, self._load))
        self._stack.callback(reports.cancel)
        await self._follower.follow(policy.engine)

    def _make_follower(self, policy: _Policy) -> "PolicyFollower":
        from clotho_trainer.inference.following import PolicyFollower

        training, trainer = self._config.training, self._config.endpoints.policy
        staleness = training.max_staleness
        follower = PolicyFollower(trainer, self._token, policy.live, policy.names, max_staleness=staleness)
        self._metrics.version.set_function(lambda: follower.position.version or 0)
        self._metrics.behind.set_function(lambda: max(0, follower.position.newest - (follower.position.version or 0)))
        return follower

    def _service(self, policy: _Policy) -> Service:
        return Service(
            engine=policy.engine,
            tokenizer=policy.live.tokenizer,
            model=self._config.model.name,
            context=policy.context,
            vocabulary=policy.vocabulary,
            temperature=self._config.inference.temperature,
            count_tokens=self._metrics.sampled_tokens.inc,
            count_sequences=self._metrics.sequences.inc,
        )

    def _load(self) -> Load | None:
        service = self._inference.service
        if service is None or self._unready():
            return None
        return Load(service.in_flight.count, self._config.decoded_together)

    def _status(self) -> web.Application:
        app = web.Application()
        add_health_routes(app, healthy=self._unhealthy, ready=self._unready, registry=self._metrics.registry)
        return app

    def _unhealthy(self) -> str | None:
        return self._engine.problem() if self._engine else None

    def _unready(self) -> str | None:
        if self._follower is None:
            return "waiting for the model to load"
        return self._unhealthy() or self._follower.unready()
