"""What the administrator of the operator decides about planning."""

from msgspec import Struct

from clotho.render.settings import RenderSettings


class PlanSettings(Struct, frozen=True, kw_only=True):
    render: RenderSettings = RenderSettings()
    progress_interval_seconds: int = 30  # progress reaches status at most this often
    placement_seconds: int = 600  # how long pods of a trainer hold their nodes while others of it have none
    settle_seconds: float = 1.0  # small changes of status wait this long for company
