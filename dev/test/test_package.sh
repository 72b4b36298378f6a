#!/usr/bin/env bash
# Packaging: the version number, the man page, `make install`, Debian's package, the Dockerfile, and the workflow. No
# container is built, and the workflow is not run.
#   TRAIN_GPT2=./train_gpt2 dev/test/test_package.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

trainer=$(realpath "${TRAIN_GPT2:-./train_gpt2}")
folder=$(mktemp -d)
out=$folder/out
trap 'rm -rf "$folder"' EXIT
has() { grep -qF -- "$1" "$2" || echo "$2 lacks '$1'"; }

# ---- the version number

version=$(sed -n 's/^version: //p' CITATION.cff) date=$(sed -n 's/^date-released: //p' CITATION.cff)
"$trainer" --version >"$out" 2>&1
report "--version begins with the version of CITATION.cff" "$(
    [[ $(head -c 60 "$out") == "train_gpt2 $version: "* ]] || echo "expected train_gpt2 $version:"
)"
rm -f "$out"
report "the version is three numbers, and the date is a day" "$(
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || echo "found version '$version'"
    [ "$(date -d "$date" +%F 2>&1)" = "$date" ] || echo "found date '$date'"
)"
report "CHANGELOG.md: first Unreleased, then this version and its day" "$(
    found=$(grep '^## ' CHANGELOG.md | head -n 2)
    [ "$found" = "## [Unreleased]"$'\n'"## [$version] - $date" ] || echo "found $found"
)"
report "CHANGELOG.md: the headings are those of Keep a Changelog" "$(
    grep '^### ' CHANGELOG.md | grep -vxE '### (Added|Changed|Deprecated|Removed|Fixed|Security)'
)"
if command -v cffconvert >/dev/null; then
    report "CITATION.cff is valid" "$(cffconvert --validate >/dev/null 2>&1 || echo "cffconvert finds it invalid")"
fi

# ---- make install

# made WORD...: runs make with these words
made() { env -u MAKEFLAGS -u MAKELEVEL -u PREFIX -u DESTDIR make --no-print-directory "$@" 2>&1; }
# files FOLDER: its files and folders, with their modes
files() { (cd "$1" && find . -printf '%P %m %y\n' | sort); }
prefix="$folder/Alice's [new] prefix" stage="$folder/its 'stage'"
mkdir "$folder/here"
if [ -x train_gpt2 ]; then
    before=$(stat -c %Y%i train_gpt2)
    page='' && command -v help2man >/dev/null && page="its man page, "
    report "make install, as it is and once more, compiles nothing" "$(
        said=$(made install PREFIX="$prefix" CFLAGS=-O0)
        [[ $said == "installed $prefix/bin/train_gpt2, ${page}scripts and documents"* ]] || echo "it said $said"
        files "$prefix" >"$folder/first"
        made install PREFIX="$prefix" >/dev/null
        files "$prefix" | diff "$folder/first" -
        [ "$(stat -c %Y%i train_gpt2)" = "$before" ] || echo "./train_gpt2 is another file"
        cmp train_gpt2 "$prefix/bin/train_gpt2" 2>&1
    )"
    report "the installed program, scripts and documents, and a man page that names every flag" "$(
        cd "$prefix" || exit
        [[ $(bin/train_gpt2 --version) == "train_gpt2 $version: "* ]] || echo "no version"
        for file in share/doc/train_gpt2/{README.md,LICENSE,doc/training.md}; do
            [ -s "$file" ] || echo "$file is missing"
        done
        for flag in $(bin/train_gpt2 --help | grep -oE '^  (-[a-z]+)? +--[a-z0-9-]+|^  -[a-z]+' |
            grep -oE -- '-[a-z0-9-]+'); do
            [ -z "$page" ] || has "${flag//-/\\-}" share/man/man1/train_gpt2.1
        done
        find . -type f -not -perm -444
        cd "$folder/here" || exit
        run=$(DEVICE=cpu DATA=nothing "$prefix/share/train_gpt2/scripts/run_gpt2_124M.sh" 2>&1)
        [[ $run == *"no file matches 'nothing/"* ]] || echo "run_gpt2_124M.sh said $run"
        found=$(PATH="$prefix/bin:$PATH" "$prefix/share/train_gpt2/scripts/scale.py" -e d12 -b 1 --ms 1 \
            --gpus 1 2>&1)
        [[ $found == *"| 1 | "* ]] || echo "scale.py said $found"
    )"
    report "make uninstall leaves no file of the program, and files of others" "$(
        touch "$prefix/share/train_gpt2/mine"
        made uninstall PREFIX="$prefix" >/dev/null
        [ "$(cd "$prefix" && find . -type f)" = ./share/train_gpt2/mine ] || find "$prefix" -type f
        [ ! -e "$prefix/share/doc/train_gpt2" ] || echo "share/doc/train_gpt2 is left"
    )"
    report "DESTDIR stands in front of PREFIX" "$(
        made install PREFIX=/usr DESTDIR="$stage" >/dev/null
        [ -x "$stage/usr/bin/train_gpt2" ] || find "$stage"
        said=$(made install PREFIX=usr DESTDIR="$stage") && echo "a relative PREFIX is accepted"
        [[ $said == *"expected install or uninstall, and an absolute PREFIX; found 'install', PREFIX='usr'"* ]] ||
            echo "it said $said"
    )"
    other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null && "${other[@]}" test -x train_gpt2; then
        theirs=$(mktemp -d /tmp/train_gpt2_theirs.XXXXXX) # another user cannot enter the folder of the tests
        chown 65534 "$theirs"
        report "a user without root installs into a PREFIX of theirs" "$(
            TMPDIR=$theirs PREFIX=$theirs/prefix "${other[@]}" scripts/install.sh install 2>&1 | grep -v '^installed '
            [ -x "$theirs/prefix/bin/train_gpt2" ] || echo "there is no program"
        )"
        rm -rf "$theirs"
    else
        skip "setpriv as root, and a folder that others can read" 1 "make install without root"
    fi
