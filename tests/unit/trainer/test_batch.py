"""Advantages, masks and staleness: what the trainer learns from, as tables."""

import msgspec
import numpy as np
import pytest

from clotho_contract.trajectory import GenerationParams, Override, ScoredGroup
from clotho_trainer.training.batch import Row, Rules, group_advantages, make_row, micro_batches, prepare
from clotho_trainer.training.groups import decode

RULES = Rules(max_tokens=100)


def a_group(**changes: object) -> ScoredGroup:
    """Two completions of two tokens after a prompt of two."""
    fields: dict[str, object] = {
        "tokens": [[5, 6, 7, 8], [5, 6, 9, 2]],
        "masks": [[-100, -100, 7, 8], [-100, -100, 9, 2]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, 1.0, -0.5, -0.25], [1.0, 1.0, -1.0, -2.0]],
    }
    return ScoredGroup(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("none", [[0.5, -0.5], [1.0, -1.0]]),
        ("group", [[0.70711, -0.70711], [0.70711, -0.70711]]),
        ("batch", [[0.39736, -0.39736], [0.79472, -0.79472]]),
    ],
)
def test_advantages_are_centred_on_the_group(normalization: str, expected: list[list[float]]) -> None:
    got = group_advantages([[1.0, 0.0], [3.0, 1.0]], normalization)  # type: ignore[arg-type]
    for values, wanted in zip(got, expected, strict=True):
        assert values == pytest.approx(wanted, abs=1e-5)


def test_small_differences_count_as_much_as_large_ones() -> None:
    small, large = group_advantages([[1e-5, 0.0], [10.0, 0.0]], "group")
    assert small == pytest.approx(large, rel=1e-5)


def test_a_group_of_equal_scores_has_zero_advantages() -> None:
    assert group_advantages([[2.0, 2.0, 2.0]], "group")[0].tolist() == [0.0, 0.0, 0.0]
    assert group_advantages([[0.1] * 6], "none")[0].tolist() == [0.0] * 6, (
        "though the mean of six is not 0.1 in float64"
    )


def test_everything_before_the_first_trained_token_is_the_prompt() -> None:
    row = prepare([a_group()], RULES, version=0).rows[0]
    assert row.prompt.tolist() == [5, 6]
    assert row.completion.tolist() == [7, 8]
    assert row.logprobs.tolist() == [-0.5, -0.25]


def test_tokens_of_the_environment_inside_a_completion_are_not_trained() -> None:
    group = a_group(masks=[[-100, 6, -100, 8], [-100, -100, 9, 2]])
    row = make_row(group, 0, 1.0, max_tokens=100)
    assert row is not None
    assert row.trained.tolist() == [True, False, True]
    assert np.isnan(row.logprobs[0]), "1.0 stands for: not sampled"


def test_the_environments_own_token_advantages_win() -> None:
    group = a_group(advantages=[[0, 0, 0.25, -0.5], [0, 0, 1.5, 2.5]])
    rows = prepare([group], RULES, version=0).rows
    assert [row.advantages.tolist() for row in rows] == [[0.25, -0.5], [1.5, 2.5]]


@pytest.mark.parametrize(
    "overrides",
    [
        {"overrides": [Override(set_advantage_to_zero=True), None]},
        {"overrides": [Override(set_advantage_to_zero=True), None], "advantages": [[9.0] * 4, [0.0] * 4]},
        {"group_overrides": Override(set_advantage_to_zero=True)},
    ],
)
def test_an_advantage_can_be_set_to_zero(overrides: dict[str, object]) -> None:
    assert prepare([a_group(**overrides)], RULES, version=0).rows[0].advantages.tolist() == [0.0, 0.0]


def test_only_rows_with_an_advantage_for_a_trained_token_change_anything() -> None:
    useless = a_group(
        advantages=[[9.0, 9.0, 0.0, 0.0], [9.0, 0.0, 9.0, 0.0]], masks=[[-100, -100, 7, 8], [-100, 6, -100, 2]]
    )
    batch = prepare([a_group(scores=[0.1, 0.1]), useless, a_group(scores=[0.0, 1.0])], RULES, version=0)
    assert [id(row) for row in batch.rows_with_advantages] == [id(row) for row in batch.rows[4:]]


def test_a_batch_without_advantages_still_has_its_shortest_row() -> None:
    batch = prepare(
        [a_group(scores=[1.0, 1.0], tokens=[[5, 6, 7, 8], [5, 6, 9]], masks=[[-100, 6, 7, 8], [-100, 6, 9]])], RULES, 0
    )
    assert [row.length for row in batch.rows_with_advantages] == [3]


def test_rows_without_log_probabilities_are_marked_unknown() -> None:
    row = prepare([a_group(inference_logprobs=None)], RULES, version=0).rows[0]
    assert np.isnan(row.logprobs).all()


def test_a_sequence_with_nothing_trained_is_left_out() -> None:
    assert len(prepare([a_group(masks=[[-100] * 4, [-100, -100, 9, 2]])], RULES, version=0).rows) == 1


