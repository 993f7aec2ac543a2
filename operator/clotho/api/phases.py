"""The phases of runs, tests and exports, and the sets of them that decisions are made by."""

from typing import Final, Literal, get_args

Phase = Literal["Pending", "Starting", "Running", "Stopping", "Stopped", "Completed", "Failed", "Suspended"]
TestPhase = Literal["Pending", "Running", "Completed", "Failed"]
ExportPhase = TestPhase

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
FINISHED_PHASES: Final[frozenset[Phase]] = frozenset({"Stopped", "Completed", "Failed"})
RESTING_PHASES: Final[frozenset[Phase]] = FINISHED_PHASES | {"Suspended"}  # no pods are expected
STARTED_PHASES: Final[frozenset[Phase]] = frozenset({"Starting", "Running"})  # pods were created and are kept alive
STOPPABLE_PHASES: Final[frozenset[Phase]] = frozenset({"Pending", "Starting", "Running", "Suspended"})
FINISHED_TEST_PHASES: Final[frozenset[TestPhase]] = frozenset({"Completed", "Failed"})
FINISHED_EXPORT_PHASES: Final[frozenset[ExportPhase]] = FINISHED_TEST_PHASES
