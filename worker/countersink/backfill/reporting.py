"""The report of a backfill."""

from collections.abc import Iterable, Sequence

from countersink.backfill.options import Options, Report, SourceReport

STOPPED = "it was told to stop: run it again, and it goes on"


def report(
    options: Options,
    run: int | None,
    state: str,
    sources: Sequence[SourceReport],
    *,
    known_lines: int = 0,
    uncounted_rejects: int = 0,
    by_day: Sequence[tuple[str, int]] = (),
    notices: Iterable[str] = (),
) -> Report:
    """A report with the sums of its sources'.

    Args:
        uncounted_rejects: rejected lines of a chunk that was not counted for them.
    """
    return Report(
        run=run,
        counter=options.counter,
        mode=options.mode,
        state=state,
        sources=tuple(sources),
        lines=sum(each.lines for each in sources),
        counted=sum(each.counted for each in sources),
        filtered=sum(each.filtered for each in sources),
        rejected=sum(each.rejected for each in sources) + uncounted_rejects,
        amount=sum(each.amount for each in sources),
        known_lines=known_lines,
        by_day=tuple(by_day),
        notices=tuple(notices),
    )


def state_of(sources: Sequence[SourceReport], *, stopped: bool) -> str:
    """The state that a run ends in."""
    if stopped:
        return "stopped"
    return "failed" if any(each.outcome == "failed" for each in sources) else "done"
