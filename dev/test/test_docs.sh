#!/usr/bin/env bash
# README.md, CONTRIBUTING.md and doc/: every command parses, every flag, path, link and image named exists.
# A command is a line of a ```sh block, or a `span` that begins like one. ./train_gpt2 runs with --plan in a temporary
# folder, which has the files and run directories of the commands. Targets and variables of `make` are looked up in the
# Makefile's rules. Paths and flags of other programs are looked up.
. "$(dirname "$0")/harness.sh"

root=$PWD trainer=$(realpath "${TRAIN_GPT2:-./train_gpt2}")
documents=(README.md CONTRIBUTING.md doc/*.md)
make_scratch
set -f # a command keeps its patterns

# ---- files and runs for the commands

mkdir -p "$scratch/here/data"
cd "$scratch/here" || exit
export OMP_NUM_THREADS=1
for _ in {1..5}; do cat "$root/README.md" "$root/CONTRIBUTING.md"; done >my.txt
cp my.txt data/kjv.txt
mkdir -p corpus data/my data/fineweb10B && cp "$root/dev/test/golden/gpt2_2500.bpe" data/my/merges.txt
cp my.txt corpus && echo '{"text":"a document"}' >corpus/my.jsonl
cp "$root/dev/test/golden/gpt2_2500.bpe" vocab.bpe
echo '{"prompt":"a","completion":"b"}' >talks.jsonl
echo "node1 slots=8" >hosts.txt
"$trainer" -i my.txt --tokenizer vocab.bpe --tokenize data/mine --val-share 0.5 >"$out" 2>&1 &&
    cp data/mine_train_000001.bin data/my/text_train_000001.bin &&
    cp data/mine_val_000000.bin data/my/text_val_000000.bin &&
    cp data/mine_train_000001.bin data/fineweb10B/fineweb_train_000001.bin &&
    "$trainer" -i my.txt -e l1h1c8 -b 1 -t 8 -d 192 -x 1 -n 1 -v 0 -s 0 -o a_run >>"$out" 2>&1 &&
    "$trainer" -i my.txt -e l1h1c8 -b 1 -t 1024 -x 1 -n 1 -v 0 -s 0 -o models/gpt2 >>"$out" 2>&1
report "a shard and a run for the commands to read" "$([ -d a_run/step_00000001 ] || echo "could not be made")"
cd "$root" || exit

make -npr help >"$scratch/rules" 2>/dev/null
"$trainer" --help >"$scratch/help" 2>&1
devices=$("$trainer" --version | sed -n 's/.* devices \([^,]*\),.*/\1/p')
# shellcheck disable=SC2016
report "doc/flags.md describes the flags of --help, in their order" "$(
    diff <(sed -nE 's/^  (-[a-z]+| +) +--([a-z0-9-]+).*/\2/p' "$scratch/help") \
        <(sed -nE 's/^\*\*(`-[a-z]+`, )?`--([a-z0-9-]+).*/\2/p' doc/flags.md)
)"

# ---- one command

