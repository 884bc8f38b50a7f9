"""The endpoints ``/v1/system``, ``/v1/schedules/...`` and ``/v1/whoami``; ``/livez``, ``/readyz``
and ``/metrics`` of the web process.

A scrape of ``/metrics`` waits at most ``SYSTEM_WITHIN_S`` seconds for the state of the
installation. If it is not known then, the answer has only the metrics of the process.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

import anyio
import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from countersink.metrics import installation_samples, producer_samples, render
from countersink.metrics.health import CachedAnswer, Health, probes
from countersink.metrics.table import Sample, Samples
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.bodies import MAX_OBJECT_BYTES, read
from countersink.web.http.openapi import doc, response
from countersink.web.services import Services

SYSTEM_KEPT_S: Final = 1.0
"""Seconds for which the state of the installation is kept for all requests."""
SYSTEM_WITHIN_S: Final = 3.0
"""Maximum seconds that a scrape waits for the state. Prometheus' timeout is 10 s."""
THREADS: Final = 4
T = TypeVar("T")


def system_state(services: Services) -> CachedAnswer[Mapping[str, Any]]:
    """Return a new cache of the document of ``countersink info``. The cache collects the document
    when an endpoint asks for it, at most once a second. All endpoints share one cache, which
    :meth:`Services.single` keeps."""
    return CachedAnswer(services.system, kept_s=SYSTEM_KEPT_S, within_s=SYSTEM_WITHIN_S)


