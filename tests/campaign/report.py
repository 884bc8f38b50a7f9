"""docs/reliability.md, made of the results of the campaign and of what it has found."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.campaign.results import PLACES, Round
from tests.campaign.strikes import DEEDS
from tests.support.processes import PROJECT

PATH: Final = PROJECT / "docs" / "reliability.md"
TEMPLATE: Final = Path(__file__).with_name("report.in")
FINDINGS: Final = (
    (
        "While Redis was full a producer logged `Redis answers again` 20 times a second",
        "`everything`, seed 4",
        "0.1.0, before its release",
    ),
)
"""Faults of the product: what was wrong, act and seed that found it, version that mends it."""
ACTS: Final = tuple(dict.fromkeys(place.act for place in PLACES))
ALIKE: Final = (("everything", "storm"), *((act,) for act in ACTS[2:]))
"""Acts by the kinds of their faults."""
MEASURED: Final = ("lost", "silence", "call")


def text(rounds: Sequence[Round]) -> str:
    """The page."""
    faults = _sum(each.faults for each in rounds).total()
    return TEMPLATE.read_text("utf-8").format(
        rounds=f"{len(rounds):,}",
        faults=f"{faults:,}",
        increments=f"{_sum(each.events for each in rounds).total():,}",
        differences=sum(each.difference != 0 for each in rounds),
        acts=_table(
            ("act", "rounds (seeds)", "faults", "events", "differences", *MEASURED),
            (_row(act, rounds) for act in ACTS),
        ),
        servers=_table(
            ("servers", "rounds", "faults", "events", "differences"),
            (_servers(versions, rounds) for versions in sorted({_named(each) for each in rounds})),
        ),
        kinds=_table(("act", "faults"), (_kinds(acts, rounds) for acts in ALIKE)),
        findings=_table(("fault", "found by", "mended in"), FINDINGS),
    )


def _row(act: str, rounds: Sequence[Round]) -> tuple[str, ...]:
    """An act's row of the first table."""
    own = [each for each in rounds if each.act == act]
    seeds = [each.seed for each in own]
    silence = [each.idle_s for each in own if each.idle_s is not None]
    calls = [each.slowest_ms for each in own if each.slowest_ms is not None]
    return (
        f"`{act}`",
        f"{len(own)} ({min(seeds)}–{max(seeds)})" if seeds else "0",
        *_figures(own),
        f"{sum(each.lost for each in own):,}",
        f"{max(silence):.1f} s" if silence else "",
        f"{max(calls):.0f} ms" if calls else "",
    )


def _servers(versions: str, rounds: Sequence[Round]) -> tuple[str, ...]:
    """The row of two servers in the second table."""
    own = [each for each in rounds if _named(each) == versions]
    return versions, f"{len(own)}", *_figures(own)


def _named(played: Round) -> str:
    return ", ".join(played.versions)


def _kinds(acts: Sequence[str], rounds: Sequence[Round]) -> tuple[str, str]:
    """The faults of acts that have the same ones, by kind."""
    found = _sum(each.faults for each in rounds if each.act in acts)
    named = {
        kind: kind.removeprefix(struck) if place else kind
        for struck, alike in groupby(sorted(found), _struck)
        for place, kind in enumerate(alike)
    }
    kinds = ", ".join(f"{name} ({found[kind]:,})" for kind, name in named.items())
    return ", ".join(f"`{act}`" for act in acts), kinds


def _struck(kind: str) -> str:
    """What was struck, with a space after it; the kind itself if that does not say it."""
    return next((kind.removesuffix(deed) for deed in DEEDS if kind.endswith(f" {deed}")), kind)


def _figures(own: Sequence[Round]) -> tuple[str, str, str]:
    """Faults, events and differences."""
    return (
        f"{_sum(each.faults for each in own).total():,}",
        f"{_sum(each.events for each in own).total():,}",
        f"{sum(each.difference != 0 for each in own)}",
    )


def _sum(counts: Iterable[dict[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in counts:
        found.update(each)
    return found


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *rest = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join((first, f"|{'---|' * len(head)}", *rest))
