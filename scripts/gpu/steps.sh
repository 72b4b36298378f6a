# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh: a step with a time limit and a line in the report; the report.

started=$SECONDS results=() failures=0
declare -A process=()  # ids of the steps in the background

# left: seconds that remain of the total
left() { echo $((seconds_in_all - (SECONDS - started))); }

# bounded SECONDS COMMAND...: runs the command; status 124 after its time limit, 125 when the total is used up
bounded() {
    local limit=$1 rest status
    shift
    rest=$(left)
    [ "$rest" -ge 5 ] || return 125
    timeout -k 5 $((limit < rest ? limit : rest)) "$@"
    status=$?
    case $status in 124 | 137) [ "$limit" -le "$rest" ] || status=125 ;; esac
    return $status
}

# report NAME STATUS NOTE: a line of the report; a failure does not stop the script
report() {
    local word=ok
    case $2 in
    0) ;;
    skipped) word=skipped ;;
    124 | 137) word="FAILED: out of time" failures=$((failures + 1)) ;;
    125) word="left out: no time was left" ;;
    *) word="FAILED: exit status $2" failures=$((failures + 1)) ;;
    esac
    results+=("- $1: $word${3:+; $3}")
    printf '%4d s  %s: %s%s\n' $((SECONDS - started)) "$1" "$word" "${3:+; $3}"
}

# ended NAME STATUS LOG NOTE: reports a step; a failed step also prints the end of its log
ended() {
    report "$1" "$2" "$4"
    case $2 in 0 | 125) ;; *) tail -n 15 "$3" | sed 's/^/        /' ;; esac
}

# start NAME SECONDS COMMAND...: starts the command in the background, with its output in a log
start() {
    bounded "${@:2}" >"$build/log/$1.txt" 2>&1 </dev/null &
    process[$1]=$!
}

# finish NAME: waits for the command and reports it
finish() {
    local log=$build/log/$1.txt status
    wait "${process[$1]}"
    status=$?
    ended "$1" $status "$log" \
        "$(sed -n 's/^\[ *PASSED *\] \([0-9]* test(s)\).*/\1/p; s/.* SUMMARY: //p' "$log" | tail -n 1)"
}

gpu() { nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader,nounits; }

# write_report: writes the results so far to the stage's file and $OUT, so that an interrupted run leaves them there.
# The function report_<stage> prints the tables.
write_report() {
    local suffix='' file
    [ "$stage" = all ] || suffix=_$stage
    file=dev/results/gpu_$(gpu name | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')_$(date +%F)$suffix.md
    mkdir -p dev/results
    {
        echo "# GPU: $stage"
        echo
        echo "$(date +%F), $(gpu name), driver $(gpu driver_version), CUDA $cuda_version," \
            "${torch:+PyTorch $torch, }\`scripts/gpu_check.sh${suffix/_/ }\`."
        echo
        "report_$stage"
        echo
        printf '%s\n' "${results[@]}"
    } >"$file"
    if [ -d "${OUT:-}" ]; then
        cp "$file" "$OUT/"
        tar -czf "$OUT/gpu_check_${stage}_logs.tgz" -C "$build" log
    fi
    results_file=$file
}

# table HEADING ROW...: a Markdown table; | separates the cells of a row
table() {
    local row cells
    for row; do
        cells=${row//[^|]/}
        echo "| ${row//|/ | } |"
        [ "$row" != "$1" ] || echo "|${cells//|/---|}---|"
    done
}
