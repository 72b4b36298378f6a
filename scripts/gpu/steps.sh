# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# What every stage of scripts/gpu_check.sh is made of: a step with a time limit and a line in the report; the report.

started=$SECONDS results=() failures=0
declare -A process=()  # of the steps that run beside others

# left: seconds that remain of all
left() { echo $((seconds_in_all - (SECONDS - started))); }

# bounded SECONDS COMMAND...: the command, ended after so long: status 124; or when the time in all is up: 125
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

# report NAME STATUS NOTE: a line of the report; what failed is said and the rest goes on
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

# ended NAME STATUS LOG NOTE: reports a step, with the end of its log if it failed
ended() {
    report "$1" "$2" "$4"
    case $2 in 0 | 125) ;; *) tail -n 15 "$3" | sed 's/^/        /' ;; esac
}

# start NAME SECONDS COMMAND...: begins it, with its output in a log
start() {
    bounded "${@:2}" >"$build/log/$1.txt" 2>&1 </dev/null &
    process[$1]=$!
}

# finish NAME: waits for what was started and reports
finish() {
    local log=$build/log/$1.txt status
    wait "${process[$1]}"
    status=$?
    ended "$1" $status "$log" \
        "$(sed -n 's/^\[ *PASSED *\] \([0-9]* test(s)\).*/\1/p; s/.* SUMMARY: //p' "$log" | tail -n 1)"
}

gpu() { nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader,nounits; }

# write_report: what is known so far, into the stage's file and $OUT, so that a run that is ended leaves what it found.
# The stage's function report_<stage> prints its tables.
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

# table HEADING ROW...: a Markdown table of rows whose cells are parted by |
table() {
    local row cells
    for row; do
        cells=${row//[^|]/}
        echo "| ${row//|/ | } |"
        [ "$row" != "$1" ] || echo "|${cells//|/---|}---|"
    done
}
