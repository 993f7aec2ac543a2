"""Copies a directory from a volume claim to this machine: a short-lived pod mounts the claim and sends a tar stream."""

from __future__ import annotations

import asyncio
import contextlib
import io
import queue
import tarfile
import uuid
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from clotho.api.names import COMPONENT_LABEL, INDEX_LABEL, TRAINER
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.termination import cancelled_by_sigterm
from clotho.cli.terminal import output
from clotho.render.containers import EVERY_CONTAINER, MAIN, POD_SECURITY
from clotho.workspace.objects import Workspace
from clotho_contract.names import DATA_PATH

Object = dict[str, Any]
START_SECONDS: Final = 300
LIFETIME_SECONDS: Final = 6 * 3600  # of the pod, in case this program is killed before it can delete it
STDOUT, STDERR, ENDED = 1, 2, 3


class Source(NamedTuple):
    """A directory of a run's claim, and the names in it that are not wanted."""

    run: str
    claim: str
    path: str
    without: tuple[str, ...] = ()
    image: str = ""  # the trainer's, as the status has it


async def copy(workspace: Workspace, source: Source, target: Path, image: str) -> dict[str, int]:
    """The copied files with their sizes. The pod is deleted in any case."""
    trainer = await _trainer_pod(workspace, source.run)
    image = image or (source.image if trainer is None else "")
    if trainer is None and not image:
        raise Failure("the run has no trainer pod any more: name an image that has tar with --image", Exit.USAGE)
    name = f"{source.run[:40].rstrip('-')}-download-{uuid.uuid4().hex[:6]}"
    async with cancelled_by_sigterm():
        await workspace.client.create(workspace.core("pods"), _pod(name, source.claim, trainer or {}, image), Object)
        try:
            await _until_running(workspace, name)
            return await _copy(workspace, name, source, target)
        finally:
            await workspace.client.delete(workspace.core(f"pods/{name}"), {"gracePeriodSeconds": 0}, Object)


async def _trainer_pod(workspace: Workspace, run: str) -> Object | None:
    """The one that trains, or else a finished one that is kept for its logs: its image has tar."""
    pods = await workspace.pods_of(run)
    labels = {COMPONENT_LABEL: TRAINER, INDEX_LABEL: "0"}  # only the first of several pods has the claim
    trainers = [pod for pod in pods if labels.items() <= {INDEX_LABEL: "0", **pod["metadata"]["labels"]}.items()]
    return max(trainers, key=_holds_the_claim, default=None)


def _holds_the_claim(pod: Object) -> bool:
    return "nodeName" in pod["spec"] and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _beside(trainer: Object) -> Object:
    """On the trainer's node while it runs: most claims are ReadWriteOnce, for the pods of one node."""
    if not trainer or not _holds_the_claim(trainer):
        return {}
    # Not spec.nodeName: the scheduler still checks resources and taints, and reports why the pod is pending.
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
    message = "not scheduled yet"
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                pod = await workspace.client.get(workspace.core(f"pods/{name}"), Object)
                if pod["status"].get("phase") == "Running":
                    return
                if (found := _why_waiting(pod)) not in ("", "ContainerCreating", message):
                    message = found
                    output.note(f"waiting for the copying pod: {message}")
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise Failure(f"the copying pod did not start within {START_SECONDS} s: {message}", Exit.TIMEOUT) from None


def _why_waiting(pod: Object) -> str:
    waiting = [each.get("state", {}).get("waiting", {}) for each in pod["status"].get("containerStatuses", ())]
    unscheduled = [each.get("message", "") for each in pod["status"].get("conditions", ()) if each["status"] == "False"]
    return next(
        (text for text in [*(each.get("message") or each.get("reason", "") for each in waiting), *unscheduled] if text),
        "",
    )


async def _copy(workspace: Workspace, pod: str, source: Source, target: Path) -> dict[str, int]:
    """What has arrived is unpacked at once, so that nothing is stored twice."""
    excluded = [f"--exclude=./{name}" for name in source.without]
    argv = ["tar", "-C", source.path, *excluded, "-cf", "-", "."]
    params = [
        ("container", MAIN),
        ("stdout", "true"),
        ("stderr", "true"),
        *(("command", argument) for argument in argv),
    ]
    arrived = _Arriving()
    unpacking = asyncio.create_task(asyncio.to_thread(_unpack, arrived, target))
    complaints = b""
    try:
        async with workspace.client.open_channels(workspace.core(f"pods/{pod}/exec"), params) as channels:
            async for message in channels:
                if message.type is not aiohttp.WSMsgType.BINARY or len(message.data) < 2:
                    continue  # each channel opens with an empty message
                channel, data = message.data[0], message.data[1:]
                if channel == STDOUT:
                    await asyncio.to_thread(arrived.put, data)
                elif channel == STDERR:
                    complaints += data[:4096]
                elif channel == ENDED:
                    _check_ending(data, complaints)
    except asyncio.CancelledError:  # Ctrl-C, SIGTERM
        output.note(f"the copy is incomplete; delete {target} before you try again")
        raise
    finally:
        await asyncio.to_thread(arrived.close_writing)
        await asyncio.gather(unpacking, return_exceptions=True)  # raised below, unless there was an earlier error
    try:
        return await unpacking
    except (tarfile.TarError, OSError) as error:
        raise Failure(f"the copy is incomplete; delete {target} and try again: {error}") from error


def _check_ending(data: bytes, complaints: bytes) -> None:
    ending = msgspec.json.decode(data, type=dict[str, Any])
    if ending.get("status") != "Success":
        reason = complaints.decode(errors="replace").strip() or ending.get("message", "")
        raise Failure(f"tar failed in the pod: {reason}")


def _unpack(arrived: _Arriving, target: Path) -> dict[str, int]:
    try:
        target.mkdir(parents=True, exist_ok=True)
        sizes = {}
        with tarfile.open(fileobj=arrived, mode="r|") as archive:
            for member in archive:
                archive.extract(member, target, filter="data")  # nothing outside the directory, no links that lead out
                if member.isfile():
                    sizes[str(PurePosixPath(member.name))] = member.size
        return sizes
    finally:
        arrived.abandon()


class _Arriving(io.RawIOBase):
    """Bytes between the network and the thread that unpacks them; a slow disk slows the network down."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[bytes] = queue.Queue(maxsize=64)
        self._rest = b""
        self._is_over = False
        self._is_abandoned = False

    def put(self, piece: bytes) -> None:
        """Waits for room, unless the reader has given up."""
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
