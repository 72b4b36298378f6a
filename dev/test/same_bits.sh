#!/usr/bin/env bash
# Compares the numbers of two source trees: losses, norms, checkpoints, samples and plans have to have the same bits.
#   dev/test/same_bits.sh BEFORE AFTER
# BEFORE and AFTER are checkouts. The script builds three programs in each, for a CPU: the trainer in fp32, in bf16, and
# in fp32 with the CUDA kernels emulated. Each case runs the same command lines with the programs of both trees.
# One line a case: `same`, `differs` with the first difference, or `skipped` with the reason. Exit status 1 after a
# difference. About two minutes after the builds. Variables:
#   BEFORE_FP32 BEFORE_BF16 BEFORE_EMULATED BEFORE_EMULATED_BF16   programs, relative to the tree, and the make targets
#   AFTER_FP32 AFTER_BF16 AFTER_EMULATED AFTER_EMULATED_BF16       that build them. EMULATED_BF16 is skipped if it is
#                    not set. EMULATED runs with --device cuda: build/cuda/train_gpt2 compares kernels on a GPU.
#   ONLY=REGEX       run only cases whose name matches
#   VOCAB=FILE       GPT-2's vocab.bpe (default ../shared/data/vocab.bpe beside this checkout)
#   KEEP=FOLDER      an empty or missing folder, in which the runs stay
# Wall-clock fields of metrics.jsonl (ms, tokens_per_s, mfu, gpu_*) and tokens_left are not compared. Of config.json,
# state.json, tokenizer_config.json and a plan, the keys of both trees are compared, since flags come and go. Every
# other file of a run is compared by SHA-256, but for the checksums in manifest.json.
# Timing chooses among emulated cuBLASLt algorithms, and algorithms differ in their last bits. Both trees therefore use
# one autotune cache, which BEFORE fills.
set -uo pipefail

