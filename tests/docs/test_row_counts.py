"""docs/row-counts.md has every call of tracked tables, with its parameters and an example."""

import inspect
import re

import pytest

from countersink.row_counts import TrackedTables
from countersink.store import Store
from tests.support.processes import PROJECT

PAGE = (PROJECT / "docs/row-counts.md").read_text("utf-8")
EXAMPLES = "\n".join(re.findall(r"^(?:>>>|\.\.\.) .*$", PAGE, re.MULTILINE))
CALLS = {f"tracked.{name}": value for name, value in vars(TrackedTables).items() if name[0] != "_"}
CALLS["row_count"] = Store.row_count


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_call_is_in_the_table_and_has_an_example(name: str) -> None:
    found = re.search(
        rf"^\| `store\.{re.escape(name)}\((.*?)\)` \| [^|]+ \| .+ \|$", PAGE, re.MULTILINE
    )
    assert found, f"store.{name} is not in the table"
    parameters = [
        f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name
        for each in inspect.signature(CALLS[name]).parameters.values()
        if each.name != "self"
    ]
    assert [one for one in found[1].split(", ") if one not in ("", "*")] == parameters
    assert inspect.getdoc(CALLS[name])
    assert f"store.{name}(" in EXAMPLES
