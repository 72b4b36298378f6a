#!/usr/bin/env bash
# Builds and runs the tests of one subject:   dev/test/quick.sh SUBJECT [MAKE]
# An operation of llmc/ops.h: its rows in test_reference, in test_gradients (all backwards in one test), and under the
# emulator of CUDA in test_ops. Any other subject: dev/test/test_SUBJECT.c, .cu and .sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
subject=${1:-} make=${2:-make}

operations=$(sed -nE 's/^ *OP\(([a-z0-9_]+),.*/\1/p' llmc/ops.h)
if [ -n "$subject" ] && grep -q "^$subject" <<<"$operations"; then
    programs=(build/test/test_reference build/test/test_gradients build/emulated/test_ops_bf16)
    $make --no-print-directory "${programs[@]}"
    status=0
    TEST_FILTER="*$subject*" build/test/test_reference || status=1
    build/test/test_gradients || status=1
    build/emulated/test_ops_bf16 "$subject*" || status=1
    exit $status
fi
programs=() tests=()
[ ! -f "dev/test/test_$subject.c" ] || programs+=("build/test/test_$subject")
[ ! -f "dev/test/test_$subject.cu" ] || programs+=("build/emulated/test_${subject}_bf16")
[ ! -f "dev/test/test_$subject.sh" ] || tests+=("dev/test/test_$subject.sh")
if [ ${#programs[@]} -eq 0 ] && [ ${#tests[@]} -eq 0 ]; then
    names=$(basename -a dev/test/test_*.* | sed -E 's/^test_(.*)\..*/\1/' | sort -u)
    echo "test-quick: OP='$subject' is no operation and no test; expected one of $operations $names" | tr '\n' ' ' |
        fmt -w 100 >&2
    exit 2
fi
[ ${#tests[@]} -eq 0 ] || $make --no-print-directory quick
[ ${#programs[@]} -eq 0 ] || $make --no-print-directory "${programs[@]}"
scripts/run_tests.sh ${tests[@]+"${tests[@]}"} ${programs[@]+"${programs[@]}"}
