"""The operator's health, readiness, metrics and logs; no secret is in any of them."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from clotho.render import objects
from rig.cluster_access import ClusterAccess, eventually
from rig.fake_kubelet import FakeKubelet
from rig.meddling_proxy import MeddlingProxy
from rig.operator_process import OperatorProcess

StartOperator = Callable[..., Awaitable[OperatorProcess]]
DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


async def test_health_and_readiness(operator: OperatorProcess) -> None:
    async def is_ready() -> tuple[bool, object]:
        answer = await operator.get("/readyz")
        return answer[0] == 200, answer

    await eventually("ready", is_ready)
    assert (await operator.get("/healthz"))[0] == 200


async def test_not_ready_before_the_caches_are_filled(
    cluster: ClusterAccess, proxy: MeddlingProxy, start_operator: StartOperator, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere.kubeconfig"
    nowhere.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", proxy.kubeconfig.read_text()))
    operator = OperatorProcess(nowhere, tmp_path / "nowhere.log", {"CLOTHO_LEASE_NAMESPACE": cluster.namespace})
    async with operator:
        status, text = await operator.get("/readyz")
        assert (status, text) == (503, "the caches are not filled yet\n")
        assert (await operator.get("/healthz"))[0] == 200


async def test_metrics_of_a_run_appear_and_disappear_with_it(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.progress |= {"step": 7, "rewardMean": 0.25, "tokensPerSecond": 99.0, "lastStepTime": "2026-01-01T00:00:00Z"}
    await cluster.create_run("m")
    await cluster.until("at step 7", lambda r: r.get("status", {}).get("progress", {}).get("step") == 7, "m")
    name = f'{{namespace="{cluster.namespace}",run="m"}}'
    assert await operator.metric(f"clotho_run_step{name}") == 7
    assert await operator.metric(f"clotho_run_total_steps{name}") == 100
    assert await operator.metric(f"clotho_run_reward_mean{name}") == 0.25
    assert await operator.metric(f"clotho_run_seconds_since_last_step{name}") > 1
    assert await operator.metric('clotho_runs{phase="Running"}') == 1
    assert await operator.metric("clotho_startup_seconds_count") == 1
    await cluster.delete("trainingruns", "m")

    async def is_silent() -> tuple[bool, str]:
        _, text = await operator.get("/metrics")
        return 'run="m"' not in text, text

    await eventually("silent about the run", is_silent)


async def test_every_documented_metric_is_served(operator: OperatorProcess) -> None:
    _, text = await operator.get("/metrics")
    served = {family.name for family in text_string_to_metric_families(text)}
    section = DOCS.read_text().partition("## Operator")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `clotho")]
    assert {row[1].strip(" `").removesuffix("_total") for row in rows} == served


async def test_logs_are_json_and_name_the_run_but_never_the_token(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("j")
    await cluster.until_phase("Running", "j")
    lines = [json.loads(line) for line in operator.log().splitlines()]
    assert any(line.get("run") == f"{cluster.namespace}/j" for line in lines)
    (secret,) = await cluster.of_run("secrets", "j")
    run = json.dumps(await cluster.run("j"))
    for key in objects.TOKEN_KEYS:
        for text in (operator.log(), run):
            assert secret["data"][key] not in text


async def test_a_wrong_setting_is_one_sentence_and_no_traceback() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "clotho.manager", "--reconcile-workers=none",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    _, error = await process.communicate()
    assert process.returncode == 2
    assert error.decode().startswith("clotho-operator: --reconcile-workers='none': Expected `int`")
    assert "Traceback" not in error.decode()
