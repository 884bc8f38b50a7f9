#!/bin/sh
# Writes constraints.txt anew: the newest versions that pyproject.toml allows, all of them pinned.
set -eu
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${PYTHON:-python3}" -m venv "$fresh"
"$fresh/bin/pip" install -q hatchling editables
"$fresh/bin/pip" install -q --no-build-isolation -e '.[server,web,dev,docs,peers]'
"$fresh/bin/pip" install -q --no-deps arq # asks for redis below 6, and works with the newest
{
    echo "# Every package of .venv, pinned: \`make install\` and \`make docs\` install exactly these. \`make lock\` writes this file anew."
    "$fresh/bin/pip" freeze --exclude-editable
} >constraints.txt.new
mv constraints.txt.new constraints.txt
