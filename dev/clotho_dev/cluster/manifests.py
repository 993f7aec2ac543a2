"""What the node profile puts into its cluster before everything else: DNS and volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clotho_dev.cluster.node import COREDNS_IMAGE, DNS_ADDRESS, NODE_NAME

Manifest = dict[str, Any]
STORAGE_CLASS = "local"
VOLUME_CAPACITY = "100Gi"
LABELS = {"k8s-app": "kube-dns"}  # the label by which network policies everywhere find the DNS


def dns(upstreams: list[str]) -> list[Manifest]:
    metadata = {"name": "coredns", "namespace": "kube-system", "labels": LABELS}
    forward = f"forward . {' '.join(upstreams)}\n" if upstreams else ""
    corefile = (
        ".:53 {\n health\n ready\n errors\n cache 5\n"
        f" kubernetes cluster.local in-addr.arpa {{\n  pods insecure\n  ttl 5\n }}\n {forward}}}\n"
    )
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "clotho-dev:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "clotho-dev:coredns"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "clotho-dev:coredns"},
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"Corefile": corefile}},
        _dns_deployment(metadata),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata | {"name": "kube-dns"},
            "spec": {
                "clusterIP": DNS_ADDRESS,
                "selector": LABELS,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        },
    ]


def _dns_deployment(metadata: Manifest) -> Manifest:
    container = {
        "name": "coredns",
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "serviceAccountName": "coredns",
                    "dnsPolicy": "Default",
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {
                        "runAsNonRoot": True,
                        "seccompProfile": {"type": "RuntimeDefault"},
                        # Policies see the pod's port, and common policies allow 53.
                        "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "53"}],
                    },
                    "containers": [container],
                    "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
                },
            },
        },
    }


def storage_class() -> Manifest:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Retain",
    }


def volume(name: str, path: Path) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": VOLUME_CAPACITY},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": str(path)},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}
                            ]
                        }
                    ]
                }
            },
        },
    }