usage="usage: dev/test/same_bits.sh BEFORE AFTER: two checkouts of this project"
[ $# -eq 2 ] || { echo "$usage" >&2 && exit 2; }
for tree; do
    [ -f "$tree/train_gpt2.cu" ] || { echo "same_bits: found no train_gpt2.cu in '$tree'; $usage" >&2 && exit 2; }
done
declare -A tree=([before]=$(realpath "$1") [after]=$(realpath "$2")) program
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"
cd "$OLDPWD" || exit # KEEP and VOCAB may be relative
vocab=$(realpath -m "${VOCAB:-$root/../shared/data/vocab.bpe}")
if [ -n "${KEEP:-}" ]; then
    mkdir -p "$KEEP" && folder=$(realpath "$KEEP")
    [ -z "$(ls -A "$folder")" ] || { echo "same_bits: KEEP=$KEEP is not empty; name another folder" >&2 && exit 2; }
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi

# ---- the programs

for side in before after; do
    targets=()
    for kind in FP32=train_gpt2 BF16=build/test/train_gpt2_bf16 EMULATED=build/emulated/train_gpt2 EMULATED_BF16=; do
        variable=${side^^}_${kind%%=*}
        target=${!variable:-${kind#*=}}
        program[$side.${kind%%=*}]=${target:+${tree[$side]}/$target}
        targets+=(${target:+"$target"})
    done
    # comm=yes: with MPI. A make that runs this script does not pass its flags on
    if ! env -u MAKEFLAGS -u MAKELEVEL make -C "${tree[$side]}" DEVICE=cpu comm=yes "${targets[@]}" \
        >"$folder/make" 2>&1; then
        cat "$folder/make" >&2
        echo "same_bits: make ${targets[*]} failed in ${tree[$side]}" >&2
        exit 2
    fi
done

# ---- one command line, with the program of one tree

unset OMP_WAIT_POLICY GOMP_SPINCOUNT
export LC_ALL=C HOME=$folder/home # no autotune cache of this user
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir "$HOME" "$folder/before" "$folder/after"

# 200 KB of made-up words; the arithmetic is exact in every awk
awk 'BEGIN {
    for (x = 1; size < 200000; size += length(word) + 1) {
        word = ""
        for (letters = 1 + (x / 65536) % 7; letters >= 1; letters--) {
            x = (x * 16807) % 2147483647
            word = word substr("etaoinshrdlucmfwypvbgkjqxz", 1 + int(x % 676 / 26) * (x % 26) / 25, 1)
        }
        printf "%s%s", word, x % 11 ? " " : "\n"
    }
}' >"$folder/text"

# run RANKS PROGRAM FLAGS...: in the current folder, with the program of $side. Leaves stdout and the exit status.
run() {
    local ranks=$1 status=0 threads=2 count command
    command=("${program[$side.$2]}" "${@:3}")
    [[ $2 != EMULATED* ]] || export TRAIN_GPT2_{PICKS,AUTOTUNE_CACHE}="$folder/$side.picks.$2"
    if [ "$ranks" -gt 1 ]; then
        threads=1
        command=(mpirun --oversubscribe --bind-to none -np "$ranks" "${command[@]}")
    fi
    count=$(find . -maxdepth 1 -name 'stdout_*' | wc -l)
    OMP_NUM_THREADS=$threads timeout -k 5 120 "${command[@]}" >"stdout_$count" 2>"stderr_$count" </dev/null || status=$?
    echo "exit status $status: ${*:2} on $ranks" >>statuses
}

# ---- comparison

metrics() { sed -E 's/,"(ms|tokens_per_s|tokens_left|mfu|gpu_[a-z_]*)":[^,}]*//g' "$1"; }

# first_difference BEFORE AFTER: two texts
first_difference() {
    diff --text --label before --label after <(echo "$1") <(echo "$2") |
        awk '/^[<>]/ && !seen[$1]++ { text = text (text ? " against " : "") substr($0, 3, 150) }
            END { if (text) print text }'
}

# The first key that differs in two JSON files, among the keys of both. A tensor of a plan is compared by its lifetime
# and its bytes, since its name may change. `auto` stands for the value that the other tree has written.
compare_json() {
    python3 - "$@" <<'END'
import json
import sys

def differences(before, after, at=""):
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() & after.keys()):
            yield from differences(before[key], after[key], f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after)):
            yield from differences(*pair, f"{at}[{i}]")
    elif "auto" not in (before, after) and (before != after or type(before) is not type(after)):
        yield f"{at[1:]} is {before} against {after}"

files = [json.load(open(path)) for path in sys.argv[1:]]
for rank in [rank for file in files for rank in file.get("ranks", [])]:
    rank["tensors"] = sorted([tensor["lifetime"], tensor["bytes"]] for tensor in rank["tensors"])
print(next(differences(*files), ""), end="")
END
}

# differences_of_files: the first difference between the files that two runs left here, if any
differences_of_files() {
    local file names
    names=$(first_difference "$(cd before && find . -type f | grep -v std | sort)" \
        "$(cd after && find . -type f | grep -v std | sort)")
    [ -z "$names" ] || { echo "files: $names" && return; }
    for file in $(cd before && find . -type f ! -name 'std*' | sort); do
        case $file in
        */metrics.jsonl) first_difference "$(metrics "before/$file")" "$(metrics "after/$file")" ;;
        */manifest.json) ;; # checksums of the other files
        */step_*/state.json | */tokenizer_config.json) compare_json "before/$file" "after/$file" ;;
        */step_*) cmp -s <(sha256sum <"before/$file") <(sha256sum <"after/$file") || cmp "before/$file" "after/$file" ;;
        */config.json) compare_json "before/$file" "after/$file" ;;
        *) cmp "before/$file" "after/$file" ;;
        esac 2>&1 | sed "s|^|${file#./}: |"
    done
}

