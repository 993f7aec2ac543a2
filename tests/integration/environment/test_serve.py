"""`serve` as a process against stand-ins: the life of an environment pod, including failures."""

import json

import aiohttp
import pytest
import yaml
from aiohttp import web

from clotho_dev.ports import free_port
from integration.environment.commands import ENVIRONMENTS, Command, command, write_run
from integration.environment.stand_ins import TOKEN

QUICK = {"concurrency": 2, "max_consecutive_failures": 2}


def serve(folder, api_server, inference, entry, steps=5, variables=None, **config):
    write_run(folder, api_server=api_server.url, inference=inference.url, entry=entry, steps=steps, **config)
    return command(folder, "serve", "--port", str(free_port()), variables=variables)


async def ending(running: Command) -> tuple[int, str, str]:
    code = await running.wait()
    return code, running.termination_message["reason"], running.termination_message["message"]


async def test_letters_to_the_last_step(tmp_path, api_server, inference):
    async with serve(tmp_path, api_server, inference, "letters", group_size=4, temperature=0.7, **QUICK) as running:
        code, reason, _ = await ending(running)
    assert (code, reason) == (0, "Finished"), running.log
    assert running.termination_message["step"] >= 5
    assert api_server.registrations == [
        {"desired_name": "env", "group_size": 4, "max_token_length": 64, "weight": 1.0, "min_batch_allocation": None}
    ]
    assert api_server.deregistrations == [1]
    group = api_server.groups[0]
    assert group["scores"] == [1.0] * 4
    assert group["generation_params"] == {"policy_version": 3}
    assert group["tokens"][0] == [group["tokens"][0][0], ord(">"), *[group["tokens"][0][0]] * 8]
    assert group["masks"][0][:2] == [-100, -100]
    assert inference.bodies[0]["n"] == 4
    assert inference.bodies[0]["temperature"] == 0.7
    assert TOKEN not in running.log
    assert all(json.loads(line)["level"] for line in running.log.splitlines())


async def test_back_pressure_is_obeyed_and_loses_nothing(tmp_path, api_server, inference):
    full = web.json_response({"detail": "the queue is full"}, status=429, headers={"Retry-After": "0.01"})
    inference.reply = lambda prompt: prompt[0]
    async with serve(tmp_path, api_server, inference, "letters", steps=12, group_size=4, **QUICK) as running:
        await api_server.groups_reach(2)
        made_before = len(inference.bodies)
        api_server.troubles.extend([lambda: web.Response(status=429, headers=full.headers)] * 6)
        code, _, _ = await ending(running)
    assert code == 0, running.log
    assert not api_server.troubles
    assert len(inference.bodies) > made_before
    left = len(inference.bodies) - len(api_server.groups)
    assert left <= 2 * QUICK["concurrency"], "at the end each worker has a group on its way and one in the making"


async def test_environment_registers_again_with_an_api_server_that_lost_its_data(tmp_path, api_server, inference):
    async with serve(tmp_path, api_server, inference, "letters", steps=30, group_size=4, **QUICK) as running:
        await api_server.groups_reach(3)
        await api_server.stop()
        api_server.known.clear()
        await api_server.start()
        code, reason, _ = await ending(running)
    assert (code, reason) == (0, "Finished"), running.log
    assert len(api_server.registrations) == 2
    assert {group["env_id"] for group in api_server.groups} == {1, 2}
    assert "registering again" in running.log


async def test_a_restarted_trainer_is_waited_for(tmp_path, api_server, inference):
    async with serve(tmp_path, api_server, inference, "letters", steps=30, group_size=4, **QUICK) as running:
        await api_server.groups_reach(3)
        await inference.stop()
        inference.version = 7
        await inference.start()
        code, reason, _ = await ending(running)
    assert (code, reason) == (0, "Finished"), running.log
    assert api_server.groups[-1]["generation_params"] == {"policy_version": 7}


async def test_waits_for_the_trainer_to_register(tmp_path, api_server, inference):
    api_server.trainer_is_registered = False
    port = free_port()
    write_run(tmp_path, api_server=api_server.url, inference=inference.url, entry="letters", group_size=4)
    async with command(tmp_path, "serve", "--port", str(port)) as running, aiohttp.ClientSession() as session:
        await api_server.wait_for_requests("/register-env", times=2)
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert (response.status, await response.text()) == (503, "waiting for the API server and the trainer\n")
        async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
            assert response.status == 200
        api_server.groups_a_step = 10**6  # runs until it is stopped
        api_server.trainer_is_registered = True
        await api_server.groups_reach(2)
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert response.status == 200
        async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
            assert 'clotho_environment_rollouts_total{outcome="sent"}' in await response.text()
        running.terminate()
        assert await ending(running) == (0, "Stopped", "stopped")
    assert api_server.deregistrations == [1]


