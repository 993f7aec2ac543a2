"""The dataset as conversations: from a file, the Hub or Python, every record checked before training begins."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from clotho_contract.inline import Dataset
from clotho_contract.names import DATASET_PATH
from clotho_trainer.failures import TrainerError

Message = dict[str, Any]
_EXPECTED_BY_DEFAULT = Dataset().expected_field


@dataclass(frozen=True)
class Record:
    name: str  # what messages call it
    messages: tuple[Message, ...]
    expected: Any
    fields: Mapping[str, Any]  # as it stands in the dataset
    is_text: bool = True  # the prompt was a text, not a conversation

    @property
    def prompt(self) -> str | list[Message]:
        """As TRL's reward functions expect it."""
        return str(self.messages[-1]["content"]) if self.is_text else list(self.messages)


def read(dataset: Dataset, instructions: str) -> list[Record]:
    source, rows = _rows(dataset)
    return records_from(rows, dataset, instructions, source)


def records_from(
    rows: Iterable[tuple[str, Any]], dataset: Dataset, instructions: str, source: str = "dataset"
) -> list[Record]:
    """`rows` are named: a line of the file, or a number."""
    records = [_record(name, row, dataset, instructions, source) for name, row in rows]
    if not records:
        raise TrainerError("InvalidConfig", f"inline.dataset: {source} is empty")
    return records


def numbered(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"record {index}", row) for index, row in enumerate(rows, 1))


def _rows(dataset: Dataset) -> tuple[str, Iterable[tuple[str, Any]]]:
    if dataset.hub:
        return dataset.hub, numbered(_from_hub(dataset))
    path = DATASET_PATH / dataset.path
    readers: dict[str, Callable[[Path], Iterable[tuple[str, Any]]]] = {
        ".jsonl": _from_lines,
        ".json": lambda file: numbered(_listed(file, json.loads(file.read_bytes()))),
        ".yaml": lambda file: numbered(_listed(file, msgspec.yaml.decode(file.read_bytes()))),
        ".yml": lambda file: numbered(_listed(file, msgspec.yaml.decode(file.read_bytes()))),
        ".parquet": lambda file: numbered(_from_parquet(file)),
    }
    reader = readers.get(path.suffix)
    if reader is None:
        raise TrainerError("InvalidConfig", f"inline.dataset.path: {path} must end in one of {', '.join(readers)}")
    try:
        return str(path), list(reader(path))
    except OSError as error:
        raise TrainerError("InvalidConfig", f"inline.dataset.path: cannot read {path}: {error.strerror}") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise TrainerError(
            "InvalidConfig", f"inline.dataset.path: {path} does not have the format of its suffix: {error}"
        ) from error


def _from_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except ValueError as error:
            raise TrainerError(
                "InvalidConfig", f"inline.dataset.path: {path} line {number} is not JSON: {error}"
            ) from error


def _listed(path: Path, content: Any) -> list[Any]:
    """Suites wrap their records in an object with a title and more; the one list in it is meant."""
    if isinstance(content, list):
        return content
    lists = [value for value in content.values() if isinstance(value, list)] if isinstance(content, dict) else []
    if len(lists) != 1:
        raise TrainerError(
            "InvalidConfig", f"inline.dataset.path: {path} must be a list of records, or an object with one such list"
        )
    return list(lists[0])


def _from_parquet(path: Path) -> Sequence[Any]:
    import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

    rows: list[Any] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def _from_hub(dataset: Dataset) -> Sequence[Any]:
    import datasets  # type: ignore[import-untyped, unused-ignore]

    try:
        loaded: Any = datasets.load_dataset(
            dataset.hub, dataset.subset or None, split=dataset.split, revision=dataset.revision
        )
        return list(loaded)
    except Exception as error:  # the Hub, the network and the readers of a hundred formats
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TrainerError("InvalidConfig", f"inline.dataset.hub: cannot load {dataset.hub}: {first}") from error


def _record(name: str, row: Any, dataset: Dataset, instructions: str, source: str) -> Record:
    def wrong(problem: str) -> TrainerError:
        return TrainerError("InvalidConfig", f"inline.dataset: {source}, {name}: {problem}")

    if not isinstance(row, Mapping):
        raise wrong("it is not an object")
    if dataset.prompt_field not in row:
        raise wrong(f"there is no field {dataset.prompt_field}; it has {', '.join(map(str, row))}; see promptField")
    prompt = row[dataset.prompt_field]
    is_text = isinstance(prompt, str)
    conversation = [{"role": "user", "content": prompt}] if is_text else prompt
    if not isinstance(conversation, Sequence) or not conversation or not all(map(_is_message, conversation)):
        raise wrong(f"{dataset.prompt_field} is neither a text nor a list of messages with role and content")
    messages = [dict(message) for message in conversation]
    if instructions and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": instructions})
    return Record(name, tuple(messages), row.get(_expected_field(row, dataset)), dict(row), is_text)


def _expected_field(row: Mapping[str, Any], dataset: Dataset) -> str:
    """Many datasets have an `answer`; it is read where no other field was asked for."""
    wanted = dataset.expected_field
    return "answer" if wanted == _EXPECTED_BY_DEFAULT and wanted not in row else wanted


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message
