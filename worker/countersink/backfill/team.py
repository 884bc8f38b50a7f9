"""Who else counts: the job processes, as the process that runs a backfill sees them."""

from typing import Protocol


class Team(Protocol):
    """Job processes, and the queue from which they take work. For one thread.

    Every method may raise :class:`countersink.stream.errors.StreamError`: the queue's Redis does
    not serve.
    """

    def processes(self) -> int:
        """How many job processes are there."""
        ...

    def enqueue(self, run: int, number: int, rate: float | None, max_rejects: int | None) -> None:
        """Ask for one more process to count what is pending of a run.

        Args:
            run: its number.
            number: from 0; no other job of this run and process has it.
            rate: lines per second at most; None: as fast as it goes.
            max_rejects: more rejected lines than this end the run; None: any number may be.
        """
        ...

    def alive(self, run: int) -> int:
        """How many of the jobs that were enqueued here for a run wait or work."""
        ...

    def said(self, run: int) -> list[str]:
        """Why jobs that have ended counted no more, a sentence each; none: there was no more."""
        ...
