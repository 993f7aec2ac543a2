"""What the administrator of the operator decides about the pods of every run."""

from msgspec import Struct


class Images(Struct, frozen=True, kw_only=True):
    api_server: str = "ghcr.io/clotho-dev/api-server:0.1.0"
    trainer: str = "ghcr.io/clotho-dev/trainer:0.1.0"
    environment: str = "ghcr.io/clotho-dev/environment:0.1.0"


class Proxy(Struct, frozen=True, kw_only=True):
    """For pods that reach out of the cluster."""

    url: str = ""
    no_proxy: tuple[str, ...] = ()  # besides the cluster's own names
    ca_config_map: str = ""  # in every run's namespace; its key ca.crt replaces the image's certificates


class RenderSettings(Struct, frozen=True, kw_only=True):
    images: Images = Images()
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    cluster_domain: str = "cluster.local"
    test_namespaces: tuple[str, ...] = ()  # others with model servers that inference tests may reach
    private_networks: tuple[str, ...] = ()  # those that environments with egress and inference tests may reach
    proxy: Proxy = Proxy()
