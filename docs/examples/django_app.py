"""Django, in one file: every request counted by its URL pattern and status.

    COUNTERSINK_REDIS_URL=redis://localhost:6379/0 python docs/examples/django_app.py runserver

Then `countersink totals requests --by key` shows `GET /books/<int:number>/ 200` and the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

from countersink.producers import Producer

producer = Producer.from_env()

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="for this example only",
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    MIDDLEWARE=["countersink.producers.integrations.django.CountRequests"],
    COUNTERSINK_PRODUCER=producer,  # or its dotted path; without it: one of the middleware's own
)


def book(request: HttpRequest, number: int) -> HttpResponse:
    """A book, of which there are 1,000."""
    if number > 1_000:
        raise Http404
    return JsonResponse({"book": number})


def order(request: HttpRequest) -> HttpResponse:
    """An order: counted as such, too."""
    producer.increment("orders", "placed")
    return JsonResponse({"order": "placed"}, status=201)


def report(request: HttpRequest) -> StreamingHttpResponse:
    """An answer in pieces."""

    def lines() -> Iterator[str]:
        for number in range(3):
            yield f"line {number}\n"

    return StreamingHttpResponse(lines(), content_type="text/plain")


def broken(request: HttpRequest) -> HttpResponse:
    """A mistake: 500."""
    raise RuntimeError("this page is broken")


urlpatterns = [
    path("books/<int:number>/", book),
    path("orders/", order),
    path("report/", report),
    path("broken/", broken),
]

application = get_wsgi_application()
asgi_application = get_asgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
