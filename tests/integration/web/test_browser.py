"""The page in a real browser, against a real API server: it follows by itself, and untrusted text stays text."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from clotho.api.history import KeptLog, history_data
from clotho_contract.history import History
from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl
from rig import page_objects as objects
from rig.browser import Tab, open_browser
from rig.cluster_access import ClusterAccess, component
from rig.fake_kubelet import FakeKubelet
from rig.namespaces import fresh_namespace
from rig.operator_process import OperatorProcess
from rig.page_process import clotho_ui, page_in_cluster

# `make screenshots` keeps them in docs/images.
IMAGES = os.environ.get("CLOTHO_SCREENSHOTS", "")
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[31mred\u202egnp.exe\x00"
)


@pytest.fixture
def namespace(request: pytest.FixtureRequest, kubectl: Kubectl) -> Iterator[str]:
    """A random one, or the one that the screenshots show."""
    with fresh_namespace(kubectl, getattr(request, "param", "")) as name:
        yield name


@pytest_asyncio.fixture
async def tab(tmp_path: Path, address: str) -> AsyncIterator[Tab]:
    """Closed before the server is: what it complains about is the page's own."""
    try:
        async with open_browser(tmp_path / "browser") as opened:
            await opened.look()
            yield opened
            assert opened.problems == []
    except ClusterError as error:
        pytest.skip(f"a browser is needed: {error}")


@pytest_asyncio.fixture
async def address(control_plane: ControlPlane, cluster: ClusterAccess) -> AsyncIterator[str]:
    async with clotho_ui(control_plane.kubeconfig, "--namespace", cluster.namespace) as printed:
        yield printed


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = Path(IMAGES) if IMAGES else tmp_path / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("namespace", ["research"], indirect=True)
async def test_every_page_in_light_dark_and_on_a_phone(
    cluster: ClusterAccess, tab: Tab, address: str, images: Path
) -> None:
    await objects.write_all(cluster)
    run = f"/runs/{cluster.namespace}/gsm8k-8b"
    await tab.open(address)
    await tab.until_text("gsm8k-8b-low-rate")
    assert await tab.evaluate("location.hash") == "", "the key does not stay in the address"
    await tab.until_text("position 2")
    await tab.screenshot(images / "page-runs.png")
    await tab.go("/?phase=Failed")
    await tab.until("document.querySelectorAll('[data-run]').length === 1")
    await tab.go(run)
    await tab.until("document.querySelectorAll('.chart').length > 10 && document.querySelectorAll('.line').length > 12")
    await tab.until_text("78.7")
    await tab.screenshot(images / "page-run.png")
    await tab.look(scheme="dark")
    await tab.screenshot(images / "page-run-dark.png")
    await tab.look(width=390, height=844)
    await tab.until("document.querySelector('.plot svg').clientWidth < 390")
    await tab.screenshot(images / "page-run-phone.png")
    both = f"run={cluster.namespace}/gsm8k-8b&run={cluster.namespace}/gsm8k-8b-low-rate"
    phone = (run, f"{run}?tab=samples", f"{run}?tab=settings", f"/compare?{both}", "/environments", "/tests", "/")
    for path in phone:
        await tab.go(path)
        await tab.until("document.querySelector('.panel, .charts, .card, .row') !== null")
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390, f"{path} is cut on a phone"
    await tab.look()
    await tab.go(f"{run}?tab=samples")
    await tab.until_text("The bakery sold **16** muffins.")
    await tab.screenshot(images / "page-samples.png")
    await tab.evaluate("document.querySelector('[aria-label=\"Next group\"]').click()")
    await tab.until_text("2 of 2")
    await tab.go(f"{run}?tab=timeline")
    await tab.until_text("Evaluation of gsm8k at step 400")
    await tab.go(f"{run}?tab=settings")
    await tab.until_text(f"clotho run logs gsm8k-8b -n {cluster.namespace}")
    await tab.go(f"/compare?{both}")
    await tab.until("document.querySelector('.chart')?.querySelectorAll('.line').length === 2")
    await tab.screenshot(images / "page-compare.png")
    await tab.go("/environments")
    await tab.until_text("Grade-school word problems")
    await tab.evaluate("document.querySelector('details').open = true")
    await tab.screenshot(images / "page-environments.png")
    await tab.go("/tests")
    await tab.until_text("56.3 %")
    await tab.screenshot(images / "page-tests.png")


async def test_a_run_is_watched_from_apply_to_its_end_and_after_its_pods(
    control_plane: ControlPlane,
    cluster: ClusterAccess,
    kubelet: FakeKubelet,
    operator: OperatorProcess,
    tab: Tab,
    address: str,
) -> None:
    run = f"/runs/{cluster.namespace}/letters"
    await kubelet.serve_logs(control_plane.authority.issue_server("fake-kubelet", ["127.0.0.1"]))
    kubelet.logs = {"trainer": f"{'y' * 10_000_000}\n{HOSTILE}\nloaded the model\n"}
    kubelet.history = msgspec.to_builtins(objects.history(60))
    kubelet.progress |= {"step": 60, "rewardMean": 0.5}
    await tab.open(address)
    await tab.until_text("No runs yet.")
    await cluster.create_run("letters")
    await tab.until("document.querySelector('[data-run] .phase')?.innerText === 'Running'")
    await tab.go(f"{run}?tab=logs")
    await tab.until_text("more bytes\n<img src=x")
    await tab.until_text("␛[31mred⟨U+202E⟩gnp.exe␀\nloaded the model")
    await tab.go(run)
    await tab.until_text("KL divergence")
    await tab.until_text("Running")

    kubelet.logs = {"trainer": "wrote the last checkpoint\n"}
    done = {"state": "finished", "step": 100, "totalSteps": 100, "checkpoint": {"step": 100, "path": "/ckpt/100"}}
    ending = {"reason": "Finished", "message": "done", "step": 100, "progress": {**done, "rewardMean": 0.9}}
    (trainer,) = (pod for pod in await cluster.pods("letters") if component(pod) == "trainer")
    await kubelet.fail(trainer, exit_code=0, message=json.dumps(ending))
    await tab.until_text("Completed all 100 steps")
    await tab.until_text("Took")
    await cluster.until_pods("only its trainer", lambda pods: [*map(component, pods)] == ["trainer"], "letters")
    await cluster.delete("pods", trainer["metadata"]["name"])
    await cluster.until_pods("gone", lambda pods: not pods, "letters")
    await tab.send("Page.reload")
    await tab.until_text("gsm8k: percent_correct")
    await tab.until_text("KL divergence")
    for panel, text in (("samples", "The bakery sold **16** muffins."), ("logs", "wrote the last checkpoint")):
        await tab.go(f"{run}?tab={panel}")
        await tab.until_text(text)


