"""The deliberate defects: each could pass a review, in code whose errors lose work or cross a trust boundary."""

from __future__ import annotations

from mutants.mutation import Mutation

_RUN = "operator/clotho/plan/run"
_RUN_TESTS = ("tests/unit/plan/run",)
_GANG_TESTS = ("tests/unit/plan/run/test_gang.py",)
_RENDER_TESTS = ("tests/unit/render",)
_LEDGER = "images/api-server/clotho_api_server/state/ledger.py"
_LEDGER_TESTS = ("tests/unit/api_server/test_ledger.py", "tests/unit/api_server/test_batching.py")
_TRAINING = "images/trainer/clotho_trainer/training"
_TRAINER_TESTS = ("tests/unit/trainer/test_batch.py", "tests/unit/trainer/test_loop.py")
_OBJECTIVE_TESTS = "tests/integration/trainer/test_objective.py"
_JOINT_TESTS = "tests/integration/trainer/test_joint.py"

PLAN = (
    Mutation(
        "one restart more than the budget allows",
        f"{_RUN}/restarts.py",
        "record.failures >= budget.limit",
        "record.failures > budget.limit",
        _RUN_TESTS,
    ),
    Mutation(
        "replicas that fail together count as several incidents",
        f"{_RUN}/restarts.py",
        "if record.retries:",
        "if False and record.retries:",
        _RUN_TESTS,
    ),
    Mutation(
        "pods are deleted before their retry is due",
        f"{_RUN}/accounting.py",
        "if retry.at <= situation.now:",
        "if True:",
        _RUN_TESTS,
    ),
    Mutation(
        "a run completes when its trainer exits, whatever the step",
        f"{_RUN}/completion.py",
        'reported.reason == "Finished" and (reported.step or 0) >= wanted',
        'reported.reason == "Finished"',
        _RUN_TESTS,
    ),
    Mutation(
        "a run completes before the final checkpoint is written",
        f"{_RUN}/completion.py",
        'progress.state == "finished" and progress.step >= wanted',
        "progress.step >= wanted",
        _RUN_TESTS,
    ),
    Mutation(
        "the trainer stops before the environments",
        f"{_RUN}/stop.py",
        "(environments, inference, first, followers, api_server)",
        "(first, environments, inference, followers, api_server)",
        _RUN_TESTS,
    ),
    Mutation(
        "the other ranks stop before the one that writes the checkpoint",
        f"{_RUN}/stop.py",
        "(environments, inference, first, followers, api_server)",
        "(environments, inference, followers, first, api_server)",
        _GANG_TESTS,
    ),
    Mutation(
        "a run waits for its inference replicas",
        f"{_RUN}/components.py",
        'is_optional=run.spec.trainer.sharding == "none"',
        "is_optional=False",
        ("tests/unit/plan/run/test_replicas.py",),
    ),
    Mutation(
        "a replica keeps weights of the same version from before the trainer resumed",
        "images/trainer/clotho_trainer/inference/following.py",
        "self._live.lineage + is_other_attempt",
        "self._live.lineage",
        ("tests/integration/trainer/test_replica.py",),
    ),
    Mutation(
        "a replica that is too far behind stays ready",
        "images/trainer/clotho_trainer/inference/following.py",
        "if 0 < max_staleness < behind:",
        "if 0 < behind < max_staleness:",
        ("tests/unit/trainer/test_following.py",),
    ),
    Mutation(
        "a new attempt of the trainer starts beside pods of the last",
        f"{_RUN}/gang.py",
        "if is_over or _was_complete(situation, trainer):",
        "if False:",
        _GANG_TESTS,
    ),
    Mutation(
        "a half-placed trainer keeps its nodes",
        f"{_RUN}/gang.py",
        "trainer.is_gang and 0 < _count_placed(trainer) < trainer.replicas",
        "False",
        _GANG_TESTS,
    ),
    Mutation(
        "a rank that lost its peer hides the cause",
        f"{_RUN}/gang.py",
        "return not failure.is_permanent, failure.is_dependency, failure.pod.index",
        "return not failure.is_permanent, False, failure.pod.index",
        _GANG_TESTS,
    ),
    Mutation(
        "a suspended run ends as stopped",
        f"{_RUN}/stop.py",
        '"Stopped" if situation.run.spec.stop else "Suspended"',
        '"Stopped"',
        _RUN_TESTS,
    ),
    Mutation(
        "pods that are being deleted are deleted again",
        f"{_RUN}/stop.py",
        "for _, pod in stage if not pod.is_terminating",
        "for _, pod in stage",
        _RUN_TESTS,
    ),
    Mutation(
        "a completed run deletes itself one pass late",
        f"{_RUN}/plan.py",
        "is_expired = expiry is not None and expiry <= situation.now",
        "is_expired = expiry is not None and expiry < situation.now",
        _RUN_TESTS,
    ),
    Mutation(
        "a stall is reported before stall.afterSeconds",
        f"{_RUN}/stall.py",
        "if situation.now < due:",
        "if False:",
        _RUN_TESTS,
    ),
    Mutation(
        "a stall is reported as new in every reconcile",
        f"{_RUN}/stall.py",
        "before.since == moved",
        "before.since != moved",
        _RUN_TESTS,
    ),
    Mutation(
        "the deadline counts from the creation of nothing",
        f"{_RUN}/deadline.py",
        "run.spec.deadline_seconds is None or run.status.start_time is None",
        "True",
        _RUN_TESTS,
    ),
)

