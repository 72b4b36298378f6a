# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh: a row with a time limit and a line in the report; the report and its verdict.

now() { date +%s; }

began=$(now) seconds_in_all=${GPU_CHECK_SECONDS:-${seconds_of[${stage:-none}]:-0}} results=() failed=() needed=()
declare -A process=() outcome=()  # ids of the rows in the background; the outcome of each row that has ended
running='' watcher=''             # the command of the row in the foreground; the nvidia-smi that watches its memory
slower=''                         # operations whose fast kernel failed the self-check

# on_signal COMMAND SIGNAL...: a trap whose COMMAND ends the shell. bash 5.2 parses a pending trap inside the next $( ):
# without a closing bracket it reports a syntax error and loses the signal. The line `)` is that bracket; elsewhere it
# is never reached
on_signal() { trap "$1"$'\n)' "${@:2}"; }

# end_running STATUS: ends the command in the foreground and the shell
end_running() {
    kill "$running" 2>/dev/null
    exit "$1"
}

# left: seconds that remain of the total
left() { echo $((seconds_in_all - ($(now) - began))); }

# bounded ROW COMMAND...: runs the command in the seconds of its row; status 124 after the row's limit, 125 if the total
# has not enough left, or is used up before the command's end. Sets took
took=0
bounded() {
    local row=${1%%:*} rest limit_here status start
    limit_here=${limit[$row]:?"scripts/gpu/times.sh has no row $row"} start=$(now) rest=$(left) took=0
    [ "$rest" -ge "${expected[$row]}" ] || return 125
    [ "$limit_here" -le "$rest" ] || limit_here=$rest
    timeout -k 5 "$limit_here" "${@:2}" &
    running=$!  # bash runs a trap during wait, and only after a command in the foreground
    wait "$running"
    status=$?
    running='' took=$(($(now) - start))
    # within the limit 137 is not timeout's: the system has killed the program, most likely for memory
    if [[ $status -eq 124 || ($status -eq 137 && $took -ge $limit_here) ]]; then
        [ "$limit_here" -eq "${limit[$row]}" ] && status=124 || status=125
    fi
    return $status
}

# report NAME STATUS NOTE: a line of the report
report() {
    local word row=${1%%:*}
    case $2 in
    0) word=ok ;;
    skipped) word=skipped ;;
    124) word="FAILED: out of time" ;;
    stopped) word="stopped: out of time, nothing found until then" ;;
    125) [ "$took" -gt 0 ] && word="stopped: no time was left" || word="left out: no time was left" ;;
    *) word="FAILED: exit status $2" ;;
    esac
    outcome[$1]=$word
    # a failure of PyTorch is none of this program
    [[ $word != FAILED* || $1 == *PyTorch* ]] || failed+=("$1")
    word+=${3:+; $3}
    [ "$took" -eq 0 ] || word+=" ($took s${expected[$row]:+, ${expected[$row]} expected})"
    took=0
    results+=("- $1: $word")
    printf '%4d s  %s: %s\n' $(($(now) - began)) "$1" "$word"
}

# ended NAME STATUS LOG NOTE: reports a row; a failed row also tells why
ended() {
    local lines
    report "$1" "$2" "$4"
    case $2 in 0 | 125 | skipped | stopped) return ;; esac
    mapfile -t lines < <(why "$3" | cut -c 1-300)
    results+=("${lines[@]/#/        }")
    [ ${#lines[@]} -eq 0 ] || printf '          %s\n' "${lines[@]}"
}

# why LOG: the reasons of a failure. Errors with a tolerance come first, each with error / tolerance. Then failed tests,
# rows, operations of the self-check and the findings of compute-sanitizer. A log with none of these shows its end
why() {
    local found off='(.* is off by ([^ ,]+), (expected )?at most ([^ ,]+).*)'
    found=$(sed -nE "s/^(\\[ +ERROR +\\] --- )?(ERROR: )?$off\$/\\4 \\6 \\3/p" "$1" |
        awk '{ ratio = sprintf($2 > 0 ? "%.2f" : "-", $2 > 0 ? $1 / $2 : 0); sub(/^[^ ]+ [^ ]+ /, "")
               print ratio " of its tolerance: " $0 }'
        grep -E '^\[ +FAILED +\] [^0-9]|^[a-z_0-9]+: (exit status|out of time)|, and has no other kernel$' "$1"
        grep -E -A 3 '^=+ (Invalid|Uninitialized|Error|ERROR|Warning|Race|Barrier|Program hit)' "$1")
    [ -n "$found" ] || found=$(tail -n 15 "$1")
    awk '!seen[$0]++' <<<"$found" | head -n 24
}

# start NAME COMMAND...: starts a row in the background, with its output in a log
start() {
    {
        on_signal "end_running 143" TERM
        bounded "$@"
        status=$?
        mkdir -p "$build/took" && echo "$took" >"$build/took/$1"
        exit $status
    } >"$logs/${1//[^A-Za-z0-9.]/_}.txt" 2>&1 </dev/null &
    process[$1]=$!
}

