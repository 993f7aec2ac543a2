"""atroposlib 0.4.0, unchanged, as the client: its own API tests, and an environment built on its BaseEnv."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rig.trajectory_servers import ServerProcess, start_ours

HERE = Path(__file__).parent / "with_atroposlib"
THEIR_TESTS = ("test_api_legacy.py", "test_api_compression.py", "test_api_messages_handling.py")
RAGGED = {  # these send four advantages for three tokens, which ours refuses on purpose
    "test_sft_batch_processing",
    "test_messages_with_numeric_strings_as_content",
}


def run(atropos: Path, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", **variables}
    return subprocess.run(
        [str(atropos), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=240
    )


def test_atroposlib_tests_pass_against_this_server(atropos: Path, tmp_path: Path) -> None:
    server = start_ours(tmp_path / "data")
    try:
        found = run(atropos, "-c", "import atroposlib; print(atroposlib.__path__[0])", cwd=tmp_path).stdout.strip()
        tests = [str(Path(found) / "tests" / name) for name in THEIR_TESTS]
        skipped = " and ".join(f"not {name}" for name in RAGGED)
        options = ("-q", "-p", "redirected", "-p", "no:cacheprovider", "-k", skipped)
        result = run(atropos, "-m", "pytest", *options, *tests, cwd=tmp_path, TRAJECTORY_API=server.url)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
        assert "34 passed" in result.stdout
    finally:
        server.stop()


class Trainer:
    """Leases and acknowledges as fast as it can."""

    def __init__(self, server: ServerProcess, token: str) -> None:
        self._url = server.url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def post(self, path: str, body: Any) -> Any:
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), self._headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            content = response.read()
        return json.loads(content) if content else None


@pytest.mark.timeout(240)
def test_an_environment_on_their_base_class_trains_to_the_end(atropos: Path, tmp_path: Path) -> None:
    token = "run-token"
    server = start_ours(tmp_path / "data", token=token)
    trainer = Trainer(server, token)
    registration = {
        "wandb_group": "g",
        "wandb_project": "p",
        "batch_size": 8,
        "max_token_len": 1024,
        "checkpoint_dir": str(tmp_path),
        "save_checkpoint_interval": 100,
        "starting_step": 0,
        "num_steps": 3,
    }
    trainer.post("/register", registration)
    trainer.post("/lease", {})  # from now on environments may register
    command = [str(atropos), str(HERE / "counting_env.py")]
    url = server.url.replace("http://", f"http://anybody:{token}@")
    with (tmp_path / "log").open("w") as log:
        environment = subprocess.Popen(
            [*command, url, str(tmp_path / "tokenizer")],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "PYTHONPATH": ""},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        seen: list[int] = []
        step = 0
        while environment.poll() is None:
            if (lease := trainer.post("/lease", {"wait_seconds": 1})) is not None:
                step += 1
                seen += [group["tokens"][0][0] for group in lease["batch"]]
                assert all(len(group["tokens"]) == 4 for group in lease["batch"])
                trainer.post(f"/lease/{lease['lease_id']}/ack", {"step": step})
        assert environment.returncode == 0, (tmp_path / "log").read_text()[-3000:]
        assert step >= 3
        assert len(set(seen)) == len(seen)
        assert any(number % 3 == 0 for number in seen)
    finally:
        environment.kill()
        environment.wait()
        server.stop()
