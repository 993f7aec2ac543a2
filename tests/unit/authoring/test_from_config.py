"""Config files of other trainers become runs that mean the same, or one sentence for everything that is wrong."""

from typing import Any

import msgspec
import pytest
import yaml

from clotho.api import validation
from clotho.api.training_run import TrainingRunSpec
from clotho.authoring.from_config import convert
from clotho_contract.config_file import DEFAULT_GROUP_SIZE, ConfigFileError

FILE = """
model:
  name: hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0
  torch_dtype: bf16
  lora: {r: 16, alpha: 32, target_modules: [q_proj, v_proj]}
generation: {num_generations: 4, max_new_tokens: 256, temperature: 0.8, top_p: 0.9}
training:
  learning_rate: 1e-5
  batch_size: 2
  gradient_accumulation_steps: 3
  max_steps: 200
  epochs: 2
  reward_model: rewards:score
  output_dir: ./out
data: {path: train.jsonl, prompt_field: question, expected_field: answer}
wandb: {project: grpo, mode: offline}
"""


def document(**changes: Any) -> dict[str, Any]:
    """Sections are replaced field by field; a field that is None is taken out."""
    made: dict[str, Any] = yaml.safe_load(FILE)
    for section, fields in changes.items():
        made[section] = made.get(section, {}) | fields
        made[section] = {name: value for name, value in made[section].items() if value is not None}
    return made


def test_a_complete_config_file_is_converted() -> None:
    converted = convert(document())
    assert converted.spec == {
        "model": {"name": "Qwen/Qwen3-0.6B", "dtype": "bfloat16"},
        "training": {
            "lora": {"rank": 16, "alpha": 32.0, "targetModules": "q_proj,v_proj"},
            "learningRate": 1e-5,
            "steps": 200,
            "batchSize": 24,  # two prompts, three times, four answers each
            "checkpoint": {"everySteps": 50},
        },
        "inline": {
            "groupSize": 4,
            "maxCompletionTokens": 256,
            "dataset": {"epochs": 2, "path": "train.jsonl", "promptField": "question", "expectedField": "answer"},
            "rewards": {"model": "rewards:score"},
        },
        "inference": {"temperature": 0.8},
        "tracking": {"wandb": {"project": "grpo", "mode": "offline"}},
    }
    assert [note.split(":")[0] for note in converted.notes] == [
        "generation.top_p is left out",
        "training.output_dir is left out",
    ]


def test_saving_each_epoch_and_the_name_in_wandb_are_kept() -> None:
    converted = convert(document(training={"save_strategy": "epoch"}, wandb={"run_name": "first"}))
    assert converted.spec["training"]["checkpoint"] == {"everyEpoch": True, "everySteps": 50}
    assert converted.spec["tracking"]["wandb"]["name"] == "first"


APPLICATION = """
model: {base_model_name: Qwen/Qwen3-0.6B, max_new_tokens: 128, temperature: 0.7, embedding_model: bge-small}
retrieval: {top_k: 5}
rl:
  training:
    per_device_train_batch_size: 2
    gradient_accumulation_steps: 2
    num_train_epochs: 1
    learning_rate: 1e-5
    reward_model: rewards:score
  data: {path: train.jsonl}
"""


def test_the_rl_section_of_an_application_s_config_is_converted_with_its_model() -> None:
    converted = convert(yaml.safe_load(APPLICATION))
    assert converted.spec["model"] == {"name": "Qwen/Qwen3-0.6B"}
    assert converted.spec["inference"] == {"temperature": 0.7}
    assert converted.spec["inline"]["maxCompletionTokens"] == 128
    assert converted.spec["training"]["batchSize"] == 2 * 2 * DEFAULT_GROUP_SIZE
    assert "model.embedding_model is left out: it is no setting of training" in converted.notes
    assert validation.problems("mine", msgspec.convert(converted.spec, TrainingRunSpec)) == ()


def test_mistakes_below_rl_are_named_as_in_any_file() -> None:
    document = yaml.safe_load(APPLICATION)
    document["rl"]["training"]["learnin_rate"] = 1
    with pytest.raises(ConfigFileError, match="did you mean learning_rate"):
        convert(document)


def test_a_base_in_4_bits_is_trained_through_an_adapter_whatever_use_lora_is() -> None:
    converted = convert(document(model={"load_in_4bit": True, "use_lora": False}))
    assert converted.spec["training"]["lora"]["rank"] == 16
    assert any(note.startswith("model.use_lora is left out") for note in converted.notes)


def test_the_run_is_one_that_the_operator_accepts() -> None:
    spec = msgspec.convert(convert(document()).spec, TrainingRunSpec)
    assert validation.problems("mine", spec) == ()


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({"model": {"use_lora": False}}, "training.lora.rank", 0),
        ({"model": {"load_in_4bit": True}}, "model.quantization", "nf4"),
        ({"model": {"torch_dtype": "torch.float16"}}, "model.dtype", "float16"),
        ({"training": {"save_steps": 10}}, "training.checkpoint.everySteps", 10),
        ({"training": {"max_steps": None}}, "training.steps", 1_000_000),
        ({"generation": {"num_generations": None}}, "training.batchSize", 48),
        ({"wandb": {"enabled": False}}, "tracking", None),
    ],
)
def test_settings_that_affect_other_fields_are_converted(changes: dict[str, Any], path: str, value: object) -> None:
    found: Any = convert(document(**changes)).spec
    for name in path.split("."):
        found = found.get(name)
    assert found == value


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"training": {"learnin_rate": 1}}, "unknown field training.learnin_rate; did you mean learning_rate?"),
        ({"generations": {"n": 1}}, "unknown section generations; did you mean generation?; there are model"),
        ({"model": {"name": None}}, "model.name is missing"),
        ({"training": {"max_steps": None, "epochs": None}}, "training.max_steps or training.epochs is missing"),
        ({"training": {"reward_model": None}}, "training.reward_model is missing"),
        ({"data": {"path": None}}, "data.path or data.hub is missing"),
        ({"training": {"batch_size": 0}}, "training.batch_size: 0 is not a positive whole number"),
        ({"training": {"learning_rate": "fast"}}, "training.learning_rate: must be a number greater than 0"),
        ({"generation": {"num_generations": 1}}, "generation.num_generations: must be a whole number of at least 2"),
        (
            {"training": {"batch_size": 100_000}},
            "training.batch_size times training.gradient_accumulation_steps times generation.num_generations: must be",
        ),
        ({"training": {"max_steps": None, "lr_scheduler_type": "cosine"}}, "needs the last step"),
        ({"model": {"name": "ollama/qwen3:8b"}}, "model: ollama/qwen3:8b is a name of Ollama's library"),
    ],
)
def test_invalid_values_are_reported_with_their_field(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        convert(document(**changes))
    assert problem in str(caught.value)


@pytest.mark.parametrize("nonsense", [None, [], "model", {"model": "Qwen/Qwen3-0.6B"}, {"model": {}}])
def test_documents_of_another_shape_are_refused(nonsense: object) -> None:
    with pytest.raises(ConfigFileError):
        convert(nonsense)


def test_problems_of_the_spec_name_the_fields_of_the_file() -> None:
    converted = convert(document())
    problem = converted.in_their_words("training.batchSize and inline.dataset.path, but not training.batchSizes")
    assert problem == (
        "training.batch_size times training.gradient_accumulation_steps times generation.num_generations "
        "and data.path, but not training.batchSizes"
    )
