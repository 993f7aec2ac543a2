"""What authors write: typed configs, items, and errors that name the field."""

import pytest
from pydantic import Field

from clotho_contract.config import Endpoints, EnvironmentConfig, RunConfig, RunIdentity
from clotho_contract.description import ConfigField
from clotho_contract.settings import Inference, Model, Training, Vllm
from clotho_environment import Completion, Config, Environment
from clotho_environment.builtin.letters import Letters
from clotho_environment.commands.describe import describe
from clotho_environment.commands.serve import config_fields
from clotho_environment.entries import AtroposEntry, EntryError, NativeEntry, find_entry
from clotho_environment.rollouts.items import ItemStream
from clotho_environment.sdk.environment import EnvironmentFailedError, InvalidConfigError, build


class SumsConfig(Config):
    digits: int = Field(2, ge=1, le=4, description="Digits of each number.")


class Sums(Environment[SumsConfig, int]):
    """Add numbers.

    More text that is not shown.
    """

    made = 0

    def items(self):
        return [1, 2]


def test_the_config_class_comes_from_the_type_parameters():
    environment = build(Sums, {"digits": 3, "group_size": 2})
    assert isinstance(environment.config, SumsConfig)
    assert (environment.config.digits, environment.config.group_size) == (3, 2)
    assert (environment.config.sampling.n, environment.config.sampling.max_tokens) == (2, 512)
    assert (Sums.name, Letters.name) == ("sums", "letters")


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        (Sums, {}, 100),  # of the trainer
        (Sums, {"max_tokens": 300}, 300),  # as the run says
        (Letters, {}, 8),  # of the environment
    ],
)
def test_answers_are_no_longer_than_what_the_trainer_takes_unless_the_run_says_so(kind, config, expected):
    run = RunConfig(
        run=RunIdentity(name="run", namespace="default", id="r1"),
        endpoints=Endpoints(api_server="http://api:8000", inference="http://trainer:8001"),
        model=Model(name="tiny"),
        training=Training(steps=5, max_tokens=100),
    )
    fields = config_fields(NativeEntry(kind, {}), run, EnvironmentConfig(name="here", config=config))
    assert build(kind, fields).config.max_tokens == expected


class FewConfig(Config):
    concurrency: int = 3


class Few(Environment[FewConfig, int]):
    """Its author has chosen how many rollouts are in flight."""


@pytest.mark.parametrize(
    ("kind", "config", "others", "inference", "expected"),
    [
        (Sums, {"group_size": 8}, [], {}, 16),  # 128 / 8
        (Sums, {"group_size": 8, "concurrency": 5}, [], {}, 5),  # as the run says
        (Few, {"group_size": 8}, [], {}, 3),  # as the environment says
        (Sums, {"group_size": 8}, [EnvironmentConfig(name="other", weight=2.0)], {}, 6),  # a third of them, rounded up
        (Sums, {"group_size": 8}, [], {"engine": "vllm", "vllm": Vllm(mode="server", url="http://v")}, 32),
        (Sums, {"group_size": 128}, [EnvironmentConfig(name="other", weight=9.0)], {}, 1),
        (Sums, {"group_size": 8}, [], {"max_batch_size": 32}, 8),  # twice what is decoded at once
    ],
)
def test_one_batch_is_in_flight_unless_run_or_author_choose(kind, config, others, inference, expected):
    place = EnvironmentConfig(name="here", config=config)
    run = RunConfig(
        run=RunIdentity(name="run", namespace="default", id="r1"),
        endpoints=Endpoints(api_server="http://api:8000", inference="http://trainer:8001"),
        model=Model(name="tiny"),
        training=Training(steps=5, batch_size=128),
        environments=(place, *others),
        inference=Inference(**inference),
    )
    assert build(kind, config_fields(NativeEntry(kind, {}), run, place)).config.concurrency == expected


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"digits": 9}, "config.digits: Input should be less than or equal to 4 (is 9)"),
        ({"digit": 1}, "config.digit: unknown field; did you mean digits?"),
        ({"group_size": 0}, "config.group_size: Input should be greater than or equal to 1 (is 0)"),
        ({"temperature": "hot"}, "config.temperature: Input should be a valid number"),
    ],
)
def test_a_wrong_field_is_named(fields, complaint):
    with pytest.raises(InvalidConfigError) as refusal:
        build(Sums, fields)
    assert str(refusal.value).startswith(complaint)


def test_every_wrong_field_is_named_at_once():
    with pytest.raises(InvalidConfigError) as refusal:
        build(Sums, {"digits": 9, "seed": "x"})
    assert len(str(refusal.value).splitlines()) == 2


def test_a_seed_makes_random_repeatable():
    assert build(Sums, {"seed": 4}).random.random() == build(Sums, {"seed": 4}).random.random()


def test_describe_lists_every_field_with_type_default_and_limits():
    description = describe(NativeEntry(Sums, {"digits": 1}))
    assert (description.name, description.class_name, description.description) == ("sums", "Sums", "Add numbers.")
    fields = {field.name: field for field in description.fields}
    assert set(fields) == set(SumsConfig.model_fields)
    assert fields["digits"] == ConfigField(
        name="digits",
        type="integer",
        description="Digits of each number.",
        default=1,
        fixed=True,
        minimum=1,
        maximum=4,
    )
    assert fields["temperature"].type == "number | null"
    assert (fields["temperature"].exclusive_minimum, fields["temperature"].maximum) == (0, 10)


