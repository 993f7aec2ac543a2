"""What environments report of their evaluations; the trainer reads it, and hands it on."""

from datetime import UTC, datetime

from aiohttp import web

from clotho_api_server.http.answers import answer, asked
from clotho_api_server.state import evaluations
from clotho_api_server.state.service import Service
from clotho_contract.api_protocol import Evaluations as Listed
from clotho_contract.api_protocol import NewEvaluation
from clotho_contract.history import Evaluation, bounded_evaluation
from clotho_contract.progress import LARGEST_COUNT


class Evaluations:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def add(self, request: web.Request) -> web.Response:
        """Figures that are not numbers are left out."""
        new = await asked(request, NewEvaluation)
        step = min(self._service.state.step, LARGEST_COUNT) if new.step is None else new.step
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        evaluation = Evaluation(step=step, time=now, environment=new.environment, figures=new.figures)
        await self._service.change(lambda ledger: evaluations.add(ledger, bounded_evaluation(evaluation)))
        return answer({"status": "received"})

    async def listed(self, _: web.Request) -> web.Response:
        return answer(Listed(await self._service.change(evaluations.known)))