differences_of_stdout() { # samples | all | plan
    local file
    for file in $(cd before && find . -name 'stdout_*' | sort); do
        case $1 in
        samples) first_difference "$(samples "before/$file")" "$(samples "after/$file")" ;;
        all) cmp "before/$file" "after/$file" ;;
        plan) compare_json "before/$file" "after/$file" ;;
        esac 2>&1 | sed "s|^|${file#./}: |"
    done
}

# the number of lines and files that were compared
amount() { # samples | all | plan
    local files lines
    files=$(find before -type f -path '*step_*' | wc -l)
    lines=$(find before -name metrics.jsonl -exec cat {} + | wc -l)
    case $1 in
    samples) lines=$((lines + $(find before -name 'stdout_*' -exec sed -n '/^---$/,/^---$/p' {} + | wc -l))) ;;
    *) lines=$((lines + $(find before -name 'stdout_*' -exec cat {} + | wc -l))) ;;
    esac
    echo "$lines lines, $files files of checkpoints"
}

# ---- cases

skipped=0 number=0
skip() { # NAME REASON
    [[ $1 =~ ${ONLY:-} ]] || return 0
    skipped=$((skipped + 1))
    printf 'skipped  %s: %s\n' "$1" "$2"
}

# both NAME STDOUT FUNCTION: the command lines of FUNCTION, with both trees' programs. STDOUT says which part of stdout
# is compared: samples, all or plan. A command that fails is a failure of the case.
both() {
    [[ $1 =~ ${ONLY:-} ]] || return 0
    local side difference
    number=$((number + 1))
    mkdir "$folder/case_$number"
    for side in before after; do
        mkdir "$folder/case_$number/$side"
        cd "$folder/case_$number/$side" || exit
        if [ "$side" = after ]; then # the algorithms of BEFORE
            for file in "$folder"/before.picks.*; do
                [ ! -f "$file" ] || cp "$file" "$folder/after.picks.${file##*.}"
            done
        fi
        "$3"
    done
    cd "$folder/case_$number" || exit
    difference=$(
        first_difference "$(<before/statuses)" "$(<after/statuses)"
        grep -v '^exit status 0:' before/statuses |
            sed "s|\$|: $(cat before/stderr_* | grep -m 1 train_gpt2: | tr '|' ' ')|"
        differences_of_files
        differences_of_stdout "$2"
    )
    for file in "$folder"/before.picks.*; do
        [ ! -f "$file" ] || cmp -s "$file" "$folder/after.picks.${file##*.}" ||
            echo "note: AFTER looks for other keys in the autotune cache, and timed them" >>notes
    done
    if [ -z "$difference" ]; then
        passed=$((passed + 1))
        printf 'same     %s: %s\n' "$1" "$(amount "$2")"
    else
        failed=$((failed + 1))
        printf 'differs  %s: %s\n' "$1" "$(head -n 1 <<<"$difference")"
    fi
    [ ! -s notes ] || sort -u notes | sed 's/^/         /'
    cd "$folder" || exit
    [ -n "${KEEP:-}" ] || rm -r "$folder/case_$number"
}

data=(-i ../../text)
tiny=("${data[@]}" -e l2h2c32 -b 2 -t 32 -l 3e-3 -c 0.1 -v 4 -m 2 -s 4 -g 16 --top-k 20)
# a run of ten steps with two checkpoints, two validations and three samples
ten=("${tiny[@]}" -x 10 -n 5 -o run)
three_layers=("${ten[@]}" -e l3h3c24)

has_mpi() { command -v mpirun >/dev/null && grep -q 'MPI (' <<<"$("${program[$1]}" --version 2>/dev/null)"; }

# train RANKS PROGRAM FLAGS...: a case of one command line
train() {
    local arguments=("$1" "$2" "${base[@]}" "${@:3}") name="${2,,} ${*:3}"
    [ "$1" -eq 1 ] || name="$1 ranks, $name"
    if [ -z "${program[before.$2]}" ] || [ -z "${program[after.$2]}" ]; then
        skip "${name% }" "BEFORE_$2 and AFTER_$2 are not set"
        return
    fi
    if [ "$1" -gt 1 ] && ! { has_mpi "before.$2" && has_mpi "after.$2"; }; then
        skip "$name" "there is no mpirun, or a program was built without MPI: remove the program to build it again"
        return
    fi
    one_command() { run "${arguments[@]}"; }
    both "${name% }" samples one_command
}

