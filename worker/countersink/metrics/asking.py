"""What somebody else has to be asked for, who may hang: bounded, and not again for every scrape."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Asking(Generic[Answer]):
    """Asks again when the last answer is old. For any thread.

    Args:
        ask: what to call; it may raise, and it may hang.
        kept_s: seconds that an answer is good for, however many want it; also that there is none.
        within_s: seconds after which whoever waits gives up, and others do not begin to wait.
    """

    def __init__(self, ask: Callable[[], Answer], *, kept_s: float, within_s: float) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._within_s = within_s
        self._lock = threading.Lock()
        self._asked: threading.Event | None = None
        self._asked_at = 0.0
        self._good_until = 0.0
        self._answer: Answer | None = None

    def get(self) -> Answer | None:
        """The answer; None if it raised, or does not come in time."""
        with self._lock:
            if self._asked is None and time.monotonic() < self._good_until:
                return self._answer
            asked = self._asked
            if asked is None:
                asked = self._asked = threading.Event()
                self._asked_at = time.monotonic()
                # On a thread: it may hang for longer than anybody waits. There is just this one.
                threading.Thread(
                    target=self._run, args=(asked,), name="asking", daemon=True
                ).start()
            left = self._asked_at + self._within_s - time.monotonic()
        if not asked.wait(max(0.0, left)):
            return None
        with self._lock:
            return self._answer

    def _run(self, asked: threading.Event) -> None:
        answer: Answer | None = None
        try:
            answer = self._ask()
        except Exception:
            pass  # whatever it is, there is no answer; who needs the server says what ails it
        with self._lock:
            self._answer, self._asked = answer, None
            self._good_until = time.monotonic() + self._kept_s
        asked.set()