async def test_people_sign_in_with_their_token(
    control_plane: ControlPlane, kubectl: Kubectl, cluster: ClusterAccess, tab: Tab, tmp_path: Path
) -> None:
    here = kubectl.in_namespace(cluster.namespace)
    here.run("create", "serviceaccount", "viewer")
    here.run(
        "create",
        "role",
        "viewer",
        "--verb=get,list,watch",
        "--resource=trainingruns.clotho.dev,environments.clotho.dev",
    )
    here.run("create", "rolebinding", "viewer", "--role=viewer", f"--serviceaccount={cluster.namespace}:viewer")
    await objects.write_run(cluster, "letters", objects.running(40, 80), None)
    enter = "document.querySelector('#token').value = '{}'; document.querySelector('form button').click()"
    async with page_in_cluster(control_plane.kubeconfig, tmp_path) as address:
        await tab.open(address)
        await tab.until("document.querySelector('#token') !== null")
        await tab.evaluate(enter.format("made-up"))
        await tab.until_text("The cluster rejects these credentials")
        await tab.evaluate(enter.format(here.run("create", "token", "viewer").strip()))
        await tab.until_text("Look into these namespaces")
        await tab.go(f"/?namespaces={cluster.namespace}")
        await tab.until_text("letters")
        await tab.go("/environments")
        await tab.until_text("No environments yet.")
        assert await tab.evaluate("localStorage.length") == 0, "the token stays in this tab"
        await tab.evaluate("document.querySelector('#leave').click()")
        await tab.until("document.querySelector('#token') !== null && sessionStorage.length === 0")
        tab.problems.clear()  # the answer 401 to the wrong token


async def test_comparison_follows_its_runs(cluster: ClusterAccess, tab: Tab, address: str) -> None:
    for name, steps, size in (("letters", 40, 8), ("other", 60, 16)):
        kept = objects.history(steps, seed=size)
        training = {"steps": 80, "batchSize": size}
        await objects.write_run(cluster, name, objects.running(steps, 80), kept, training=training)
    await tab.open(address)
    await tab.until("document.querySelectorAll('[data-run]').length === 2")
    await tab.evaluate("document.querySelectorAll('[data-run] input').forEach(each => each.click())")
    await tab.until("document.querySelector('.chosen a')?.click() ?? location.pathname === '/compare'")
    await tab.until("document.querySelector('.chart')?.querySelectorAll('.line').length === 2")
    assert await tab.evaluate("document.querySelector('.different tbody th').innerText") == "training.batchSize"
    await cluster.patch("trainingruns", "other", {"status": objects.running(75, 80)}, "/status")
    await tab.until_text("75 / 80")
    await cluster.delete("trainingruns", "letters")
    await tab.until_text(f"There is no run {cluster.namespace}/letters")
    await tab.until("document.querySelector('.chart').querySelectorAll('.line').length === 1")


async def test_hostile_text_stays_text(cluster: ClusterAccess, tab: Tab, address: str) -> None:
    answers = ((HOSTILE, 1.0, 0.5), ("x" * 900_000, 0.0, -0.5))
    status = {**objects.running(5, 10), "message": HOSTILE}
    run = await objects.write_run(cluster, "hostile", status, None)
    kept = History(samples=(objects.group("newest", 5, answers, prompt=HOSTILE),))
    await objects.write_history(cluster, run, history_data(kept))
    log = KeptLog(attempt=1, restarts=0, title="trainer", container="main", text=f"{HOSTILE}\n{'y' * 200_000}")
    await objects.write_logs(cluster, run, log)
    await tab.open(address)
    await tab.until_text("hostile")
    for page, waited in (("", "onerror"), ("?tab=samples", "2 answers"), ("?tab=logs", "attempt 1")):
        await tab.go(f"/runs/{cluster.namespace}/hostile{page}")
        await tab.until_text(waited)
        await tab.until_text("<script>")
        text = await tab.evaluate("document.body.innerText")
        assert "␛[31mred⟨U+202E⟩gnp.exe" in text
        assert len(text) < 60_000, "what is too long is cut"
        assert await tab.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in await tab.evaluate("document.title")
    refused = "try { document.body.innerHTML = '<b>x</b>'; 'allowed' } catch (error) { error.name }"
    assert await tab.evaluate(refused) == "TypeError", "the policy forbids to interpret text at all"
    tab.problems.clear()  # the line above is reported, as it should be
