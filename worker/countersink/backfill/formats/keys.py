"""What becomes of a key once it is made."""

from countersink.backfill import conditions
from countersink.backfill.recipe import Recipe
from countersink.producers.access_line import Malformed
from countersink.stream.limits import check_key


class Keys:
    """Cuts, checks and leaves out keys as a recipe says."""

    def __init__(self, recipe: Recipe) -> None:
        self._strip_query = recipe.strip_query
        self._excluded = tuple(conditions.pattern(glob) for glob in recipe.exclude_keys)

    def finished(self, key: str) -> str | None:
        """The key that is counted; None where the recipe leaves it out.

        Raises:
            Malformed: it is too long.
        """
        if self._strip_query:
            key = key.partition("?")[0]
        for excluded in self._excluded:
            if excluded(key):
                return None
        try:
            return check_key(key)
        except ValueError as error:
            raise Malformed(str(error)) from None
