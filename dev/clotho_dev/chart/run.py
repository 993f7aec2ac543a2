"""The dashboard of one run: is it learning, how fast, and what holds it up."""

from typing import Final

from clotho_dev.chart.dashboards import RUN, Dashboard, Panel, Row, figure, quantile, rate

TRAINING: Final = Row(
    "Training",
    (
        Panel(
            "Progress",
            "Steps done of those asked for.",
            {"progress": f"max(clotho_run_step{RUN}) / max(clotho_run_total_steps{RUN})"},
            unit="percentunit",
            kind="gauge",
            width=4,
            maximum=1,
        ),
        Panel(
            "Reward",
            "Of the last batch.",
            {"mean": figure("reward/mean"), "highest": figure("reward/max"), "lowest": figure("reward/min")},
            width=10,
        ),
        Panel(
            "Right answers",
            "Share of sequences with a positive score, where environments say.",
            {"correct": figure("percent_correct")},
            width=10,
        ),
        Panel("Loss", "Of the last step.", {"loss": figure("loss")}),
        Panel("Gradient norm", "Before clipping.", {"norm": figure("gradient_norm")}),
        Panel("Learning rate", "Of the last step.", {"rate": figure("learning_rate")}),
        Panel(
            "Step time",
            "Waiting for a batch included, and the optimiser's part of it.",
            {
                "step to step": figure("seconds_per_step"),
                "training, median": quantile(0.5, "clotho_trainer_step_seconds", RUN),
                "training, 95 %": quantile(0.95, "clotho_trainer_step_seconds", RUN),
            },
            unit="s",
        ),
        Panel(
            "Tokens a second",
            "Trained, and sampled for environments.",
            {
                "trained": figure("tokens_per_second"),
                "sampled": f"sum({rate('clotho_trainer_sampled_tokens_total', RUN)})",
                "sampled by replicas": f"sum({rate('clotho_inference_sampled_tokens_total', RUN)})",
            },
        ),
        Panel(
            "Length of completions",
            "Tokens.",
            {"mean": figure("completions/mean_length"), "longest": figure("completions/max_length")},
        ),
        Panel(
            "GPU memory",
            "The most that a step needed.",
            {"peak": figure("gpu/memory_peak_bytes")},
            unit="bytes",
        ),
        Panel(
            "Checkpoints",
            "The newest checkpoint, beside the step the run is at.",
            {"step": f"clotho_trainer_step{RUN}", "checkpoint": f"clotho_trainer_checkpoint_step{RUN}"},
        ),
        Panel(
            "Groups without use",
            "Groups that could not be trained, by reason.",
            {"{{reason}}": f"sum by (reason) ({rate('clotho_trainer_dropped_groups_total', RUN)}) or vector(0)"},
        ),
    ),
)

QUEUE: Final = Row(
    "Queue",
    (
        Panel(
            "Queue",
            "Groups that wait for the trainer.",
            {"groups": f"clotho_api_queue_groups{RUN}", "sequences": f"clotho_api_queue_sequences{RUN}"},
        ),
        Panel(
            "Queue on disk",
            "Waiting groups, and trained ones kept until a checkpoint holds them.",
            {
                "waiting": f"clotho_api_queue_bytes{RUN}",
                "waiting at most": f"clotho_api_queue_limit_bytes{RUN}",
                "kept": f"clotho_api_retained_bytes{RUN}",
            },
            unit="bytes",
        ),
        Panel(
            "Staleness",
            "Steps between the policy that wrote a group and the batch it went into.",
            {
                "mean": figure("staleness/mean"),
                "most": figure("staleness/max"),
                "95 %": quantile(0.95, "clotho_api_staleness_steps", RUN),
            },
        ),
        Panel(
            "Groups received",
            "A second, by environment.",
            {"{{environment}}": f"sum by (environment) ({rate('clotho_api_groups_received_total', RUN)})"},
        ),
        Panel(
            "Groups refused or too old",
            "A second, by reason.",
            {
                "refused: {{reason}}": f"sum by (reason) ({rate('clotho_api_groups_rejected_total', RUN)}) "
                "or vector(0)",
                "too old": f"sum({rate('clotho_api_groups_dropped_total', RUN)}) or vector(0)",
            },
        ),
        Panel(
            "Waiting for a batch",
            "How long the trainer waits.",
            {
                "median": quantile(0.5, "clotho_api_batch_wait_seconds", RUN),
                "95 %": quantile(0.95, "clotho_api_batch_wait_seconds", RUN),
            },
            unit="s",
        ),
    ),
)

ENVIRONMENTS: Final = Row(
    "Environments",
    (
        Panel(
            "Rollouts",
            "A second, by how they ended.",
            {
                "{{environment}} {{outcome}}": "sum by (environment, outcome) "
                f"({rate('clotho_environment_rollouts_total', RUN)})"
            },
        ),
        Panel(
            "Duration of a rollout",
            "Median by environment.",
            {
                "{{environment}}": "histogram_quantile(0.5, sum by (le, environment) "
                f"({rate('clotho_environment_rollout_seconds_bucket', RUN)}))"
            },
            unit="s",
        ),
        Panel(
            "Score",
            "Median of the attempts sent, by environment.",
            {
                "{{environment}}": "histogram_quantile(0.5, sum by (le, environment) "
                f"({rate('clotho_environment_score_bucket', RUN)}))"
            },
        ),
        Panel(
            "Rollouts in flight",
            "By environment.",
            {"{{environment}}": f"sum by (environment) (clotho_environment_rollouts_in_flight{RUN})"},
        ),
        Panel(
            "Groups that wait",
            "Finished, but not taken by the API server yet: the queue is full.",
            {"{{environment}}": f"sum by (environment) (clotho_environment_groups_waiting{RUN})"},
        ),
        Panel(
            "Connected environments",
            "As the API server counts them.",
            {"connected": f"clotho_api_environments{RUN}"},
        ),
    ),
)

HEALTH: Final = Row(
    "Health",
    (
        Panel(
            "Ready share",
            "Of each component's pods.",
            {"{{component}}": f"max by (component) (clotho_run_component_ready{RUN})"},
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Restarts and stalls",
            "Pods replaced since the run began; 1 while the run stands still.",
            {"restarts": f"max(clotho_run_restarts{RUN})", "stalled": f"max(clotho_run_stalled{RUN})"},
        ),
        Panel(
            "Since the last step",
            "Grows while the run stands still.",
            {"seconds": f"max(clotho_run_seconds_since_last_step{RUN})"},
            unit="s",
        ),
        Panel(
            "Disk of the API server",
            "One flushed write.",
            {"99 %": quantile(0.99, "clotho_api_disk_write_seconds", RUN)},
            unit="s",
        ),
        Panel(
            "Batches in the trainer's hands",
            "And leases that ran out.",
            {
                "leased": f"clotho_api_leased_batches{RUN}",
                "expired, an hour": f"sum(increase(clotho_api_lease_expiries_total{RUN}[1h]))",
            },
        ),
    ),
)

ONE_RUN: Final = Dashboard(
    uid="clotho-run",
    title="Clotho / Run",
    about="One training run: is it learning, how fast, and what holds it up.",
    variables=(
        ("namespace", "label_values(clotho_run_step, namespace)"),
        ("run", 'label_values(clotho_run_step{namespace="$namespace"}, run)'),
    ),
    rows=(TRAINING, QUEUE, ENVIRONMENTS, HEALTH),
)
