"""Write environments for Clotho: say what the tasks are and how attempts are scored; the kit does the rest."""

from clotho_environment.completion import Completion, Message
from clotho_environment.conversation import Conversation
from clotho_environment.environment import Config, Environment
from clotho_environment.group import Group, Sequence
from clotho_environment.policy import Policy, PolicyError, PolicyUnavailableError

__all__ = [
    "Completion",
    "Config",
    "Conversation",
    "Environment",
    "Group",
    "Message",
    "Policy",
    "PolicyError",
    "PolicyUnavailableError",
    "Sequence",
]
