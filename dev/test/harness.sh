# shellcheck shell=bash
# What test scripts share: cases with names and a last line as cmocka's; several processes, and whether they have ended.

passed=0 failed=0

# report NAME TROUBLE: one case, in a line. What its checks had to say is empty where it went well; else it follows,
# indented, and what the program said last, if that is in the file $out
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

# the script's last words, and its status
end_tests() {
    [ "$failed" -eq 0 ] || echo "[  FAILED  ] $failed test(s)"
    echo "[  PASSED  ] $passed test(s)."
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# use_mpirun MPI TESTS: readies mpirun; ends the script, TESTS being skipped, where there is none or the program was
# built without: MPI is what it says of it
use_mpirun() {
    local trouble=
    command -v mpirun >/dev/null || trouble="mpirun is not installed"
    [ -n "$1" ] || trouble=${trouble:-"the program was built without MPI"}
    if [ -n "$trouble" ]; then
        echo "$trouble: no test of several processes"
        echo "[  SKIPPED ] $2 test(s)."
        exit 0
    fi
    # more ranks than cores: one that waits gives its core away
    export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# none_left PROCESS...: silent if none of them runs any more; after mpirun has ended they have some seconds to go. (Z:
# it has ended, and its parent is told later)
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
