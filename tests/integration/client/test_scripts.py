"""The client in a script of its own: nothing but what the script prints."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

SCRIPT = "from clotho import Client; print(Client('lab').runs())"


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # the connection stays open

    def do_GET(self) -> None:
        body = json.dumps({"metadata": {}, "items": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "me", "user": {"token": "secret"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        yield tmp_path / "config"
        server.shutdown()


def test_a_script_need_not_close_the_client(kubeconfig: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={"KUBECONFIG": str(kubeconfig), "PYTHONPATH": ":".join(filter(None, sys.path))},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
