"""Whether a server answers, asked now: bounded, and not again for every scrape."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

KEPT_S: Final = 2.0
"""Seconds that an answer is good for, however many ask."""
WITHIN_S: Final = 1.5
"""Seconds that one who asks waits at most, whatever hangs; then the server counts as away."""


class Probe:
    """Asks one server. For any thread.

    Args:
        ask: returns when the server answered, raises when it did not; it may hang.
        kept_s, within_s: see :data:`KEPT_S`, :data:`WITHIN_S`.
    """

    def __init__(
        self, ask: Callable[[], object], *, kept_s: float = KEPT_S, within_s: float = WITHIN_S
    ) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._within_s = within_s
        self._lock = threading.Lock()
        self._asking: threading.Event | None = None
        self._good_until = 0.0
        self._up = False

    def up(self) -> bool:
        """Whether it answers; what it did a moment ago, where it was asked then."""
        with self._lock:
            if time.monotonic() < self._good_until:
                return self._up
            asking = self._asking
            if asking is None:
                asking = self._asking = threading.Event()
                # A thread for each: it may hang for longer than anybody waits, and then there is
                # just that one.
                threading.Thread(
                    target=self._run, args=(asking,), name="probe", daemon=True
                ).start()
        answered = asking.wait(self._within_s)
        with self._lock:
            return answered and self._up

    def _run(self, asking: threading.Event) -> None:
        try:
            self._ask()
            up = True
        except Exception:  # whatever it is, it did not answer; who needs it says what ails it
            up = False
        with self._lock:
            self._up, self._asking = up, None
            self._good_until = time.monotonic() + self._kept_s
        asking.set()


Probes = Mapping[str, Probe]
"""By server: ``redis``, ``mysql``."""


def all_up(probes: Probes) -> dict[str, bool]:
    """Which of them answer; asked at the same time, so it takes no longer than one."""
    found: dict[str, bool] = {}
    threads = [
        threading.Thread(target=lambda n=name, p=probe: found.__setitem__(n, p.up()), daemon=True)
        for name, probe in probes.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: found.get(name, False) for name in probes}
