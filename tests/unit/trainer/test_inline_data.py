"""Datasets: every format, every mistake in one sentence, and an order that a resumed run finds again."""

import json
from pathlib import Path
from typing import Any

import pytest

from clotho_contract.inline import Dataset
from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.inline import entries, records
from clotho_trainer.rollouts.inline.epochs import Epochs
from clotho_trainer.rollouts.inline.order import indices

ROWS = [{"prompt": "one", "expected": 1}, {"prompt": [{"role": "user", "content": "two"}]}]


def written(path: Path, text: str) -> Dataset:
    path.write_text(text)
    return Dataset(path=str(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", "".join(json.dumps(row) + "\n\n" for row in ROWS)),
        ("a.json", json.dumps(ROWS)),
        ("a.json", json.dumps({"title": "suite", "cases": ROWS})),
        ("a.yaml", json.dumps({"records": ROWS})),
    ],
)
def test_every_file_format_is_read(name: str, text: str, tmp_path: Path) -> None:
    first, second = records.read(written(tmp_path / name, text), "Be brief.")
    system = {"role": "system", "content": "Be brief."}
    assert first.messages == (system, {"role": "user", "content": "one"})
    assert (first.expected, first.prompt, first.is_text) == (1, "one", True)
    assert second.messages == (system, {"role": "user", "content": "two"})
    assert (second.expected, second.is_text) == (None, False)


def test_a_record_keeps_its_own_system_prompt() -> None:
    own = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "one"}]
    (record,) = records.records_from([("record 1", {"prompt": own})], Dataset(path="x"), "Be brief.")
    assert list(record.messages) == own


@pytest.mark.parametrize(
    ("row", "field", "expected"),
    [
        ({"answer": 4}, "expected", 4),
        ({"answer": 4, "expected": 5}, "expected", 5),
        ({"answer": 4}, "label", None),
        ({}, "expected", None),
    ],
)
def test_answer_stands_for_expected_unless_another_field_is_asked_for(
    row: dict[str, int], field: str, expected: int | None
) -> None:
    dataset = Dataset(path="x", expected_field=field)
    (record,) = records.records_from(records.numbered([{"prompt": "2+2", **row}]), dataset, "")
    assert record.expected == expected


def test_an_evaluation_suite_is_read_by_the_names_of_its_fields() -> None:
    fields = Dataset(path="x", prompt_field="input", expected_field="expectations")
    row = {"input": "2+2", "expectations": ["4", "four"]}
    (record,) = records.records_from(records.numbered([row]), fields, "Calculate.")
    assert (record.prompt, record.expected) == ("2+2", ["4", "four"])


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prom', "a.jsonl line 2 is not JSON"),
        ("a.jsonl", '{"input": "a", "id": 1}', "line 1: there is no field prompt; it has input, id; see promptField"),
        ("a.jsonl", '{"prompt": 3}', "line 1: prompt is neither a text nor a list of messages"),
        ("a.jsonl", '{"prompt": [{"content": "a"}]}', "line 1: prompt is neither a text nor a list of messages"),
        ("a.jsonl", "7", "line 1: it is not an object"),
        ("a.jsonl", "\n", "a.jsonl is empty"),
        ("a.json", '{"a": [], "b": []}', "must be a list of records, or an object with one such list"),
        ("a.json", "{", "does not have the format of its suffix"),
        ("a.csv", "prompt", "must end in one of .jsonl, .json"),
    ],
)
def test_mistakes_are_reported_with_their_place(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=sentence) as caught:
        records.read(written(tmp_path / name, text), "")
    assert caught.value.reason == "InvalidConfig"


def test_a_relative_path_is_resolved_in_the_operators_mount() -> None:
    with pytest.raises(TrainerError, match=r"cannot read /dataset/train.jsonl: No such file"):
        records.read(Dataset(path="train.jsonl"), "")


def test_every_pass_has_all_records_in_another_order() -> None:
    passes = [indices(start, 10, records=10, seed=1) for start in (0, 10, 20)]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert len({tuple(order) for order in passes}) == 3
    assert indices(7, 6, records=10, seed=1) == passes[0][7:] + passes[1][:3], "wherever it is resumed"
    assert indices(8, 4, records=10, seed=None) == [8, 9, 0, 1]


def test_the_data_ends_after_its_passes() -> None:
    epochs = Epochs(records=10, each=4, limit=2, seed=None)
    assert epochs.last_step == 5
    sizes = []
    for step in range(1, 6):
        sizes.append(len(taken := epochs.next_indices()))
        epochs.advance(len(taken), step, {"reward/mean": float(step), "loss": 1.0})
    assert sizes == [4, 4, 4, 4, 4]
    assert epochs.last_step == 5


def test_last_step_of_an_epoch_reports_its_averages_also_after_a_resume() -> None:
    seen = []
    epochs = Epochs(records=10, each=4, limit=2, seed=None)
    for step in range(1, 6):
        found = {"reward/mean": float(step), "loss": 1.0}
        seen.append(epochs.figures(4, found))
        epochs.advance(4, step, found)
        epochs = Epochs(records=10, each=4, limit=2, seed=None, step=step, **epochs.state())
    assert [figures["epoch"] for figures in seen] == [0.4, 0.8, 1.2, 1.6, 2.0]
    assert seen[1] == {"epoch": 0.8}
    assert seen[2] == {"epoch": 1.2, "epoch/reward_mean": 2.0, "epoch/loss": 1.0}
    assert seen[4] == {"epoch": 2.0, "epoch/reward_mean": 4.5, "epoch/loss": 1.0}


def test_a_batch_without_a_step_still_uses_up_its_records() -> None:
    epochs = Epochs(records=10, each=4, limit=1, seed=None)
    epochs.advance(4, 0, {})
    assert epochs.last_step == 2
    resumed = Epochs(records=10, each=4, limit=1, seed=None, position=8, step=1)
    assert (resumed.last_step, resumed.next_indices()) == (2, [8, 9])


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("absent_module:f", "where: there is no module absent_module; .* has broken_module, good_module"),
        (
            "broken_module:f",
            r"where: importing broken_module failed: ZeroDivisionError: .* \(broken_module.py, line 2\)",
        ),
        ("good_module:g", "where: good_module has no g; it has f"),
    ],
)
def test_code_that_cannot_be_loaded_is_named(entry: str, sentence: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "good_module.py").write_text("def f(): ...\n")
    (tmp_path / "broken_module.py").write_text("\n1 / 0\n")
    with pytest.raises(TrainerError, match=sentence):
        entries.load(entry, tmp_path, "where")
