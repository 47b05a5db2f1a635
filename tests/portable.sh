#!/bin/sh
# Objects that run on every processor hold no instruction of AVX: those are for the kernels that are chosen at run time.
# Usage: portable.sh OBJDUMP FOLDER…
set -eu
objdump=$1 status=0
shift
objects=$(find "$@" -name '*.o')
[ -n "$objects" ] || { echo "no object in $*" >&2; exit 1; }
for object in $objects; do
    if "$objdump" -d --no-show-raw-insn "$object" | grep -qE '%[yz]mm[0-9]|%k[1-7]'; then
        echo "$object needs AVX" >&2
        status=1
    fi
done
exit $status
