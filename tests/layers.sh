#!/bin/sh
# A file includes its own folder and the folders to its left, nothing else of the project: io, kernels, offload, engine,
# tools. CUDA is named under kernels/cuda and by the file that picks a device. Usage: layers.sh SOURCE_DIR
set -eu
cd "$1"
allowed= status=0
for folder in io kernels offload engine tools; do
    allowed="$allowed${allowed:+|}$folder"
    [ -d "$folder" ] || continue
    if grep -rnE '^ *# *include *"' "$folder" --include='*.[ch]' --include='*.cu' --include='*.cuh' |
        grep -vE "# *include *\"($allowed)/"; then
        echo "these includes are not in $allowed" >&2
        status=1
    fi
    if grep -rniE 'cuda' "$folder" --include='*.[ch]' | grep -vE '^kernels/(cuda/|device\.[ch]:)'; then
        echo "these lines name one device: ask kernels/device.h" >&2
        status=1
    fi
done
exit $status