else
    skip ./train_gpt2 5 "make install"
fi

# ---- the Debian package. The build's own program is packed, since compiling another takes half a minute

package='' trouble=''
if ! command -v dpkg-shlibdeps >/dev/null || ! command -v help2man >/dev/null; then
    trouble="dpkg-dev and help2man"
elif [[ $("$trainer" --version) == *"devices "*cuda* ]]; then
    trouble="a build for a CPU, since packages lack CUDA's libraries"
else
    scripts/deb.sh "$trainer" "$folder/deb" >"$out" 2>&1 && package=$(tail -n 1 "$out")
    report "deb.sh packs the program" "$([ -f "$package" ] || echo "there is no package")"
    rm -f "$out"
fi
[ -z "$trouble" ] || skip "$trouble" 5 "the Debian package"
if [ -f "$package" ]; then
    report "the package: name, version, architecture, and a dependency for every library" "$(
        wanted="train-gpt2 $version-1 $(dpkg --print-architecture)"
        # shellcheck disable=SC2016  # dpkg-deb expands them
        found=$(dpkg-deb -W --showformat '${Package} ${Version} ${Architecture}' "$package")
        [ "$found" = "$wanted" ] || echo "found $found, expected $wanted"
        depends=$(dpkg-deb -f "$package" Depends)
        libraries="libc6 libcjson1 lib(gomp1|omp5)"  # gcc's OpenMP, or clang's
        [[ $("$trainer" --version) != *"MPI ("* ]] || libraries+=" libopenmpi"
        for library in $libraries; do [[ $depends =~ $library ]] || echo "$library is missing in $depends"; done
    )"
    report "the same program gives the same package" "$(
        scripts/deb.sh "$trainer" "$folder/again" >/dev/null && cmp "$package" "$folder"/again/*.deb 2>&1
    )"
    mkdir -p "$folder/root"
    if [ "$(id -u)" -eq 0 ]; then
        report "dpkg installs it into a root of its own, and finds every file as packed" "$(
            admin=$folder/root/var/lib/dpkg
            mkdir -p "$admin"/{info,updates,triggers} && touch "$admin/status"
            dpkg --root="$folder/root" --log=/dev/null --force-depends -i "$package" >"$folder/dpkg" 2>&1 ||
                cat "$folder/dpkg"
            dpkg --root="$folder/root" --verify train-gpt2 2>&1
            echo >>"$folder/root/usr/share/doc/train-gpt2/README.md"
            [ -n "$(dpkg --root="$folder/root" --verify train-gpt2)" ] || echo "a changed file is not noticed"
        )"
    else
        dpkg -x "$package" "$folder/root"
    fi
    report "the packed program: version, training, text" "$(
        cd "$folder/here" || exit
        program=$folder/root/usr/bin/train_gpt2
        [[ $("$program" --version) == "train_gpt2 $version: "* ]] || echo "no version"
        "$program" -i "$OLDPWD/LICENSE" -e l1h1c8 -b 1 -t 8 -x 2 -n 2 -v 0 -s 0 -o run >"$folder/run" 2>&1 ||
            cat "$folder/run"
        "$program" --generate 5 -e run >"$folder/run" 2>&1 || cat "$folder/run"
    )"
    report "documents: copyright, both changelogs, and a compressed man page" "$(
        documents=$folder/root/usr/share/doc/train-gpt2
        has "License: Expat" "$documents/copyright"
        zcat "$documents/changelog.gz" | cmp - CHANGELOG.md 2>&1
        [[ $(zcat "$documents/changelog.Debian.gz") == "train-gpt2 ($version-1) "* ]] || echo "no changelog of Debian's"
        [ -s "$folder/root/usr/share/man/man1/train_gpt2.1.gz" ] || echo "no man page"
    )"
    if command -v lintian >/dev/null; then
        report "lintian finds no error and no warning" "$(lintian --allow-root --no-cfg "$package" 2>&1)"
    else
        skip lintian 1 "the Debian package"
    fi
fi

# ---- Dockerfile

# one instruction a line
sed -e ':joined' -e '/\\$/{N;s/\\\n//;b joined' -e '}' Dockerfile | grep -E '^[A-Z]+ ' >"$folder/instructions"
report "Dockerfile: every file copied exists, and every stage named is there" "$(
    stages=" $(sed -nE 's/^FROM .* AS ([a-z-]+)$/\1/p' "$folder/instructions" | xargs) "
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
    done < <(grep '^COPY ' "$folder/instructions")
    [[ $stages == *" cuda cpu " ]] || echo "the last stages are not cuda and cpu: $stages"
)"
report "Dockerfile: every command is a shell's, and its make knows the targets" "$(
    commands=0
    while read -r _ command; do
        sh -n -c "$command" 2>&1
        commands=$((commands + 1))
    done < <(grep '^RUN ' "$folder/instructions")
    [ $commands -gt 4 ] || echo "$commands commands"
    made -n DEVICE=cpu ARCH=portable train_gpt2 install PREFIX=/usr/local DESTDIR=/installed >"$folder/said" ||
        tail -n 3 "$folder/said"
)"
mapfile -t packages < <(sed -nE 's/.*--no-install-recommends (.*) && rm .*/\1/p' "$folder/instructions" |
    grep -oE '[^ ]+' | sort -u)
