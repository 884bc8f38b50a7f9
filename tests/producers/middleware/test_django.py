"""Django: by URL pattern, in both of its worlds. In a process of its own: settings are for good."""

import json
from typing import Any

import pytest

from tests.producers.helpers import play

SETTINGS = """
    import asyncio, json, os, sys, types

    import django
    from django.conf import settings
    from django.http import Http404, HttpResponse
    from django.urls import include, path, re_path

    from countersink.producers import Producer

    counting = types.ModuleType("counting")
    counting.producer = Producer("memory://")
    sys.modules["counting"] = counting

    def configure(**more):
        settings.configure(**{
            "ROOT_URLCONF": "__main__",
            "SECRET_KEY": "no secret",
            "ALLOWED_HOSTS": ["*"],
            "LOGGING_CONFIG": None,
            "COUNTERSINK_PRODUCER": "counting.producer",
            "MIDDLEWARE": [
                "countersink.producers.integrations.django.CountRequests",
                "django.middleware.common.CommonMiddleware",
            ],
            **more,
        })
        django.setup()
"""
VIEWS = """
    def fine(request, **ignored):
        return HttpResponse("fine")

    def missing(request, **ignored):
        raise Http404

    def broken(request):
        raise RuntimeError("broken")

    nested = [path("orders/<int:number>/", fine), path("missing/<slug:name>/", missing)]
    urlpatterns = [
        path("", fine),
        path("shop/<slug:tenant>/", include(nested)),
        re_path(r"^old/(?P<year>[0-9]{4})/$", fine),
        path("broken/", broken),
    ]

    def shown():
        return {key: total for (_, key), total in counting.producer.totals().items()}
"""
PATHS = ["/", "/shop/a/orders/1/", "/shop/b/orders/2/", "/shop/a/orders/1", "/shop/a/missing/x/"]
PATHS += ["/old/1999/", "/none", "/broken/"]
EXPECTED = {
    "GET / 200": 1,
    "GET /shop/<slug:tenant>/orders/<int:number>/ 200": 2,
    "GET __unmatched__ 301": 1,  # APPEND_SLASH
    "GET /shop/<slug:tenant>/missing/<slug:name>/ 404": 1,
    "GET /^old/(?P<year>[0-9]{4})/$ 200": 1,
    "GET __unmatched__ 404": 1,
    "GET /broken/ 500": 1,
}


SCENARIOS = """
    configure()
    from django.core.exceptions import ImproperlyConfigured
    from django.core.wsgi import get_wsgi_application
    from django.test import AsyncClient, Client, override_settings

    paths = json.loads(sys.argv[1])

    def asked(**more):
        counting.producer.clear()
        with override_settings(**more):
            client = Client(raise_request_exception=False)
            for one in paths:
                client.get(one)
        return shown()

    print(json.dumps({"patterns": asked()}))

    started = asyncio.Event()

    async def slow(request):
        started.set()
        await asyncio.Event().wait()

    urlpatterns.append(path("slow/", slow))

    async def main():
        client = AsyncClient(raise_request_exception=False)
        for one in paths:
            await client.get(one)
        task = asyncio.ensure_future(client.get("/slow/"))
        await started.wait()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass

    counting.producer.clear()
    with override_settings(COUNTERSINK_COUNTER="api", COUNTERSINK_PRODUCER=counting.producer):
        asyncio.run(main())
    assert counting.producer.totals("requests") == {}
    print(json.dumps({"asgi": shown()}))

    messages = []
    for wrong in (
        {"COUNTERSINK_PRODUCER": None},
        {"COUNTERSINK_PRODUCER": None, "COUNTERSINK_MISSING": "on"},
        {"COUNTERSINK_PRODUCER": "counting.nothing"},
        {"COUNTERSINK_PRODUCER": 7},
        {"COUNTERSINK_COUNTER": "no spaces"},
        {"COUNTERSINK_DIMENSIONS": {"page": "path"}},
    ):
        with override_settings(**wrong):
            try:
                get_wsgi_application()
            except ImproperlyConfigured as error:
                messages.append(str(error))
    print(json.dumps({"wrong": messages}))

    client = Client()
    with override_settings(COUNTERSINK_PRODUCER=None, COUNTERSINK_MISSING="off"):
        missing = client.get("/").status_code
    os.environ["COUNTERSINK_REDIS_URL"] = "memory://site"
    with override_settings(COUNTERSINK_PRODUCER=None):
        Client().get("/")
    print(json.dumps({"environment": [missing, Producer("memory://site").count("requests")]}))
"""


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    """What was said of each scenario."""
    played = play(SETTINGS + VIEWS + SCENARIOS, json.dumps(PATHS))
    return {name: found for each in played for name, found in each.items()}


def test_every_request_counts_by_its_pattern(played: dict[str, Any]) -> None:
    assert played["patterns"] == EXPECTED


def test_the_same_under_asgi_and_what_is_cancelled(played: dict[str, Any]) -> None:
    assert played["asgi"] == {**EXPECTED, "GET /slow/ 499": 1}


def test_what_cannot_be_used_is_said_at_the_start(played: dict[str, Any]) -> None:
    expected = ["set COUNTERSINK_REDIS_URL", "missing must be 'error' or 'off', not 'on'"]
    expected += ['"nothing"', "a Producer, not int", "counter name"]
    expected.append("no field 'path'; the fields are method, route, status")
    for message, part in zip(played["wrong"], expected, strict=True):
        assert part in message


def test_the_environment_decides_where_no_setting_names_a_producer(played: dict[str, Any]) -> None:
    """Also that nothing is counted, without the variable."""
    assert played["environment"] == [200, 1]
