#!/usr/bin/env bash
# Keeps in dev/fuzz/corpus/TARGET the few short inputs that together reach all that build/fuzz/learned/TARGET reaches
# beyond the seeds and the present corpus:   dev/fuzz/minimise.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/../.."

# bytes of an input, so that all corpora stay below 200 KiB; two messages of the rendezvous are longer
longest() { [ "$1" = rendezvous ] && echo 1024 || echo 400; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder
dev/fuzz/seeds.py "$folder/seeds"
[ $# -gt 0 ] || set -- "$folder"/seeds/*

for target; do
    target=$(basename "$target")
    cp -r "$folder/seeds/$target" "$folder/$target"
    mkdir -p "dev/fuzz/corpus/$target" "build/fuzz/learned/$target"
    nice -n 19 "build/fuzz/$target" -set_cover_merge=1 -max_len="$(longest "$target")" -detect_leaks=0 -print_funcs=0 \
        -close_fd_mask=3 "$folder/$target" "dev/fuzz/corpus/$target" "build/fuzz/learned/$target" \
        >"build/fuzz/$target.merge.log" 2>&1
    rm -f "$folder/$target"/seed_*
    rm -rf "dev/fuzz/corpus/$target"
    cp -r "$folder/$target" "dev/fuzz/corpus/$target"
    echo "$target: $(find "dev/fuzz/corpus/$target" -type f | wc -l) inputs"
done
echo "$(find dev/fuzz/corpus -type f -exec cat {} + | wc -c) bytes in dev/fuzz/corpus"
