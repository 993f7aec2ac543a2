"""Checkpoints in a bucket of a real S3 server: what it refuses is read in the run's status, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster.embedded import process_inside
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.target import Embedded
from e2e.product.runs import Object, Runs, condition, letters, step_of
from rig import cluster_access
from rig.s3_server import BUCKET, KEY, SECRET, S3Server, s3_server

STEPS = 4


@pytest.fixture
def server(embedded: Embedded, kubectl: Kubectl, tmp_path: Path) -> Iterator[S3Server]:
    """At the node's address, which pods reach."""
    (node,) = kubectl.get("nodes")["items"]
    host = next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
    with s3_server(tmp_path, host, process_inside(embedded.folder)) as started:
        yield started


def credentials(secret: str) -> Object:
    values = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": secret}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": values}


def copied_letters(name: str, server: S3Server, steps: int, resume_from: str = "") -> Object:
    run = letters(name, steps=steps)
    run["spec"]["training"]["checkpoint"] = {"everySteps": 1}
    run["spec"]["storage"] |= {"s3": {"bucket": BUCKET, "endpoint": server.endpoint, "secretName": "s3"}}
    if resume_from:
        run["spec"]["storage"]["resumeFrom"] = resume_from
    return run


def test_run_overcomes_a_bucket_that_refuses_and_one_that_is_full_and_is_continued_elsewhere(
    runs: Runs, elsewhere: Runs, server: S3Server
) -> None:
    runs.kubectl.apply([credentials("wrong"), copied_letters("copied", server, STEPS)])
    refused = runs.wait("copied", "refused", lambda run: "credentials" in run.get("status", {}).get("message", ""))
    assert f"bucket {BUCKET} at {server.endpoint}" in refused["status"]["message"]
    assert "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the Secret" in refused["status"]["message"]

    server.limit_files_to(1024)
    runs.kubectl.apply(credentials(SECRET))
    full = runs.wait("copied", "without copies", lambda run: condition(run, "CheckpointsCopied") == "False")
    assert "the store failed" in cluster_access.condition(full, "CheckpointsCopied")["message"]
    runs.wait("copied", "delayed", lambda run: "waiting for the copy of its checkpoint" in run["status"]["message"])
    assert not list(server.folder.rglob("manifest.json"))

    server.make_room()
    done = runs.wait_for_phase("copied", "Completed", "Failed")
    assert done["status"]["phase"] == "Completed"
    copied = cluster_access.condition(done, "CheckpointsCopied")["message"]
    assert copied.startswith(f"Step {STEPS} is in s3://{BUCKET}/"), copied

    location = copied.removesuffix(".").split(" is in ")[1]
    elsewhere.kubectl.apply([credentials(SECRET), copied_letters("continued", server, STEPS + 1, location)])
    continued = elsewhere.wait_for_phase("continued", "Completed", "Failed")
    assert (continued["status"]["phase"], step_of(continued)) == ("Completed", STEPS + 1)
    assert continued["status"]["history"][:STEPS] == done["status"]["history"], "its curve begins with the other's"
