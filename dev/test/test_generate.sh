#!/usr/bin/env bash
# --generate on the command line, with models that were trained for it: the end of a text, samples, prompts from files,
# and flags that do not fit.
#   TRAINER=./train_gpt2 dev/test/test_generate.sh
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-./train_gpt2}") golden=$(realpath "$(dirname "$0")/golden")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C
in_scratch
input=input # stdin of every run
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
report "--prompt takes a text from a file or from stdin" "$(
    printf 'User: hi\nAss\n' >prompt
    run 0 --generate 30 -e bytes --prompt 'User: hi
Ass' --temperature 0 && cp "$out" from_flag
    run 0 --generate 30 -e bytes --prompt @prompt --temperature 0 && same "$out" from_flag
    cp prompt input
    run 0 --generate 30 -e bytes --prompt @- --temperature 0 && same "$out" from_flag
    run 0 -o bytes -y 1 -x 301 -s 301 -g 30 --prompt @prompt --temperature 0
    says "$out" "$(head -n 3 from_flag | tail -n 1)"
)"

# ---- flags that do not fit

: >input
mkdir bare && cp merges/step_00000060/{model.safetensors,config.json} bare
printf '{"!":0,"a":1}' >vocab.json
refused "a vocab.json as tokenizer" \
    "vocab.json is a vocabulary without 'merges.txt' next to it" \
    --generate 2 -e bare --prompt b --tokenizer vocab.json
refused "--generate without weights" "--generate needs trained weights" --generate 2 -e l1h2c16
refused "--generate without -e" "--generate need a trained model" --generate 2
refused "a prompt without a tokenizer" "with --tokenizer" --generate 2 -e bare --prompt b
refused "--samples without --generate" "--samples applies to --generate" -i turns --samples 2
refused "--prompt @- without --generate" "--prompt @- reads the prompt of --generate from stdin" -i turns --prompt @-
refused "a prompt that is missing" "--prompt @none: could not read 'none' as a text" \
    --generate 5 -e bytes --prompt @none
refused "a folder as prompt" "--prompt @.: could not read '.' as a text" --generate 5 -e bytes --prompt @.
refused "--samples 0" "--samples takes a whole number from 1" --generate 5 -e bytes --samples 0
refused "--top-p 1.1" "--top-p takes a number from 0 to 1" --generate 5 -e bytes --top-p 1.1
refused "--chat" "unknown flag --chat; --generate N continues --prompt" --chat -e bytes
refused "--past-end" "unknown flag --past-end; --generate N continues --prompt" --generate 5 -e bytes --past-end
refused "--prompt-file" "unknown flag --prompt-file; --generate N continues --prompt TEXT or @FILE" --prompt-file prompt
end_tests
