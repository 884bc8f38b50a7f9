"""Templates of Starlette and FastAPI: as written, with the prefixes of mounts and routers."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute

from countersink.producers import Producer
from countersink.producers.middleware import ASGIMiddleware
from countersink.producers.middleware.asgi import StarletteRoutes
from tests.producers.middleware.asgi_calls import http, sent, status, websocket


def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def broken(request: Request) -> Response:
    raise RuntimeError("broken")


async def files(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("file")(scope, receive, send)


INNER = [Route("/", hello), Route("/orders/{order:int}", hello)]
ROUTES = [
    Route("/", hello),
    Route("/users/{id:int}", hello, methods=["GET", "POST"]),
    Route("/files/{path:path}", hello),
    Route("/broken/{id}", broken),
    Mount("/static", app=files),
    Mount("/t/{tenant}", routes=[Mount("/shop", routes=INNER), Route("/about", hello)]),
    Mount("/v1", routes=INNER),
    Mount("/v2/{tenant}", routes=INNER),
    Mount("/app/{name}", app=Starlette(routes=[Route("/deep/{x}", hello)])),
    Host("{sub}.example.org", app=Router([Route("/on-host/{y}", hello)])),
]
CASES = {
    "/": "GET / 200",
    "/users/7": "GET /users/{id} 200",
    "/users/x": "GET __unmatched__ 404",
    "/files/a/b/c": "GET /files/{path} 200",
    "/static/a.css": "GET /static/{path} 200",
    "/t/acme/shop/": "GET /t/{tenant}/shop/ 200",
    "/t/acme/shop/orders/9": "GET /t/{tenant}/shop/orders/{order} 200",
    "/v1/orders/9": "GET /v1/orders/{order} 200",
    "/v2/acme/orders/9": "GET /v2/{tenant}/orders/{order} 200",
    "/t/acme/about": "GET /t/{tenant}/about 200",
    "/t/acme/none": "GET /t/{tenant}/{path} 404",
    "/app/x/deep/y": "GET /app/{name}/deep/{x} 200",
    "/none": "GET __unmatched__ 404",
}


@pytest.mark.parametrize("inside", [False, True], ids=["around", "add_middleware"])
def test_starlette(producer: Producer, inside: bool) -> None:
    starlette = Starlette(routes=ROUTES)
    app: Any = starlette
    if inside:
        starlette.add_middleware(ASGIMiddleware, producer=producer)
    else:
        app = ASGIMiddleware(starlette, producer)
    for _ in range(2):
        for path, key in CASES.items():
            assert str(status(app, path)) == key[-3:]
    sent(app, {**http("/on-host/1"), "headers": [(b"host", b"a.example.org")]})
    expected = dict.fromkeys(CASES.values(), 2)
    expected["GET __unmatched__ 404"] = 4
    producer.assert_counted("requests", {**expected, "GET /on-host/{y} 200": 1})
    producer.clear()
    status(app, "/users/7", "HEAD")
    status(app, "/users/7", "DELETE")
    with pytest.raises(RuntimeError, match="broken"):
        status(app, "/broken/7")
    producer.assert_counted(
        "requests",
        {"HEAD /users/{id} 200": 1, "DELETE /users/{id} 405": 1, "GET /broken/{id} 500": 1},
    )


def test_other_middleware_within_hides_nothing(producer: Producer) -> None:
    async def through(request: Request, call_next: Any) -> Any:
        if request.url.path == "/users/0":
            return PlainTextResponse("refused", 403)  # before any router
        return await call_next(request)

    starlette = Starlette(routes=ROUTES)
    starlette.add_middleware(BaseHTTPMiddleware, dispatch=through)
    starlette.add_middleware(ASGIMiddleware, producer=producer)
    assert [status(starlette, path) for path in ("/users/7", "/users/0")] == [200, 403]
    producer.assert_counted("requests", {"GET /users/{id} 200": 1, "GET __unmatched__ 403": 1})


def test_starlettes_websockets(producer: Producer) -> None:
    async def room(socket: Any) -> None:
        await socket.accept()
        await socket.close()

    starlette = Starlette(routes=[Mount("/live", routes=[WebSocketRoute("/{room}", room)])])
    app = ASGIMiddleware(starlette, producer, websockets=True)
    sent(app, websocket("/live/7"), [{"type": "websocket.connect"}])
    sent(app, websocket("/none"), [{"type": "websocket.connect"}])
    producer.assert_counted(
        "requests", {"WEBSOCKET /live/{room} 101": 1, "WEBSOCKET __unmatched__ 403": 1}
    )


def fastapi_app() -> FastAPI:
    inner = APIRouter(prefix="/inner")
    outer = APIRouter(prefix="/outer")
    mounted = FastAPI()
    app = FastAPI()

    @inner.get("/{number}")
    @outer.get("/{number}")
    @mounted.get("/deep/{number}")
    @app.get("/users/{number}")
    async def read(number: int) -> int:
        return number

    @app.websocket("/rooms/{room}")
    async def room(socket: WebSocket, room: str) -> None:
        await socket.accept()
        await socket.close()

    mounted.include_router(outer, prefix="/again")
    outer.include_router(inner, prefix="/in")
    app.include_router(outer, prefix="/api")
    app.include_router(outer, prefix="/v2")
    app.mount("/t/{tenant}", mounted)
    return app


def test_fastapi(producer: Producer) -> None:
    app = fastapi_app()
    app.add_middleware(ASGIMiddleware, producer=producer, websockets=True)
    for _ in range(2):
        for path in (
            "/users/7",
            "/users/x",  # 422
            "/api/outer/7",
            "/v2/outer/7",
            "/api/outer/in/inner/7",
            "/t/acme/deep/7",
            "/t/acme/again/outer/7",
            "/none",
            "/t/acme/none",
            "/openapi.json",
        ):
            status(app, path)
    sent(app, websocket("/rooms/7"), [{"type": "websocket.connect"}])
    producer.assert_counted(
        "requests",
        {
            "GET /users/{number} 200": 2,
            "GET /users/{number} 422": 2,
            "GET /api/outer/{number} 200": 2,
            "GET /v2/outer/{number} 200": 2,
            "GET /api/outer/in/inner/{number} 200": 2,
            "GET /t/{tenant}/deep/{number} 200": 2,
            "GET /t/{tenant}/again/outer/{number} 200": 2,
            "GET __unmatched__ 404": 2,
            "GET /t/{tenant}/{path} 404": 2,
            "GET /openapi.json 200": 2,
            "WEBSOCKET /rooms/{room} 101": 1,
        },
    )


def test_routers_that_leave_the_endpoint_only() -> None:
    """As Starlette before 1.0 did, and FastAPI does for routes that are Starlette's own."""
    routes = [
        Route("/a/{x}", hello),
        Route("/b/{y}", hello),
        Mount("/m/{tenant}", routes=[Route("/c/{z}", hello)]),
        Mount("/static", app=files),
    ]
    starlette = Starlette(routes=routes)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        class Leaving(dict[str, Any]):
            def __setitem__(self, name: str, value: Any) -> None:
                if name != "route":
                    super().__setitem__(name, value)

        left = Leaving(scope)
        await starlette(left, receive, send)
        scope.update(left)

    def template(path: str) -> str | None:
        scope = http(path)
        sent(app, scope)
        assert "route" not in scope
        return StarletteRoutes()(scope)

    assert template("/a/1") == "/a/{x}"
    assert template("/b/1") == "/b/{y}"
    assert template("/m/acme/c/1") == "/m/{tenant}/c/{z}"
    assert template("/static/a.css") == "/static/{path}"
    assert template("/none") is None


def test_scopes_of_other_makers_give_nothing_or_what_they_noted() -> None:
    class Loop:
        """A router that holds itself."""

        path = "/a"

        @property
        def routes(self) -> list[Loop]:
            return [self, self]

    class Odd:
        path_format = 7
        path = "/odd"

    routes = StarletteRoutes()
    assert routes({}) is None
    assert routes({"route": None}) is None
    assert routes({"route": object(), "fastapi": 7, "router": 8}) is None
    assert routes({"endpoint": object(), "router": Loop()}) is None
    assert routes({"countersink.route": "/noted", "route": Odd()}) == "/noted"
    assert routes({"countersink.route": 7}) is None
    assert routes({"route": Odd(), "router": Loop()}) == "/odd"