def test_tokens_beyond_the_limit_are_cut_off() -> None:
    batch = prepare([a_group()], Rules(max_tokens=3), version=0)
    assert [row.length for row in batch.rows] == [3, 3]
    assert batch.figures["completions/truncated"] == 1.0


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (a_group(), [False, True]),  # an environment of another kit: the second ends with the end token 2
        (a_group(generation_params=GenerationParams(0)), [True, True]),  # ours would have marked it
        (
            a_group(generation_params=GenerationParams(0), overrides=[Override(truncated=True), Override()]),
            [False, True],
        ),
    ],
)
def test_truncated_completions_are_masked_on_request(group: ScoredGroup, expected: list[bool]) -> None:
    rules = Rules(max_tokens=100, mask_truncated=True, end_tokens=frozenset({2}))
    assert [bool(row.counted.all()) for row in prepare([group], rules, version=0).rows] == expected


def test_groups_of_a_policy_too_old_are_dropped_with_a_sentence() -> None:
    groups = [a_group(generation_params=GenerationParams(version)) for version in (7, 9)]
    batch = prepare(groups, Rules(max_tokens=100, max_staleness=2), version=10)
    assert len(batch.rows) == 2
    assert batch.dropped == ("made by policy 7, 3 steps ago; maxStaleness is 2",)
    assert batch.figures["staleness/mean"] == 1.0


@pytest.mark.parametrize(
    ("limit", "age", "is_trained"),
    [(2, 1, True), (2, 2, True), (2, 3, False), (0, 1000, True), (1, -1, True)],
    ids=["younger", "just young enough", "one step too old", "no limit", "of a later policy"],
)
def test_a_group_is_trained_up_to_the_limit_of_staleness(limit: int, age: int, is_trained: bool) -> None:
    group = a_group(generation_params=GenerationParams(10 - age))
    batch = prepare([group], Rules(max_tokens=100, max_staleness=limit), version=10)
    assert (bool(batch.rows), bool(batch.dropped)) == (is_trained, not is_trained)


def test_the_figures_describe_the_batch() -> None:
    figures = prepare([a_group(), a_group(scores=[1.0, 1.0])], RULES, version=3).figures
    assert figures["reward/mean"] == 0.75
    assert (figures["reward/max"], figures["reward/min"]) == (1.0, 0.0)
    assert figures["percent_correct"] == 75.0
    assert figures["reward/zero_deviation_groups"] == 0.5
    assert figures["completions/mean_length"] == 2.0


def test_micro_batches_put_like_lengths_together() -> None:
    lengths = [3, 9, 4, 10]
    group = ScoredGroup(
        tokens=[[1] * n for n in lengths], masks=[[-100] + [1] * (n - 1) for n in lengths], scores=[0.0] * 4
    )
    rows = prepare([group], RULES, version=0).rows
    by_rows = micro_batches(rows, rows_each=2, tokens_each=0, is_packed=False)
    by_tokens = micro_batches(rows, rows_each=0, tokens_each=12, is_packed=False)
    assert [[row.length for row in part] for part in by_rows] == [[10, 9], [4, 3]]
    assert [[row.length for row in part] for part in by_tokens] == [[10], [9], [4, 3]]


def test_packed_micro_batches_count_a_common_prompt_once() -> None:
    """Two prompts of six tokens in turn, each with completions of two."""
    tokens = [[first] * 6 + [9, 9] for first in (1, 2, 1, 2, 1, 2)]
    group = ScoredGroup(tokens=tokens, masks=[[-100] * 6 + [9, 9]] * 6, scores=[0.0] * 6)
    rows = prepare([group], RULES, version=0).rows

    def prompts(parts: list[list[Row]]) -> list[list[int]]:
        return [[int(row.prompt[0]) for row in part] for part in parts]

    by_tokens = micro_batches(rows, rows_each=0, tokens_each=12, is_packed=True)
    assert prompts(by_tokens) == [[1, 1, 1], [2, 2, 2]]
    assert prompts(micro_batches(rows, rows_each=0, tokens_each=11, is_packed=True)) == [[1, 1], [1], [2, 2], [2]]
    assert prompts(micro_batches(rows, rows_each=4, tokens_each=0, is_packed=True)) == [[1, 1, 1, 2], [2, 2]]


def test_empty_optional_lists_mean_absent() -> None:
    """Atropos' default `collect_trajectories` sends them."""
    body = msgspec.json.encode(a_group(inference_logprobs=None))[:-1] + b',"inference_logprobs":[],"overrides":[]}'
    group = decode(body.replace(b'"scores"', b'"advantages":[],"ref_logprobs":[],"scores"'), vocabulary=10)
    (first, second) = prepare([group], RULES, version=0).rows
    assert [*first.advantages, *second.advantages] == pytest.approx([0.70711, 0.70711, -0.70711, -0.70711], abs=1e-5)
    assert np.isnan(first.logprobs).all()
