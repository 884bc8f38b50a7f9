#!/bin/sh
# `make test`: checks, the tests on MariaDB but for the long ones, those of how the database is used on MySQL 9. Each part
# runs, also when an earlier one failed. A MySQL that cannot be had is said in one line, and is no failure.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0

# The checks keep one core busy, what is still to be fetched none: both at once. So is what pytest
# makes of the tests' modules, here once rather than in each of its processes.
checked=$(mktemp)
scripts/checks.sh >"$checked" 2>&1 &
checks=$!
.venv/bin/python -m pytest --collect-only -q >/dev/null 2>&1 </dev/null &
collect=$!
scripts/mysql-tree.sh &
mysql_tree=$!
scripts/valkey-tree.sh & # where it cannot be had, it says why, and the tests on it are skipped
valkey_tree=$!
trap 'kill "$checks" "$collect" "$mysql_tree" "$valkey_tree" 2>/dev/null; rm -f "$checked"' EXIT
trap 'exit 130' INT TERM
scripts/servers.sh --tests || status=1
wait "$valkey_tree"
wait "$mysql_tree"
mysql=$?
wait "$collect"
wait "$checks" || status=1
cat "$checked"

echo "== tests on MariaDB"
make test-mariadb SHORT=1 || status=1
echo "== tests on MySQL"
case $mysql in
0) make test-mysql SHORT=1 || status=1 ;;
3) ;; # it has said why
*) status=1 ;;
esac
[ $status -eq 0 ] && echo "== all passed" || echo "== something failed: see above" >&2
exit $status
