"""A pytest plugin for atroposlib's own tests: what they send to localhost:8000 goes to the server under test."""

import os
import subprocess

import requests

_send = requests.Session.request
_start = subprocess.Popen


def _redirected(self, method, url, *args, **kwargs):
    return _send(self, method, url.replace("http://localhost:8000", os.environ["TRAJECTORY_API"]), *args, **kwargs)


def _start_no_server(command, *args, **kwargs):
    is_server = "atroposlib.cli.run_api" in command
    return _start(["sleep", "600"] if is_server else command, *args, **kwargs)


requests.Session.request = _redirected
subprocess.Popen = _start_no_server
