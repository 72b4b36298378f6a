#!/usr/bin/env bash
# --generate and --chat on the command line, with models that were trained for it: the end of a text, samples, prompts
# from files, conversations, and flags that do not fit.
#   TRAINER=./train_gpt2 dev/test/test_generate.sh
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-./train_gpt2}") golden=$(realpath "$(dirname "$0")/golden")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C
scratch=$(mktemp -d) out=$scratch/out err=$scratch/err
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/work"
cd "$scratch/work" || exit 1

run() { # STATUS ARGUMENTS...: a sentence unless the trainer, which reads ./input, exits with STATUS
    local status=0
    "$trainer" "${@:2}" <input >"$out" 2>"$err" || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
says() { grep -qF -- "$2" "$1" || { echo "expected '$2' in:" && tail -n 8 "$1"; }; }
equal() { [ "$1" = "$2" ] || echo "found '$1', expected '$2'"; }
same() { cmp "$1" "$2" 2>&1; }
refused() { # NAME WORDS ARGUMENTS...: bad input gives exit 2 and one sentence with WORDS
    report "refused: $1" "$(
        run 2 "${@:3}"
        says "$err" "$2"
        equal "$(wc -l <"$err")" 1
        equal "$(wc -c <"$out")" 0
    )"
}
: >input

# ---- a model of 300 tokens that knows one text: tokens 65, 66 and 67, which are "b", "c" and "d", then end-of-text

head -n 44 "$golden/gpt2_2500.bpe" >few.bpe # a comment line and 43 merges: 256 + 43 + 1 tokens
{
    printf '%b' '\x88\xd8\x34\x01\x01\x00\x00\x00\xd0\x07\x00\x00' # llm.c's header: magic, version 1, 2000 tokens
    head -c 1012 /dev/zero
    for _ in {1..500}; do printf '%b' '\x41\x00\x42\x00\x43\x00\x2b\x01'; done
} >text.bin
run 0 -i text.bin -e l1h2c32 -b 4 -t 16 -x 60 -l 1e-2 -v 0 -s 0 -n 60 --tokenizer few.bpe -o merges
report "a text ends at the end-of-text token, which is not printed" "$(
    run 0 --generate 40 -e merges --temperature 0 --prompt b
    equal "$(cat "$out")" bcd
    run 0 --generate 40 -e merges --temperature 0
    equal "$(cat "$out")" '<|endoftext|>bcd'
)"
report "--past-end goes on" "$(
    run 0 --generate 9 -e merges --temperature 0 --prompt b --past-end
    equal "$(cat "$out")" 'bcd<|endoftext|>bcd<|endoftext|>bc'
)"
report "a sample while training goes on after end-of-text" "$(
    run 0 -o merges -y 1 -x 61 -s 61 -g 9 --prompt b --temperature 0
    says "$out" 'bcd<|endoftext|>bcd<|endoftext|>bc'
)"

# ---- a byte model that knows one conversation

for _ in {1..60}; do printf '\nUser: hi\nAssistant: yes\nUser: why\nAssistant: so\n'; done >turns
run 0 -i turns -e l2h2c64 -b 4 -t 48 -x 300 -l 3e-3 -u 10 -v 0 -s 0 -n 300 -o bytes
report "a newline does not end the text of a byte model" "$(
    run 0 --generate 30 -e bytes --temperature 0
    equal "$(wc -c <"$out")" 32
    [ "$(wc -l <"$out")" -gt 2 ] || echo "no newline among the tokens: nothing was tested"
)"
report "--samples prints as many texts, and sample 0 is the text without it" "$(
    sampling=(--generate 30 -e bytes --prompt "User: " --temperature 3 --seed 7)
    run 0 "${sampling[@]}" && cp "$out" one
    run 0 "${sampling[@]}" --samples 3 && cp "$out" three
    same one <(head -c "$(wc -c <one)" three)
    equal "$(tail -c +"$(($(wc -c <one) + 1))" three | head -n 1)" "---"
    run 0 "${sampling[@]}" --samples 2
    same "$out" <(head -c "$(wc -c <"$out")" three)
    run 0 "${sampling[@]}" --top-p 0.01 && cp "$out" narrow
    run 0 "${sampling[@]}" --temperature 0
    same "$out" narrow
)"
report "--prompt-file is --prompt, from a file or from stdin" "$(
    printf 'User: hi\nAss\n' >prompt
    run 0 --generate 30 -e bytes --prompt 'User: hi
