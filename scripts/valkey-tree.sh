#!/bin/sh
# Puts a real Valkey into the cache directory, for the tests: a tree of files from Debian unstable
# (`unpack_tree` in lib.sh), whose own loader runs the server.
#
# Exit status: 0 Valkey is there, 3 it cannot be had here (one line on stderr says why).
set -eu
. "$(dirname "$0")/lib.sh"

tree=${XDG_CACHE_HOME:-$HOME/.cache}/countersink/valkey

cannot() { echo "Valkey could not be set up: $1" >&2; exit 3; }

[ -x "$tree/usr/bin/valkey-server" ] && exit 0

echo "setting up Valkey in $tree (about 20 MB to download) ..."
unpack_tree "$tree" valkey-server
[ -x "$tree/usr/bin/valkey-server" ] || cannot "the package holds no valkey-server"
