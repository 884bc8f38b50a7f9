"""``/v1/system`` and ``/v1/whoami``, and ``/livez``, ``/readyz``, ``/metrics`` of the web process:
when it is ready, how long answers are kept, and after how many seconds ``/metrics`` goes without
the state of the installation (``SYSTEM_WITHIN_S``)."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

import anyio
import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from countersink.metrics.endpoint import installation_samples, producer_samples, render
from countersink.metrics.health import CachedAnswer, Health, probes
from countersink.metrics.table import Sample, Samples
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.bodies import MAX_OBJECT_BYTES, read
from countersink.web.http.openapi import response, words
from countersink.web.services import Services

SYSTEM_KEPT_S: Final = 1.0
"""Seconds that one look at both servers serves everybody who asks."""
SYSTEM_WITHIN_S: Final = 3.0
"""Seconds after which a scrape does without it: well below Prometheus' own patience of 10 s."""
THREADS: Final = 4
T = TypeVar("T")


def system_state(services: Services) -> CachedAnswer[Mapping[str, Any]]:
    """The document of ``countersink info``, looked at once however many ask at a time."""
    return CachedAnswer(services.system, kept_s=SYSTEM_KEPT_S, within_s=SYSTEM_WITHIN_S)


async def system(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/system``."""
    state = await asyncio.wrap_future(services.one(system_state).start())
    return JSONResponse(dict(state))


async def schedule(request: Request, services: Services, who: Identity, what: str) -> Response:
    """``POST /v1/schedules/{job}/pause``, ``resume`` and ``run``."""
    job = request.path_params["job"]
    await read(request, services, MAX_OBJECT_BYTES)
    try:
        done = await services.run(services.schedule, what, job)
    except LookupError:
        raise Problem(404, "There is no such job, or no scheduler has planned it yet") from None
    return JSONResponse(dict(done))


async def whoami(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/whoami``."""
    return JSONResponse(
        {
            "key": (not who.link and who.key_id) or None,
            "name": who.name or None,
            "scopes": sorted(who.scopes),
            "counters": list(who.counters),
            "login": bool(who.session),
            "link": who.link or None,
        }
    )


class JobState(msgspec.Struct):
    """A scheduled job as it is now."""

    job: str
    at: Annotated[str | None, words("ISO 8601; when it runs next; null: it is paused, or off")]
    paused: bool
    cron: str
    time_zone: str
    last: Annotated[str | None, words("how its last run ended: done or failed")]
    ended: Annotated[str | None, words("ISO 8601; when that was")]
    detail: Annotated[str | None, words("what it did, or why it failed")]
    planned: (
        Annotated[
            str | None, words("ISO 8601; the run that was asked for; null: one waits already")
        ]
        | UnsetType
    ) = UNSET


class InstallationState(msgspec.Struct):
    """Everything known; what MySQL did not tell is null."""

    at: Annotated[str, words("ISO 8601, Redis's clock")]
    backlog: Annotated[int, words("entries that wait in the queue")]
    pending: Annotated[int, words("of those, delivered to a worker")]
    oldest: Annotated[str | None, words("ISO 8601; since when the oldest waits")]
    lag_ms: Annotated[int, words("milliseconds that the oldest has waited")]
    rows_per_second: float
    dead: Annotated[int | None, words("dead letters")]
    dead_by_reason: dict[str, int] | None
    dead_not_kept: Annotated[
        dict[str, int] | None, words("dead letters that are only a number, by reason")
    ]
    dead_unknown: str | None
    lost: Annotated[
        dict[str, Any] | None,
        words("entries that Redis has lost, at least: all, and of the last 7 days"),
    ]
    streams: list[dict[str, Any]]
    away: Annotated[list[dict[str, Any]], words("masters of a Redis Cluster that do not answer")]
    workers: list[dict[str, Any]]
    schedules: dict[str, Any]


class WhoAmI(msgspec.Struct):
    """The key, or nulls where none is needed."""

    key: Annotated[str | None, words("the public part of the key")]
    name: str | None
    scopes: list[Literal["ingest", "read", "admin"]]
    counters: Annotated[list[str], words("shell patterns of the counters it is for; empty: all")]
    login: Annotated[bool, words("by the cookie of the dashboard")]
    link: Annotated[str | None, words("the id of the link that lets in, if one does")]


ROUTES: Final = (
    Route(
        "GET",
        "/v1/system",
        system,
        scope="read",
        whole=True,
        name="system",
        summary="The state of the whole installation",
        description="What `countersink info --format json` prints; looked at once a second.",
        responses={"200": InstallationState},
    ),
    *(
        Route(
            "POST",
            f"/v1/schedules/{{job}}/{what}",
            partial(schedule, what=what),
            scope="admin",
            whole=True,
            name=f"{what}Job",
            summary=summary,
            responses={
                "200": JobState,
                "404": "There is no such job, or no scheduler has planned it yet.",
            },
        )
        for what, summary in (
            ("pause", "Plan nothing of a scheduled job until it is resumed"),
            ("resume", "Plan a paused job again, from its next time on"),
            ("run", "Run a scheduled job now"),
        )
    ),
    Route(
        "GET",
        "/v1/whoami",
        whoami,
        scope="read",
        shared=True,
        name="whoami",
        summary="Whose key this is, and what it may do",
        responses={"200": WhoAmI},
    ),
)


async def livez(request: Request, services: Services, who: Identity) -> Response:
    """It answers, so it lives."""
    return PlainTextResponse("ok\n")


async def readyz(request: Request, services: Services, who: Identity) -> Response:
    """Whether it can take increments; what is wrong is for the log and for /metrics."""
    unready = await _monitored(services, services.one(health).unready)
    if unready or services.stopping.is_set():
        return PlainTextResponse("not ready\n", 503)
    return PlainTextResponse("ok\n")


async def metrics(request: Request, services: Services, who: Identity) -> Response:
    """The process and the installation, for Prometheus."""
    accept = request.headers.get("accept", "")
    everything = services.one(health).everything
    body, media_type = await _monitored(services, lambda: render(everything(), accept))
    # Not the argument: Starlette would add a charset of its own.
    return Response(body, headers={"Content-Type": media_type})


def monitor_threads(services: Services) -> anyio.CapacityLimiter:
    """The handlers' are all in use when somebody wants to know why."""
    return anyio.CapacityLimiter(THREADS)


async def _monitored(services: Services, work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work, limiter=services.one(monitor_threads))


def health(services: Services) -> Health:
    """Readiness and metrics of the web process. None of it waits for long.

    Increments are its first duty: it is ready if it can take them, also where MySQL is away; with a
    spool it can without Redis.
    """
    state = services.one(system_state)

    def samples() -> Samples:
        yield from producer_samples(services.producer)
        for status, number in sorted(services.answers.items()):
            yield Sample("countersink_web_requests_total", number, {"status": str(status)})
        try:
            system = state.get()
        except Exception:
            return  # whatever it is: what is not known has no sample
        yield from installation_samples(system)

    options = services.options
    return Health(
        process="web",
        samples=samples,
        probes=probes(redis=options.redis_url, mysql=options.mysql_url),
        needs=frozenset({"redis"} if services.producer.spool is None else ()),
    )


HEALTH_ROUTES: Final = (
    Route(
        "GET",
        "/livez",
        livez,
        scope=None,
        waits=False,
        parameters=None,
        summary="Whether the process lives",
        description="It says nothing of the servers behind it: starting this process again"
        " would not bring them back.",
        responses={"200": response("It does.", str, "text/plain")},
    ),
    Route(
        "GET",
        "/readyz",
        readyz,
        scope=None,
        waits=False,
        parameters=None,
        summary="Whether the process can take increments",
        description="Redis answers, or there is a spool, and it was not told to stop.",
        responses={
            "200": response("It can.", str, "text/plain"),
            "503": response("It cannot, for now.", str, "text/plain"),
        },
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        scope="read",
        whole=True,
        parameters=None,
        summary="Metrics for Prometheus",
        description="Of this process and of the installation as a whole, in Prometheus' text"
        " format, or OpenMetrics where Accept asks for it.",
        responses={
            "200": response("The metrics.", str, "text/plain", "application/openmetrics-text")
        },
    ),
)
"""Of the process; the last ones in the document."""