# commands FILE: one command a line, without comments and repetitions
commands() {
    {
        awk '/^```/ { inside = !inside && $0 == "```sh"; next }
             !inside || /^ *(#|$)/ || /^(git clone|\$\(command -v sudo\)) / { next }
             { sub(/ +# .*/, "") }
             /\\$/ { sub(/\\$/, ""); held = held $0; next }
             { print held $0; held = "" }' "$1"
        spans "$1" | grep -E '^([A-Z_]+=[^ ]* )*(\./train_gpt2|make|mpirun|python3|sbatch|scripts/[^ ]*|dev/[^ ]*) '
    } | awk '!seen[$0]++'
}

# shellcheck disable=SC2016
# spans FILE: the `code` outside of blocks
spans() { awk '/^```/ { inside = !inside; next } !inside' "$1" | grep -oE '`[^`]+`' | tr -d '`'; }

# is_flag WORD FILE: whether the file has the flag; a value after = is ignored
is_flag() { grep -qE -- "(^|[^A-Za-z0-9_-])${1%%=*}([^A-Za-z0-9_-]|$)" "$2"; }

# needs_run FOLDER: makes FOLDER a run directory with a checkpoint
needs_run() {
    [[ $1 == */* && $1 != *.safetensors && ! -e $scratch/here/$1 ]] || return 0
    mkdir -p "$scratch/here/$(dirname "$1")"
    cp -r "$scratch/here/a_run" "$scratch/here/$1"
}

# dry_run RANKS FLAG...: the error of train_gpt2 for these flags, if any
dry_run() {
    local ranks=$1 flags=() resumes='' output='' i
    shift
    for ((i = 1; i <= $#; i++)); do
        local next=$((i + 1))
        case ${!i} in
        --self-check) return ;;  # it takes a minute, and test_self_check.sh runs it
        -o) output=${!next} ;;
        -y) resumes=${!next} ;;
        -e) needs_run "${!next}" ;;
        --export) flags+=(-t 8) ;; # the positions of a_run
        --device) if [[ " $devices " != *" ${!next} "* ]]; then i=$next && continue; fi ;;
        esac
        flags+=("${!i}")
    done
    [ "$resumes" != 1 ] || needs_run "$output"
    [[ " $* " =~ \ --(plan|help|version) ]] || flags+=(--plan)
    [ "$ranks" = 1 ] || flags+=(-pn "$ranks")
    (cd "$scratch/here" && "$trainer" "${flags[@]}") >"$out" 2>&1 </dev/null || tail -n 1 "$out"
}

# dry_make WORD...: errors of targets without a rule and of unknown variables
dry_make() {
    local word
    for word; do
        if [[ $word == *=* ]]; then
            grep -qE "^${word%%=*} :?=|[$][(](value )?${word%%=*}[)]" "$scratch/rules" ||
                echo "the Makefile has no variable ${word%%=*}"
            make -n help "$word" >"$out" 2>&1 || tail -n 1 "$out"
        else
            grep -qE "^$word:" "$scratch/rules" || echo "the Makefile has no target $word"
        fi
    done
}

# look_up PROGRAM WORD...: errors of a missing program and of flags that neither the program nor the trainer has
look_up() {
    local program=$1 word
    [ -f "$program" ] || { echo "there is no $program" && return; }
    for word in "${@:2}"; do
        [[ $word != -* ]] || is_flag "$word" "$program" || is_flag "$word" "$scratch/help" ||
            echo "$program has no $word"
    done
}

# trouble_of COMMAND: errors of a command; empty if the command parses
trouble_of() {
    local words=() ranks=1
    if [[ $1 =~ [\;\&\|\<\>\`]|\$\( ]]; then
        echo "more than one simple command"
        return
    fi
    eval "words=($1
    )" 2>"$out" || { cat "$out" && return; }
    while [[ ${words[0]} =~ ^[A-Z_]+= ]]; do words=("${words[@]:1}"); done
    if [[ ${words[0]} =~ ^(mpirun|srun)$ ]]; then
        while [ ${#words[@]} -gt 1 ] && [ "${words[0]}" != ./train_gpt2 ]; do
            [[ ! ${words[0]} =~ ^-np?$ ]] || ranks=${words[1]}
            words=("${words[@]:1}")
        done
    fi
    case ${words[0]} in
    ./train_gpt2) dry_run "$ranks" "${words[@]:1}" ;;
    make) dry_make "${words[@]:1}" ;;
    python3 | sbatch) look_up "${words[@]:1}" ;;
    scripts/* | dev/*)
        look_up "${words[@]}"
        [ -x "${words[0]}" ] || echo "${words[0]} cannot be executed"
        ;;
    *) echo "no command that this test knows" ;;
    esac
}

# ---- every document

declare -A seen=()  # the commands of earlier documents
for document in "${documents[@]}"; do
    while IFS= read -r command; do
        if [[ $command =~ ^[a-z_]+=\"[^\`\$]*\"$ ]]; then # a variable of the following commands
            eval "$command"
            continue
        fi
        [ -z "${seen[$command]:-}" ] || continue
        seen[$command]=yes
        : >"$out"
        report "$document: $command" "$(trouble_of "$command")"
    done < <(commands "$document")
    : >"$out"
    report "$document: the flags exist" "$(
        for word in $(spans "$document" | grep -E '^-'); do
            [[ ! $word =~ ^-+[a-z] ]] || is_flag "$word" "$scratch/help" || echo "train_gpt2 --help does not name $word"
        done
    )"
    report "$document: the paths exist" "$(
        for path in $(spans "$document" | grep -oE '(^| )(scripts|dev|doc|llmc)/[A-Za-z0-9_./*<>-]*'); do
            compgen -G "${path//<*>/*}" >/dev/null || echo "there is no $path"
        done
    )"
    report "$document: the links resolve" "$(
        { grep -oE '\]\([^)#]+' "$document" || true; } | cut -c 3- | sed '/^https*:/d' | while IFS= read -r path; do
            [ -e "$(dirname "$document")/$path" ] || echo "there is no $path"
        done
    )"
done
rm -f "$out"

report "README.md has under 110 lines of at most 120 columns" "$(
    LC_ALL=C.UTF-8 awk 'length > 120 { print "line " NR " has " length " columns" }
                        END { if (NR >= 110) print NR " lines" }' README.md
)"
# a manual that grows says something twice, or what --help says
report "doc/flags.md has at most 3,000 words, and doc/ 18,000" "$(
    cat "${documents[@]:2}" | wc -w | awk '$1 > 18000 { print "doc/*.md has " $1 " words" }'
    wc -w <doc/flags.md | awk '$1 > 3000 { print "doc/flags.md has " $1 " words" }'
)"
report "the documents name each variable of the environment that the program reads" "$(
    grep -rhoE 'getenv\("TRAIN_GPT2_[A-Z0-9_]+' train_gpt2.cu llmc | sed 's/.*"//' | sort -u | while read -r name; do
        grep -q "[\`$]${name}[\`=]" "${documents[@]}" || echo "no page names $name"
    done
)"
end_tests
