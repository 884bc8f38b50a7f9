#!/bin/sh
# moved.sh TIME COMMAND...: run the command, and all that it starts, with the wall clock moved to TIME
# (UTC, as `date -d` reads it: "23:57", "2026-10-25 00:30"). Monotonic clocks go on. Needs gcc.
#
# Example: scripts/moved.sh 23:57 make test-short
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
wanted=$(date -u -d "$1" +%s)
shift
library=build/moved_clock.so
mkdir -p build
gcc -shared -fPIC -O2 -o "$library.$$" tests/support/moved_clock.c -ldl
mv "$library.$$" "$library"
MOVED_CLOCK=$((wanted - $(date +%s)))
export MOVED_CLOCK LD_PRELOAD="$PWD/$library"
exec "$@"
