"""How pods reach what is outside the cluster: through the site's proxy, and with the certificates that it trusts."""

from typing import Final

from clotho.render.containers import Manifest, mount, value
from clotho.render.settings import RenderSettings

_CA: Final = "ca"
_CA_PATH: Final = "/etc/clotho-ca"
_CA_KEY: Final = "ca.crt"


def outside_variables(settings: RenderSettings) -> list[Manifest]:
    proxy = settings.proxy
    found: list[Manifest] = []
    if proxy.url:
        inside = ("localhost", "127.0.0.1", ".svc", f".{settings.cluster_domain}")
        found += [value("HTTPS_PROXY", proxy.url), value("HTTP_PROXY", proxy.url)]
        found.append(value("NO_PROXY", ",".join((*inside, *proxy.no_proxy))))
    if proxy.ca_config_map:
        bundle = f"{_CA_PATH}/{_CA_KEY}"
        found += [value(name, bundle) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")]
    return found


def outside_mounts(settings: RenderSettings) -> list[Manifest]:
    return [mount(_CA, _CA_PATH, read_only=True)] if settings.proxy.ca_config_map else []


def outside_volumes(settings: RenderSettings) -> list[Manifest]:
    config_map = settings.proxy.ca_config_map
    if not config_map:
        return []
    return [{"name": _CA, "configMap": {"name": config_map, "items": [{"key": _CA_KEY, "path": _CA_KEY}]}}]
