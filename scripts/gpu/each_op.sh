#!/usr/bin/env bash
# Runs each row of test_ops in a process of its own, eight at a time:   scripts/gpu/each_op.sh SECONDS PROGRAM FLAG...
# A row that crashes, or that runs longer than SECONDS, does not stop the others. The output of a failed row is printed.
set -uo pipefail
seconds=$1 program=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cores=$(nproc)
export OMP_NUM_THREADS=$((cores > 8 ? cores / 4 : 2))

rows=$("$program" --list) || exit
# --foreground: a row stays in the process group of this script, and ends with it
# shellcheck disable=SC2016  # the inner shell expands
xargs -P 8 -I{} bash -c 'timeout --foreground -k 2 "$1" "${@:4}" "$3" >"$2/$3.txt" 2>&1; echo $? >"$2/$3.status"' \
    row "$seconds" "$folder" {} "$program" "$@" <<<"$rows"
passed=0 all=0
for row in $rows; do
    all=$((all + 1))
    status=$(cat "$folder/$row.status" 2>/dev/null || echo 1)
    case $status in
    0) passed=$((passed + 1)) && continue ;;
    124 | 137) echo "$row: out of time after $seconds s" ;;
    *) echo "$row: exit status $status" ;;
    esac
    tail -n 20 "$folder/$row.txt"
done
echo "$passed of $all rows passed"
[ "$passed" -eq "$all" ] && [ "$all" -gt 0 ]
