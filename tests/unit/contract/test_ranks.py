"""Ranks are numbered pod by pod, and each has an address of its own."""

from clotho_contract.config import Endpoints
from clotho_contract.names import INFERENCE_PORT, TRAINER_STATUS_PORT
from clotho_contract.ranks import Topology, inference_port


def test_a_trainer_without_gpus_has_one_rank_per_pod() -> None:
    assert Topology.of(replicas=3, gpus=0).size == 3
    assert Topology.of(replicas=2, gpus=8).size == 16


def test_inference_addresses_are_ordered_by_rank() -> None:
    assert Topology(nodes=2, ranks_per_node=2).inference_urls("host-{}".format) == (
        "http://host-0:8001",
        "http://host-0:8101",
        "http://host-1:8001",
        "http://host-1:8101",
    )


def test_ports_of_one_pod_differ() -> None:
    ports = [inference_port(local_rank) for local_rank in range(64)]
    assert ports[0] == INFERENCE_PORT
    assert len({*ports, TRAINER_STATUS_PORT}) == 65


def test_a_trainer_that_is_alone_serves_at_its_only_address() -> None:
    assert Endpoints(inference="http://t:8001").policy_urls == ("http://t:8001",)
    assert Endpoints(inference="http://a", inference_ranks=("http://a", "http://b")).policy_urls == (
        "http://a",
        "http://b",
    )
    assert Endpoints().policy_urls == ()


def test_inference_replicas_serve_beside_the_ranks() -> None:
    endpoints = Endpoints(inference="http://t:8001", inference_replicas=("http://r:8001",))
    assert endpoints.policy_urls == ("http://t:8001", "http://r:8001")
    assert endpoints.rank_urls == ("http://t:8001",)