# finish NAME: waits for the row and reports it; returns its status
finish() {
    local log=$logs/${1//[^A-Za-z0-9.]/_}.txt status
    [ -n "${process[$1]:-}" ] || return 125
    wait "${process[$1]}"
    status=$?
    unset "process[$1]"
    took=$(cat "$build/took/$1" 2>/dev/null || echo 0)
    # compute-sanitizer without the time to end has failed only if it has found something
    if [[ $1 == *check* && $status =~ ^(124|125)$ && $took -gt 0 ]]; then
        status=stopped
        ! grep -qE '^=+ (Invalid|Uninitialized|Malloc|Error|Warning|Barrier|Program hit|.*([Rr]ace|hazard))' "$log" ||
            status=9
    fi
    ended "$1" "$status" "$log" "$(sed -nE 's/^\[ *PASSED *\] ([0-9]* test\(s\)).*/\1/p; s/.* SUMMARY: //p
        s/^([0-9]+ of [0-9]+ rows passed).*/\1/p' "$log" | tail -n 1)"
    [ "$status" != stopped ] || status=124
    return "$status"
}

# cancel NAME: stops a row in the background
cancel() {
    [ -n "${process[$1]:-}" ] || return 0
    kill "${process[$1]}" 2>/dev/null
    wait "${process[$1]}"
    unset "process[$1]"
    report "$1" skipped "stopped"
}

interrupted() {
    local status=1
    trap - TERM INT HUP
    kill "$running" "$watcher" "${process[@]}" 2>/dev/null
    # a signal while `first` only waits for PyTorch takes no go back
    [ "$stage" != first ] || ! verdict >/dev/null || status=skipped
    report "the command" $status "stopped by a signal after $(($(now) - began)) s"
    write_report
    verdict >/dev/null
    exit $?
}

gpu() { nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader,nounits; }

# ---- the report

sources() { cat train_gpt2.cu llmc/*.* llmc/*/*.* | cksum; }

# checked: a go of `first` holds for these sources on this GPU, driver and CUDA
checked() { echo "sources $(sources), $gpu_name, driver $driver, CUDA $cuda_version"; }

# verdict: prints go or no-go with every reason; its status is 0 for go. `needed` names the rows that must be ok, or
# memcheck without a finding. `first` remembers a go and its words
verdict() {
    local trouble=() name right="the kernels, memcheck and the losses are right"
    for name in "${failed[@]}"; do trouble+=("$name ${outcome[$name]}"); done
    for name in "${needed[@]}"; do
        case ${outcome[$name]:-not run} in
        ok | FAILED*) ;;
        "stopped: out of time, nothing found until then")
            right="the kernels and the losses are right, and $name had found nothing when it ran out of time"
            ;;
        *) trouble+=("$name ${outcome[$name]:-not run}") ;;
        esac
    done
    if [ "$stage" != first ]; then
        [ "$(head -n 1 "$build/go" 2>/dev/null)" = "$(checked)" ] && right=$(sed -n 2p "$build/go") || trouble+=(
            "kernels and memcheck: \`scripts/gpu_check.sh first\` has no go for these sources, GPU, driver, CUDA")
    fi
    if [ ${#trouble[@]} -gt 0 ]; then
        [ "$stage" != first ] || rm -f "$build/go"
        printf 'no-go: %s' "${trouble[0]}"
        [ ${#trouble[@]} -eq 1 ] || printf '; %s' "${trouble[@]:1}"
        echo "${slower:+. Replaced by slower kernels: $slower}"
        return 1
    fi
    echo "go: $right${slower:+. Replaced by slower kernels: $slower}"
    [ "$stage" != first ] || { checked && echo "$right"; } >"$build/go"
}

# write_report: writes the results so far to the command's file and $OUT, so that an interrupted run leaves them there.
# The function report_<command> prints the tables. The report, the logs and the autotune cache are three plain files,
# because some machines hand back only a few files
write_report() {
    local file
    file=dev/results/gpu_$(tr 'A-Z ' 'a-z-' <<<"$gpu_name" | tr -cd 'a-z0-9-')_$(date +%F)_$stage.md
    mkdir -p dev/results
    {
        echo "# GPU: $stage"
        echo
        echo "**$(verdict)**"
        echo
        echo "$(date +%F), $gpu_name, driver $driver, CUDA $cuda_version," \
            "${torch:+PyTorch $torch, }\`scripts/gpu_check.sh $stage\`, $(($(now) - began)) s."
        echo
        printf '%s\n' "${results[@]}"
        "report_$stage"
    } >"$file"
    results_file=$file
    [ -n "${OUT:-}" ] || return 0
    cp "$file" "$OUT/"
    tar -czf "$OUT/gpu_check_$stage.tgz" -C "$build" "log_$stage"
    [ ! -s "${TRAIN_GPT2_PICKS:-}" ] || cp "$TRAIN_GPT2_PICKS" "$OUT/"
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
