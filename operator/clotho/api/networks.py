"""Which networks are private: nodes, Services, the Kubernetes API and metadata services are there. The administrator
alone opens them (`runs.privateNetworks`)."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Final

from msgspec import Meta

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Cidr = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=49,
        pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$",
        extra_json_schema={"format": "cidr"},
    ),
]
_MAPPED: Final = ip_network(
    "::ffff:0:0/96"
)  # IPv4 addresses as IPv6 ones: refused here, and by the API server in policies
PRIVATE: Final[tuple[Network, ...]] = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
            *("::/127", _MAPPED, "64:ff9b::/96", "fc00::/7", "fe80::/10", "ff00::/8"),
        ),
    )
)


def network_problem(cidr: str) -> str:
    """Why it is no network; empty when it is one."""
    try:
        ip_network(cidr)
    except ValueError as error:
        return str(error)
    return ""


def is_private(network: Network, opened: Iterable[str]) -> bool:
    """No part of it is public, and the administrator has not opened it."""
    return any(is_inside(network, each) for each in PRIVATE) and not is_within(str(network), opened)


def is_private_address(address: str, opened: Iterable[str]) -> bool:
    return is_private(ip_network(ip_address(address)), opened)


def private_parts(network: Network, opened: Iterable[str]) -> list[str]:
    """What a rule for the whole network must leave out."""
    if is_within(str(network), opened):
        return []
    return [str(each) for each in PRIVATE if is_inside(each, network) and each != _MAPPED]


def is_within(cidr: str, networks: Iterable[str]) -> bool:
    if network_problem(cidr):
        return False
    return any(is_inside(ip_network(cidr), ip_network(each)) for each in networks if not network_problem(each))


def is_inside(inner: Network, outer: Network) -> bool:
    if isinstance(inner, IPv4Network) and isinstance(outer, IPv4Network):
        return inner.subnet_of(outer)
    return isinstance(inner, IPv6Network) and isinstance(outer, IPv6Network) and inner.subnet_of(outer)