RENDER = (
    Mutation(
        "a retained claim is deleted with its run",
        "operator/clotho/render/objects.py",
        "owned=not is_retained",
        "owned=True",
        _RENDER_TESTS,
    ),
    Mutation(
        "the network policy restricts ingress only",
        "operator/clotho/render/objects.py",
        '"policyTypes": ["Ingress", "Egress"]',
        '"policyTypes": ["Ingress"]',
        _RENDER_TESTS,
    ),
    Mutation(
        "environments may send to any port 53",
        "operator/clotho/render/objects.py",
        '"to": [cluster_dns, node_local_dns],',
        "",
        _RENDER_TESTS,
    ),
)

LEADER = (
    Mutation(
        "a silent holder is replaced at once",
        "operator/clotho/cluster/lease.py",
        "return unchanged_for >= (record.lease_duration_seconds or 0)",
        "return True",
        ("tests/unit/cluster/test_lease_rules.py",),
    ),
    Mutation(
        "a leader writes for the full lease, without a margin",
        "operator/clotho/cluster/lease.py",
        "self._held_until = started + self._times.renew_within",
        "self._held_until = started + self._times.duration",
        ("tests/unit/cluster/test_leadership.py",),
    ),
    Mutation(
        "a leader counts its lease from the answer, not from the request",
        "operator/clotho/cluster/lease.py",
        "self._held_until = started +",
        "self._held_until = self._clock() +",
        ("tests/unit/cluster/test_leadership.py",),
    ),
    Mutation(
        "an older state replaces a newer one in the cache",
        "operator/clotho/cluster/cache.py",
        "if known is not None and not _is_newer(metadata, known.metadata):",
        "if False:",
        ("tests/unit/cluster/test_cache.py",),
    ),
)

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
        "                matrix.down[adapter.ranks].copy_(adapter.down)\n",
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
        "gradient(to_gated + back @ down,",
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

KEEPING = (
    Mutation(
        "a trainer that ends while it is asked loses its history",
        "operator/clotho/cluster/keeping.py",
        "if is_answering and found == History():",
        "if False:",
        ("tests/integration/operator/test_keeping.py",),
    ),
    Mutation(
        "the log of a trainer that did not answer is not searched for its history",
        "operator/clotho/cluster/keeping.py",
        "if trainer is not None and found is None:",
        "if trainer is not None and not is_answering:",
        ("tests/integration/operator/test_keeping.py",),
    ),
    Mutation(
        "a node is asked for a log only once",
        "operator/clotho/cluster/pod_logs.py",
        "may_follow = isinstance(error, TimeoutError | Transient)",
        "may_follow = False",
        ("tests/integration/operator/test_keeping.py",),
    ),
    Mutation(
        "one log that cannot be read loses those of all other pods on the node",
        "operator/clotho/cluster/pod_logs.py",
        "            if isinstance(error, TimeoutError):\n",
        "            if may_follow:\n",
        ("tests/integration/operator/test_keeping.py",),
    ),
)

WEB = (
    Mutation(
        "the page answers under every host name",
        "operator/clotho/web/protection.py",
        "if allowed_hosts and host.lower() not in allowed_hosts:",
        "if False and host.lower() not in allowed_hosts:",
        ("tests/unit/web/test_protection.py",),
    ),
    Mutation(
        "the page answers requests of other sites",
        "operator/clotho/web/protection.py",
        "if origin is not None and urlsplit(origin).netloc.lower() != host.lower():",
        "if origin is not None and not urlsplit(origin).netloc:",
        ("tests/unit/web/test_protection.py",),
    ),
    Mutation(
        "people who look share the data of the first",
        "operator/clotho/web/access.py",
        "        key = hashlib.sha256(token.encode()).digest()\n",
        '        key = b""\n',
        ("tests/unit/web/test_access.py",),
    ),
    Mutation(
        "a code for the page works more than once",
        "operator/clotho/web/access.py",
        'self._codes.discard(found or "")',
        'self._codes.discard("")',
        ("tests/unit/web/test_access.py",),
    ),
    Mutation(
        "bidirectional marks reach the page",
        "operator/clotho/web/untrusted.py",
        "\\u2028-\\u202e",
        "\\u2028-\\u2029",
        ("tests/unit/web/test_untrusted.py",),
    ),
)

CATALOGUE = (*PLAN, *RENDER, *LEADER, *LEDGER, *TRAINING, *ENVIRONMENT, *KEEPING, *WEB)
