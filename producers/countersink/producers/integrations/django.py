"""Class ``CountRequests``, a Django middleware that counts requests by method, URL pattern and
status, under WSGI and ASGI.

Settings::

    MIDDLEWARE = ["countersink.producers.integrations.django.CountRequests", ...]
    COUNTERSINK_PRODUCER = "shop.counting.producer"     # or a Producer; default: Producer.from_env
    COUNTERSINK_MISSING = "off"     # without COUNTERSINK_REDIS_URL count nothing; default: "error"
    COUNTERSINK_COUNTER = "requests"                    # the default
    # Default: no dimensions, but keys such as "GET /users/<int:id>/ 200".
    COUNTERSINK_DIMENSIONS = {"page": "route", "status": "status"}
    # Default: False. Or a function of the request, or its dotted path, such as "shop.visitor".
    COUNTERSINK_VISITORS = True

Make it the first item of ``MIDDLEWARE``: then it sees the responses as clients get them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from countersink.producers.middleware.count import (
    CLIENT_CLOSED,
    FAILED,
    ROUTE,
    CountedRequest,
    KeyCounter,
    RequestData,
    environ_visitor,
    visitor_from,
)
from countersink.producers.producer import Producer

_from_environment: Final = cache(Producer.from_env)


class CountRequests:
    """Counts each request once, under a key such as ``GET /users/<int:id>/ 200``. Requests and
    responses pass through unchanged.

    Raises:
        ImproperlyConfigured: one of the settings above is invalid; or neither
            ``COUNTERSINK_PRODUCER`` nor the environment variable ``COUNTERSINK_REDIS_URL`` is set,
            and ``COUNTERSINK_MISSING`` is not ``"off"``.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        self._async = bool(iscoroutinefunction(get_response))
        if self._async:
            markcoroutinefunction(self)
        counter = getattr(settings, "COUNTERSINK_COUNTER", "requests")
        visitors = getattr(settings, "COUNTERSINK_VISITORS", False)
        try:
            self._tally = KeyCounter(
                _producer(),
                counter,
                dimensions=getattr(settings, "COUNTERSINK_DIMENSIONS", None),
            )
            if isinstance(visitors, str):
                visitors = import_string(visitors)
            self._visitor = visitor_from(visitors, lambda request: environ_visitor(request.META))
        except (TypeError, ValueError, ImportError) as error:
            raise ImproperlyConfigured(
                "COUNTERSINK_PRODUCER, COUNTERSINK_MISSING, COUNTERSINK_COUNTER,"
                f" COUNTERSINK_DIMENSIONS, COUNTERSINK_VISITORS: {error}"
            ) from (error)

    def __call__(self, request: Any) -> Any:
        """Let the application answer one request, and count the request. Return the response, or an
        awaitable of it if the application is asynchronous. A request whose exception gets here
        counts with status 500, one that Django cancels after the client has disconnected with 499;
        the exception is raised again.
        """
        if self._async:
            return self._answer(request)
        try:
            response = self._get_response(request)
        except BaseException:
            self._count(request, FAILED)
            raise
        self._count(request, response.status_code)
        return response

    async def _answer(self, request: Any) -> Any:
        try:
            response = await self._get_response(request)
        except Exception:
            self._count(request, FAILED)
            raise
        except BaseException:  # Django cancels the request after the client has disconnected
            self._count(request, CLIENT_CLOSED)
            raise
        self._count(request, response.status_code)
        return response

    def _count(self, request: Any, status: int) -> None:
        visitor = self._visitor
        CountedRequest(
            self._tally,
            _template,
            {ROUTE: request},
            None if visitor is None else lambda data: visitor(data[ROUTE]),
        ).count(request.method, status)


def _template(data: RequestData) -> str | None:
    match = data[ROUTE].resolver_match
    return None if match is None else f"/{match.route}"


def _producer() -> Any:
    configured = getattr(settings, "COUNTERSINK_PRODUCER", None)
    if configured is None:
        # One per process: Django may create the middleware repeatedly.
        return _from_environment(missing=getattr(settings, "COUNTERSINK_MISSING", "error"))
    return import_string(configured) if isinstance(configured, str) else configured
