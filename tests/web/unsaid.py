"""A check for schemathesis, in the place of its ``positive_data_acceptance``: what the document
allows is accepted, unless it breaks a rule that the document can only say in words.
"""

import re
from typing import Final

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

UNSAID: Final = re.compile(
    "|".join(
        (
            # of two parameters or members
            "the range ends .* before it begins",
            "it needs by=key",
            "it needs format=csv",
            "give key or top, not both",
            "it has an id, and so has the batch",
            "an increment with a member is one sighting",
            "this could return more than 10,000 samples",
            "do not fit into 64 bits",
            "it needs keys or dimensions",
            "give each dimension once",
            "name each dimension once",
            "this name is reserved for",
            "choose by keys, or by the values of dimensions",
            "with dimensions have no keys",
            "by dimensions need the name of one counter",
            # of bytes, which are no characters
            "at most 255 bytes",
            # of the server's clock, and of a second 60
            "'at' (must be a time|is more than)",
            # of how the counter counts
            "is counted by day",
            "has no dimension",
            "does not count different members",
            "o breakdown of",
            "give a range of at most",
        )
    ),
    re.IGNORECASE,
)


@schemathesis.check  # type: ignore[untyped-decorator] # mypy skips the package
def what_the_document_allows_is_accepted(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> bool | None:
    """A 422 names one of the rules above, and nothing else."""
    if response.status_code == 422 and UNSAID.search(response.text):
        return None
    found: bool | None = positive_data_acceptance(ctx, response, case)
    return found
