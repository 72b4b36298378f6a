#!/usr/bin/env bash
# README's first commands on a minimal Debian 12 of debootstrap: as root, as a user with sudo, and as a user without
# rights, who gets a line for an administrator.   dev/test/fresh_machine.sh [--whole]
#   --whole   `make train` and `make test` run to their ends, as root; each command's minutes and megabytes are printed.
#             Without it a model trains for two seconds, and the tests are those of CRC-32C
# README's first block has the commands. A copy of this tree stands for URL. Debian and its packages come from the
# mirror of this machine's apt, through its proxy. build/debian keeps the base system, and without --whole the packages.
# Needs root, and is skipped where debootstrap, chroot or the mirror fails.
. "$(dirname "$0")/harness.sh"

whole=$([ "${1:-}" = --whole ] && echo yes)
base=$PWD/build/debian/base packages=$PWD/build/debian/packages machine=$PWD/build/debian/machine
out=$PWD/build/debian/out
stop() { skip "$1" 7 && exit 0; }

# ---- the base system

[ -x /usr/sbin/debootstrap ] || stop debootstrap
{ [ "$(id -u)" -eq 0 ] && unshare --mount chroot / true; } 2>/dev/null || stop "root, chroot and a mount namespace"
git rev-parse HEAD >/dev/null 2>&1 || stop "a checkout of git"
# lines such as `http://mirror/debian/ bookworm bookworm Debian`
# shellcheck disable=SC2016  # apt-get expands
targets=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(CODENAME) $(LABEL)' 'Created-By: Packages' 2>&1 |
    grep -E ' bookworm(-updates|-security)? Debian(-Security)?$' | sort -u)
mirror=$(sed -n 's/ .* bookworm Debian$//p' <<<"$targets" | head -n 1)
[ -n "$mirror" ] || stop "a mirror of Debian 12 among apt's sources"
mkdir -p "$packages/partial"
if [ ! -d "$base" ]; then
    rm -rf "$base.part"
    proxy=$(apt-config dump Acquire::http::Proxy | sed -n 's/^[^ ]* "\(.*\)";$/\1/p')
    env ${proxy:+"http_proxy=$proxy"} debootstrap --variant=minbase bookworm "$base.part" "$mirror" >"$out" 2>&1 ||
        stop "a working debootstrap ($(tail -n 1 "$out"))"
    chroot "$base.part" apt-get clean
    sed -E 's/^([^ ]*) ([^ ]*) .*/deb \1 \2 main/' <<<"$targets" >"$base.part/etc/apt/sources.list"
    apt-config dump | grep -E '^Acquire::(http|https|Check|ForceIP)' >"$base.part/etc/apt/apt.conf.d/99host"
    mv "$base.part" "$base"
fi

# ---- a machine

trap 'rm -rf --one-file-system "$machine"' EXIT
# new_machine USER: an empty machine, with the tree of USER in /source
new_machine() {
    rm -rf --one-file-system "$machine"
    cp -a "$base" "$machine" && cp -L /etc/resolv.conf /etc/hosts "$machine/etc" && mkdir "$machine/source" &&
        git ls-files -coz --exclude-standard | tar -c --null -T - --ignore-failed-read 2>/dev/null |
        tar -x -C "$machine/source"
    git -C "$machine/source" init -q && git -C "$machine/source" add -A &&
        git -C "$machine/source" -c user.name=nobody -c user.email=nobody@example.com commit -qm tree
    [ "$1" = root ] || chroot "$machine" useradd --create-home "$1" || echo "there is no user $1"
    chroot "$machine" chown -R "$1" /source
}
# inside USER COMMAND: runs a command line at home, without a terminal; its output is in $out
inside() {
    # shellcheck disable=SC2016  # the inner shells expand
    env -i TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="/$([ "$1" = root ] || echo home/)$1" \
        TRAIN_SECONDS="${seconds:-}" ${seconds:+OMP_NUM_THREADS=1} ${flags:+"CFLAGS=$flags"} unshare --mount bash -c '
            set -e
            mount -t proc proc "$1/proc"
            for at in dev sys; do mount --rbind /$at "$1/$at"; done
            [ -z "$4" ] || mount --bind "$4" "$1/var/cache/apt/archives"
            exec chroot --userspec="$2" "$1" bash -c "cd && $3"' - "$machine" "$1" "$2" \
        "$([ -n "$whole" ] || echo "$packages")" >"$out" 2>&1 </dev/null
}
works() { inside "$@" || echo "exit status $?: $2"; }

