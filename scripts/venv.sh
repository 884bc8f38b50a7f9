#!/bin/sh
# Makes .venv with the package (editable), its tests' and checks' needs, all pinned. Pip's own
# settings (index, proxy, certificates) are the machine's: nothing here overrides them.
#
# scripts/venv.sh EXTRA: adds to it what this extra of pyproject.toml needs.
#
# Exit status: 0 done, 1 not (one line on stderr says what is missing).
set -eu
cd "$(dirname "$0")/.."

fit='import sys; sys.exit(sys.version_info < (3, 11))'
python=
for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "$fit" 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || { echo "missing: Python 3.11 or newer; install: apt-get install python3 python3-venv" >&2; exit 1; }
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    { echo "missing: Python's venv module; install: apt-get install python3-venv" >&2; exit 1; }

# a virtual environment cannot be moved, and survives no new Python: make it anew when it is not ours
.venv/bin/python -c "$fit" 2>/dev/null || { rm -rf .venv; "$python" -m venv .venv; }
pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@" </dev/null; }

echo "installing the package into .venv ..."
pip install -q -c constraints.txt hatchling editables
# the build backend is the pinned one, too: not one that pip fetches for the build
pip install -q --no-build-isolation -c constraints.txt -e ".[${1:-server,web,dev}]"
# arq asks for redis below 6, and works with the newest
[ "${1:-}" != peers ] || pip install -q --no-deps -c constraints.txt arq
touch ".venv/.complete${1:+-$1}"
