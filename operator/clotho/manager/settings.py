"""Every knob of the operator, in one documented tree: a flag, an environment variable and a default for each."""

import argparse
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from clotho.api.networks import network_problem
from clotho.cluster.lease import LeaseTimes
from clotho.cluster.probe import ProbeTimes
from clotho.plan.settings import PlanSettings
from clotho.render import settings as render

_IMAGES = render.Images()
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class SettingsError(Exception):
    """A flag or variable is wrong; the message names it, its value and what is allowed."""


class _Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Watch(_Group, frozen=True):
    """What the operator manages."""

    namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces to work in, separated by commas; empty means the whole cluster."),
    ] = ()


class Api(_Group, frozen=True):
    """How the operator talks to the Kubernetes API."""

    kubeconfig: Annotated[
        str,
        Meta(description="Kubeconfig file; empty takes the pod's service account, else $KUBECONFIG or ~/.kube/config."),
    ] = ""
    timeout_seconds: Annotated[Seconds, Meta(description="Longest a single request may take.")] = 10.0
    connections: Annotated[Count, Meta(description="Requests in flight at the same time.")] = 32


class Reconcile(_Group, frozen=True):
    """How runs are brought from what they are to what they should be."""

    workers: Annotated[
        Count, Meta(description="Runs worked on at the same time; more only crowds out scheduler and kubelets.")
    ] = 6
    resync_seconds: Annotated[
        Seconds, Meta(description="Every run is looked at again, and caches are compared with the cluster, this often.")
    ] = 600.0
    progress_seconds: Annotated[
        Count, Meta(description="Progress alone reaches a run's status at most this often; transitions at once.")
    ] = 30
    settle_seconds: Annotated[
        Seconds, Meta(description="Small changes of a status wait this long, so that several share one write.")
    ] = 3.0
    placement_seconds: Annotated[
        Count,
        Meta(
            description="A trainer of several pods of which some have no node after this long is removed and tried "
            "again later; with jitter."
        ),
    ] = 600
    retry_seconds: Annotated[Seconds, Meta(description="Wait after a first failure; doubles, with jitter.")] = 0.2
    retry_limit_seconds: Annotated[Seconds, Meta(description="Longest wait between two attempts.")] = 60.0


class Probe(_Group, frozen=True):
    """How the operator probes the pods of a run for their progress."""

    interval_seconds: Annotated[
        Seconds,
        Meta(description="How often a running run is probed; up to four times less often while its steps last."),
    ] = 30.0
    startup_seconds: Annotated[Seconds, Meta(description="How often a run is probed until it runs.")] = 2.0
    timeout_seconds: Annotated[Seconds, Meta(description="Longest a pod may take to answer.")] = 3.0
    concurrency: Annotated[Count, Meta(description="Probes in flight at the same time.")] = 32


class Lease(_Group, frozen=True):
    """Which of several replicas works: leader election by a coordination.k8s.io Lease."""

    enabled: Annotated[bool, Meta(description="Whether to take part in the election; off for a single process.")] = True
    namespace: Annotated[str, Meta(description="Where the Lease lives; empty takes the operator's own namespace.")] = ""
    name: Annotated[str, Meta(min_length=1, description="Name of the Lease.")] = "clotho-operator"
    identity: Annotated[str, Meta(description="This replica's name in the Lease; empty takes the host's name.")] = ""
    duration_seconds: Annotated[
        float, Meta(ge=1, description="Another replica takes over after this much silence.")
    ] = 30.0
    renew_within_seconds: Annotated[
        Seconds, Meta(description="A leader that could not renew for this long stops writing.")
    ] = 20.0
    renew_every_seconds: Annotated[Seconds, Meta(description="How often the leader renews.")] = 5.0
    ask_every_seconds: Annotated[Seconds, Meta(description="How often other replicas try to acquire it.")] = 2.0


class Images(_Group, frozen=True):
    """The images of a run's pods; a run can override them in its pod templates."""

    api_server: Annotated[str, Meta(min_length=1, description="Trajectory API server.")] = _IMAGES.api_server
    trainer: Annotated[str, Meta(min_length=1, description="Trainer and inference server.")] = _IMAGES.trainer
    environment: Annotated[str, Meta(min_length=1, description="Environments that name no image of their own.")] = (
        _IMAGES.environment
    )
    pull_policy: Annotated[
        typing.Literal["Always", "IfNotPresent", "Never"], Meta(description="Always, IfNotPresent or Never.")
    ] = "IfNotPresent"
    pull_secrets: Annotated[
        tuple[str, ...], Meta(description="Secrets with registry credentials, in every run's namespace; by commas.")
    ] = ()


