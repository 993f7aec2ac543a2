"""The deliberate defects: each could pass a review, in code whose errors lose work or cross a trust boundary."""

from mutants.catalogue.images import ENVIRONMENT, LEDGER, TRAINING
from mutants.catalogue.operator import KEEPING, LEADER, PLAN, RENDER, WEB

CATALOGUE = (*PLAN, *RENDER, *LEADER, *KEEPING, *WEB, *LEDGER, *TRAINING, *ENVIRONMENT)
