"""How ``countersink counter`` shows counters."""

from collections.abc import Sequence
from typing import Final

import click

from countersink.cli import output
from countersink.reads.counter_document import begins
from countersink.store.counters import Counter
from countersink.store.overflow import OVERFLOW

_COLUMNS: Final = {
    "counter": False,
    "time zone": False,
    "resolution": False,
    "keep days": True,
    "max keys": True,
    "overflown": True,
    "app slots": True,
    "rolled up to": False,
    "made": False,
    "to come": False,
}


def print_one(counter: Counter) -> None:
    """A counter for people: its settings, then its time zones if there is more than one."""
    table = output.table({"setting": False, "value": False})
    table.show_header = False
    for name, value in (
        ("counter", counter.name),
        ("time zone", counter.in_force.time_zone),
        ("resolution", counter.in_force.resolution),
        ("keep days", _kept(counter)),
        ("max keys", _most(counter)),
        ("overflown today", _overflown(counter)),
        ("app slots", str(counter.app_slots)),
        ("rolled up to", output.cell(counter.rolled_up_to)),
        ("made by hand", output.cell(counter.made)),
    ):
        table.add_row(name, value)
    output.write_table(table)
    if len(counter.policies) > 1:
        policies = output.table(
            dict.fromkeys(("events from", "time zone", "resolution", ""), False)
        )
        for policy in counter.policies:
            if policy == counter.in_force:
                state = "in force"
            else:
                state = "to come" if policy in counter.to_come else ""
            policies.add_row(
                begins(policy) or "the beginning", policy.time_zone, policy.resolution, state
            )
        click.echo()
        output.console().print(policies)


def print_list(counters: Sequence[Counter]) -> None:
    """Counters for people, one line each."""
    if not counters:
        click.echo("There are no counters.")
        return
    output.write_rows(_COLUMNS, [_cells(counter) for counter in counters])


def _cells(counter: Counter) -> tuple[str, ...]:
    return (
        counter.name,
        counter.in_force.time_zone,
        counter.in_force.resolution,
        _kept(counter),
        "-" if counter.most_keys is None else f"{counter.most_keys:,}",
        f"{counter.overflown:,}",
        str(counter.app_slots),
        output.cell(counter.rolled_up_to),
        output.cell(counter.made),
        ", ".join(
            f"{policy.time_zone} {policy.resolution} from {begins(policy)}"
            for policy in counter.to_come
        ),
    )


def _kept(counter: Counter) -> str:
    return "forever" if counter.keep_days is None else f"{counter.keep_days:,}"


def _most(counter: Counter) -> str:
    if counter.most_keys is None:
        return "any number a day"
    shared = "" if counter.max_keys is not None else ", as for all counters"
    return f"{counter.most_keys:,} a day{shared}"


def _overflown(counter: Counter) -> str:
    if not counter.overflown:
        return "none"
    return f"{counter.overflown:,} row{'s' * (counter.overflown > 1)}, in the key {OVERFLOW}"
