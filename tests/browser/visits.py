"""A page of another origin that counts its visitors by beacons and by pixels."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playwright.sync_api import Browser

from tests.support.waiting import eventually
from tests.web.serving import serving

TOGETHER = 5
"""At once: of many more, Chromium itself drops beacons (ERR_INSUFFICIENT_RESOURCES)."""
PAGE = b"""<!doctype html><title>a shop</title><script>
const beacon = (server) => navigator.sendBeacon(`${server}/hit/visits/beacon`);
const pixel = (server, n) => new Promise((done, failed) => {
  const picture = new Image();
  picture.onload = done;
  picture.onerror = failed;
  picture.src = `${server}/hit/visits/pixel.gif?n=${n}`;
});
</script>"""


class _Shop(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """The page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def shop() -> Iterator[str]:
    """The URL of a site that is none of ours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Shop) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def counted_once(browser: Browser, redis_url: str, mysql_url: str, each: int) -> None:
    """So many beacons and so many pixels are counted, each once; on empty tables."""
    options: dict[str, Any] = {"public_counters": ("visits",), "rate_per_address": 1_000_000.0}
    options["without_keys"] = False  # everything but what is public takes a key
    with (
        serving(redis_url, mysql_url, **options) as web,
        shop() as elsewhere,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.goto(elsewhere)
        taken = page.evaluate(
            """async ([server, each, together]) => {
                let taken = 0;
                for (let n = 0; n < each; n += together) {
                    const pixels = [];
                    for (let one = n; one < n + together; one++) {
                        taken += beacon(server);
                        pixels.push(pixel(server, one));
                    }
                    await Promise.all(pixels);
                }
                return taken;
            }""",
            [web.url, each, TOGETHER],
        )
        assert taken == each
        # A page does not hear what became of a beacon.
        answers = web.services.answers
        eventually(lambda: answers[204] == each, message=lambda: f"answers: {dict(answers)}")
        web.apply()
        assert web.store.totals.many("visits", ["beacon", "pixel"]) == {
            "beacon": each,
            "pixel": each,
        }
