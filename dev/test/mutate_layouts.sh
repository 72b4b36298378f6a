#!/usr/bin/env bash
# Does test_layouts fail with each wrong layout?   dev/test/mutate_layouts.sh [WORDS]
# Exchanges rows, columns, halves or lanes in the emulator's mma and ldmatrix, in cuda_common.cuh and in TensorTiles of
# attention.cuh, in a copy of the sources, one at a time. Then builds test_layouts and runs it emulated. WORDS: only
# changes with WORDS in "file: line".
# Prints each change with the failure. Fails if a change has none. Two run at a time: 2 minutes on two free cores.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=1

# "file @ text @ replacement", for every occurrence of the text
mutations=(
    'dev/emulator/simt.h@a[g + i % 2 * 8][t + i / 2 * 8@a[g + i / 2 * 8][t + i % 2 * 8'
    'dev/emulator/simt.h@b[t + i * 8][g] = low_bf16@b[t + i * 8][g] = high_bf16'
    'dev/emulator/simt.h@c[g + i / 2 * 8][t + i % 2] =@c[g + i % 2 * 8][t + i / 2] ='
    'dev/emulator/simt.h@c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]@c[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2]'
    'dev/emulator/simt.h@own.transposed ? element[j][i]@own.transposed ? element[i][j]'
    'dev/emulator/simt.h@element[j + 1][i] : element[i][j + 1]@element[j + 1][i] : element[i][j]'
    'dev/emulator/simt.h@= high << 16 | low@= low << 16 | high'
    'dev/emulator/simt.h@lane = m * 8 + row@lane = row * 4 + m'
    'llmc/common/cuda_common.cuh@half(high) << 16 | half(low)@half(low) << 16 | half(high)'
    'llmc/attention.cuh@(lane_id() % 16, lane_id() / 16, k)@(lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2, k)'
    'llmc/attention.cuh@chunk_offset(lane % 16, lane / 16, j)@chunk_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2, j)'
    'llmc/attention.cuh@chunk_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2, j)@chunk_offset(lane % 16, lane / 16, j)'
    'llmc/attention.cuh@{top[0], top[1], bottom[0], bottom[1]}@{top[0], bottom[0], top[1], bottom[1]}'
    'llmc/attention.cuh@x[2 * m + i % 2][4 * k + i / 2 * 2]@x[2 * m + i / 2][4 * k + i % 2 * 2]'
    'llmc/attention.cuh@first_row() + r * 8 + lane_id() / 4@first_row() + r * 8 + lane_id() % 8'
    'llmc/attention.cuh@c / 2 * 8 + lane_id() % 4 * 2 + c % 2@c / 2 * 8 + lane_id() % 4 + c % 2 * 4'
)

# first_failure: builds test_layouts of this folder and prints its first failure; nothing if it passes
first_failure() {
    local status
    g++ -x c++ -std=c++20 -D_GNU_SOURCE -Idev/emulator -I. -O1 -w -DPRECISION_BF16 dev/test/test_layouts.cu -o layouts \
        -lcmocka -lpthread || return
    timeout 300 ./layouts >log 2>&1
    status=$?
    [ $status -ne 0 ] || return
    sed -nE 's/^simt: /refused: /p; s/^(.*: found .*)$/\1/p; s/^\[  ERROR   \] --- //p' log | head -n 1 | grep . ||
        echo "exit status $status"
}

# mutant NUMBER FILE TEXT REPLACEMENT: prints the change and its failure; number 0 changes nothing
mutant() {
    local folder=$scratch/$1 file=$2 source caught
    cp -r "$scratch/sources" "$folder"
    cd "$folder" || return
    source=$(cat "$file")
    [ "$1" -eq 0 ] || printf '%s\n' "${source//"$3"/"$4"}" >"$file"
    if [ "$1" -ne 0 ] && cmp -s "$file" "$scratch/sources/$file"; then
        caught="SURVIVES: the text is not in the file"
    else
        caught=$(first_failure 2>build)
        [ ! -s build ] || caught="SURVIVES: $(head -n 1 build)"
    fi
    printf '%s: %s\n    becomes %s\n    %s\n' "$2" "$3" "$4" "${caught:-SURVIVES}" | tee "$folder.result"
    rm -r "${folder:?}"
}

mkdir -p "$scratch/sources/dev/test"
cp -r llmc "$scratch/sources"
cp -r dev/emulator "$scratch/sources/dev"
cp dev/test/*.h dev/test/test_layouts.cu "$scratch/sources/dev/test"
mutant 0 llmc/attention.cuh nothing nothing >/dev/null
if ! grep -q 'SURVIVES$' "$scratch/0.result"; then
    echo "test_layouts fails on the unchanged sources:" && cat "$scratch/0.result"
    exit 1
fi
rm "$scratch/0.result"
number=0
for mutation in "${mutations[@]}"; do
    IFS=@ read -r file text replacement <<<"$mutation"
    [[ "$file: $text" == *"${1:-}"* ]] || continue
    number=$((number + 1))
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    mutant "$number" "$file" "$text" "$replacement" &
done
wait
[ $number -gt 0 ] || { echo "no change contains '${1:-}'" && exit 1; }
survivors=$(cat "$scratch"/*.result | grep -c 'SURVIVES')
echo "$number wrong layouts; no test notices $survivors"
[ "$survivors" -eq 0 ]
