#!/usr/bin/env bash
# Rules of the tree that a compiler does not check: the size of its front doors, and what a plan may include.
# dev/includes.py, in `make lint`, checks the includes of each header.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=dev/test/harness.sh
source dev/test/harness.sh

# at_most LINES FILE: silent if the file has no more lines
at_most() {
    local lines
    lines=$(wc -l <"$2")
    [ "$lines" -le "$1" ] || echo "$2 has $lines lines, expected at most $1"
}
report "train_gpt2.cu has at most 1300 lines" "$(at_most 1300 train_gpt2.cu)"
report "the Makefile has at most 150 lines" "$(at_most 150 Makefile)"

# includes FILE PATTERN: the files matching PATTERN that FILE includes, directly or through others
includes() { printf '#include "%s"\n' "$1" | cc -D_GNU_SOURCE -I. -MM -x c - | tr -s ' ' '\n' | grep -E "$2"; }
report "a memory plan includes no kernel and no communicator" \
    "$(includes llmc/memory/gpt2_plan.h '\.cuh$|/comm[_a-z]*\.h$|/zero\.h$|/tensor_parallel\.h$|cpu_ops\.h$')"

report "nothing in llmc/ includes dev/ or the trainer, or names the emulator" \
    "$(grep -rnE '#include "[^"]*(dev/|train_gpt2)|simt|SIMT' llmc)"
report "includes are written from the root" "$(grep -rnE '#include "' llmc train_gpt2.cu | grep -v '#include "llmc/')"

end_tests
