"""The ASGI application: hot routes as plain endpoints, everything else behind Starlette's router."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coral.core.serve.coordinator.serving import Serving
from coral.core.serve.frontdoor.openai.refusal import plain_error
from coral.core.serve.frontdoor.operator_routes import OperatorRoutes, refuse
from coral.core.serve.frontdoor.options import FrontDoorOptions


class FrontDoor:
    """An ASGI application that any ASGI server on the coordinator's event loop can run."""

    def __init__(self, serving: Serving, options: FrontDoorOptions) -> None:
        self.serving = serving
        self.options = options
        self._operator = OperatorRoutes(serving)
        self._cold = Starlette(
            routes=self._operator.routes(),
            exception_handlers={HTTPException: _refuse_http, Exception: _refuse_fault},
        )
        self._cold.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._cold(scope, receive, send)

    def drain(self) -> None:
        """Admit nothing more (503); what is in flight goes on."""
        self._operator.draining = True

    async def finished(self, grace_s: float) -> None:
        """Until no request is in flight; those left after `grace_s` seconds are ended with an error."""


def build_app(serving: Serving, options: FrontDoorOptions | None = None) -> FrontDoor:
    """The front door over `serving`. Call it, and run it, in the coordinator's event loop."""
    return FrontDoor(serving, options or FrontDoorOptions())


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    text = {404: f"Unknown route: {where}.", 405: f"Method not allowed: {where}."}
    response = refuse(plain_error(error.status_code, text.get(error.status_code, error.detail)))
    response.headers.update(error.headers or {})
    return response


async def _refuse_fault(request: Request, error: Exception) -> Response:
    return refuse(plain_error(500, "The server failed on this request; its log says why."))
