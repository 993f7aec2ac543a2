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
OwnerKind = Literal["TrainingRun", "Environment", "InferenceTest"]  # of which the operator makes something
PLURALS: Final[dict[OwnerKind, str]] = {
    KIND: PLURAL,
    ENVIRONMENT_KIND: "environments",
    INFERENCE_TEST_KIND: "inferencetests",
}

Component = Literal["api-server", "trainer", "environment"]
API_SERVER: Final = "api-server"
TRAINER: Final = "trainer"
ENVIRONMENT: Final = "environment"

RUN_LABEL: Final = f"{GROUP}/run"  # the run's name; caches select by its presence
UID_LABEL: Final = f"{GROUP}/run-uid"  # tells a run from an earlier one of the same name
ENVIRONMENT_LABEL: Final = f"{GROUP}/environment"
INDEX_LABEL: Final = f"{GROUP}/index"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
RESTARTS_LABEL: Final = f"{GROUP}/restarts"  # how many restarts of its part came before this pod
SERVING_LABEL: Final = f"{GROUP}/serving"  # pods that others reach by host name
COMPONENT_LABEL: Final = "app.kubernetes.io/component"

FINGERPRINT_ANNOTATION: Final = f"{GROUP}/fingerprint"  # of what an object was rendered from
