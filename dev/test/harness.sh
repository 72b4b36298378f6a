# shellcheck shell=bash
# Shared by the test scripts: named cases, skipped ones, a last line in cmocka's words, mpirun, and a check that
# processes have ended.

passed=0 failed=0
export TRAIN_GPT2_SELF_CHECK=  # no check of the emulated GPU at the start of a run, and nothing in the user's cache

# report NAME TROUBLE: prints a case in one line. TROUBLE is empty if the case passed. Otherwise TROUBLE follows,
# indented, and then the program's last output, if the file $out has it.
report() {
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        echo "ok $1"
    else
        failed=$((failed + 1))
        printf 'not ok %s\n    %s\n' "$1" "${2//$'\n'/$'\n    '}"
        [ ! -f "${out:-}" ] || sed 's/^/    | /' "$out"
    fi
}

# end_tests: prints the totals in cmocka's words; its status is the script's
end_tests() {
    [ "$failed" -eq 0 ] || echo "[  FAILED  ] $failed test(s)"
    echo "[  PASSED  ] $passed test(s)."
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# skip WHY TESTS: a sentence, and the number of tests that are skipped
skip() {
    echo "$1"
    echo "[  SKIPPED ] $2 test(s)."
}

# use_mpirun MPI TESTS: prepares the environment for mpirun. MPI: the program's line about MPI, empty in a build without
# MPI. Without mpirun or MPI, reports TESTS skipped tests and ends the script.
use_mpirun() {
    local trouble=
    command -v mpirun >/dev/null || trouble="mpirun is not installed"
    [ -n "$1" ] || trouble=${trouble:-"the program was built without MPI"}
    if [ -n "$trouble" ]; then
        skip "$trouble: tests of several ranks are skipped" "$2"
        exit 0
    fi
    # with more ranks than cores, a rank that waits must yield its core
    export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# none_left PROCESS...: silent if all processes have ended; waits up to 30 s after mpirun's end. State Z: a process has
# ended, but its parent has not collected the status yet.
none_left() {
    local id left
    for _ in {1..300}; do
        left=
        for id; do
            if grep -s '^State:' "/proc/$id/status" | grep -qv 'Z ('; then left+=" $id"; fi
        done
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    echo "still running:$left"
}
