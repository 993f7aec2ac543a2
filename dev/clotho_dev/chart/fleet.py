"""The dashboard of all runs and of the operator that looks after them."""

from typing import Final

from clotho_dev.chart.dashboards import Dashboard, Panel, Row, quantile, rate

PER_RUN: Final = "{{namespace}}/{{run}}"


def _of_runs(metric: str) -> dict[str, str]:
    return {PER_RUN: f"max by (namespace, run) ({metric})"}


FLEET: Final = Dashboard(
    uid="clotho-fleet",
    title="Clotho / Fleet",
    about="All training runs, and the operator that looks after them.",
    rows=(
        Row(
            "Runs",
            (
                Panel(
                    "Runs by phase",
                    "How many runs are where in their life.",
                    {"{{phase}}": "sum by (phase) (clotho_runs)"},
                    kind="stat",
                    width=16,
                    height=4,
                ),
                Panel(
                    "Standing still",
                    "Runs whose pods are alive but make no step.",
                    {"stalled": "sum(max by (namespace, run) (clotho_run_stalled))"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Tokens a second",
                    "Tokens trained, all runs together.",
                    {"tokens/s": "sum(max by (namespace, run) (clotho_run_tokens_per_second))"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Progress",
                    "Steps done of those asked for.",
                    {
                        PER_RUN: "max by (namespace, run) (clotho_run_step) / max by (namespace, run) "
                        "(clotho_run_total_steps)"
                    },
                    unit="percentunit",
                    kind="bargauge",
                    maximum=1,
                ),
                Panel("Reward", "Mean reward of each run's last batch.", _of_runs("clotho_run_reward_mean")),
                Panel(
                    "Since the last step",
                    "Grows while a run stands still.",
                    _of_runs("clotho_run_seconds_since_last_step"),
                    unit="s",
                ),
                Panel("Tokens a second by run", "Tokens trained.", _of_runs("clotho_run_tokens_per_second")),
                Panel(
                    "Ready share",
                    "The least ready component of each run.",
                    {PER_RUN: "min by (namespace, run) (clotho_run_component_ready)"},
                    unit="percentunit",
                    maximum=1,
                ),
                Panel("Restarts by run", "Pods replaced since the run began.", _of_runs("clotho_run_restarts")),
            ),
        ),
        Row(
            "Trouble",
            (
                Panel(
                    "Restarts an hour",
                    "Pods replaced after they ended, by why they ended.",
                    {"{{reason}}": "sum by (reason) (increase(clotho_restarts_total[1h])) or vector(0)"},
                ),
                Panel(
                    "Stalls an hour",
                    "Noticed by the operator, by cause.",
                    {"{{cause}}": "sum by (cause) (increase(clotho_stalls_total[1h])) or vector(0)"},
                ),
                Panel(
                    "Start-up time",
                    "From the creation of a run until all of it was first ready, over a day.",
                    {
                        "median": "histogram_quantile(0.5, sum by (le) (increase(clotho_startup_seconds_bucket[1d])))",
                        "95 %": "histogram_quantile(0.95, sum by (le) (increase(clotho_startup_seconds_bucket[1d])))",
                    },
                    unit="s",
                ),
            ),
        ),
        Row(
            "Operator",
            (
                Panel(
                    "Leader",
                    "The replica that works; exactly one should.",
                    {"{{pod}}": "max by (pod) (clotho_leader)"},
                ),
                Panel(
                    "Pass over one run",
                    "Seconds that one reconcile takes, writes included.",
                    {
                        "median": quantile(0.5, "clotho_reconcile_seconds"),
                        "99 %": quantile(0.99, "clotho_reconcile_seconds"),
                    },
                    unit="s",
                ),
                Panel(
                    "Work queue",
                    "Runs that wait for a pass, and for how long the first has waited.",
                    {"depth": "max(clotho_queue_depth)", "oldest (s)": "max(clotho_queue_oldest_age_seconds)"},
                ),
                Panel(
                    "Requests to the Kubernetes API",
                    "By verb and answer.",
                    {"{{verb}} {{code}}": f"sum by (verb, code) ({rate('clotho_api_requests_total')})"},
                    unit="reqps",
                ),
                Panel(
                    "Failed passes",
                    "Repeated later, by error.",
                    {"{{error}}": f"sum by (error) ({rate('clotho_reconcile_errors_total')}) or vector(0)"},
                ),
                Panel(
                    "Unanswered probes",
                    "Questions to pods without a usable answer.",
                    {"{{target}}": f"sum by (target) ({rate('clotho_probe_failures_total')}) or vector(0)"},
                ),
                Panel(
                    "Watch silence",
                    "Seconds since each watch delivered an event; a stuck one rises for ever.",
                    {"{{kind}}": "min by (kind) (clotho_watch_idle_seconds)"},
                    unit="s",
                ),
            ),
        ),
    ),
)
