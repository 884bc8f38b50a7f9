#!/bin/sh
# Lint, format, types and import rules; all of them, also when one fails.
cd "$(dirname "$0")/.." || exit 1
status=0
# kept between checkouts: types of what has not changed are not checked again
export MYPY_CACHE_DIR="${XDG_CACHE_HOME:-$HOME/.cache}/countersink/mypy"
run() {
    echo "== $*"
    PYTHONPATH=producers:worker:schedules:interfaces .venv/bin/"$@" </dev/null || status=1
}
run ruff check
run ruff format --check
run mypy
run lint-imports --no-logo
exit $status
