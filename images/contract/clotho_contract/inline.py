"""Training without environments: the trainer samples from a dataset itself and scores with the user's own functions."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from clotho_contract.names import CODE_PATH
from clotho_contract.settings import PositiveInt, Settings

Entry = Annotated[
    str, Meta(max_length=512, pattern=r"^([A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*)?$")
]  # module:attribute
RewardName = Annotated[
    str,
    Meta(
        max_length=63,
        pattern=r"^[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?$",
        description="Name of the reward in figures: `rewards/<name>/mean`.",
    ),
]
Weight = Annotated[float, Meta(ge=-1e6, le=1e6, description="Factor of the reward in the sum of all.")]
NO_REWARD: Final = "inline.rewards: nothing is rewarded; give a model, measures or functions"


class Dataset(Settings, frozen=True):
    """Where the prompts come from: a file, or a dataset on the Hugging Face Hub."""

    path: Annotated[
        str,
        Meta(
            max_length=512,
            description="A .jsonl, .json, .yaml or .parquet file; relative paths are looked for below /dataset.",
        ),
    ] = ""
    hub: Annotated[str, Meta(max_length=512, description="Name on the Hugging Face Hub, instead of path.")] = ""
    subset: Annotated[str, Meta(max_length=256, description="Configuration of the dataset on the Hub.")] = ""
    revision: Annotated[str, Meta(min_length=1, description="Branch, tag or commit of the dataset on the Hub.")] = (
        "main"
    )
    split: Annotated[str, Meta(min_length=1, description="Split of the dataset on the Hub.")] = "train"
    prompt_field: Annotated[
        str,
        Meta(
            min_length=1,
            description="Field with the prompt: a text, or a list of messages. `input` reads evaluation suites.",
        ),
    ] = "prompt"
    expected_field: Annotated[
        str,
        Meta(
            min_length=1,
            description="Field with what rewards get as `expected`; may be missing. `expectations` reads suites.",
        ),
    ] = "expected"
    shuffle: Annotated[bool, Meta(description="A new order for every pass, from training.seed.")] = True
    epochs: Annotated[
        int,
        Meta(ge=0, description="The run is complete after this many passes, if not before; 0 leaves it to the steps."),
    ] = 0


class Code(Settings, frozen=True):
    """Python modules with the rewards and tools of the run. What the image has installed is found as well."""

    path: Annotated[str, Meta(min_length=1, max_length=512, description="Folder that modules are imported from.")] = (
        str(CODE_PATH)
    )


class Measure(Settings, frozen=True):
    """A function `(output, expected) -> number` that scores one completion."""

    name: RewardName
    entry: Annotated[Entry, Meta(min_length=3, description="The function, as `module:name`.")]
    weight: Weight = 1.0
    kind: Annotated[
        Literal["score", "passFail"], Meta(description="score is a number; passFail is true or false, 1 or 0.")
    ] = "score"


class RewardFunction(Settings, frozen=True):
    """A function `(prompts, completions, **columns) -> numbers` that scores the completions of a prompt at once."""

    name: RewardName
    entry: Annotated[Entry, Meta(min_length=3, description="The function, as `module:name`.")]
    weight: Weight = 1.0


class Rewards(Settings, frozen=True):
    """What is rewarded; the weighted sum counts. At least one, unless the tools' environment has `get_reward`."""

    model: Annotated[
        Entry, Meta(description="A reward model `(output, expected) -> number`, as `module:name`; its weight is 1.")
    ] = ""
    measures: Annotated[
        tuple[Measure, ...], Meta(max_length=64, description="Functions that score one completion each.")
    ] = ()
    functions: Annotated[
        tuple[RewardFunction, ...], Meta(max_length=64, description="Functions that score a whole group, as in TRL.")
    ] = ()


class Tools(Settings, frozen=True):
    """Tools that the policy may call: functions, an environment of its own for every rollout, or your own rollout."""

    functions: Annotated[
        tuple[Annotated[Entry, Meta(min_length=3)], ...],
        Meta(
            max_length=128,
            description="`module:name` of functions, of {schema, function} pairs, or of lists of either.",
        ),
    ] = ()
    environment: Annotated[
        Entry, Meta(description="`module:Class`: one instance a rollout, whose public methods are the tools.")
    ] = ""
    rollout: Annotated[
        Entry, Meta(description="`module:name` of an async function that conducts a whole rollout by itself.")
    ] = ""
    max_iterations: Annotated[
        PositiveInt, Meta(le=1000, description="Rounds of tool calls in a rollout; after the last it ends.")
    ] = 5


class Inline(Settings, frozen=True):
    """A dataset with reward functions, instead of environments: only the trainer's pod is needed."""

    dataset: Dataset
    code: Code = field(default_factory=Code)
    instructions: Annotated[str, Meta(max_length=100_000, description="System prompt of every conversation.")] = ""
    rewards: Rewards = field(default_factory=Rewards)
    tools: Tools | None = None
    group_size: Annotated[
        int, Meta(ge=2, le=65536, description="Completions a prompt; training.batchSize is rounded up to a multiple.")
    ] = 8
    max_completion_tokens: Annotated[
        PositiveInt, Meta(le=10_000_000, description="Longest completion, all turns and tool results included.")
    ] = 1024
    chat_template: Annotated[
        dict[str, Any], Meta(description="Arguments of the model's chat template, such as enable_thinking: false.")
    ] = field(default_factory=dict)


def problems(inline: Inline) -> Iterator[str]:
    """What types cannot say, one sentence each."""
    dataset, rewards, tools = inline.dataset, inline.rewards, inline.tools
    if bool(dataset.path) == bool(dataset.hub):
        yield "inline.dataset: give either path or hub"
    names = [measure.name for measure in rewards.measures] + [function.name for function in rewards.functions]
    names += ["model"] if rewards.model else []
    for repeated in sorted({name for name in names if names.count(name) > 1}):
        yield f"inline.rewards: the name {repeated} appears more than once"
    if not names and not (tools and tools.environment):
        yield NO_REWARD
    if tools and sum(map(bool, (tools.functions, tools.environment, tools.rollout))) != 1:
        yield "inline.tools: give exactly one of functions, environment and rollout"
