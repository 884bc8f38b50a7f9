#!/bin/sh
# Puts a real MySQL 9 and MySQL Router into the cache directory, for the tests: a tree of files from
# Debian unstable (`unpack_tree` in lib.sh), whose own loader runs the server.
#
# Exit status: 0 MySQL is there, 3 it cannot be had here (one line on stderr says why).
set -eu
. "$(dirname "$0")/lib.sh"

tree=${XDG_CACHE_HOME:-$HOME/.cache}/countersink/mysql

cannot() { echo "MySQL 9 could not be set up: $1 (or name one: COUNTERSINK_MYSQLD=/path/to/mysqld)" >&2; exit 3; }

[ -n "${COUNTERSINK_MYSQLD:-}" ] && exit 0
[ -x "$tree/usr/sbin/mysqld" ] && [ -x "$tree/usr/bin/mysqlrouter" ] && exit 0

echo "setting up MySQL 9 in $tree (about 70 MB to download) ..."
unpack_tree "$tree" mysql-server-core mysql-router
[ -x "$tree/usr/sbin/mysqld" ] || cannot "the package holds no mysqld"
