"""The kit for environments: you define tasks, rollouts and scores; the runner does the rest."""

from clotho_environment.sdk.completion import Completion, Message
from clotho_environment.sdk.conversation import Conversation
from clotho_environment.sdk.environment import Config, Environment
from clotho_environment.sdk.group import Group, Sequence
from clotho_environment.sdk.sampling import InferenceError, InferenceUnavailableError, SamplingClient

__all__ = [
    "Completion",
    "Config",
    "Conversation",
    "Environment",
    "Group",
    "InferenceError",
    "InferenceUnavailableError",
    "Message",
    "SamplingClient",
    "Sequence",
]