# ---- one process on the CPU

base=("${ten[@]}")
train 1 FP32
for precision in 0 2; do train 1 FP32 -f "$precision"; done
train 1 FP32 -d 256 -om 8bit
train 1 FP32 -b 3 -t 29
train 1 FP32 -om bf16
train 1 FP32 -gd bf16 -d 192
train 1 FP32 -ge 1
train 1 FP32 -a 1 --seed 7 --temperature 0
train 1 FP32 -k wsd -u 3 -q 0.1 --grad-clip 0.5
train 1 FP32 -k linear -u 2 --beta1 0.8 --beta2 0.99 --epsilon 1e-6
train 1 FP32 -n 1 -nk 2 -nm 4
for level in 0 1 2 3 4; do train 1 FP32 -r "$level"; done
base=("${three_layers[@]}")
train 1 FP32 -r 4 -rk 2
train 1 FP32 -r 4 -rk 0 -rn 2
train 1 FP32 -r 3 -rn 1 -d 128
base=("${data[@]}" -e l1h1c8 -b 1 -t 8 -l 1e-2 -v 0 -s 0 -x 150 -n 75 -o run)
train 1 FP32 -sl 0.8 -sg 0.8

base=("${ten[@]}")
train 1 BF16
train 1 BF16 -w none
train 1 BF16 -w none -om 8bit -gd bf16
train 1 BF16 -w split -om bf16 -gd fp32 -d 128 -r 2
train 1 BF16 -om 8bit -r 4 -k constant
train 1 BF16 -r 3 -ge 1

# ---- runs that go on, other ways to begin, and text

resumed() {
    run 1 FP32 "${tiny[@]}" -k wsd -sl 5 -x 8 -n 4 -o run
    run 1 FP32 "${tiny[@]}" -k wsd -sl 5 -x 14 -n 4 -o run -y 1 -r 3
    run 1 FP32 -o run -y 1 -x 16 -b 1
}
both "resumed twice: -x 8, -x 14 -r 3, -x 16 -b 1" samples resumed

resumed_bf16() {
    run 1 BF16 "${tiny[@]}" -om 8bit -w split -x 6 -n 6 -o run
    run 1 BF16 "${tiny[@]}" -om bf16 -w none -x 10 -n 4 -o run -y 1
}
both "bf16 resumed with other masters and moments" samples resumed_bf16

generated() {
    run 1 FP32 "${ten[@]}" -s 0
    run 1 FP32 --generate 60 -e run/step_00000010 --prompt "the rain" --seed 5 --top-k 10 --temperature 0.8
    run 1 FP32 --generate 40 -e run --prompt "a" --temperature 0
    mkdir bf16
    run 1 BF16 --generate 40 -e run/step_00000005/model.safetensors --seed 6
    rm stdout_0 # its times
}
both "--generate with --seed, --top-k and --temperature" all generated

fine_tuned() {
    run 1 FP32 "${ten[@]}"
    run 1 BF16 "${ten[@]}" -e run/step_00000010/model.safetensors -t 16 -x 4 -n 2 -o second
    run 1 FP32 "${ten[@]}" -e second -t 12 -x 3 -n 3 -o third -j ../../text
}
both "-e FILE.safetensors in bf16, then -e FOLDER and -j in fp32" samples fine_tuned

scored() {
    mkdir -p dev/data/hellaswag
    hellaswag 11 >dev/data/hellaswag/hellaswag_val.bin
    run 1 FP32 "${three_layers[@]}" -h 1 -b 4
}
both "-h 1, eleven examples" samples scored

