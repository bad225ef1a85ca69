"""The ASGI application: hot routes as plain endpoints, everything else behind Starlette's router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from coral.core.serve.coordinator.serving import Serving
from coral.core.serve.frontdoor.endpoint import ChatEndpoint, CompletionEndpoint
from coral.core.serve.frontdoor.hall import Hall
from coral.core.serve.frontdoor.openai.refusal import plain_error
from coral.core.serve.frontdoor.operator_routes import OperatorRoutes, refuse
from coral.core.serve.frontdoor.options import FrontDoorOptions


class FrontDoor:
    """An ASGI application that any ASGI server on the coordinator's event loop can run."""

    def __init__(self, serving: Serving, options: FrontDoorOptions) -> None:
        self.options = options
        self._hall = Hall(serving, options)
        self._hot: dict[str, ASGIApp] = {
            "/v1/chat/completions": ChatEndpoint(self._hall),
            "/v1/completions": CompletionEndpoint(self._hall),
        }
        # Starlette's routes for them answer other methods with 405.
        hot = [Route(path, endpoint, methods=["POST"]) for path, endpoint in self._hot.items()]
        self._cold = Starlette(
            routes=[*hot, *OperatorRoutes(self._hall).routes()],
            exception_handlers={HTTPException: _refuse_http, Exception: _refuse_fault},
            lifespan=self._lifespan,
        )
        self._cold.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            hot = self._hot.get(scope["path"])
            if hot is not None:
                await hot(scope, receive, send)
                return
        await self._cold(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._hall.warm()
        yield
        await self._hall.close()

    def drain(self) -> None:
        """Admit nothing more (503); what is in flight goes on."""
        self._hall.draining = True

    @property
    def in_flight(self) -> int:
        """Requests that have been submitted and not yet been answered."""
        return len(self._hall.in_flight)

    async def finished(self, grace_s: float) -> None:
        """Until no request is in flight; those left after `grace_s` seconds are ended with an error."""
        await self._hall.in_flight.finished(grace_s)


def build_app(serving: Serving, options: FrontDoorOptions | None = None) -> FrontDoor:
    """The front door over `serving`. Run it in the coordinator's event loop.

    The server must run ASGI's lifespan: at start the models' tokenizers are read, at the end threads end.
    """
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
