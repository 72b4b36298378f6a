#!/usr/bin/env bash
# Installs the program and its files, or removes them:   scripts/install.sh install|uninstall
# `make install` and `make uninstall` call this script, with their variables in the environment:
#   PREFIX   /usr/local; the folder of bin/ and share/
#   DESTDIR  empty; a folder in front of PREFIX, for packages
#   PROGRAM  ./train_gpt2, which is installed as it is: nothing is compiled
#   DOCDIR and ZSHDIR are the folders of the documentation and of zsh's functions, relative to PREFIX
set -euo pipefail
cd "$(dirname "$0")/.."

action=${1:-} to=${DESTDIR:-}${PREFIX:=/usr/local} program=${PROGRAM:-./train_gpt2}
documents=${DOCDIR:-share/doc/train_gpt2} zsh=${ZSHDIR:-share/zsh/site-functions} share=share/train_gpt2
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

printed=$(mktemp -d)
trap 'rm -rf "$printed"' EXIT
for shell in '' bash zsh; do
    [ "$action" = uninstall ] || "$program" "--manual${shell:+=$shell}" >"$printed/${shell:-man}"
done

put 755 "$program" bin/train_gpt2
put 644 "$printed/man" share/man/man1/train_gpt2.1
put 644 "$printed/bash" share/bash-completion/completions/train_gpt2
put 644 "$printed/zsh" "$zsh/_train_gpt2"
for file in scripts/plot.html scripts/run_metrics.py; do put 644 "$file" "$share/$file"; done
for file in scripts/{plot,follow,scale}.py scripts/get_data.sh scripts/run_gpt2*.sh; do
    put 755 "$file" "$share/$file"
done
for file in README.md CHANGELOG.md CITATION.cff LICENSE doc/*; do put 644 "$file" "$documents/$file"; done

if [ "$action" = install ]; then
    echo "installed $to/bin/train_gpt2, its man page, completions, scripts and documents"
else
    for folder in "$to/$share" "$to/$documents"; do
        [ ! -d "$folder" ] || find "$folder" -depth -type d -empty -delete
    done
    echo "removed $to/bin/train_gpt2 and the files installed with it"
fi
