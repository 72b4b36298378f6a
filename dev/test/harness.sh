# shellcheck shell=bash disable=SC2034  # the scripts that source it use these
# The test scripts source this file and are then in the root of the tree. It reports cases by name, skipped ones too,
# ends with totals in cmocka's words, runs the trainer and checks what it prints, reads and writes .safetensors files,
# PTX and llm.c's binary files, starts mpirun, and checks that processes have ended.
# The environment variables TRAINER, EMULATED and PYTHON name other programs than the usual ones.

set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit
trainer=$(realpath -m "${TRAINER:-$root/train_gpt2}")
emulated=$(realpath -m "${EMULATED:-$root/build/emulated/train_gpt2}")
python=$(realpath -ms "${PYTHON:-$root/build/py/bin/python3}")
golden=$root/dev/test/golden merges=$golden/gpt2_2500.bpe # GPT-2's first 2500 merges
passed=0 failed=0
MPI="mpirun and a program built with MPI (openmpi-bin, libopenmpi-dev)"
export TRAIN_GPT2_SELF_CHECK=  # no check of the emulated GPU at the start of a run, and nothing in the user's cache

# report NAME TROUBLE: prints a case in one line. TROUBLE is empty if the case passed. Otherwise TROUBLE follows,
# indented, and then the program's last output, if the file $out has it. A TROUBLE of `$(...)` must also end with status
# 0, or checks that died of an unset variable would pass.
report() {
    local status=$? trouble=$2
    [ -n "$trouble" ] || [ $status -eq 0 ] || trouble="the checks ended with status $status and without a word"
    if [ -z "$trouble" ]; then
        passed=$((passed + 1))
        echo "ok $1"
    else
        failed=$((failed + 1))
        printf 'not ok %s\n    %s\n' "$1" "${trouble//$'\n'/$'\n    '}"
        [ ! -f "${out:-}" ] || sed 's/^/    | /' "$out"
    fi
}

