#!/bin/sh
# `make release VERSION=1.2.3`: sets the version and the changelog's heading, builds sdist and wheel, checks
# them, tries the wheel in an empty environment of each Python that is found, commits and tags. It pushes
# and uploads nothing: it ends with the two commands that do.
#
# Exit status: 0 done, 1 not (the checkout is as it was; one line on stderr says what to do).
set -eu
cd "$(dirname "$0")/.."
version=${1:-}
work=build/release
tools=$work/tools/bin

refuse() { echo "release: $1" >&2; exit 1; }
printf '%s' "$version" | grep -qxE '[0-9]+\.[0-9]+\.[0-9]+' ||
    refuse "'$version' is no version of three numbers: make release VERSION=1.2.3"
[ -z "$(git status --porcelain)" ] || refuse "the checkout has changes: commit them first (git status)"
[ -z "$(git tag --list "v$version")" ] || refuse "v$version is tagged already: choose the next version"
grep -q '^## Unreleased' CHANGELOG.md ||
    refuse "CHANGELOG.md has no heading '## Unreleased': write there what is new"

# Tried now: without an identity or a key to sign with, it would fail after the build.
git tag -a "v$version" -m "countersink $version" || refuse "git cannot make the tag v$version: see above"
git tag -d "v$version" >/dev/null

log=$(mktemp)
head=$(git rev-parse HEAD)
finish() {
    status=$?
    [ $status -eq 0 ] || { git reset -q --soft "$head" && git checkout -q HEAD -- pyproject.toml CHANGELOG.md; }
    rm -f "$log"
}
trap finish EXIT
trap 'exit 130' INT TERM
sed -i "s/^version = .*/version = \"$version\"/" pyproject.toml
sed -i "s/^## Unreleased.*/## $version - $(date -u +%F)/" CHANGELOG.md

# quiet WHAT COMMAND...: show its output only when it fails
quiet() {
    what=$1
    shift
    "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; refuse "$what failed: see above"; }
}

echo "building countersink $version ..."
rm -rf "$work"
quiet "making an environment" python3 -m venv "$work/tools"
quiet "installing build and twine" "$tools/pip" install -c constraints.txt build twine
# The wheel is built from the sdist, so that this is complete.
PIP_CONSTRAINT=constraints.txt quiet "the build" "$tools/python" -m build --outdir "$work/dist" .
quiet "twine check" "$tools/twine" check --strict "$work"/dist/*
wheel=$(echo "$work"/dist/*.whl)

# try PYTHON: the wheel alone as an application has it, and with its commands
try() {
    own=$work/$1/bin
    quiet "$1 -m venv" "$1" -m venv "$work/$1"
    quiet "pip install on $1" "$own/python" -m pip install "$wheel"
    quiet "a producer on $1" "$own/python" -I -c "
from countersink.producers import Producer
with Producer('memory://') as producer:
    producer.increment('page_views')"
    quiet "pip install [web,parquet] on $1" "$own/python" -m pip install "$wheel[web,parquet]"
    quiet "pip check on $1" "$own/python" -m pip check
    quiet "countersink ops on $1" "$own/countersink" ops "$work/$1/ops"
    [ "$("$own/countersink" --version)" = "countersink $version" ] &&
        grep -q "image: countersink:$version\$" "$work/$1/ops/docker-compose.yml" ||
        refuse "the wheel on $1 is not of version $version"
    rm -rf "${work:?}/$1"
}

tried=
missing=
for python in python3.11 python3.12 python3.13 python3.14; do
    if "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        echo "trying the wheel on $python ..."
        try "$python"
        tried="$tried $python"
    else
        missing="$missing $python"
    fi
done
[ -n "$tried" ] || refuse "there is none of$missing to try the wheel on: install one"

quiet "git commit" git commit -m "countersink $version" -- pyproject.toml CHANGELOG.md
quiet "git tag" git tag -a "v$version" -m "countersink $version"
echo "countersink $version is built, committed and tagged. Tried on$tried.${missing:+ Not tried, because not found:$missing.}"
echo "To publish it:"
echo "    git push --follow-tags"
echo "    $tools/twine upload $work/dist/*"
