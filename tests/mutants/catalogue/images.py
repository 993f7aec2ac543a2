"""In what runs in the pods: the API server's queue, training, and the environments."""

from __future__ import annotations

from mutants.mutation import Mutation

_LEDGER = "images/api-server/clotho_api_server/state/ledger.py"
_LEDGER_TESTS = ("tests/unit/api_server/test_ledger.py", "tests/unit/api_server/test_batching.py")
_TRAINING = "images/trainer/clotho_trainer/training"
_TRAINER_TESTS = ("tests/unit/trainer/test_batch.py", "tests/unit/trainer/test_loop.py")
_OBJECTIVE_TESTS = "tests/integration/trainer/test_objective.py"
_JOINT_TESTS = "tests/integration/trainer/test_joint.py"

LEDGER = (
    Mutation(
        "a trained batch is lost when the trainer returns to an older checkpoint",
        _LEDGER,
        '"NOT plain AND step > ?"',
        '"NOT plain AND step > ? + 1"',
        _LEDGER_TESTS,
    ),
    Mutation(
        "groups are forgotten one step before the checkpoint that holds them",
        _LEDGER,
        '"step <= ?", step',
        '"step <= ?", step + 1',
        _LEDGER_TESTS,
    ),
    Mutation(
        "an expired lease is never delivered again",
        _LEDGER,
        "self._deadlines.setdefault(lease_id, full_time) <= now",
        "self._deadlines.setdefault(lease_id, full_time) < 0",
        _LEDGER_TESTS,
    ),
    Mutation(
        "a repeated group is counted twice",
        _LEDGER,
        "return Enqueued(receipt, ())",
        "pass",
        _LEDGER_TESTS,
    ),
    Mutation(
        "the newest batch is leased first",
        _LEDGER,
        "WHERE state = 'returned' ORDER BY id LIMIT 1",
        "WHERE state = 'returned' ORDER BY id DESC LIMIT 1",
        _LEDGER_TESTS,
    ),
    Mutation(
        "groups are dropped one step before they are stale",
        _LEDGER,
        "version is not None and version < oldest",
        "version is not None and version <= oldest",
        _LEDGER_TESTS,
    ),
    Mutation(
        "a batch is filled past its size",
        "images/api-server/clotho_api_server/state/batching.py",
        "if group.id in taken or group.size > room:",
        "if group.id in taken:",
        _LEDGER_TESTS,
    ),
    Mutation(
        "an environment's minimum is ignored",
        "images/api-server/clotho_api_server/state/batching.py",
        "    if owing:\n",
        "    if False:\n",
        _LEDGER_TESTS,
    ),
)