Ass' --temperature 0 && cp "$out" from_flag
    run 0 --generate 30 -e bytes --prompt-file prompt --temperature 0 && same "$out" from_flag
    cp prompt input
    run 0 --generate 30 -e bytes --prompt-file - --temperature 0 && same "$out" from_flag
)"
report "--chat answers each line of stdin with one line" "$(
    printf 'hi\nwhy\n\nhi\nwhy' >input
    run 0 --chat -e bytes --temperature 0
    equal "$(cat "$out")" $'yes\nso\n\nyes\nso'
    equal "$(cat "$err")" ""
)"
report "--chat with --generate cuts answers off" "$(
    printf 'hi\nhi\n' >input
    run 0 --chat -e bytes --temperature 0 --generate 3
    equal "$(cat "$out")" $'ye\nye'
)"
report "--chat with a line longer than the context says so and goes on" "$(
    { printf 'hi\n' && printf 'a%.0s' {1..60} && printf '\nhi\n'; } >input
    run 0 --chat -e bytes --temperature 0
    equal "$(sed 2q "$out")" $'yes'
    equal "$(wc -l <"$out")" 3
    says "$err" "line 2 is a turn of 77 tokens, more than the model's context of 48"
    equal "$(wc -l <"$err")" 1
)"
report "--chat of no lines prints nothing" "$(
    : >input
    run 0 --chat -e bytes
    equal "$(wc -c <"$out")" 0
)"
report "--chat on a terminal asks with >" "$(
    if command -v script >/dev/null; then
        printf 'hi\n' | timeout 60 script -qec "'$trainer' --chat -e bytes --temperature 0" typescript >"$out" 2>&1
        says "$out" "> "
        says "$out" "yes"
    fi
)"
report "--plan plans a conversation like --generate" "$(
    run 0 --plan -e d12 --chat && cp "$out" plan
    run 0 --plan -e d12 --generate 5 && same "$out" plan
)"

# ---- flags that do not fit

: >input
refused "--chat without weights" "--chat needs trained weights" --chat -e l1h2c16
refused "--chat without -e" "--chat needs a trained model" --chat
mkdir bare && cp merges/step_00000060/{model.safetensors,config.json} bare
refused "--chat without a tokenizer" "with --tokenizer" --chat -e bare
printf '{"!":0,"a":1}' >vocab.json
refused "a vocab.json as tokenizer" "vocab.json: found ids of tokens without merges, as in vocab.json; give" \
    --generate 2 -e bare --prompt b --tokenizer vocab.json
refused "--chat --samples" "--samples applies to --generate alone" --chat -e bytes --samples 2
refused "--chat --past-end" "--past-end applies to --generate alone" --chat -e bytes --past-end
refused "--chat --prompt-file -" "reads stdin" --chat -e bytes --prompt-file -
refused "--chat with a long system message" "is a system message of 108 tokens, more than the model's context of 48" \
    --chat -e bytes --prompt "$(printf 'a%.0s' {1..99})"
refused "--samples without --generate" "--samples applies to --generate" -i turns --samples 2
refused "--past-end without --generate" "--past-end applies to --generate" -i turns --past-end
refused "--prompt-file without --generate" "--prompt-file applies to --generate and --chat" \
    -i turns --prompt-file prompt
refused "--prompt and --prompt-file" "both give the prompt" --generate 5 -e bytes --prompt a --prompt-file prompt
refused "a prompt that is missing" "--prompt-file none: could not be opened" --generate 5 -e bytes --prompt-file none
refused "a folder as prompt" "--prompt-file .: could not be read" --generate 5 -e bytes --prompt-file .
refused "--samples 0" "--samples takes a whole number from 1" --generate 5 -e bytes --samples 0
refused "--top-p 1.1" "--top-p takes a number from 0 to 1" --generate 5 -e bytes --top-p 1.1
end_tests
