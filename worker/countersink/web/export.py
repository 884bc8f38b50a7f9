"""``/v1/export/openmetrics``: totals of chosen counters, for Prometheus to scrape."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from countersink.reads import Reads
from countersink.reads.openmetrics import CONTENT_TYPE, Sample, text
from countersink.reads.query import Answer, Query, ask
from countersink.store.errors import UnknownCounter
from countersink.stream.limits import check_counter
from countersink.web import reading
from countersink.web.answers import freshness
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.parameters import COUNTER_NAME, Parameter, read, refuse, whole
from countersink.web.read_places import Kind
from countersink.web.services import Services

MAX_COUNTERS: Final = 100
"""Counters of one scrape."""
MAX_SAMPLES: Final = 10_000
"""Samples of one scrape: keys are an open set, and every one becomes a time series."""

_COUNTERS: Final = Parameter(
    name="counter",
    read=check_counter,
    description="A counter; may be given several times, and has to be given once.",
    schema=COUNTER_NAME,
    repeatable=True,
    most=MAX_COUNTERS,
)
_TOP: Final = Parameter(
    name="top",
    read=whole(1, 1_000),
    description="One sample for each of the so many keys with the largest totals.",
    schema={"type": "integer", "minimum": 1, "maximum": 1_000},
)
_PARAMETERS: Final = (_COUNTERS, reading.KEYS, _TOP, reading.INCLUDE_PENDING)


async def openmetrics(request: Request, services: Services, who: Identity) -> Response:
    """Totals as ``countersink_events_total{counter="…"}``."""
    given = read(request, _PARAMETERS)
    names = list(dict.fromkeys(given["counter"]))
    if not names:
        raise refuse("counter", f"choose 1 to {MAX_COUNTERS} counters")
    keys = list(dict.fromkeys(given["key"]))
    if keys and given["top"]:
        raise refuse("top", "give key or top, not both")
    if len(names) * max(len(keys), given["top"] or 1) > MAX_SAMPLES:
        raise refuse("counter", f"that could be more than {MAX_SAMPLES:,} samples: ask for less")
    for name in names:
        reading.own_counter(name, who)
    pending = given["include_pending"]
    work = partial(_scrape, names, keys, given["top"], pending)
    kind: Kind = "pending" if pending else "one"
    return await reading.answering(
        request, services, who, _answer, services.reads, work, pending, kind=kind
    )


def _answer(reads: Reads, work: Callable[[Reads], Response], pending: bool) -> Response:
    # All counters are of one moment: the queue is read once for them, and so are their tables.
    answer: Response = reading.asking(reads.together, work, include_pending=pending)
    return answer


def _scrape(
    names: Sequence[str],
    keys: Sequence[str],
    top: int | None,
    include_pending: bool,
    reads: Reads,
) -> Response:
    samples: list[Sample] = []
    complete: list[datetime | None] = []
    found: dict[str, Answer | None] = {}
    with reads.group(sorted(names)):
        for name in sorted(names):
            query = Query(
                counter=name,
                by="key" if keys or top else "total",
                keys=keys,
                top=top,
                include_pending=include_pending,
            )
            found[name] = reading.asking(_known, reads, query)
    for name in names:
        answer = found[name]
        if answer is None:
            continue
        complete.append(answer.complete_up_to)
        for row in answer.rows:
            key, total = row.get("key"), row["total"]
            assert isinstance(total, int)
            samples.append(Sample(name, None if key is None else str(key), total))
    if not complete:
        what = repr(names[0]) if len(names) == 1 else f"any of these {len(names)}"
        error = UnknownCounter(f"nothing was ever counted as {what}")
        raise reading.unknown(error, without_pending=not include_pending)
    known = [moment for moment in complete if moment is not None]
    up_to = min(known) if len(known) == len(complete) else None
    headers = {**freshness(up_to, None), "Cache-Control": "private, no-cache"}
    return Response(
        text(samples, up_to).encode(), headers={**headers, "Content-Type": CONTENT_TYPE}
    )


def _known(reads: Reads, query: Query) -> Answer | None:
    """The answer; None of a counter that was not counted yet.

    The others are scraped all the same: a series that is not there yet fails no scrape.
    """
    try:
        return ask(reads, query)
    except UnknownCounter:
        return None


_OPERATION: Final[dict[str, Any]] = {
    "operationId": "openmetrics",
    "summary": "Totals of chosen counters, for Prometheus",
    "tags": ["reading"],
    "parameters": [
        {**_COUNTERS.document(), "required": True},
        *(parameter.document() for parameter in _PARAMETERS[1:]),
    ],
    "responses": {
        "200": {
            "description": "OpenMetrics 1.0 text. A counter that nothing was ever counted as has"
            " no sample.",
            "content": {"application/openmetrics-text": {"schema": {"type": "string"}}},
        },
        "404": {"description": "Nothing was ever counted as any of these."},
        "422": reading.NOT_VALID,
    },
}

DOORS: Final = (
    Door(
        method="GET",
        path="/v1/export/openmetrics",
        handler=openmetrics,
        scope="read",
        operation=_OPERATION,
    ),
)
"""The doors to exports."""
