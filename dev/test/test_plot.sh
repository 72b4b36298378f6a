#!/usr/bin/env bash
# scripts/plot.py: a bar for each plan, with the total of --plan; the loss curve of a run; errors.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT

if ! /usr/bin/python3 -c 'import matplotlib' 2>/dev/null; then
    echo "[  SKIPPED ] 1 test(s)."
    exit 0
fi

trouble=()
# contains FILE TEXT: the SVG has this text
contains() { grep -qF -- ">$2<" "$1" || trouble+=("$(basename "$1"): expected the text '$2'"); }

flags=('-e d12 -b 4 -r 0' '-e d12 -b 4 -r 4')
scripts/plot.py --plan "$here/plan.svg" "${flags[@]}" 2>"$here/errors" || trouble+=("--plan: $(cat "$here/errors")")
for f in "${flags[@]}"; do
    read -ra words <<<"$f"
    gib=$(./train_gpt2 --plan "${words[@]}" | awk '$1 == "total" { printf "%.2f", $2 / 1024 }')
    contains "$here/plan.svg" "$f"
    contains "$here/plan.svg" "$gib"
done

mkdir "$here/run"
printf '{"step":%d,"loss":%d}\n' 1 5 2 4 >"$here/run/metrics.jsonl"
scripts/plot.py --loss "$here/loss.svg" "$here/run" 2>"$here/errors" || trouble+=("--loss: $(cat "$here/errors")")
contains "$here/loss.svg" "$here/run: loss"

# stops WORDS ARGUMENT...: plot.py fails with a sentence with these words
stops() {
    scripts/plot.py "${@:2}" >/dev/null 2>"$here/errors" && trouble+=("${*:2}: expected a failure")
    grep -q -- "$1" "$here/errors" || trouble+=("${*:2}: expected '$1', found: $(head -c 300 "$here/errors")")
    grep -q Traceback "$here/errors" && trouble+=("${*:2}: a traceback")
}
stops "neither a shape" --plan "$here/x.svg" "-e d99"
stops "could not read metrics.jsonl" --loss "$here/x.svg" "$here/nowhere"
stops "scripts/plot.py --plan" --what "$here/x.svg" x

if [ ${#trouble[@]} -gt 0 ]; then
    printf '%s\n' "${trouble[@]}"
    echo "[  FAILED  ] 1 test(s)."
    exit 1
fi
echo "[  PASSED  ] 1 test(s)."
