#!/usr/bin/env bash
# One program for many CPUs (make ARCH=portable): the level that it chooses, the losses of every level of this CPU, and
# CPUs that qemu emulates. dev/test/test_vectors.sh reads the instructions of every level.
#   TRAINER=build/test/portable/train_gpt2 dev/test/test_portable.sh
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-build/test/portable/train_gpt2}")
if [ ! -f "$(dirname "$trainer")/main.o" ]; then
    skip "a program for x86-64 with several levels" 10
    exit
fi
in_scratch
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
unset TRAIN_GPT2_ARCH
seq 20000 >"$scratch/text"

# the levels of this CPU by the kernel's names of its features, and the words of --version
levels=(v2)
declare -A words=([v2]=x86-64-v2 [v3]=x86-64-v3 [v4]=x86-64-v4 [bf16]="x86-64-v4 with AVX512-BF16")
has_features() { for feature; do grep -qE "^flags.* $feature( |\$)" /proc/cpuinfo || return; done; }
if has_features avx2 fma bmi1 bmi2 f16c movbe abm; then
    levels+=(v3)
    if has_features avx512f avx512bw avx512cd avx512dq avx512vl; then
        levels+=(v4)
        ! has_features avx512_bf16 || levels+=(bf16)
    fi
fi

# is_level LEVEL COMMAND...: --version of the command names the level
is_level() {
    local found
    found=$("${@:2}" --version 2>"$out" | grep -oE 'devices cpu, [^,(]*[^,( ]')
    [ "$found" = "devices cpu, ${words[$1]}" ] || echo "found '$found', expected '${words[$1]}'"
}
# refuses WORDS COMMAND...: exit 2, and one sentence with WORDS
refuses() {
    local status=0
    "${@:2}" --version >"$scratch/printed" 2>"$out" || status=$?
    [ "$status" -eq 2 ] || echo "exit status $status, expected 2"
    [ ! -s "$scratch/printed" ] || cat "$scratch/printed"
    [ "$(grep -cv '^qemu-x86_64: warning' "$out")" -eq 1 ] || echo "expected one line"
    grep -qF -- "$1" "$out" || echo "expected '$1'"
}
# train RUN COMMAND...: six updates of a tiny model
train() {
    "${@:2}" -i "$scratch/text" -e l2h2c32 -b 2 -t 16 -d 64 -l 1e-4 -x 6 -v 0 -s 0 -o "$scratch/$1" >"$out" 2>&1 ||
        echo "exit status $?"
}
losses() { sed -n 's/.*"loss":\([^,}]*\).*/\1/p' "$scratch/$1/metrics.jsonl"; }
# A logit is the last of about 12 sums of at most 128 products. Each sum has a rounding error of at most 128 units of
# 2^-24, relative to the sum of the magnitudes, which are about 1. 12 * 128 * 2^-24 is 9e-5. AdamW turns the sign of a
# weight's step of 1e-4 only where the gradient, and thus the effect on the loss, is as small as its rounding error.
same_losses() { # RUN RUN
    [ "$(losses "$2" | wc -l)" -eq 6 ] || echo "$2 has not six losses"
    paste <(losses "$1") <(losses "$2") | awk '{ d = $1 - $2 } d > 1e-4 || d < -1e-4 { print "losses " $1 " and " $2 }'
}

