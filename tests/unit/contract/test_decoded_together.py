"""How many sequences an engine decodes together where the run does not say so."""

import pytest
from msgspec import structs

from clotho_contract.config import Endpoints, RunConfig, RunIdentity
from clotho_contract.settings import Inference, Model, Training, Vllm

ONE = Endpoints(inference="http://trainer:8001")
FOUR_RANKS = Endpoints(inference_ranks=tuple(f"http://trainer-{rank}:8001" for rank in range(4)))
TWO_REPLICAS = structs.replace(ONE, serving_ranks=0, inference_replicas=("http://a:8001", "http://b:8001"))
SERVER = Inference(engine="vllm", vllm=Vllm(mode="server", url="http://vllm"))


@pytest.mark.parametrize(
    ("batch", "endpoints", "inference", "expected"),
    [
        (256, ONE, Inference(), 256),  # a batch
        (8, ONE, Inference(), 128),  # environments may open more than a small batch
        (4096, ONE, Inference(), 512),
        (1000, FOUR_RANKS, Inference(), 250),  # each rank its share
        (256, TWO_REPLICAS, Inference(), 256),  # two batches are in flight, shared by two
        (200, ONE, SERVER, 400),
        (256, ONE, Inference(max_batch_size=3), 3),  # as the run says
    ],
)
def test_an_engine_decodes_its_share_of_what_is_in_flight(
    batch: int, endpoints: Endpoints, inference: Inference, expected: int
) -> None:
    run = RunConfig(
        run=RunIdentity(name="run", namespace="default", id="r1"),
        endpoints=endpoints,
        model=Model(name="tiny"),
        training=Training(steps=5, batch_size=batch),
        inference=inference,
    )
    assert run.decoded_together == expected
