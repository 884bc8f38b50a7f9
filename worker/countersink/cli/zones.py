"""The type of options that name a time zone. Apart from the others: it needs the store."""

from typing import Final

from countersink.cli.types import Checked
from countersink.store import buckets

ZONE: Final = Checked("zone", lambda name: buckets.zone(name).key)
