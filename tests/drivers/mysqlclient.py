"""mysqlclient (the module MySQLdb) from the system's packages, as it has no wheels for Linux."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

PLACE = Path("/usr/lib/python3/dist-packages/MySQLdb/__init__.py")
"""Of Debian's package python3-mysqldb; the rest that lies there stays off the path."""


def load() -> Any:
    """The module.

    Raises:
        ImportError: there is none for this Python; says why.
    """
    if "MySQLdb" in sys.modules or importlib.util.find_spec("MySQLdb") is not None:
        return importlib.import_module("MySQLdb")
    spec = importlib.util.spec_from_file_location("MySQLdb", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["MySQLdb"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, FileNotFoundError) as error:
        del sys.modules["MySQLdb"]
        raise ImportError(f"no mysqlclient (apt-get install python3-mysqldb): {error}") from error
    return module