class Network(_Group, frozen=True):
    """How the pods of a run find each other."""

    cluster_domain: Annotated[str, Meta(min_length=1, description="DNS domain of the cluster.")] = "cluster.local"
    test_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces (by commas) with model servers that tests of other namespaces may reach."),
    ] = ()
    private_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Private networks (CIDRs, by commas) that environments with egress and inference tests may "
            "reach."
        ),
    ] = ()
    proxy_url: Annotated[
        str, Meta(description="HTTP proxy of pods that reach out of the cluster (HTTPS_PROXY, HTTP_PROXY).")
    ] = ""
    no_proxy: Annotated[
        tuple[str, ...], Meta(description="Hosts (by commas) that are reached without it, besides the cluster's own.")
    ] = ()
    ca_config_map: Annotated[
        str,
        Meta(
            description="ConfigMap in every run's namespace whose key ca.crt replaces the certificates that those pods "
            "trust."
        ),
    ] = ""


class Server(_Group, frozen=True):
    """Where /healthz, /readyz and /metrics are served."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "0.0.0.0"  # noqa: S104 - kubelets come from outside
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8080


class Notifications(_Group, frozen=True):
    """A message when a run fails, stalls or completes."""

    url_file: Annotated[
        str, Meta(description="File with the URL of a webhook that takes Slack's messages; empty sends nothing.")
    ] = ""


class Log(_Group, frozen=True):
    """JSON lines in a container, plain lines on a terminal."""

    level: Annotated[
        typing.Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe level that is written: debug, info, warning or error."),
    ] = "info"


class Settings(_Group, frozen=True):
    watch: Watch = field(default_factory=Watch)
    api: Api = field(default_factory=Api)
    reconcile: Reconcile = field(default_factory=Reconcile)
    probe: Probe = field(default_factory=Probe)
    lease: Lease = field(default_factory=Lease)
    images: Images = field(default_factory=Images)
    network: Network = field(default_factory=Network)
    notifications: Notifications = field(default_factory=Notifications)
    server: Server = field(default_factory=Server)
    log: Log = field(default_factory=Log)


def plan_settings(settings: Settings) -> PlanSettings:
    images = settings.images
    return PlanSettings(
        render=render.RenderSettings(
            images=render.Images(api_server=images.api_server, trainer=images.trainer, environment=images.environment),
            image_pull_policy=images.pull_policy,
            image_pull_secrets=images.pull_secrets,
            cluster_domain=settings.network.cluster_domain,
            test_namespaces=settings.network.test_namespaces,
            private_networks=settings.network.private_networks,
            proxy=render.Proxy(
                url=settings.network.proxy_url,
                no_proxy=settings.network.no_proxy,
                ca_config_map=settings.network.ca_config_map,
            ),
        ),
        progress_interval_seconds=settings.reconcile.progress_seconds,
        settle_seconds=settings.reconcile.settle_seconds,
        placement_seconds=settings.reconcile.placement_seconds,
    )


def probe_times(settings: Settings) -> ProbeTimes:
    probe = settings.probe
    return ProbeTimes(interval=probe.interval_seconds, startup=probe.startup_seconds, timeout=probe.timeout_seconds)


def lease_times(settings: Settings) -> LeaseTimes:
    lease = settings.lease
    return LeaseTimes(
        duration=lease.duration_seconds,
        renew_within=lease.renew_within_seconds,
        renew_every=lease.renew_every_seconds,
        ask_every=lease.ask_every_seconds,
    )


class Knob(Struct, frozen=True):
    """One setting, as a person sees it."""

    group: str
    name: str
    description: str
    default: object
    type: Any

    @property
    def flag(self) -> str:
        return f"--{self.group}-{self.name}".replace("_", "-")

    @property
    def variable(self) -> str:
        return f"CLOTHO_{self.group}_{self.name}".upper()

    @property
    def shown_default(self) -> str:
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple):
            return ",".join(self.default)
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def groups() -> Iterator[tuple[str, str, tuple[Knob, ...]]]:
    for group in msgspec.structs.fields(Settings):
        hints = typing.get_type_hints(group.type, include_extras=True)
        knobs = tuple(
            Knob(group.name, leaf.name, _description(hints[leaf.name]), leaf.default, hints[leaf.name])
            for leaf in msgspec.structs.fields(group.type)
        )
        yield group.name, group.type.__doc__ or "", knobs


def _description(hint: Any) -> str:
    texts = [m.description for m in getattr(hint, "__metadata__", ()) if isinstance(m, Meta) and m.description]
    return texts[-1] if texts else ""


def parse(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Settings:
    """Flags win over variables, variables over defaults. Exits with usage on --help or an unknown flag."""
    given = vars(_parser().parse_args(arguments))
    variables = os.environ if environment is None else environment
    tree: dict[str, dict[str, object]] = {}
    for group, _, knobs in groups():
        for knob in knobs:
            flag = given[f"{group}.{knob.name}"]
            text, source = (flag, knob.flag) if flag is not None else (variables.get(knob.variable), knob.variable)
            if text is not None:
                tree.setdefault(group, {})[knob.name] = _value(knob, text, source)
    settings = msgspec.convert(tree, Settings)
    _check(settings)
    return settings


def _value(knob: Knob, text: str, source: str) -> object:
    value: object = text
    if isinstance(knob.default, tuple):
        value = tuple(part.strip() for part in text.split(",") if part.strip())
    elif isinstance(knob.default, bool):
        value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    try:
        return msgspec.convert(value, knob.type, strict=isinstance(knob.default, bool | str))
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}={text!r}: {error}; {knob.description}") from error


def _check(settings: Settings) -> None:
    lease, api = settings.lease, settings.api
    slack = lease.duration_seconds - lease.renew_within_seconds
    if slack < api.timeout_seconds:
        raise SettingsError(
            f"lease: duration-seconds {lease.duration_seconds:g} minus renew-within-seconds "
            f"{lease.renew_within_seconds:g} is {slack:g}; it must be at least --api-timeout-seconds "
            f"({api.timeout_seconds:g}), or a late write could meet the next leader's"
        )
    if lease.renew_every_seconds * 2 > lease.renew_within_seconds:
        raise SettingsError(
            f"--lease-renew-every-seconds {lease.renew_every_seconds:g} must be at most half of "
            f"--lease-renew-within-seconds ({lease.renew_within_seconds:g}), so that one lost renewal does no harm"
        )
    for network in settings.network.private_networks:
        if problem := network_problem(network):
            raise SettingsError(f"--network-private-networks {network!r}: {problem}")
    if "@" in settings.network.proxy_url:
        raise SettingsError("--network-proxy-url: no user name or password here: pods show their variables")
    if api.kubeconfig and not Path(api.kubeconfig).is_file():
        raise SettingsError(f"--api-kubeconfig {api.kubeconfig}: no such file")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clotho-operator",
        description="Turns TrainingRuns into pods and keeps them healthy. "
        "Every flag can be given as an environment variable as well; flags win.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=44, width=118),
        allow_abbrev=False,
    )
    for group, about, knobs in groups():
        section = parser.add_argument_group(group, about)
        for knob in knobs:
            default = f"default: {knob.shown_default}; " if knob.shown_default else ""
            section.add_argument(
                knob.flag,
                dest=f"{group}.{knob.name}",
                metavar="BOOL" if isinstance(knob.default, bool) else knob.name.rsplit("_", 1)[-1].upper(),
                help=f"{knob.description} ({default}${knob.variable})".replace("%", "%%"),
            )
    return parser


def to_markdown() -> str:
    lines = [
        "# Operator settings",
        "",
        "Each setting is a flag of `clotho-operator` or an environment variable; flags win. Written by",
        "`python -m clotho.manager.docs`; change `operator/clotho/manager/settings.py`, not this page.",
    ]
    for group, about, knobs in groups():
        lines += ["", f"## {group}", "", about, "", "| flag | variable | default | meaning |", "|---|---|---|---|"]
        lines += [f"| `{k.flag}` | `{k.variable}` | {_code(k.shown_default)} | {k.description} |" for k in knobs]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else "(empty)"
