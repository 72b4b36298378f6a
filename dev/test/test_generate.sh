#!/usr/bin/env bash
# --generate on the command line, with models that were trained for it: the end of a text, samples, prompts from files,
# and flags that do not fit.
. "$(dirname "$0")/harness.sh"
in_scratch
export OMP_NUM_THREADS=1
input=input # stdin of every run
: >input

# ---- a model of 300 tokens that knows one text: tokens 65, 66 and 67, which are "b", "c" and "d", then end-of-text

head -n 44 "$merges" >few.bpe # a comment line and 43 merges: 256 + 43 + 1 tokens
# shellcheck disable=SC2046
write_shard text.bin 20240520 2000 0 $(printf '65 66 67 299 %.0s' {1..500})
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
refusals <<'ROWS'
vocab.json is a vocabulary without 'merges.txt' next to it | --generate 2 -e bare --prompt b --tokenizer vocab.json
--generate needs trained weights | --generate 2 -e l1h2c16
--generate needs --model, -e: add it | --generate 2
with --tokenizer | --generate 2 -e bare --prompt b
--prompt @- reads the prompt of --generate from stdin | -i turns --prompt @-
--prompt @none: could not read 'none' as a text | --generate 5 -e bytes --prompt @none
--prompt @.: could not read '.' as a text | --generate 5 -e bytes --prompt @.
ROWS
end_tests
