#!/usr/bin/env bash
# Rules of the tree that a compiler does not check: the size of its front doors, what a plan may include, and the Python
# that the scripts need.
# dev/includes.py, in `make lint`, checks the includes of each header.
. "$(dirname "$0")/harness.sh"

# at_most LINES FILE: silent if the file has no more lines
at_most() {
    local lines
    lines=$(wc -l <"$2")
    [ "$lines" -le "$1" ] || echo "$2 has $lines lines, expected at most $1"
}
report "train_gpt2.cu has at most 1300 lines" "$(at_most 1300 train_gpt2.cu)"
report "the Makefile has at most 150 lines" "$(at_most 150 Makefile)"

# includes FILE PATTERN: the files matching PATTERN that FILE includes, directly or through others
includes() { ! printf '#include "%s"\n' "$1" | cc -D_GNU_SOURCE -I. -MM -x c - | tr -s ' ' '\n' | grep -E "$2"; }
report "a memory plan includes no kernel and no communicator" \
    "$(includes llmc/memory/gpt2_plan.h '\.cuh$|/comm[_a-z]*\.h$|/zero\.h$|/tensor_parallel\.h$|cpu_ops\.h$')"

report "nothing in llmc/ includes dev/ or the trainer, or names the emulator" \
    "$(! grep -rnE '#include "[^"]*(dev/|train_gpt2)|simt|SIMT' llmc)"
report "includes are written from the root" "$(! grep -rnE '#include "' llmc train_gpt2.cu | grep -v '#include "llmc/')"

oldest=$(sed -nE 's/.* Python (3\.[0-9]+) or later.*/\1/p' doc/install.md)
report "scripts take the python3 of PATH, an environment's too, and the syntax of Python $oldest" "$(
    find dev scripts -name '*.py' -exec python3 -c '
import ast, sys
oldest = tuple(map(int, sys.argv[1].split(".")))
for path in sys.argv[2:]:
    text = open(path, encoding="utf-8").read()
    first = text.split("\n")[0]
    if first.startswith("#!") and first != "#!/usr/bin/env python3":
        print(f"{path}: expected #!/usr/bin/env python3, found {first}")
    try:
        ast.parse(text, path, feature_version=oldest)
    except SyntaxError as error:
        print(f"{path}, line {error.lineno}: {error.msg}")' "$oldest" {} + 2>&1
)"

end_tests
