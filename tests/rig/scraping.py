"""A Prometheus that scrapes what the chart configures, through the API server: the network of pods is not ours.

Debian builds it without discovery in Kubernetes, so the tests write down what that would find.
"""

import base64
import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from clotho_dev.cluster.kubectl import Kubectl

Json = dict[str, Any]


class Prometheus:
    """A context manager; its configuration is made from the rendered ServiceMonitor and PodMonitor."""

    def __init__(self, program: str, folder: Path, port: int, kubeconfig: Path, monitors: list[Json]) -> None:
        self._program, self._folder = program, folder
        self._address = f"127.0.0.1:{port}"
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(folder, kubeconfig, monitors)))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Prometheus":
        argv = [
            self._program,
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*argv, f"--web.listen-address={self._address}"], stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def discover(self, kubectl: Kubectl) -> None:
        """Give it all pods and Services of the namespace, with the labels that Kubernetes discovery gives."""
        pods, services = kubectl.get("pods")["items"], kubectl.get("services")["items"]
        targets = {
            "pods": [target for pod in pods for target in pod_targets(pod)],
            "services": [target for service in services for target in service_targets(service, pods)],
        }
        for name, found in targets.items():
            fresh = self._folder / f".{name}.json"
            fresh.write_text(json.dumps(found))
            fresh.rename(self._folder / f"{name}.json")

    def query(self, expression: str) -> list[float]:
        """The values of an instant query; those that are not a number are no data."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{query}", timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        except urllib.error.URLError:  # it is not up yet
            return []
        return [value for sample in result if not math.isnan(value := float(sample["value"][1]))]

    def without_data(self, expressions: dict[str, str], limit_seconds: float) -> list[str]:
        """Names of the expressions that have no value even after a while."""
        deadline = time.monotonic() + limit_seconds
        missing = dict(expressions)
        while missing and time.monotonic() < deadline:
            missing = {name: expression for name, expression in missing.items() if not self.query(expression)}
            time.sleep(0.5)
        return sorted(missing)


def configuration(folder: Path, kubeconfig: Path, monitors: list[Json]) -> Json:
    access = yaml.safe_load(kubeconfig.read_text())
    server, user = access["clusters"][0]["cluster"], access["users"][0]["user"]
    tls = {}
    for field, data in {
        "ca_file": server["certificate-authority-data"],
        "cert_file": user["client-certificate-data"],
        "key_file": user["client-key-data"],
    }.items():
        (folder / field).write_bytes(base64.b64decode(data))
        tls[field] = str(folder / field)
    shared = {"scheme": "https", "tls_config": tls}
    through = [
        {
            "source_labels": [
                f"__meta_kubernetes_{part}" for part in ("namespace", "pod_name", "pod_container_port_number")
            ],
            "regex": "(.+);(.+);(.+)",
            "replacement": "/api/v1/namespaces/$1/pods/$2:$3/proxy/metrics",
            "target_label": "__metrics_path__",
        },
        {"target_label": "__address__", "replacement": server["server"].removeprefix("https://")},
    ]
    jobs = [
        {**job(monitor, endpoint, folder, through), **shared, "job_name": f"{monitor['kind']}-{number}"}
        for monitor in monitors
        for number, endpoint in enumerate(endpoints(monitor))
    ]
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}


def endpoints(monitor: Json) -> list[Json]:
    found: list[Json] = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    return found


def job(monitor: Json, endpoint: Json, folder: Path, through: list[Json]) -> Json:
    """As the Prometheus Operator would translate it."""
    of_service = monitor["kind"] == "ServiceMonitor"
    source = "service" if of_service else "pod"
    port = "__meta_kubernetes_endpoint_port_name" if of_service else "__meta_kubernetes_pod_container_port_name"
    selector = monitor["spec"]["selector"]
    chosen = [
        _keep(f"__meta_kubernetes_{source}_label_{_label(key)}", value)
        for key, value in selector.get("matchLabels", {}).items()
    ]
    chosen += [
        _keep(f"__meta_kubernetes_{source}_labelpresent_{_label(each['key'])}", "true")
        for each in selector.get("matchExpressions", [])
        if each["operator"] == "Exists"
    ]
    given = [
        {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]}
        for each in endpoint.get("relabelings", [])
    ]
    usual = [
        {"source_labels": [f"__meta_kubernetes_{name}"], "target_label": target}
        for name, target in (("namespace", "namespace"), ("pod_name", "pod"))
    ]
    return {
        "honor_labels": endpoint.get("honorLabels", False),
        "sample_limit": monitor["spec"].get("sampleLimit", 0),
        "file_sd_configs": [{"files": [str(folder / f"{source}s.json")]}],
        "relabel_configs": [*chosen, _keep(port, endpoint["port"]), *usual, *given, *through],
    }


def pod_targets(pod: Json) -> list[Json]:
    labels = {
        "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
        "__meta_kubernetes_pod_name": pod["metadata"]["name"],
        **_labels("pod", pod),
    }
    return [
        _target(
            labels
            | {
                "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                "__meta_kubernetes_pod_container_port_number": str(port["containerPort"]),
            }
        )
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    ]


def service_targets(service: Json, pods: list[Json]) -> list[Json]:
    chosen = [pod for pod in pods if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
    return [
        _target(target["labels"] | _labels("service", service) | {"__meta_kubernetes_endpoint_port_name": port["name"]})
        for port in service["spec"]["ports"]
        for pod in chosen
        for target in pod_targets(pod)
        if target["labels"]["__meta_kubernetes_pod_container_port_name"] == port["targetPort"]
    ]


def _labels(kind: str, item: Json) -> dict[str, str]:
    labels = item["metadata"].get("labels", {})
    values = {f"__meta_kubernetes_{kind}_label_{_label(key)}": value for key, value in labels.items()}
    return values | {f"__meta_kubernetes_{kind}_labelpresent_{_label(key)}": "true" for key in labels}


def _target(labels: dict[str, str]) -> Json:
    return {"targets": [labels["__meta_kubernetes_pod_name"]], "labels": labels}


def _keep(source: str, value: str) -> Json:
    return {"source_labels": [source], "regex": value, "action": "keep"}


def _label(key: str) -> str:
    return key.translate(str.maketrans("./-", "___"))
