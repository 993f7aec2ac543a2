"""`run export`: a short-lived pod mounts the run's claim, and its checkpoint comes over as a tar stream."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import queue
import tarfile
import uuid
from pathlib import Path, PurePosixPath
from typing import Any, Final

import aiohttp
import msgspec

from clotho.api.names import COMPONENT_LABEL, TRAINER
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output
from clotho.render.containers import EVERY_CONTAINER, MAIN, POD_SECURITY
from clotho.workspace.objects import Workspace
from clotho_contract.names import DATA_PATH

Object = dict[str, Any]
START_SECONDS: Final = 300
LIFETIME_SECONDS: Final = 6 * 3600  # of the pod, should nobody be left to delete it
STDOUT, STDERR, ENDED = 1, 2, 3


async def export(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    claim, path = _where(run)
    if options.to is None:
        told = [f"{path} on claim {claim}", f"To fetch it: {options.parser.prog} {options.name} --to FOLDER"]
        output.show(options.output, {"run": options.name, "claim": claim, "path": path}, told)
        return Exit.OK
    if options.to.exists() and (not options.to.is_dir() or any(options.to.iterdir())):
        raise Failure(f"{options.to} is there already; name a folder that is empty or does not exist", Exit.USAGE)
    trainer = await _trainer_pod(workspace, options.name)
    if trainer is None and not options.image:
        raise Failure("the run's trainer pod is gone; name an image that has tar with --image", Exit.USAGE)
    name = f"{options.name[:40].rstrip('-')}-export-{uuid.uuid4().hex[:6]}"
    await workspace.client.create(workspace.core("pods"), _pod(name, claim, trainer or {}, options.image), Object)
    try:
        await _until_running(workspace, name)
        size = await _copy(workspace, name, PurePosixPath(path), options.to)
    finally:
        await workspace.client.delete(workspace.core(f"pods/{name}"), {"gracePeriodSeconds": 0}, Object)
    told = [f"copied {size / 1e6:.1f} MB from {path} to {options.to}"]
    output.show(options.output, {"run": options.name, "path": path, "folder": str(options.to), "bytes": size}, told)
    return Exit.OK


def _where(run: Object) -> tuple[str, str]:
    """The final checkpoint, or the newest of a run that goes on."""
    name, status = run["metadata"]["name"], run.get("status", {})
    results = status.get("results") or {}
    path = results.get("path") or (status.get("checkpoint") or {}).get("path", "")
    if not path:
        raise Failure(f"run {name} has no checkpoint yet", Exit.NOT_FOUND)
    if run["spec"].get("storage", {}).get("ephemeral"):
        raise Failure(f"run {name} has ephemeral storage: its checkpoints go with its pods", Exit.REFUSED)
    claim = results.get("claim") or run["spec"].get("storage", {}).get("claimName") or _claim_name(run)
    if not PurePosixPath(path).is_relative_to(DATA_PATH):
        raise Failure(f"the checkpoint {path} is not on the claim, which is mounted at {DATA_PATH}", Exit.REFUSED)
    return claim, path


def _claim_name(run: Object) -> str:
    from clotho.api.metadata import Metadata
    from clotho.render.names import claim_name

    return claim_name(Metadata(name=run["metadata"]["name"], uid=run["metadata"]["uid"]), TRAINER)


async def _trainer_pod(workspace: Workspace, run: str) -> Object | None:
    """The one that trains, or else one that did and is kept for its logs: its image has tar."""
    pods = await workspace.pods_of(run)
    trainers = [pod for pod in pods if pod["metadata"]["labels"].get(COMPONENT_LABEL) == TRAINER]
    return max(trainers, key=_holds_the_claim, default=None)


def _holds_the_claim(pod: Object) -> bool:
    return "nodeName" in pod["spec"] and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _beside(trainer: Object) -> Object:
    """On the trainer's node while it lives: most claims are ReadWriteOnce, for pods of one node."""
    if not trainer or not _holds_the_claim(trainer):
        return {}
    # Not spec.nodeName: the scheduler still looks at room and taints, and says what keeps the pod waiting.
    here = {"key": "metadata.name", "operator": "In", "values": [trainer["spec"]["nodeName"]]}
    terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _pod(name: str, claim: str, trainer: Object, image: str) -> Object:
    like = trainer.get("spec", {})
    main: Object = next((each for each in like.get("containers", ()) if each["name"] == MAIN), {})
    pull = {"imagePullPolicy": main["imagePullPolicy"]} if main and not image else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "clotho"}},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFETIME_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": POD_SECURITY,
            **{key: like[key] for key in ("tolerations", "imagePullSecrets") if key in like},
            **_beside(trainer),
            "containers": [
                {
                    "name": MAIN,
                    "image": image or main["image"],
                    **pull,
                    "command": ["sleep", str(LIFETIME_SECONDS)],
                    "securityContext": EVERY_CONTAINER["securityContext"],
                    "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
                    "volumeMounts": [{"name": "data", "mountPath": str(DATA_PATH), "readOnly": True}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
        },
    }


async def _until_running(workspace: Workspace, name: str) -> None:
    message = "it is not scheduled"
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                pod = await workspace.client.get(workspace.core(f"pods/{name}"), Object)
                if pod["status"].get("phase") == "Running":
                    return
                message = _why_waiting(pod) or message
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise Failure(f"the copying pod does not start: {message}", Exit.TIMEOUT) from None


def _why_waiting(pod: Object) -> str:
    waiting = [each.get("state", {}).get("waiting", {}) for each in pod["status"].get("containerStatuses", ())]
    unscheduled = [each.get("message", "") for each in pod["status"].get("conditions", ()) if each["status"] == "False"]
    return next(
        (text for text in [*(each.get("message") or each.get("reason", "") for each in waiting), *unscheduled] if text),
        "",
    )


async def _copy(workspace: Workspace, pod: str, path: PurePosixPath, folder: Path) -> int:
    """What has arrived is unpacked at once, so that nothing is stored twice."""
    words = ["tar", "-C", str(path), "-cf", "-", "."]
    params = [("container", MAIN), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in words)]
    arrived = _Arriving()
    unpacking = asyncio.create_task(asyncio.to_thread(_unpack, arrived, folder))
    complaints = b""
    try:
        async with workspace.client.open_channels(workspace.core(f"pods/{pod}/exec"), params) as channels:
            async for message in channels:
                if message.type is not aiohttp.WSMsgType.BINARY or len(message.data) < 2:
                    continue  # each channel is greeted with an empty message
                channel, data = message.data[0], message.data[1:]
                if channel == STDOUT:
                    await asyncio.to_thread(arrived.put, data)
                elif channel == STDERR:
                    complaints += data[:4096]
                elif channel == ENDED:
                    _check_ending(data, complaints)
    finally:
        await asyncio.to_thread(arrived.close_writing)
        await asyncio.gather(unpacking, return_exceptions=True)  # its failure counts only where there is no earlier one
    try:
        await unpacking
    except (tarfile.TarError, OSError) as error:
        raise Failure(f"the copy is not whole: {error}") from error
    return arrived.size


def _check_ending(data: bytes, complaints: bytes) -> None:
    ending = msgspec.json.decode(data, type=dict[str, Any])
    if ending.get("status") != "Success":
        said = complaints.decode(errors="replace").strip() or ending.get("message", "")
        raise Failure(f"tar did not succeed in the pod: {said}")


def _unpack(arrived: _Arriving, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=arrived, mode="r|") as archive:
            archive.extractall(folder, filter="data")  # nothing outside the folder, no links that lead there
    finally:
        arrived.abandon()


class _Arriving(io.RawIOBase):
    """Bytes between the network and the thread that unpacks them; a slow disk slows the network down."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[bytes] = queue.Queue(maxsize=64)
        self._rest = b""
        self._is_over = False
        self._is_abandoned = False
        self.size = 0

    def put(self, piece: bytes) -> None:
        """Waits for room, unless nobody reads any more."""
        self.size += len(piece)
        while not self._is_abandoned:
            with contextlib.suppress(queue.Full):
                self._pieces.put(piece, timeout=0.2)
                return

    def close_writing(self) -> None:
        self.put(b"")

    def abandon(self) -> None:
        self._is_abandoned = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest and not self._is_over:
            self._rest = self._pieces.get()
            self._is_over = not self._rest
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