# ---- README's commands

# one command a line, without comments; a line that ends in && goes on
mapfile -t commands < <(awk '/^## Two commands/ { section = 1 } section && /^```sh/ { code = 1; next }
    code && /^```/ { exit } code' README.md | sed -E 's/ +#.*//' | sed -e ':a' -e '/&&$/{N;s/\n */ /;ba' -e '}')
get=${commands[0]//URL//source}
test=${commands[2]:-}
[ -n "$whole" ] || { test=${test/make test/make test-quick OP=crc32c} && seconds=2; }
report "README has a line that gets git, make and the sources, then make train and make test" "$(
    matches <(echo "$get") '^.* git clone /source train_gpt2 && cd train_gpt2$'
    equal "${commands[*]:1}" "make train make test"
)"
new_machine root
if ! inside root "apt-get update" || grep -q '^[EW]:' "$out"; then stop "a mirror that a new machine reaches"; fi
new_machine root

# measured COMMAND: with --whole, prints how long it took, and the megabytes of packages that it fetched
began=$SECONDS had=0
measured() {
    [ -n "$whole" ] || return 0
    local took=$((SECONDS - began)) has
    has=$(cat "$machine"/var/cache/apt/archives/*.deb | wc -c)
    printf '   %s: %d s, %d MB; the last line is:\n   %s\n' "$1" $took $(((has - had) / 1000000)) \
        "$(tail -n 1 "$out")"
    began=$SECONDS had=$has
}
# trained: the first line is that of setup.sh, with none of make's before it; the model has spoken at the end
trained() {
    matches <(head -n 1 "$out") '^setup: '
    sed '/^The model in its own words:/,$d' "$out" >"$out.before"
    lacks "$out.before" 'command not found|No such file|rror|assword'
    says "$out" "The model in its own words:"
    matches <(tail -n 1 "$out") '^generate +\./train_gpt2 --generate 400 -e runs/kjv-1 '
}
report "root: the first line" "$(works root "$get && ls train_gpt2.cu")"
measured "the first line"
report "root: make train installs, builds, trains and prints a text" "$(
    works root "cd train_gpt2 && ${commands[1]}"
    trained
)"
measured "make train"
report "root: make test installs what it needs, builds, and passes" "$(
    works root "cd train_gpt2 && $test"
    lacks "$out" 'command not found|No such file'
    matches <(tail -n 1 "$out") '^[0-9]+ passed, 0 failed$'
)"
measured "make test"

seconds=2 flags="-O1 -march=native -w" # compiles in a third of the time
report "a user with sudo: the first line, then make train" "$(
    new_machine user
    works root "apt-get update && apt-get install -y --no-install-recommends sudo"
    echo "user ALL=(ALL) NOPASSWD: ALL" >"$machine/etc/sudoers.d/user"
    works user "$get"
    works user "cd train_gpt2 && ${commands[1]}"
    trained
)"
new_machine user
report "a user without rights: make train ends with a line for an administrator" "$(
    works root "${get%% && git clone*}"
    works user "git clone${get##*git clone}"
    inside user "cd train_gpt2 && ${commands[1]}" && echo "exit status 0"
    says "$out" "setup: installing takes root, and there is no sudo; as root, run this line, which"
    matches <(tail -n 2 "$out") '^apt-get update && apt-get install -y --no-install-recommends .* libcjson-dev '
    grep '^apt-get' "$out" >"$machine/line"
)"
report "and after that line, make train works" "$(
    works root "$(cat "$machine/line")"
    works user "cd train_gpt2 && ${commands[1]}"
    matches <(tail -n 1 "$out") '^generate '
)"
end_tests
