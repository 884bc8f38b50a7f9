"""A counter's days as Unix minutes."""

from datetime import date, timedelta

from countersink.backfill.recipe import Recipe
from countersink.store.buckets import MAX_MINUTE, day_begins
from countersink.store.policies import Policies


def minutes(recipe: Recipe, counter: str, in_force: Policies) -> tuple[int, int] | None:
    """The half-open range of Unix minutes of the days that a recipe asks for; None: all.

    Days are those of the counter's own time zones.

    Raises:
        Refused: a time zone is unknown on this machine.
    """
    if recipe.start is None and recipe.end is None:
        return None
    first, until = 0, MAX_MINUTE + 1
    if recipe.start is not None:
        first = _begins(in_force, counter, recipe.start)
    if recipe.end is not None and recipe.end < date.max:
        until = _begins(in_force, counter, recipe.end + timedelta(days=1))
    return first, max(first, until)


def _begins(in_force: Policies, counter: str, day: date) -> int:
    """The first minute that is of this day, or of a later one."""
    own = in_force.of(counter)
    for policy, following in zip(own, [*own[1:], None], strict=True):
        begins = max(0, -(-day_begins(policy.known_zone(), day) // 60))
        if following is None:
            break
        if begins < following.valid_from:
            break
    return begins if policy is own[0] else max(begins, policy.valid_from)
