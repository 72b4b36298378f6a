#!/usr/bin/env bash
# A small model learns a made task from conversations: to spell words backwards. --generate asks it for words that it
# has not seen. Takes 40 seconds on two quiet cores.
. "$(dirname "$0")/harness.sh"
in_scratch

# talks.jsonl: 20,000 conversations; questions and answers: 100 words that talks.jsonl has not, one a line
python3 - <<'PYTHON'
import json, random
r = random.Random(1)
word = lambda: "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(2, 5)))
seen = [word() for _ in range(20000)]
unseen = [w for w in (word() for _ in range(1000)) if w not in set(seen)][:100]
with open("talks.jsonl", "w") as file:
    for w in seen:
        messages = [{"role": "user", "content": f"reverse {w}"}, {"role": "assistant", "content": w[::-1]}]
        print(json.dumps({"messages": messages}), file=file)
with open("questions", "w") as questions, open("answers", "w") as answers:
    for w in unseen:
        print("reverse", w, file=questions)
        print(w[::-1], file=answers)
PYTHON

report "a model of 0.4M parameters learns to spell backwards: 95 % of 100 unseen words" "$(
    "$trainer" -i talks.jsonl -e l2h4c128 -t 128 -b 16 -x 500 -l 2e-3 -u 50 -q 0.1 -v 0 -s 0 -n 500 -o speller \
        >"$out" 2>&1 || echo "exit status $?"
    while read -r question; do
        # the start token of a byte model is a newline, and a newline ends its answer
        "$trainer" --generate 12 -e speller --temperature 0 --prompt $'\n'"User: $question"$'\nAssistant:' |
            sed -n '3s/^Assistant: //p'
    done <questions >spelled 2>>"$out"
    right=$(paste -d ' ' answers spelled | awk '$1 == $2' | wc -l)
    echo "$right of $(wc -l <answers) words are right" >>"$out"
    [ "$(wc -l <answers)" -eq 100 ] && [ "$right" -ge 95 ] || echo "$right of 100 words are right"
    tail -n 1 "$out" >&2
)"
end_tests
