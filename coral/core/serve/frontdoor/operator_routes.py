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
from coral.errors import RequestError


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
    """GET /v1/models, /v1/models/{id}, /health, /ready and /coral/v1/status."""

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
