"""The cold routes: models, health, readiness and state. Nothing here is on the path of a token."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coral.core.serve.coordinator.serving import ServedModel
from coral.core.serve.frontdoor.hall import Hall, unknown_model
from coral.core.serve.frontdoor.openai.refusal import error_body, error_headers
from coral.errors import RequestError, StoreError

NEWEST_PLANS = 20
MOST_PLANS = 500


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def refuse(error: RequestError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(error_body(error), error.status, headers, media_type="application/json")


def _card(model: ServedModel) -> dict[str, object]:
    card: dict[str, object] = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "coral",
    }
    if model.max_request_tokens:
        card["max_model_len"] = model.max_request_tokens
    return card


class OperatorRoutes:
    """The models, health, readiness, the running state, and past plans."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._serving = hall.serving

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{id:path}", self.model),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/coral/v1/status", self.status),
            Route("/coral/v1/plans", self.plans),
            Route("/coral/v1/plans/{number:int}", self.plan),
        ]

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [_card(m) for m in self._serving.models()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["id"]
        for model in self._serving.models():
            if model.name == name:
                return json_response(_card(model))
        return refuse(unknown_model(name, self._serving))

    async def health(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 only when at least one instance of every model is ready; says which are not.

        503 also while the server drains, so that a balancer looks elsewhere.
        """
        draining = self._hall.draining
        models = self._serving.models()
        waiting = [model.name for model in models if not model.ready]
        ready = bool(models) and not waiting and not draining
        answer = {
            "ready": ready,
            "draining": draining,
            "models": {model.name: model.ready for model in models},
            "waiting_for": waiting,
        }
        return json_response(answer, 200 if ready else 503)

    async def status(self, request: Request) -> Response:
        return json_response(self._serving.state())

    async def plans(self, request: Request) -> Response:
        """The newest ones that were carried out, in short; `?newest=` says how many."""
        newest = request.query_params.get("newest", str(NEWEST_PLANS))
        if not newest.isdecimal() or not 1 <= int(newest) <= MOST_PLANS:
            text = f"'newest' must be a number from 1 to {MOST_PLANS}, not {newest!r}."
            return refuse(RequestError(text, status=400, param="newest", code="invalid_value"))
        try:
            return json_response({"plans": await self._serving.plans(int(newest))})
        except StoreError as error:
            return refuse(RequestError(error.message, status=503, code="service_unavailable"))

    async def plan(self, request: Request) -> Response:
        try:
            return json_response(await self._serving.past_plan(request.path_params["number"]))
        except StoreError as error:
            return refuse(RequestError(error.message, status=404, param="number", code="not_found"))
