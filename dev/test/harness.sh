# shellcheck shell=bash
# Shared by the test scripts: named cases, a last line in cmocka's format, mpirun, and a check for leftover processes.

passed=0 failed=0

# report NAME TROUBLE: prints one case. TROUBLE is the output of its checks, empty if the case passed. A failed case is
# followed by TROUBLE and the file $out, the last output of the program.
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

# prints the counts; the status is that of the script
end_tests() {
    [ "$failed" -eq 0 ] || echo "[  FAILED  ] $failed test(s)"
    echo "[  PASSED  ] $passed test(s)."
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# use_mpirun MPI TESTS: sets up mpirun. Without mpirun, or if MPI (the program's line about MPI) is empty, the script
# ends, and TESTS tests count as skipped.
use_mpirun() {
    local trouble=
    command -v mpirun >/dev/null || trouble="mpirun is not installed"
    [ -n "$1" ] || trouble=${trouble:-"the program was built without MPI"}
    if [ -n "$trouble" ]; then
        echo "$trouble: no test of several processes"
        echo "[  SKIPPED ] $2 test(s)."
        exit 0
    fi
    # with more ranks than cores, a waiting rank must yield its core
    export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# none_left PROCESS...: prints the processes that still run 5 s after mpirun ended. State Z is a process that ended, and
# that its parent has not reaped yet.
none_left() {
    local id left
    for _ in {1..300}; do
        left=
        for id; do
            if grep -s '^State:' "/proc/$id/status" | grep -qv 'Z ('; then left+=" $id"; fi
        done
        [ -n "$left" ] || return
        sleep 0.1
    done
    echo "still running:$left"
}
