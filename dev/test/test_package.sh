#!/usr/bin/env bash
# Packaging: the version number.   TRAIN_GPT2=./train_gpt2 dev/test/test_package.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

trainer=$(realpath "${TRAIN_GPT2:-./train_gpt2}")
folder=$(mktemp -d)
out=$folder/out
trap 'rm -rf "$folder"' EXIT
has() { grep -qF -- "$1" "$2" || echo "$2 lacks '$1'"; }

# ---- the version number

constant() { sed -n "s/^#define $1 \"\(.*\)\"/\1/p" llmc/run/version.h; }
version=$(constant TRAIN_GPT2_VERSION) date=$(constant TRAIN_GPT2_DATE)
"$trainer" --version >"$out" 2>&1
report "--version begins with the version of llmc/run/version.h" "$(
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
report "CITATION.cff: this version and its day" "$(
    has "version: $version" CITATION.cff
    has "date-released: $date" CITATION.cff
    ! command -v cffconvert >/dev/null || cffconvert --validate >/dev/null 2>&1 || echo "cffconvert finds it invalid"
)"

end_tests
