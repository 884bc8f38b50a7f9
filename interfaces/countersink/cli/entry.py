"""The console script ``countersink``. It calls ``main`` of ``app.py``. If packages that the command
needs are not installed, it ends with a message that says how to install them.
"""

import sys
from importlib.util import find_spec

if missing := [name for name in ("click", "msgspec", "pymysql", "rich") if find_spec(name) is None]:
    sys.exit(
        f"countersink: the command needs {', '.join(missing)}: pip install 'countersink[server]'"
    )

from countersink.cli.app import main  # only now: it imports these packages

if __name__ == "__main__":
    main()
