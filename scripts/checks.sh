#!/bin/sh
# Lint, format, types and import rules; all of them, also when one fails.
cd "$(dirname "$0")/.." || exit 1
status=0
run() {
    echo "== $*"
    PYTHONPATH=producers:worker:schedules .venv/bin/"$@" </dev/null || status=1
}
run ruff check
run ruff format --check
run mypy
run lint-imports --no-logo
exit $status