async def system(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/system`` with the state of the installation: the document of ``countersink
    info`` as JSON, from the cache of :func:`system_state`. Wait until it is collected."""
    state = await asyncio.wrap_future(services.single(system_state).start())
    return JSONResponse(dict(state))


async def schedule(request: Request, services: Services, who: Identity, what: str) -> Response:
    """Answer ``POST /v1/schedules/{job}/{what}``: ``pause``, ``resume`` or ``run`` a scheduled job,
    and return its new state. The body is read and ignored.

    Raises:
        Problem: 404 there is no such job, or no scheduler has planned it yet; also the problems of
            :func:`~countersink.web.http.bodies.read`.
    """
    job = request.path_params["job"]
    await read(request, services, MAX_OBJECT_BYTES)
    try:
        done = await services.run(services.schedule, what, job)
    except LookupError:
        raise Problem(404, "There is no such job, or no scheduler has planned it yet") from None
    return JSONResponse(dict(done))


async def whoami(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/whoami`` with the key, login or link of the request and its rights."""
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
    """The current state of a scheduled job."""

    job: str
    does: Annotated[str | None, doc("what the job does; null: this version does not know it")]
    at: Annotated[str | None, doc("ISO 8601: the next run; null: the job is paused or off")]
    paused: bool
    cron: str
    time_zone: str
    last: Annotated[str | None, doc("result of the last run: done or failed")]
    started: Annotated[str | None, doc("ISO 8601: the start of the last run")]
    ended: Annotated[str | None, doc("ISO 8601: the end of the last run")]
    detail: Annotated[str | None, doc("what the last run did, or why it failed")]
    planned: (
        Annotated[str | None, doc("ISO 8601: the requested run; null: one waits already")]
        | UnsetType
    ) = UNSET


class InstallationState(msgspec.Struct):
    """The state of the installation; values that MySQL did not provide are null."""

    at: Annotated[str, doc("ISO 8601, Redis's clock")]
    backlog: Annotated[int, doc("entries that wait in the queue")]
    pending: Annotated[int, doc("entries of the backlog delivered to a worker")]
    oldest: Annotated[str | None, doc("ISO 8601: arrival of the oldest waiting entry")]
    lag_ms: Annotated[int, doc("milliseconds that the oldest entry has waited")]
    rows_per_second: float
    dead: Annotated[int | None, doc("number of dead letters")]
    dead_by_reason: dict[str, int] | None
    dead_not_kept: Annotated[
        dict[str, int] | None, doc("number of dead letters that were not kept, by reason")
    ]
    dead_unknown: str | None
    lost: Annotated[
        dict[str, Any] | None,
        doc("entries that Redis has lost, at least: in all, and in the last 7 days"),
    ]
    memory: Annotated[
        dict[str, int],
        doc("bytes of Redis's memory: used, and limit (0: none); of the fullest master"),
    ]
    streams: list[dict[str, Any]]
    away: Annotated[list[dict[str, Any]], doc("masters of a Redis Cluster that do not answer")]
    workers: list[dict[str, Any]]
    schedules: dict[str, Any]


class WhoAmI(msgspec.Struct):
    """The key of the request, and its rights. ``key``, ``name`` and ``link`` are null where there
    is none."""

    key: Annotated[str | None, doc("the public part of the key")]
    name: str | None
    scopes: list[Literal["ingest", "read", "admin"]]
    counters: Annotated[list[str], doc("shell patterns of its counters; empty: all")]
    login: Annotated[bool, doc("whether it is the key of a login to the dashboard")]
    link: Annotated[str | None, doc("the id of the link; null: it is no link")]


ROUTES: Final = (
    Route(
        "GET",
        "/v1/system",
        system,
        scope="read",
        installation_wide=True,
        name="system",
        summary="The state of the whole installation",
        description="The document of `countersink info --format json`, collected once a second.",
        responses={"200": InstallationState},
    ),
    *(
        Route(
            "POST",
            f"/v1/schedules/{{job}}/{what}",
            partial(schedule, what=what),
            scope="admin",
            installation_wide=True,
            name=f"{what}Job",
            summary=summary,
            responses={
                "200": JobState,
                "404": "There is no such job, or no scheduler has planned it yet.",
            },
        )
        for what, summary in (
            ("pause", "Plan no runs of a scheduled job until it is resumed"),
            ("resume", "Plan runs of a paused job again, from its next time on"),
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
        summary="The key of the request, and its rights",
        responses={"200": WhoAmI},
    ),
)


async def livez(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /livez`` with 200: a process that answers is alive."""
    return PlainTextResponse("ok\n")


async def readyz(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /readyz`` with 200 if the process can accept increments and is not ending, else
    with 503. The answer does not have the reason. A server that cannot be used has the value 0 of
    ``countersink_server_up`` in /metrics."""
    reason = await _monitored(services, services.single(health).unready_reason)
    if reason or services.stopping.is_set():
        return PlainTextResponse("not ready\n", 503)
    return PlainTextResponse("ok\n")


async def metrics(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /metrics`` with metrics of this process. Metrics of the installation are added
    if its state is known within :data:`SYSTEM_WITHIN_S` seconds. The format is OpenMetrics if the
    header Accept asks for it, else Prometheus' text format."""
    accept = request.headers.get("accept", "")
    all_samples = services.single(health).all_samples
    body, media_type = await _monitored(services, lambda: render(all_samples(), accept))
    # Starlette would add a charset to the argument media_type.
    return Response(body, headers={"Content-Type": media_type})


def monitor_threads(services: Services) -> anyio.CapacityLimiter:
    """Return a limiter of :data:`THREADS` threads for health checks and metrics. These threads do
    nothing else, so that both answer while all other threads are in use."""
    return anyio.CapacityLimiter(THREADS)


async def _monitored(services: Services, work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work, limiter=services.single(monitor_threads))


def health(services: Services) -> Health:
    """Return the health of the web process. The process is ready if it can accept increments: this
    needs a Redis that is not full or a spool that works, but not MySQL. (:func:`readyz` also checks
    whether the process is ending.)"""
    state = services.single(system_state)

    def samples() -> Samples:
        yield from producer_samples(services.producer)
        for status, number in sorted(services.answers.items()):
            yield Sample("countersink_web_requests_total", number, {"status": str(status)})
        try:
            system = state.get()
        except Exception:
            return  # any error: unknown values have no samples
        yield from installation_samples(system)

    options = services.options
    return Health(
        process="web",
        samples=samples,
        probes=probes(redis=options.redis_url, mysql=options.mysql_url, stores=True),
        needs=lambda server: server == "redis" and not services.producer.spools,
    )


HEALTH_ROUTES: Final = (
    Route(
        "GET",
        "/livez",
        livez,
        scope=None,
        waits=False,
        parameters=None,
        summary="Whether the process is alive",
        description="Does not depend on MySQL and Redis: a restart of this process would not"
        " repair them.",
        responses={"200": response("The process is alive.", str, "text/plain")},
    ),
    Route(
        "GET",
        "/readyz",
        readyz,
        scope=None,
        waits=False,
        parameters=None,
        summary="Whether the process can accept increments",
        description="Redis answers and is not full, or there is a spool that works; and the process"
        " is not stopping.",
        responses={
            "200": response("It can accept increments.", str, "text/plain"),
            "503": response("It cannot accept increments at the moment.", str, "text/plain"),
        },
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        scope="read",
        installation_wide=True,
        parameters=None,
        summary="Metrics for Prometheus",
        description="Of this process and of the installation, in Prometheus' text format, or in"
        " OpenMetrics if Accept asks for it.",
        responses={
            "200": response("The metrics.", str, "text/plain", "application/openmetrics-text")
        },
    ),
)
"""The routes of health checks and metrics."""
