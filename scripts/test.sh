#!/bin/sh
# `make test`: the checks beside the tests, which run on MariaDB, those of the database on MySQL 9, too.
# Both run, also when one of them failed. A MySQL that cannot be had is said in one line, and is no failure.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0

# One core checks while the other fetches what is missing, and goes on beside the tests. In a new
# checkout pytest compiles the tests' modules here, once rather than in each of its processes.
checked=$(mktemp)
scripts/checks.sh >"$checked" 2>&1 &
checks=$!
compile=
if [ ! -d tests/__pycache__ ]; then
    .venv/bin/python -m pytest --collect-only -q >/dev/null 2>&1 </dev/null &
    compile=$!
fi
scripts/mysql-tree.sh &
mysql_tree=$!
scripts/valkey-tree.sh & # where it cannot be had, it says why, and the tests on it are skipped
valkey_tree=$!
trap 'kill "$checks" $compile "$mysql_tree" "$valkey_tree" 2>/dev/null; rm -f "$checked"' EXIT
trap 'exit 130' INT TERM
scripts/servers.sh --tests || status=1
wait "$valkey_tree"
wait "$mysql_tree"
case $? in
0) server=both ;;
3) server=mariadb ;; # it has said why
*) server=mariadb status=1 ;;
esac
[ -z "$compile" ] || wait "$compile"

make test-short SERVER="$server" || status=1
wait "$checks" || status=1
cat "$checked"
[ $status -eq 0 ] && echo "== all passed" || echo "== something failed: see above" >&2
exit $status
