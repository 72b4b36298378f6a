#!/usr/bin/env bash
# Installs the program and its files, or removes them:   scripts/install.sh install|uninstall
# `make install` and `make uninstall` call this script, with their variables in the environment:
#   PREFIX   /usr/local; the folder of bin/ and share/
#   DESTDIR  empty; a folder in front of PREFIX, for packages
#   PROGRAM  ./train_gpt2, which is installed as it is: nothing is compiled
#   DOCDIR   share/doc/train_gpt2; the folder of the documentation, relative to PREFIX
# help2man makes the man page from --help and --version. Without help2man there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

action=${1:-} to=${DESTDIR:-}${PREFIX:=/usr/local} program=${PROGRAM:-./train_gpt2}
documents=${DOCDIR:-share/doc/train_gpt2} share=share/train_gpt2
if [[ $action != install && $action != uninstall || $PREFIX != /* ]]; then
    echo "install.sh: expected install or uninstall, and an absolute PREFIX; found '$action', PREFIX='$PREFIX'" >&2
    exit 2
fi

# put MODE SOURCE TARGET: installs the file SOURCE as TARGET under PREFIX, or removes TARGET
put() {
    if [ "$action" = install ]; then
        install -D -m "$1" "$2" "$to/$3"
    else
        rm -f "$to/$3"
    fi
}

page=$(mktemp) with_page=yes
trap 'rm -f "$page"' EXIT
if [ "$action" = install ]; then
    version=$("$program" --version | cut -d: -f1)
    help2man --no-info --version-string="${version#* }" --name="train GPT-2 on CPUs and GPUs, and generate text" \
        "$program" >"$page" 2>/dev/null || with_page=
fi

put 755 "$program" bin/train_gpt2
[ -z "$with_page" ] || put 644 "$page" share/man/man1/train_gpt2.1
for file in scripts/plot.html scripts/run_metrics.py; do put 644 "$file" "$share/$file"; done
for file in scripts/{plot,follow,scale}.py scripts/get_data.sh scripts/run_gpt2*.sh; do
    put 755 "$file" "$share/$file"
done
for file in README.md CHANGELOG.md CITATION.cff LICENSE doc/*; do put 644 "$file" "$documents/$file"; done

if [ "$action" = install ]; then
    echo "installed $to/bin/train_gpt2, ${with_page:+its man page, }scripts and documents"
    [ -n "$with_page" ] || echo "there is no man page: help2man, which makes it, is not installed"
else
    for folder in "$to/$share" "$to/$documents"; do
        [ ! -d "$folder" ] || find "$folder" -depth -type d -empty -delete
    done
    echo "removed $to/bin/train_gpt2 and the files installed with it"
fi