TRAINING = (
    Mutation(
        "a group exactly maxStaleness steps old is dropped",
        f"{_TRAINING}/batch.py",
        "if limit and age > limit:",
        "if limit and age >= limit:",
        _TRAINER_TESTS,
    ),
    Mutation(
        "advantages are not centred",
        f"{_TRAINING}/batch.py",
        "np.asarray(group, np.float64) - (np.mean(group) if len(set(group)) > 1 else group[:1]) for group in scores",
        "np.asarray(group, np.float64) for group in scores",
        _TRAINER_TESTS,
    ),
    Mutation(
        "rows below the mean of their group are left out",
        f"{_TRAINING}/batch.py",
        "row.advantages[row.trained & row.counted].any()",
        "(row.advantages[row.trained & row.counted] > 0).any()",
        _TRAINER_TESTS,
    ),
    Mutation(
        "a layer keeps activations that do not fit",
        f"{_TRAINING}/local/passes.py",
        "math.ceil(missing",
        "math.floor(missing",
        ("tests/unit/trainer/test_memory.py",),
    ),
    Mutation(
        "the deviation is that of a population",
        f"{_TRAINING}/batch.py",
        "scores.std(ddof=1)",
        "scores.std(ddof=0)",
        _TRAINER_TESTS,
    ),
    Mutation(
        "tokens of the environment are trained",
        f"{_TRAINING}/batch.py",
        "trained=trained[start:],",
        "trained=np.ones_like(trained[start:]),",
        _TRAINER_TESTS,
    ),
    Mutation(
        "an override that zeroes the advantage is ignored",
        f"{_TRAINING}/batch.py",
        "override is not None and override.set_advantage_to_zero",
        "False",
        _TRAINER_TESTS,
    ),
    Mutation(
        "stale groups are not counted",
        f"{_TRAINING}/loop.py",
        'self._board.dropped_groups.labels("stale").inc()',
        "pass",
        _TRAINER_TESTS,
    ),
    Mutation(
        "a checkpoint is reported before it is written",
        f"{_TRAINING}/loop.py",
        '        self._board.enter("saving")\n        try:\n',
        '        self._board.enter("saving")\n        await self._source.checkpointed(step)\n        try:\n',
        _TRAINER_TESTS,
    ),
    Mutation(
        "warm-up begins at a learning rate of zero",
        f"{_TRAINING}/schedule.py",
        "return (step + 1) / (warmup + 1)",
        "return step / (warmup + 1)",
        ("tests/unit/trainer/test_small_decisions.py",),
    ),
    Mutation(
        "epsilonHigh is ignored",
        f"{_TRAINING}/local/grpo.py",
        'if loss.type == "cispo" else loss.epsilon_high',
        'if loss.type == "cispo" else None',
        (f"{_OBJECTIVE_TESTS}::test_epsilon_high_is_the_upper_clip_range",),
    ),
    Mutation(
        "rows without an advantage are left out of a loss with other terms",
        f"{_TRAINING}/local/grpo.py",
        "return any(terms)",
        "return False",
        (f"{_OBJECTIVE_TESTS}::test_rows_without_an_advantage_are_not_read_where_they_change_nothing",),
    ),
    Mutation(
        "figures are read in every pass",
        f"{_TRAINING}/local/grpo.py",
        "self.accelerator.reduce = _reduced",
        "pass",
        ("tests/integration/trainer/test_figures.py::test_more_passes_do_not_wait_for_the_device_more_often",),
    ),
    Mutation(
        "micro-batches of different sizes weigh the same",
        f"{_TRAINING}/local/grpo.py",
        "return len(rows) / total_rows",
        "return 0.5",
        (f"{_OBJECTIVE_TESTS}::test_micro_batches_do_not_change_the_gradient",),
    ),
    Mutation(
        "adapters over 8 bits stay what they were at the start",
        f"{_TRAINING}/local/rounded_joint.py",
        "    copy_adapters(adapters, downs, [up for joint in joints for up in joint.ups])\n",
        "",
        (_JOINT_TESTS,),
    ),
    Mutation(
        "what an adapter adds to the gates is lost",
        f"{_TRAINING}/local/gating.py",
        "return gate_up + self.below @ self.up.t()",
        "return gate_up",
        (_JOINT_TESTS,),
    ),
    Mutation(
        "the gradient of gated rows lacks its adapter's part",
        f"{_TRAINING}/local/gating.py",
        "gradient(to_gated + back[:, : len(down)] @ down,",
        "gradient(to_gated,",
        (_JOINT_TESTS,),
    ),
    Mutation(
        "an adapter's gradient is not scaled",
        f"{_TRAINING}/local/joined.py",
        "to_up[outputs, ranks].float() * self.scaling",
        "to_up[outputs, ranks].float()",
        (_JOINT_TESTS,),
    ),
    Mutation(
        "ranks train on their own gradients",
        f"{_TRAINING}/local/team.py",
        "dist.all_reduce(flat)",
        "flat.mul_(self.size)",
        ("tests/integration/trainer/test_ranks.py::test_gradients_are_those_of_one_process",),
    ),
)

ENVIRONMENT = (
    Mutation(
        "a worker runs ahead of a full queue",
        "images/environment/clotho_environment/rollouts/runner.py",
        "if not self._api_server.accepts_at_once:",
        "if False:",
        ("tests/unit/environment/test_runner.py",),
    ),
    Mutation(
        "a refused group takes the next one along",
        "images/environment/clotho_environment/rollouts/runner.py",
        "        finally:  # whatever became of the group before\n            delivery.begin",
        "        finally:\n            pass\n        if True:\n            delivery.begin",
        ("tests/unit/environment/test_runner.py",),
    ),
    Mutation(
        "a log-probability that is no number passes",
        "images/environment/clotho_environment/sdk/group.py",
        " and math.isfinite(sum(trained))",
        "",
        ("tests/unit/environment/test_group.py",),
    ),
    Mutation(
        "an engine decodes no more than a small batch",
        "images/contract/clotho_contract/config.py",
        "min(max(share, _FEWEST_DECODED), _MOST_DECODED)",
        "min(share, _MOST_DECODED)",
        ("tests/unit/contract/test_decoded_together.py",),
    ),
    Mutation(
        "an Atropos environment gets the key of the tested model",
        "images/environment/clotho_environment/pod/secrets.py",
        "hidden = {*TOKEN_VARIABLES, API_KEY_VARIABLE}",
        "hidden = {*TOKEN_VARIABLES}",
        ("tests/integration/environment/test_secrets.py",),
    ),
)
