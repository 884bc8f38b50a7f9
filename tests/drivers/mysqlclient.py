"""mysqlclient (the module MySQLdb) from the system's packages, as it has no wheels for Linux."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

PLACES = ("/usr/lib/python3/dist-packages",)
"""Where Debian's package python3-mysqldb is; the rest that lies there stays off the path."""


def load() -> Any:
    """The module.

    Raises:
        ImportError: there is none for this Python; says why.
    """
    if "MySQLdb" in sys.modules:
        return sys.modules["MySQLdb"]
    if importlib.util.find_spec("MySQLdb") is not None:
        return importlib.import_module("MySQLdb")
    reasons = []
    for place in PLACES:
        found = Path(place) / "MySQLdb" / "__init__.py"
        if not found.exists():
            reasons.append(f"no {found} (apt-get install python3-mysqldb)")
            continue
        spec = importlib.util.spec_from_file_location("MySQLdb", found)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["MySQLdb"] = module
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            del sys.modules["MySQLdb"]
            reasons.append(f"{found} is for another Python: {error}")
            continue
        return module
    raise ImportError(f"mysqlclient is not installed: {'; '.join(reasons)}")