class TestItems:
    async def test_items_are_repeated_when_exhausted(self):
        stream = ItemStream(build(Sums, {}))
        assert [await stream.next() for _ in range(5)] == [1, 2, 1, 2, 1]
        assert stream.epochs == 2

    async def test_asynchronous_items(self):
        class Slow(Environment[Config, int]):
            async def items(self):
                yield 1
                yield 2

        stream = ItemStream(build(Slow, {}))
        assert [await stream.next() for _ in range(3)] == [1, 2, 1]

    async def test_no_items_at_all_is_a_failure_and_not_an_endless_loop(self):
        class Empty(Environment[Config, int]):
            def items(self):
                return []

        with pytest.raises(EnvironmentFailedError, match=r"Empty.items\(\) has no items"):
            await ItemStream(build(Empty, {})).next()

    async def test_items_that_are_not_iterable_are_an_error(self):
        class Number(Environment[Config, int]):
            def items(self):
                return 7

        with pytest.raises(TypeError, match="items\\(\\) returned a int"):
            await ItemStream(build(Number, {})).next()

    async def test_items_that_raise_can_be_requested_again(self):
        class Moody(Environment[Config, int]):
            moods = 0

            def items(self):
                Moody.moods += 1
                if Moody.moods == 1:
                    raise OSError("no data yet")
                return [5]

        stream = ItemStream(build(Moody, {}))
        with pytest.raises(OSError, match="no data yet"):
            await stream.next()
        assert await stream.next() == 5


class TestLetters:
    def test_the_score_is_the_fraction_of_right_letters(self):
        letters = build(Letters, {})
        scores = [letters.score("a", text) for text in ("aaaaaaaa", "abababab", "bbbbbbbb", "aa", "a" * 20)]
        assert scores == [1.0, 0.5, 0.0, 0.25, 1.0]

    async def test_a_rollout_scores_every_attempt(self):
        class Parrot:
            async def complete(self, prompt, **_):
                assert prompt == "c>"
                return [Completion(text="cccccccc"), Completion(text="cccc")]

        group = await build(Letters, {}).rollout("c", Parrot())
        assert list(group.scores) == [1.0, 0.5]

    async def test_every_letter_is_used_once_per_epoch(self):
        stream = ItemStream(build(Letters, {}))
        assert sorted([await stream.next() for _ in range(8)]) == list("abcdefgh")


class TestEntries:
    def test_a_built_in_environment_is_found_by_name(self):
        assert find_entry("letters") == NativeEntry(Letters)

    def test_a_class_in_a_module(self):
        assert find_entry("clotho_environment.builtin.letters:Letters").kind is Letters

    def test_a_file_with_one_environment(self, tmp_path):
        file = tmp_path / "one_environment.py"
        file.write_text(
            "from clotho_environment import Config, Environment, Group\n"
            "from clotho_environment.builtin.letters import Letters\n"
            "class Mine(Environment[Config, int]):\n"
            "    def items(self): return [1]\n"
            "    async def rollout(self, item, client): return None\n"
        )
        assert find_entry(str(file)).kind.__name__ == "Mine"
        assert find_entry(f"{file}:Letters").kind is Letters

    def test_an_atropos_file(self, tmp_path):
        file = tmp_path / "server.py"
        file.touch()
        assert find_entry(f"atropos:{file}") == AtroposEntry(file)

    @pytest.mark.parametrize(
        ("entry", "complaint"),
        [
            ("", "the environment has no entry; use letters, module:Class"),
            ("gsm8k", "'gsm8k' is not an entry; use letters"),
            ("no_such_module:Thing", "there is no module no_such_module in this image"),
            (
                "clotho_enviroment.builtin:X",
                "there is no module clotho_enviroment in this image; did you mean clotho_env",
            ),
            (
                "clotho_environment.builtin.leters:Letters",
                "clotho_environment.builtin.leters in this image; did you mean clotho_environment.builtin.letters?",
            ),
            ("clotho_environment.builtin.letters:Leters", "has no environment class Leters; did you mean Letters?"),
            (
                "clotho_environment.builtin.letters:Nope",
                "has no environment class Nope; its environment classes: Letters",
            ),
            ("missing.py", "there is no file missing.py in this image"),
            ("atropos:missing.py", "there is no file missing.py in this image"),
        ],
    )
    def test_an_entry_that_cannot_be_found_is_an_error(self, entry, complaint):
        with pytest.raises(EntryError) as refusal:
            find_entry(entry)
        assert complaint in str(refusal.value)

    def test_a_module_that_lacks_what_it_imports_is_not_called_missing(self, tmp_path, monkeypatch):
        (tmp_path / "half_installed.py").write_text("import no_such_library")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(EntryError, match=r"module half_installed cannot be imported: .*no_such_library"):
            find_entry("half_installed:Thing")

    @pytest.mark.parametrize(
        ("source", "complaint"),
        [
            ("x = 1 +", "cannot be imported: SyntaxError"),
            ("x = 1", "has no subclass of clotho_environment.Environment"),
            (
                "from clotho_environment import Config, Environment\nclass Half(Environment[Config, int]): pass",
                "Half is incomplete: it has no items() and no rollout()",
            ),
            (
                "from clotho_environment import Config, Environment\n"
                "class A(Environment[Config, int]): pass\nclass B(Environment[Config, int]): pass",
                "has several environment classes: A, B; write ",
            ),
        ],
    )
    def test_files_without_a_single_environment_are_refused(self, tmp_path, source, complaint):
        file = tmp_path / "candidate.py"
        file.write_text(source)
        with pytest.raises(EntryError) as refusal:
            find_entry(str(file))
        assert complaint in str(refusal.value)