highest=${levels[-1]}
report "the highest level of this CPU, $highest, runs" "$(is_level "$highest" "$trainer")"
train wanted env TRAIN_GPT2_ARCH=v2 "$trainer" >"$scratch/trouble"
report "TRAIN_GPT2_ARCH chooses each of ${levels[*]}, and their losses agree" "$(
    cat "$scratch/trouble"
    for level in "${levels[@]}"; do
        is_level "$level" env TRAIN_GPT2_ARCH="$level" "$trainer"
        train "$level" env TRAIN_GPT2_ARCH="$level" "$trainer"
        grep -qE "^machine +cpu, 2 threads, ${words[$level]}" "$out" || echo "the banner does not name $level"
        same_losses wanted "$level"
    done
)"
expected=$(printf ', %s' "${levels[@]}")
report "a level that does not exist is refused, with the levels of this CPU" "$(
    refuses "TRAIN_GPT2_ARCH=v5: expected a level of this CPU: ${expected:2}" env TRAIN_GPT2_ARCH=v5 "$trainer"
    tail -n 1 "$out" | grep -q "${expected:2}\$" || echo "expected '${expected:2}' at the end"
)"
rm -f "$out"

# ---- CPUs that qemu emulates. qemu 7.2 and later have AVX2; qemu has no AVX-512

# on CPU: the program on an emulated CPU
on() { emulated=(qemu-x86_64 -cpu "$1" "$trainer"); }
if command -v qemu-x86_64 >/dev/null; then
    report "a Core 2 of 2006 is refused" "$(on core2duo && refuses "this CPU lacks SSSE3" "${emulated[@]}")"
    report "a Nehalem of 2008 runs v2, with the losses of this CPU" "$(
        on Nehalem
        is_level v2 "${emulated[@]}"
        train nehalem "${emulated[@]}"
        same_losses wanted nehalem
    )"
    report "a Nehalem has no other level" "$(
        on Nehalem
        refuses "TRAIN_GPT2_ARCH=v3: expected a level of this CPU: v2" env TRAIN_GPT2_ARCH=v3 "${emulated[@]}"
    )"
    # not ssse3 and bmi1: a function of glibc that has the other features of its CPU stops there
    report "a CPU without one feature of v2 is refused" "$(
        for feature in sse4.1 sse4.2 popcnt; do
            on "Nehalem,-$feature"
            refuses "this CPU lacks SSSE3" "${emulated[@]}" | sed "s/^/without $feature: /"
        done
    )"
    if qemu-x86_64 -cpu Haswell "$trainer" --version 2>&1 | grep 'avx2' >/dev/null; then
        skip "a qemu-x86_64 with AVX2" 2 "level v3"
    else
        report "a Haswell of 2013 runs v3, with the losses of this CPU" "$(
            on Haswell
            is_level v3 "${emulated[@]}"
            train haswell "${emulated[@]}"
            same_losses wanted haswell
            refuses "expected a level of this CPU: v2, v3" env TRAIN_GPT2_ARCH=v4 "${emulated[@]}"
        )"
        report "a CPU without one feature of v3 runs v2" "$(
            for feature in avx2 fma bmi2 f16c movbe abm; do
                on "Haswell,-$feature"
                is_level v2 "${emulated[@]}" | sed "s/^/without $feature: /"
            done
        )"
    fi
    rm -f "$out"
else
    skip "qemu-x86_64 (qemu-user)" 6 "older CPUs"
fi

# ---- ranks

if ! command -v mpirun >/dev/null || [[ $("$trainer" --version) != *"MPI ("* ]] || [ "$highest" = v2 ]; then
    skip "$MPI, and a CPU with two levels" 1 "ranks at different levels"
else
    export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    flags=(-i "$scratch/text" -e l1h1c8 -b 1 -t 8 -x 1 -v 0 -s 0)
    two=(mpirun --oversubscribe --bind-to none -np 1 "$trainer" "${flags[@]}" : -np 1)
    report "ranks at different levels are refused, and a level for all of them is not" "$(
        "${two[@]}" env TRAIN_GPT2_ARCH=v2 "$trainer" "${flags[@]}" >"$out" 2>&1 && echo "they train"
        grep -q "rank 1 has a different CPU level from rank 0: " "$out" || cat "$out"
        TRAIN_GPT2_ARCH=v2 "${two[@]}" "$trainer" "${flags[@]}" >"$out" 2>&1 || cat "$out"
    )"
fi

end_tests
