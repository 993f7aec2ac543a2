"""In the operator: what it plans and renders, who leads, what it keeps, and the page."""

from __future__ import annotations

from mutants.mutation import Mutation

_RUN = "operator/clotho/plan/run"
_RUN_TESTS = ("tests/unit/plan/run",)
_GANG_TESTS = ("tests/unit/plan/run/test_gang.py",)
_RENDER_TESTS = ("tests/unit/render",)
_KEEPING_TESTS = ("tests/integration/operator/test_keeping.py",)

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

KEEPING = (
    Mutation(
        "a trainer that ends while it is asked loses its history",
        "operator/clotho/cluster/keeping.py",
        "if is_answering and found == History():",
        "if False:",
        _KEEPING_TESTS,
    ),
    Mutation(
        "the log of a trainer that did not answer is not searched for its history",
        "operator/clotho/cluster/keeping.py",
        "if trainer is not None and found is None:",
        "if trainer is not None and not is_answering:",
        _KEEPING_TESTS,
    ),
    Mutation(
        "a node is asked for a log only once",
        "operator/clotho/cluster/pod_logs.py",
        "may_follow = isinstance(error, TimeoutError | Transient)",
        "may_follow = False",
        _KEEPING_TESTS,
    ),
    Mutation(
        "one log that cannot be read loses those of all other pods on the node",
        "operator/clotho/cluster/pod_logs.py",
        "            if isinstance(error, TimeoutError):\n",
        "            if may_follow:\n",
        _KEEPING_TESTS,
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
