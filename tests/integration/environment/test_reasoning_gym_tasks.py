"""The operator's list of reasoning-gym tasks is that of the package which the environment image installs."""

import pytest

from clotho_contract.reasoning_gym_tasks import TASKS


def test_the_list_of_tasks_is_the_packages_own() -> None:
    factory = pytest.importorskip("reasoning_gym.factory", reason="environment-reasoning-gym is not installed")
    assert frozenset(factory.DATASETS) == TASKS