async def test_a_stop_does_not_wait_for_rollouts_that_hang(tmp_path, api_server, inference):
    entry = f"{ENVIRONMENTS / 'broken.py'}:Hangs"
    async with serve(tmp_path, api_server, inference, entry, group_size=4) as running:
        await api_server.wait_for_requests("/status-env")
        running.terminate()
        code, reason, _ = await ending(running)
    assert (code, reason) == (0, "Stopped"), running.log
    assert api_server.deregistrations == [1]


@pytest.mark.parametrize("refusing", ["API server", "inference server"])
async def test_a_refused_token_ends_at_once(tmp_path, api_server, inference, refusing):
    server = api_server if refusing == "API server" else inference
    server.troubles.append(web.json_response({"detail": "no"}, status=401))
    async with serve(tmp_path, api_server, inference, "letters", group_size=4) as running:
        code, reason, message = await ending(running)
    assert (code, reason) == (1, "Unauthorized")
    assert message == f"the {refusing} at {server.url} refuses our token (401)"


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("Raises", {}, "2 rollouts in a row failed; the last: ZeroDivisionError: the scorer divides by nothing"),
        ("Hangs", {"rollout_timeout_seconds": 0.2}, "longer than rollout_timeout_seconds = 0.2"),
        ("Garbage", {}, "scores[0]: nan is not a finite number"),
        ("Blocks", {"rollout_timeout_seconds": 0.5}, "environment code has blocked the event loop for"),
    ],
)
async def test_broken_environments_fail_with_a_clear_reason(tmp_path, api_server, inference, name, config, message):
    entry = f"{ENVIRONMENTS / 'broken.py'}:{name}"
    async with serve(tmp_path, api_server, inference, entry, group_size=4, **QUICK, **config) as running:
        code, reason, text = await ending(running)
    assert (code, reason) == (1, "EnvironmentFailed"), running.log
    assert message in text
    assert "broken.py" in text or name in ("Hangs", "Garbage")
    assert api_server.groups == []
    if name == "Raises":
        assert running.log.count("Traceback") == 1, "the first traceback is shown, and only the first"


async def test_threads_left_behind_do_not_keep_the_pod_alive(tmp_path, api_server, inference):
    entry = f"{ENVIRONMENTS / 'broken.py'}:LeavesThreadsBehind"
    async with serve(tmp_path, api_server, inference, entry, group_size=4) as running:
        code, reason, _ = await ending(running)
    assert (code, reason) == (0, "Finished"), running.log


@pytest.mark.parametrize(
    ("entry", "config", "message"),
    [
        ("letters", {"leters": "ab"}, "config.leters: unknown field; did you mean letters?"),
        (
            "letters",
            {"group_size": 3},
            "training.batchSize: 8 is not a multiple of group_size 3 (environment env)",
        ),
        ("gsm8k", {}, "'gsm8k' is not an entry"),
        ("nowhere.py", {}, "there is no file nowhere.py in this image"),
    ],
)
async def test_invalid_configs_are_refused_before_anything_starts(
    tmp_path, api_server, inference, entry, config, message
):
    async with serve(tmp_path, api_server, inference, entry, **config) as running:
        code, reason, text = await ending(running)
    assert (code, reason) == (1, "InvalidConfig")
    assert message in text
    assert "Traceback" not in running.log
    assert api_server.requests == []


async def test_a_locked_field_concerns_only_environments_that_have_it(tmp_path, api_server, inference):
    path = write_run(
        tmp_path, api_server=api_server.url, inference=inference.url, entry="letters", worker_timeout=60, group_size=4
    )
    written = yaml.safe_load(path.read_text())
    written["environments"][0]["locked"] = ["worker_timeout", "group_size"]
    path.write_text(yaml.safe_dump(written))
    async with command(tmp_path, "serve", "--port", str(free_port())) as running:
        code, reason, _ = await ending(running)
    assert (code, reason) == (0, "Finished"), running.log
    assert api_server.registrations[0]["group_size"] == 4


async def test_a_missing_config_file_is_named(tmp_path):
    async with command(tmp_path, "serve", variables={"CLOTHO_CONFIG": str(tmp_path / "absent.yaml")}) as running:
        code, reason, text = await ending(running)
    assert (code, reason) == (1, "InvalidConfig")
    assert "absent.yaml" in text


async def test_raised_steps_are_noticed(tmp_path, api_server, inference):
    api_server.groups_a_step = 10**6
    async with serve(tmp_path, api_server, inference, "letters", steps=5, group_size=4, **QUICK) as running:
        await api_server.groups_reach(4)
        write_run(tmp_path, api_server=api_server.url, inference=inference.url, entry="letters", steps=8, group_size=4)
        api_server.groups_a_step = len(api_server.groups) // 6 or 1
        code, reason, _ = await ending(running)
    assert (code, reason) == (0, "Finished"), running.log
    assert running.termination_message["step"] >= 8
