"""`describe --serve` and `wait` as pods run them: a valid file is described, a hostile one is reported as an error."""

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from clotho_dev.ports import free_port
from integration.environment.commands import command, write_run

GOOD = '''
from pydantic import Field
from clotho_environment.builtin.letters import Letters, LettersConfig

class Mine(Letters):
    """Letters, but mine."""
'''
PRETENDS = (
    'import sys\nprint(\'{"name": "pretender", "className": "Root", "fields": []}\', flush=True)\n'
    "sys.__stdout__.flush()\n" + GOOD
)


async def report(port: int) -> dict:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/description") as answer:
                    if answer.status == 200:
                        return await answer.json()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("text", [GOOD, PRETENDS], ids=["good", "prints a description of its own"])
async def test_a_good_file_is_reported_until_it_is_stopped(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    port = free_port()
    entry = str(tmp_path / "mine.py")
    async with command(tmp_path, "describe", "--serve", "--entry", entry, "--port", str(port)) as running:
        found = await report(port)
        running.terminate()
        assert await running.wait() == 0, running.log
    assert (found["className"], found["description"]) == ("Mine", "Letters, but mine.")
    fields = {field["name"]: field for field in found["fields"]}
    assert (fields["letters"]["minLength"], fields["group_size"]["default"]) == (1, 8)
    assert running.termination_message["reason"] == "Finished"


HOSTILE = {
    "a syntax error": ("def (", "SyntaxError"),
    "an import that fails": ("import no_such_module", "No module named 'no_such_module'"),
    "an exit that looks like success": (
        "print('bye'); import sys; sys.exit(0)",
        "exited with code 0 during its import; last output: bye",
    ),
    "an immediate exit": ("import os; os._exit(0)", "exited with code 0 during its import; no output"),
    "a crash": ("import os; os.abort()", "exited with code -6 during its import"),
    "a hang": ("import time; time.sleep(1e9)", "could not be imported within 3 s; no output"),
    "a hang that ignores signals": (
        "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1e9)",
        "could not be imported within 3 s",
    ),
    "a flood": ("while True: print('flood' * 10_000)", "could not be imported within 3 s"),
    "no environment at all": ("x = 1", "has no subclass of clotho_environment.Environment"),
    "ten megabytes": (f"x = '{'a' * 10_000_000}'", "has no subclass of clotho_environment.Environment"),
    "no text": ("\x00\x01", "null bytes"),
    "a description nested too deeply": (
        "import os, sys\nopen(sys.argv[sys.argv.index('--output') + 1], 'w').write('[' * 100_000)\nos._exit(0)",
        "cannot be read",
    ),
    "a termination message nested too deeply": (
        "import os\nopen(os.environ['CLOTHO_TERMINATION_MESSAGE'], 'w').write('{\"a\":' * 100_000)\nos._exit(1)",
        "exited with code 1 during its import",
    ),
    "a description without end": (
        "import os, sys\nwith open(sys.argv[sys.argv.index('--output') + 1], 'w') as file:\n"
        "    for _ in range(64): file.write('x' * 1024**2)\nos._exit(0)",
        "cannot be read",
    ),
    "a lie about its end": (
        "import os, pathlib\npathlib.Path(os.environ['CLOTHO_TERMINATION_MESSAGE']).write_text("
        '\'{"reason": "Finished", "message": "all is well"}\')\nos._exit(0)',
        "exited with code 0 during its import",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_file_is_reported_as_an_error(tmp_path, name):
    text, complaint = HOSTILE[name]
    path = tmp_path / "hostile.py"
    path.write_text(text)
    arguments = ["--serve", "--entry", str(path), "--port", str(free_port()), "--deadline", "3"]
    if "within" not in complaint:
        arguments[-1] = "60"
    async with command(tmp_path, "describe", *arguments) as running:
        assert await running.wait() == 1
    words = running.termination_message
    assert words["reason"] in ("InvalidConfig", "EnvironmentFailed")
    assert complaint in words["message"]
    assert len(words["message"]) < 1000
    assert "Traceback" not in running.log


MISSPELT = [
    ("reasoning-gym:leter_counting", "reasoning-gym has no task 'leter_counting'; did you mean letter_counting"),
    ("verifiers:shuot-v1", "verifiers has no taskset shuot-v1; did you mean shout-v1?"),
    ("verifiers:textarina", "verifiers has no taskset textarina; did you mean textarena?"),
    ("shuot_v1:Shout", "there is no module shuot_v1 in this image; did you mean shout_v1?"),
]


@pytest.mark.parametrize(("entry", "complaint"), MISSPELT)
async def test_a_misspelt_entry_is_found_and_the_nearest_offered(tmp_path, entry, complaint):
    library = entry.partition(":")[0].replace("-", "_")
    if library in ("reasoning_gym", "verifiers"):
        pytest.importorskip(library, reason=f"the extra for {library} is not installed")
    async with command(tmp_path, "describe", "--serve", "--entry", entry, "--port", str(free_port())) as running:
        assert await running.wait() == 1
    assert running.termination_message["reason"] == "InvalidConfig"
    assert running.termination_message["message"].startswith(complaint)


async def test_a_taskset_of_verifiers_is_described_without_its_data(tmp_path):
    pytest.importorskip("verifiers", reason="the extra environment-verifiers is not installed")
    async with command(tmp_path, "describe", "--entry", "verifiers:shout-v1") as running:
        assert await running.wait() == 0
    assert b'"taskset"' in running.output


async def test_stopped_while_importing(tmp_path):
    (tmp_path / "slow.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w').close()\nimport time; time.sleep(1e9)")
    entry = str(tmp_path / "slow.py")
    async with command(tmp_path, "describe", "--serve", "--entry", entry, "--port", str(free_port())) as running:
        async with asyncio.timeout(60):
            while not os.path.exists(tmp_path / "started"):  # noqa: ASYNC110, ASYNC240, PTH110
                await asyncio.sleep(0.05)
        running.terminate()
        assert await running.wait() == 0
    assert running.termination_message["reason"] == "Stopped"


@pytest.mark.parametrize(
    ("entry", "config", "expected"),
    [
        ("letters", {}, ""),
        ("letters", {"grup_size": 4}, "config.grup_size: unknown field; did you mean group_size?"),
        ("letters", {"group_size": 3}, "training.batchSize: 8 is not a multiple of group_size 3 (environment env)"),
        (
            "clotho_environment.builtin.leters:Letters",
            {},
            "there is no module clotho_environment.builtin.leters in this image; did you mean "
            "clotho_environment.builtin.letters?",
        ),
        (
            "clotho_environment.builtin.letters:Leters",
            {},
            "clotho_environment.builtin.letters has no environment class Leters; did you mean Letters?",
        ),
    ],
)
async def test_what_serving_the_environment_would_refuse_is_found_before_the_wait(tmp_path, entry, config, expected):
    ending = await waited_for_nothing(tmp_path, entry, **config)
    if not expected:
        assert ending["reason"] == "DependencyUnavailable", "it was checked, and then there was nothing to wait for"
    else:
        assert ending["reason"] == "InvalidConfig"
        assert ending["message"].startswith(expected)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import os; os._exit(3)", "the environment exited with code 3 during its import"),
        ("import os; assert 'CLOTHO_TOKEN' in os.environ, 'no token'", "no token"),
    ],
)
async def test_an_import_that_fails_ends_the_wait_with_its_reason(tmp_path, text, complaint):
    (tmp_path / "mine.py").write_text(text)
    ending = await waited_for_nothing(tmp_path, str(tmp_path / "mine.py"))
    assert ending["reason"] != "DependencyUnavailable"
    assert complaint in ending["message"]


async def waited_for_nothing(folder: Path, entry: str, **config: Any) -> dict[str, Any]:
    nowhere = f"http://127.0.0.1:{free_port()}"
    write_run(folder, api_server=nowhere, inference=nowhere, entry=entry, **config)
    async with command(folder, "wait", "--timeout", "0.1", variables={"CLOTHO_CHECK": "1"}) as running:
        assert await running.wait() == 1
    return running.termination_message
