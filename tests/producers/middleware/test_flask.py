"""Flask: by URL rule, whatever comes before the view or goes wrong in it."""

import pytest
from flask import Blueprint, Flask, abort

from countersink.producers import Producer
from countersink.producers.integrations.flask import count_requests


def shop(producer: Producer) -> Flask:
    app = Flask("shop")
    count_requests(app, producer)
    orders = Blueprint("orders", "shop", url_prefix="/orders")

    @orders.get("/<int:number>")
    def order(number: int) -> str:
        return f"order {number}"

    @app.get("/broken/<what>")
    def broken(what: str) -> str:
        raise RuntimeError(what)

    @app.get("/teapot")
    def teapot() -> tuple[str, int]:
        return "short and stout", 418

    app.register_blueprint(orders)
    return app


def test_every_request_counts_by_its_rule(producer: Producer) -> None:
    client = shop(producer).test_client()
    for path in ("/orders/1", "/orders/2", "/orders/x", "/teapot", "/broken/a", "/static/no"):
        client.get(path)
    client.post("/orders/1")
    client.head("/orders/1")
    producer.assert_counted(
        "requests",
        {
            "GET /orders/<int:number> 200": 2,
            "GET __unmatched__ 404": 1,
            "GET /teapot 418": 1,
            "GET /broken/<what> 500": 1,
            "GET /static/<path:filename> 404": 1,
            "POST __unmatched__ 405": 1,
            "HEAD /orders/<int:number> 200": 1,
        },
    )


def test_what_is_refused_before_the_view_counts_by_its_rule(producer: Producer) -> None:
    app = shop(producer)
    app.before_request(lambda: abort(401))
    app.test_client().get("/orders/1")
    producer.assert_counted("requests", {"GET /orders/<int:number> 401": 1})


def test_an_exception_that_leaves_the_app_counts_as_500(producer: Producer) -> None:
    app = shop(producer)
    app.testing = True
    with pytest.raises(RuntimeError, match="a"):
        app.test_client().get("/broken/a")
    producer.assert_counted("requests", {"GET /broken/<what> 500": 1})
