#!/usr/bin/env bash
# Installs ./train_gpt2 and its files, or removes them:   scripts/install.sh install|uninstall
# `make install` and `make uninstall` call this script, with their variables in the environment:
#   PREFIX   /usr/local; the folder of bin/ and share/
#   DESTDIR  empty; a folder in front of PREFIX, for packages
set -euo pipefail
cd "$(dirname "$0")/.."

action=${1:-} to=${DESTDIR:-}${PREFIX:=/usr/local} share=share/train_gpt2 documents=share/doc/train_gpt2
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

put 755 train_gpt2 bin/train_gpt2
put 644 scripts/plot.html "$share/scripts/plot.html"
for file in scripts/{plot,follow}.py scripts/get_data.sh scripts/run_gpt2*.sh; do put 755 "$file" "$share/$file"; done
for file in README.md CHANGELOG.md CITATION.cff LICENSE doc/*; do put 644 "$file" "$documents/$file"; done

if [ "$action" = install ]; then
    echo "installed $to/bin/train_gpt2, scripts and documents"
else
    for folder in "$to/$share" "$to/$documents"; do
        [ ! -d "$folder" ] || find "$folder" -depth -type d -empty -delete
    done
    echo "removed $to/bin/train_gpt2 and the files installed with it"
fi