# end_tests: prints the totals in cmocka's words; its status is the script's
end_tests() {
    [ "$failed" -eq 0 ] || echo "[  FAILED  ] $failed test(s)"
    echo "[  PASSED  ] $passed test(s)."
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# skip TOOL [TESTS [PART]]: says that the machine lacks TOOL, so the script, or its PART with this number of tests, did
# not run. scripts/run_tests.sh repeats the line.
skip() {
    echo "skipped: ${0##*/}${3:+ ($3)} needs $1"
    echo "[  SKIPPED ] ${2:-1} test(s)."
}

# make_scratch: makes a folder `scratch`, which is removed at the end, and names the files `out` and `err` in it
make_scratch() {
    scratch=$(mktemp -d) out=$scratch/out err=$scratch/err
    trap 'rm -rf "$scratch"' EXIT
}

# ---- the trainer on the command line

# in_scratch: make_scratch, then goes to the empty folder `work` in it
in_scratch() {
    make_scratch
    mkdir "$scratch/work" && cd "$scratch/work" || exit
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=passive LC_ALL=C
    export TRAIN_GPT2_AUTOTUNE_CACHE=$scratch/autotune # runs on an emulated GPU use the same algorithms
}

# A check prints a sentence if it fails, and nothing if it passes.
# run STATUS ARGUMENTS...: $trainer must exit with STATUS. Its output is in $out and $err, which may be one file
run() {
    local status=0
    rm -f "$out" "$err"
    "$trainer" "${@:2}" >>"$out" 2>>"$err" <"${input:-/dev/null}" || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
says() { grep -qF -- "$2" "$1" || { echo "expected '$2' in:" && head -n 8 "$1"; }; }
matches() { grep -qE -- "$2" "$1" || { echo "expected /$2/ in:" && head -n 8 "$1"; }; }
lacks() { ! grep -qE -- "$2" "$1" || { echo "unexpected /$2/ in:" && head -n 8 "$1"; }; }
silent() { [ ! -s "$1" ] || { echo "expected nothing:" && head -n 8 "$1"; }; }
one_line() { [ "$(wc -l <"$1") $(tail -c 1 "$1" | wc -l)" = "1 1" ] || { echo "expected one line:" && cat "$1"; }; }
equal() { [ "$1" = "$2" ] || echo "found '$1', expected '$2'"; }
same() { cmp "$1" "$2" 2>&1; }
differ() { ! cmp -s "$1" "$2" || echo "$1 and $2 are the same"; }
holds() { awk "BEGIN { exit !($1) }" || echo "does not hold: $1"; }
# a metrics file without ms, tokens_per_s and mfu, which depend on the clock
metrics() { sed -E 's/,"ms":.*/}/' "$1/metrics.jsonl"; }
# losses RUN: a line "STEP KIND VALUE" for each loss; KIND is loss or val_loss
losses() { sed -nE 's/.*"step":([0-9]+),"(loss|val_loss)":([^,}]*).*/\1 \2 \3/p' "$1/metrics.jsonl"; }
# close_losses RUN EXPECTED LIMIT: two runs have losses of the same steps, two or more, which differ by at most LIMIT,
# relative to those of EXPECTED
close_losses() {
    paste -d ' ' <(losses "$1") <(losses "$2") | awk -v run="$1" -v limit="$3" '
        { off = $3 - $6; if (off < 0) off = -off }
        $1 != $4 || $2 != $5 || !($6 + 0 > 0 && off <= limit * $6) {
            print run ": found " $1, $2, $3 ", expected " $4, $5, $6
        }
        END { if (NR < 2) print run ": found " NR " losses, expected two at least" }'
}
# samples FILE: the texts that a run printed, each between two lines ---
samples() { sed -n '/^---$/,/^---$/p' "$1"; }

# all files and folders of the current folder, with sizes and checksums
snapshot() { find . \( -type f -exec cksum {} + \) -o -printf '%y %p\n' | sort; }
# refused NAME WORDS ARGUMENTS...: bad input gives exit 2, one sentence with WORDS on stderr, nothing on stdout, and
# changes no file
refused() {
    local before
    before=$(snapshot)
    report "refused: $1" "$(
        run 2 "${@:3}"
        one_line "$err"
        says "$err" "$2"
        silent "$out"
        equal "$(diff <(cat <<<"$before") <(snapshot))" ""
    )"
}
# the same for each line of stdin, "WORDS | ARGUMENTS", whose arguments the shell expands
refusals() {
    local words line
    local -a arguments
    while IFS='|' read -r words line; do
        eval "arguments=($line)"
        refused "${words% }" "${words% }" "${arguments[@]}"
    done
}

# ---- .safetensors files

# poke FILE TENSOR VALUE [COUNT [FIRST]]: sets COUNT elements (1) of a tensor of fp32, from element FIRST (0) on
poke() {
    python3 - "$1" "$2" "$3" "${4:-1}" "${5:-0}" <<'PYTHON'
import json, struct, sys
path, tensor, value, count, first = sys.argv[1:]
with open(path, "r+b") as file:
    header = struct.unpack("<Q", file.read(8))[0]
    file.seek(8 + header + json.loads(file.read(header))[tensor]["data_offsets"][0] + 4 * int(first))
    file.write(struct.pack("<f", float(value)) * int(count))
PYTHON
}

# ---- nvcc

# ptx_of FILE SOURCE PRECISION ARCHITECTURE [FLAG]: compiles SOURCE to FILE, unless FILE is newer than all that it is
# made of. FILE's time is that of the compiler's start. Prints nvcc's first error if it fails
ptx_of() {
    local made_of=(llmc dev/test/*.h dev/test/harness.sh "$2" "$(command -v nvcc)") new=$1.$BASHPID
    [ ! -e "$1" ] || [ -n "$(find -L "${made_of[@]}" -newer "$1" -type f -print -quit)" ] || return 0
    mkdir -p "${1%/*}" && touch "$new.start"
    if nvcc -x cu -std=c++20 -D_GNU_SOURCE -I. -DHAVE_CUDA -DPRECISION_"${3^^}" -arch="${4/sm/compute}" ${5:+"$5"} \
        -ptx "$2" -o "$new" >"$new.said" 2>&1; then
        touch -r "$new.start" "$new" && mv "$new" "$1"
    else
        rm -f "$1" && echo "nvcc does not compile $2 for $4: $(grep -m 1 -E 'error|fatal' "$new.said")"
    fi
    rm -f "$new"* && [ -e "$1" ]
}

# ---- llm.c's files

words() { # uint16, little-endian
    local word bytes=
    for word; do
        printf -v word '%04x' "$word"
        bytes+="\\x${word:2:2}\\x${word:0:2}"
    done
    printf '%b' "$bytes"
}
# write_shard FILE MAGIC COUNT VOCABULARY TOKEN...: a token shard of uint16; 20240520 is the magic number of tokens
write_shard() {
    {
        words $(($2 & 65535)) $(($2 >> 16)) 1 0 "$3" 0 "$4" 0
        head -c 1008 /dev/zero
        words "${@:5}"
    } >"$1"
}
# hellaswag EXAMPLES: hellaswag_val.bin, with a context of 3 tokens and endings of 1, 2, 1 and 1
hellaswag() {
    local i
    words 55434 308 1 0 "$1" 0 36 0 # magic number, version, examples, bytes of the longest
    head -c 1008 /dev/zero
    for ((i = 0; i < $1; i++)); do # bytes, index, label
        words 65535 36 "$i" $((i % 4)) 4 3 $((i * 5 + 97)) 110 116 1 32 2 105 $((i + 100)) 1 95 1 $((115 - i))
    done
}

# ---- several ranks

# use_mpirun MPI TESTS: prepares the environment for mpirun. MPI: the program's line about MPI, empty in a build without
# MPI. Without mpirun or MPI, reports TESTS skipped tests, and ends the script with its tests so far.
use_mpirun() {
    if ! command -v mpirun >/dev/null || [ -z "$1" ]; then
        skip "$MPI" "$2" "several ranks"
        [ $((passed + failed)) -eq 0 ] || end_tests
        exit
    fi
    # with more ranks than cores, a rank that waits must yield its core
    export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# none_left PROCESS...: silent if all processes have ended, soon after mpirun's end. Turns are counted, which take
# longer on a busy machine. State Z: a process has ended, but its parent has not collected the status yet.
none_left() {
    local id left
    for _ in {1..1000}; do
        left=
        for id; do
            if grep -s '^State:' "/proc/$id/status" | grep -qv 'Z ('; then left+=" $id"; fi
        done
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    echo "still running:$left"
}
