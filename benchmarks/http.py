"""Increments by HTTP: as many as one client can send to one server process, against a bare handler.

The client is wrk, whose every request has the same few headers and one of a thousand bodies. The
bare handler runs on the same server and reads the body; it does nothing with it.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.measuring import Measurement, Wrong
from benchmarks.pipeline import apply_all
from benchmarks.processes import Child
from benchmarks.site import Site
from countersink.database.migrate import migrate
from countersink.database.sessions import open_tables
from countersink.store import Store, api_keys

NAMES: Final = ("http_bare", "http_batch_1", "http_batch_100")
CONNECTIONS: Final = 32
BODIES: Final = 1_000
PAGES: Final = 5_000
COUNTER: Final = "page_views"
_DONE: Final = re.compile(r"^DONE (\d+) (\d+) (\d+)$", re.MULTILINE)
_SCRIPT: Final = """
local requests, turn = {}, 0
init = function(arguments)
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer %(key)s"
  for line in io.lines(%(bodies)s) do
    requests[#requests + 1] = wrk.format("POST", "/v1/increments", nil, line)
  end
end
request = function()
  turn = turn %% #requests + 1
  return requests[turn]
end
done = function(summary)
  local errors = summary.errors
  io.write(string.format("DONE %%d %%d %%d\\n", summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


class Http:
    """`http_bare`, `http_batch_1`, `http_batch_100`.

    Args:
        batch: increments in one request.
        bare: to the handler that does nothing.
    """

    def __init__(self, site: Site, name: str, *, batch: int, bare: bool = False) -> None:
        self.name = name
        self._site = site
        self._batch = batch
        self._bare = bare

    def measure(self, seconds: float) -> Measurement:
        """Increments that were accepted; all of them are counted afterwards. Raises Wrong."""
        with self._site.database() as url:
            migrate(url)
            with open_tables(url) as session:
                _, key = api_keys.create(session, "benchmark", ("ingest",))
            with Child(
                "benchmarks.children.web_server",
                bare=self._bare,
                redis_url=self._site.redis_url,
                mysql_url=url,
            ) as child:
                port = child.hear()["port"]
                requests, taken = self._load(port, key, seconds)
                child.say(end=True)
                child.hear()
            if not self._bare:
                self._check(url, requests)
        return Measurement(requests * self._batch, taken)

    def _load(self, port: int, key: str, seconds: float) -> tuple[int, float]:
        """Requests that were answered well, and how long that took."""
        directory = Path(self._site.directory)
        bodies, script = directory / "bodies.txt", directory / "load.lua"
        bodies.write_text("".join(f"{self._body(n)}\n" for n in range(BODIES)))
        script.write_text(_SCRIPT % {"bodies": json.dumps(str(bodies)), "key": key})
        script.chmod(0o600)
        command = [
            "wrk",
            "--threads=1",
            f"--connections={CONNECTIONS}",
            f"--duration={max(1, round(seconds))}s",
            f"--script={script}",
            f"http://127.0.0.1:{port}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = _DONE.search(done.stdout)
        if found is None:
            raise Wrong(f"wrk failed: {done.stderr.strip() or done.stdout.strip()}")
        requests, microseconds, errors = map(int, found.groups())
        if errors:
            raise Wrong(f"{self.name}: {errors:,} of {requests:,} requests went wrong")
        return requests, microseconds / 1e6

    def _body(self, number: int) -> str:
        chosen = random.Random(number)  # the same in every run
        items = [
            {"counter": COUNTER, "key": f"/page/{chosen.randrange(PAGES)}"}
            for _ in range(self._batch)
        ]
        return json.dumps(items if self._batch > 1 else items[0], separators=(",", ":"))

    def _check(self, url: str, requests: int) -> None:
        """Whether all are counted: with those that wrk did not wait for the answers of."""
        apply_all(self._site, url)
        with Store(url) as store:
            total = store.totals.total(COUNTER)
        if not requests <= total / self._batch <= requests + CONNECTIONS:
            raise Wrong(f"{self.name}: {requests:,} requests of {self._batch}, counted {total:,}")


def why_unavailable() -> str | None:
    """Why these rows cannot be measured here; None if they can."""
    return None if shutil.which("wrk") else "wrk is not installed: apt-get install wrk"


def rows(site: Site) -> list[Http]:
    """All of them."""
    bare, one, hundred = NAMES
    return [
        Http(site, bare, batch=1, bare=True),
        Http(site, one, batch=1),
        Http(site, hundred, batch=100),
    ]
