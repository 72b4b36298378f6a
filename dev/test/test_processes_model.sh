#!/usr/bin/env bash
# The model on several ranks, by the functions of the trainer (test_processes.c): every -z and -tp against one rank,
# late collectives, --offload, bytes and files.
#   PROGRAM=build/test/test_processes dev/test/test_processes_model.sh [more]
#   more   what takes long and differs from the other cases by a number of ranks or a type: `make test-all`
. "$(dirname "$0")/harness.sh"
. dev/test/ranks.sh
use_ranks

# ROW...: number of ranks, and the arguments of test_processes
agree() {
    local row ranks arguments
    for row; do
        read -r ranks arguments <<<"$row"
        # shellcheck disable=SC2086
        launch "$ranks" "$checked" $arguments
        report "$(basename "$checked") $arguments on $ranks ranks, $TEST_OPTIMIZER" "$(says "^every layout agrees")"
        rm -rf alone_* first_* second_*
    done
}
export TEST_OPTIMIZER=adamw
checked=$program
case ${1:-} in
more)
    agree "8 slices 4" "8 files 4" "3 offload 1" "2 offload 2" "4 offload 2" "3 bytes 1" "4 sample 2"
    checked=${program}_bf16
    [ ! -x "$checked" ] || agree "4 offload 2" "4 files 2"
    TEST_OPTIMIZER=muon
    [ ! -x "$checked" ] || agree "3 layouts" "4 slices 2" "4 files 2"
    checked=$program
    agree "3 layouts" "4 bytes 2"
    agree "5 layouts" "3 slices 3" "3 files 3" "4 slices 2" "8 slices 4" "3 late 1" "3 offload 1" "4 offload 2"
    ;;
*)
    agree "1 layouts" "2 layouts" "3 layouts" "4 layouts" "3 files 1"
    agree "2 slices 2" "2 files 2" "3 slices 3" "3 files 3" "4 slices 2" "4 files 2" "4 slices 4" "4 files 4"
    agree "3 late 1" "2 late 2" "4 late 2" "1 offload 1" "3 sample 1" "2 bytes 1" "4 bytes 2"
    checked=${program}_bf16
    [ ! -x "$checked" ] || agree "3 layouts" "3 files 1" "4 slices 2"
    checked=$program TEST_OPTIMIZER=muon
    agree "2 layouts" "3 files 1" "2 slices 2" "4 files 2" "4 late 2" "1 offload 1"
    ;;
esac

end_tests
