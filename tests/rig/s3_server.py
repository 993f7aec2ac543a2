"""A real S3 server for tests: rclone's, with a folder as its storage."""

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clotho_dev.cluster.process import Component, Processes, in_network_of
from clotho_dev.ports import free_port

KEY, SECRET, BUCKET = "key", "secret", "runs"


@dataclass(frozen=True)
class S3Server:
    pid: int
    folder: Path  # of the bucket
    endpoint: str

    def limit_files_to(self, size: int) -> None:
        """A store that is full, as far as its clients can see."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def make_room(self) -> None:
        self.limit_files_to(resource.RLIM_INFINITY)


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1", inside: int | None = None) -> Iterator[S3Server]:
    """`inside`: a process in whose network namespace `host` is an address, instead of this one's."""
    bucket = folder / "store" / BUCKET
    bucket.mkdir(parents=True)
    address = f"{host}:{free_port()}"
    options = ["--addr", address, "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull, "--dir-cache-time", "1s"]
    rclone = shutil.which("rclone") or "rclone"
    argv = [*in_network_of(inside), rclone, "serve", "s3", *options, str(bucket.parent)]
    processes = Processes(folder / "logs")
    log = processes.logs / "s3.log"
    try:
        processes.start(Component("s3", argv, lambda: "Starting s3 server" in log.read_text()))
        processes.wait_ready()
        (running,) = processes.running
        yield S3Server(running.process.pid, bucket, f"http://{address}")
    finally:
        processes.kill()
