#!/usr/bin/env bash
# Packaging: the version number, `make install`, the Dockerfile, and the workflow. No container is built, and the
# workflow is not run.
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAIN_GPT2:-./train_gpt2}")
make_scratch

version=$(sed -n 's/^version: //p' CITATION.cff) date=$(sed -n 's/^date-released: //p' CITATION.cff)
report "one version, and one date of it: in CITATION.cff, in --version, and in CHANGELOG.md after Unreleased" "$(
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || echo "found version '$version'"
    equal "$(date -d "$date" +%F 2>&1)" "$date"
    matches <("$trainer" --version) "^train_gpt2 $version: "
    equal "$(grep '^## ' CHANGELOG.md | head -n 2)" "## [Unreleased]"$'\n'"## [$version] - $date"
    ! grep '^### ' CHANGELOG.md | grep -vxE '### (Added|Changed|Deprecated|Removed|Fixed|Security)'
)"

# ---- make install

# made WORD...: runs make with these words
made() { env -u MAKEFLAGS -u MAKELEVEL -u PREFIX -u DESTDIR make --no-print-directory "$@" 2>&1; }
prefix="$scratch/Alice's [new] prefix"
if [ -x train_gpt2 ]; then
    report "make install compiles nothing; the installed program and script work" "$(
        before=$(stat -c %Y%i train_gpt2)
        equal "$(made install PREFIX="$prefix" CFLAGS=-O0)" "installed $prefix/bin/train_gpt2, scripts and documents"
        equal "$(stat -c %Y%i train_gpt2)" "$before"
        same train_gpt2 "$prefix/bin/train_gpt2"
        find "$prefix" -type f -not -perm -444
        for file in {README.md,LICENSE,doc/training.md}; do same "$file" "$prefix/share/doc/train_gpt2/$file"; done
        mkdir "$scratch/here" && cd "$scratch/here" || exit
        says <(DEVICE=cpu DATA=nothing "$prefix/share/train_gpt2/scripts/run_gpt2_124M.sh" 2>&1) \
            "no file matches 'nothing/"
        says <("$prefix/share/train_gpt2/scripts/follow.py" --help) "--tensorboard"
    )"
    report "make uninstall leaves no file of the program, and files of others" "$(
        touch "$prefix/share/train_gpt2/mine"
        made uninstall PREFIX="$prefix" >/dev/null
        equal "$(cd "$prefix" && find . -type f -o -path './share/doc/*')" ./share/train_gpt2/mine
    )"
else
    skip ./train_gpt2 2 "make install"
fi

# ---- Dockerfile

# one instruction a line
sed -e ':joined' -e '/\\$/{N;s/\\\n//;b joined' -e '}' Dockerfile | grep -E '^[A-Z]+ ' >"$scratch/instructions"
report "Dockerfile: every file copied exists, and every stage named is there" "$(
    stages=" $(sed -nE 's/^FROM .* AS ([a-z-]+)$/\1/p' "$scratch/instructions" | xargs) "
    while read -r _ words; do
        read -ra words <<<"$words"
        if [[ ${words[0]} == --from=* ]]; then
            [[ $stages == *" ${words[0]#*=} "* ]] || echo "there is no stage ${words[0]#*=}"
            continue
        fi
        for source in "${words[@]::${#words[@]}-1}"; do
            [ -e "$source" ] || echo "there is no $source"
            ! grep -qxF "$source" .dockerignore || echo ".dockerignore leaves out $source"
        done
    done < <(grep '^COPY ' "$scratch/instructions")
    [[ $stages == *" cuda cpu " ]] || echo "the last stages are not cuda and cpu: $stages"
)"
report "Dockerfile: every command is a shell's, and its make knows the targets" "$(
    while read -r _ command; do sh -n -c "$command" 2>&1; done < <(grep '^RUN ' "$scratch/instructions")
    made -n DEVICE=cpu ARCH=portable train_gpt2 install PREFIX=/usr/local DESTDIR=/installed >"$scratch/said" ||
        tail -n 3 "$scratch/said"
)"
# ---- the workflow

report "the workflow: its scripts and their words, and its targets of make, are there" "$(
    made -npr help >"$scratch/rules"
    sed -nE 's/^ *(- run: |run: )?(make|scripts\/[a-z_]+\.sh)( ([a-z-]+))?$/\2 \4/p' .github/workflows/test.yml |
        tee "$scratch/commands" | while read -r program word; do
            case $program in
            make) grep -qE "^${word:-all}:" "$scratch/rules" || echo "the Makefile has no target $word" ;;
            *) [ -x "$program" ] && grep -qw "$word" "$program" || echo "there is no $program $word" ;;
            esac
        done
    equal "$(wc -l <"$scratch/commands") commands" "6 commands"
)"

end_tests
