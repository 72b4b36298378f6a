#!/usr/bin/env bash
# scripts/run_tests.sh: its last lines, and programs that hang. They are stopped, whether they sleep or spin; slow ones
# are not.   dev/test/test_run_tests.sh
. "$(dirname "$0")/harness.sh"
root=$PWD
in_scratch
cd "$root" || exit
unset TEST_SILENT_SECONDS TEST_CPU_SECONDS

# ends_with WORD...: the last lines that run_tests.sh prints with these words
ends_with() {
    scripts/run_tests.sh "$@" >"$scratch/said" 2>&1
    diff "$scratch/wanted" <(tail -n "$(wc -l <"$scratch/wanted")" "$scratch/said")
}
report "skipped and failed tests, with the commands that run them again, stand above the last line of two runs" "$(
    printf '%s\n' 'not ok shell' '    why' '    | a table' 'ok shell' '[  FAILED  ] 1 test(s)' >"$scratch/shell"
    printf '%s\n' '[  FAILED  ] unit' '[  PASSED  ] 3 test(s).' '[  FAILED  ] 1 test(s), listed below:' \
        '[  FAILED  ] unit' >"$scratch/cmocka"
    printf '%s\n' 'ok rest' 'skipped: test_x.sh needs lintian' '[  SKIPPED ] 1 test(s).' >"$scratch/lacking"
    cat >"$scratch/wanted" <<END_OF
skipped: test_x.sh needs lintian
1 failed: scripts/run_tests.sh 'cat $scratch/shell'
    not ok shell
        why
1 failed: scripts/run_tests.sh 'cat $scratch/cmocka'
    [  FAILED  ] unit
exit status 1: scripts/run_tests.sh 'false'
3 passed, 3 failed
END_OF
    ends_with --tally "$scratch/tally" "cat $scratch/lacking" "cat $scratch/shell" "cat $scratch/cmocka" false
    sed -i "1d; \$d" "$scratch/wanted"
    printf '%s\n' "no test ran: scripts/run_tests.sh 'true'" '3 passed, 4 failed' >>"$scratch/wanted"
    ends_with --tally "$scratch/tally" true
)"

# program NAME: a script that prints the totals of cmocka at its end
program() {
    { echo '#!/usr/bin/env bash' && cat && echo 'echo "[  PASSED  ] 1 test(s)."'; } >"$scratch/$1"
    chmod +x "$scratch/$1"
}
# limits SILENT CPU PROGRAM...: the programs with these limits, in seconds
limits() {
    local programs=("${@:3}")
    TEST_SILENT_SECONDS=$1 TEST_CPU_SECONDS=$2 scripts/run_tests.sh "${programs[@]/#/$scratch/}" >"$scratch/said" 2>&1
}
# tells LINES: the output has them
tells() { [[ $(<"$scratch/said") == *"$1"* ]] || { echo "expected '$1' in:" && cat "$scratch/said"; }; }
program sleeping <<'END'
echo "ok one"
echo "not ok two"
echo "[  FAILED  ] 1 test(s)"
trap '' TERM # a process that is stopped, or hangs in the kernel, does not end by SIGTERM either
sleep 1000
END
program spinning <<'END'
echo "[ RUN      ] spin"
(while :; do :; done) # in a child
END
program printing <<'END'
for i in {1..8}; do echo "ok $i" && sleep 1; done
END
program computing <<'END'
for i in {1..10}; do
    sleep 0.6
    for ((j = 0; j < 20000; j++)); do :; done
done
END
report "a program that sleeps is stopped after a silence, with all its processes, and called a hang" "$(
    limits 4 1000 sleeping
    tells "1 failed, stopped after 4 s of silence: scripts/run_tests.sh '$scratch/sleeping'
    its last line: [  FAILED  ] 1 test(s)
    not ok two"
    equal "$(tail -n 2 "$scratch/said")" "1 hung and were stopped, each of them one failed test
0 passed, 2 failed"
    # shellcheck disable=SC2046
    none_left $(pgrep -f "$scratch/sleeping")
)"
report "a program that spins is stopped by its CPU time" "$(
    limits 4 2 spinning
    tells "stopped after 2 s of CPU time without output: scripts/run_tests.sh '$scratch/spinning'
    its last line: [ RUN      ] spin"
    equal "$(tail -n 2 "$scratch/said")" "1 hung and were stopped, each of them one failed test
0 passed, 1 failed"
    # shellcheck disable=SC2046
    none_left $(pgrep -f "$scratch/spinning")
)"
report "a slow program is not stopped: one that prints, and one that computes now and then" "$(
    limits 4 1000 printing computing
    matches "$scratch/said" "^  1 of 2 "
    matches "$scratch/said" "^  2 of 2 "
    equal "$(tail -n 1 "$scratch/said")" "2 passed, 0 failed"
)"

end_tests
