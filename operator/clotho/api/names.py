"""Names that the API, the rendered objects and the caches agree on."""

from typing import Final, Literal

GROUP: Final = "clotho.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FIELD_MANAGER: Final = "clotho"

KIND: Final = "TrainingRun"
PLURAL: Final = "trainingruns"
SINGULAR: Final = "trainingrun"
SHORT_NAME: Final = "tr"
ENVIRONMENT_KIND: Final = "Environment"
INFERENCE_TEST_KIND: Final = "InferenceTest"
POLICY_KIND: Final = "TrainingPolicy"
POLICY_PLURAL: Final = "trainingpolicies"
OwnerKind = Literal["TrainingRun", "Environment", "InferenceTest"]  # of which the operator makes something
PLURALS: Final[dict[OwnerKind, str]] = {
    KIND: PLURAL,
    ENVIRONMENT_KIND: "environments",
    INFERENCE_TEST_KIND: "inferencetests",
}

Component = Literal["api-server", "trainer", "inference", "environment", "exporter"]  # of a run
API_SERVER: Final = "api-server"
TRAINER: Final = "trainer"
INFERENCE: Final = "inference"
ENVIRONMENT: Final = "environment"
EXPORTER: Final = "exporter"
LOGGED_COMPONENTS: Final = (TRAINER, API_SERVER, INFERENCE, ENVIRONMENT)  # whose logs people choose from

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "clotho-operator"
SELECTOR: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY}"  # what caches and watches hold
RUN_LABEL: Final = f"{GROUP}/run"  # the run's name
OWNER_LABELS: Final[dict[OwnerKind, str]] = {  # which object something belongs to, by name
    KIND: RUN_LABEL,
    ENVIRONMENT_KIND: f"{GROUP}/described-environment",
    INFERENCE_TEST_KIND: f"{GROUP}/inference-test",
}
UID_LABEL: Final = f"{GROUP}/owner-uid"  # tells an owner from an earlier one of the same name
ENVIRONMENT_LABEL: Final = f"{GROUP}/environment"
INDEX_LABEL: Final = f"{GROUP}/index"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
RESTARTS_LABEL: Final = f"{GROUP}/restarts"  # how many restarts of its part came before this pod
SERVING_LABEL: Final = f"{GROUP}/serving"  # pods that others reach by host name
COMPONENT_LABEL: Final = "app.kubernetes.io/component"

KUEUE_GROUP: Final = "kueue.x-k8s.io"
KUEUE_VERSION: Final = "v1beta2"
QUEUE_LABEL: Final = f"{KUEUE_GROUP}/queue-name"  # of a run: the LocalQueue that admits it
PRIORITY_LABEL: Final = f"{KUEUE_GROUP}/priority-class"  # of a run: its WorkloadPriorityClass

GENERATION_ANNOTATION: Final = f"{GROUP}/generation"  # of the spec that a pod was rendered from
TOKEN_KEYS_ANNOTATION: Final = f"{GROUP}/token-keys"  # the tokens that were made for a run's Secret
TOKENS_ANNOTATION: Final = f"{GROUP}/tokens"  # changes when a token of a run's Secret is another one
TOKEN_DIGESTS_ANNOTATION: Final = f"{GROUP}/token-digests"  # of those tokens: a hand edit shows by it
REPLICAS_ANNOTATION: Final = f"{GROUP}/replicas"  # of a Workload: how many pods of each component have quota
FINGERPRINT_ANNOTATION: Final = f"{GROUP}/fingerprint"  # of what an object was rendered from