if grep -qx 'ID=debian' /etc/os-release && [[ -n $(apt-cache show make 2>/dev/null) ]]; then
    report "Dockerfile: every package exists in Debian" "$(
        [ ${#packages[@]} -gt 9 ] || echo "found ${packages[*]}"
        for name in "${packages[@]}"; do
            [ -n "$(apt-cache show "$name" 2>/dev/null)" ] || echo "there is no package $name"
        done
    )"
else
    skip "apt's package lists of Debian" 1 "the Dockerfile's packages"
fi
if command -v hadolint >/dev/null; then
    report "hadolint finds nothing" "$(hadolint Dockerfile 2>&1)"
else
    skip hadolint 1 Dockerfile
fi

# ---- the workflow

workflow=.github/workflows/test.yml
report "the workflow: every script exists, and make has every target" "$(
    made -npr help >"$folder/rules"
    found=0
    while read -r program word _; do
        found=$((found + 1))
        case $program in
        make) grep -qE "^${word:-all}:" "$folder/rules" || echo "the Makefile has no target $word" ;;
        scripts/*)
            [ -x "$program" ] || echo "there is no $program"
            grep -qE "^.*\b$word( \||\))" "$program" || echo "$program has no $word"
            ;;
        apt-get | git) ;;
        *) echo "no command that this test knows: $program $word" ;;
        esac
    done < <(awk '/^ *(- )?run: \|/ { match($0, /^ */); depth = RLENGTH; inside = 1; next }
                  /^ *(- )?run: / { sub(/^ *(- )?run: /, ""); print; next }
                  inside { match($0, /^ */); if (RLENGTH <= depth) inside = 0; else print }' $workflow)
    [ $found -ge 7 ] || echo "$found commands"
)"
python=python3
$python -c 'import yaml' 2>/dev/null || python=/usr/bin/python3 # python3 may be an environment without it
if $python -c 'import yaml' 2>/dev/null; then
    report "the workflow is YAML, with steps that run or use something" "$(
        $python 2>&1 -c '
import sys, yaml
jobs = yaml.safe_load(open(sys.argv[1]))["jobs"]
for name, job in jobs.items():
    for step in job["steps"]:
        if ("run" in step) == ("uses" in step) or set(step) - {"name", "run", "uses", "with"}:
            print(name, step)' $workflow
    )"
else
    skip python3-yaml 1 "the workflow"
fi
if command -v actionlint >/dev/null; then
    report "actionlint finds nothing" "$(actionlint $workflow 2>&1)"
else
    skip actionlint 1 "the workflow"
fi

end_tests