tokenized() {
    run 1 FP32 "${data[@]}" --tokenizer "$bpe" --tokenize shard
    run 1 FP32 "${ten[@]:${#data[@]}}" -i shard_train_000001.bin -e l1h1c16 --tokenizer "$bpe" --prompt "the" -x 4 -n 4
}
bpe=$merges
both "--tokenize with 2,500 merges, then -i SHARD" samples tokenized
if [ -f "$vocab" ]; then
    bpe=$vocab
    both "--tokenize with all merges, then -i SHARD" samples tokenized
else
    skip "--tokenize with all merges" "$vocab is not there"
fi

# ---- plans

plans() {
    run 1 FP32 --plan=json -e d12 -b 8 -t 512
    run 1 FP32 --plan=json -e d24 -b 4 -r 4 -rk 3 -rn 20 -om 8bit -d 65536
    run 1 BF16 --plan=json -e d36 -w none -om bf16 -gd bf16 -r 2
    run 1 BF16 --plan=json -e d12 -b 4 -z 3 -pn 3 -r 3
    run 1 BF16 --plan=json -e d12 -b 4 -tp 2 -z 2 -pn 8 -d 65536 -ra 0 -r 0
    run 1 EMULATED --plan=json -e d48 --device cuda -tp 4 -z 3 -pn 8 -r 4
    run 1 FP32 --plan=json -e d12 --generate 50
}
both "--plan=json, seven command lines" plan plans

# ---- the CUDA kernels, emulated

base=("${ten[@]}" --device cuda -x 5 -n 5 -t 16)
train 1 EMULATED
train 1 EMULATED -ge 1
train 1 EMULATED -f 0 --graph 0
train 1 EMULATED -e l3h3c24 -r 4 -rk 2 -om 8bit -d 128
train 1 EMULATED -r 3 -gd bf16 -om bf16 -k wsd -q 0
train 1 EMULATED -r 0 -b 3 -t 13
train 1 EMULATED -e l1h1c64 -b 1 -t 40 -r 2
train 1 EMULATED_BF16
train 1 EMULATED_BF16 -ge 1 -w none -om 8bit
train 1 EMULATED_BF16 -d 128 -r 4
train 1 EMULATED_BF16 -e l1h1c64 -b 1 -t 40 -w split -om bf16

# ---- several ranks

base=("${three_layers[@]}" -d 384)
train 2 FP32 -tp 2
train 2 FP32 -tp 2 -ra 0 -r 0
train 2 FP32 -tp 2 -r 4 -rk 2 -om 8bit
for stage in 0 1 2 3; do train 2 FP32 -z "$stage"; done
for stage in 1 2 3; do train 3 FP32 -z "$stage"; done
train 3 FP32 -z 3 -r 4 -om bf16
train 3 FP32 -tp 3 -b 4 -r 2
train 4 FP32 -tp 2 -z 3
train 4 FP32 -tp 2 -z 2 -ra 0 -r 1 -om 8bit -d 512
train 2 BF16 -tp 2 -w none -om 8bit
train 2 BF16 -z 3 -w split -gd bf16 -d 256
base=("${ten[@]}" --device cuda -x 3 -n 3 -t 16)
train 2 EMULATED -tp 2
train 2 EMULATED -z 3 -r 3

layouts() {
    run 3 FP32 "${three_layers[@]}" -d 384 -z 3 -om bf16 -n 5 -x 5
    run 2 FP32 -o run -y 1 -x 8 -n 8 -tp 2 -z 0 -om bf16
    run 1 FP32 -o run -y 1 -x 10 -n 10 -tp 1
    run 4 FP32 -o run -y 1 -x 12 -n 12 -tp 2 -z 2 -b 1
}
name="resumed across layouts: 3 ranks -z 3, -tp 2, 1 rank, 4 ranks -tp 2 -z 2"
if has_mpi before.FP32 && has_mpi after.FP32; then both "$name" samples layouts; else skip "$name" "there is no MPI"; fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
