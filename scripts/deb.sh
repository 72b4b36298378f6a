#!/usr/bin/env bash
# Packs the program as a Debian package:   scripts/deb.sh PROGRAM FOLDER
# `make deb` calls this script. FOLDER gets train-gpt2_VERSION-1_ARCHITECTURE.deb; the last line of the output is its
# path. MAINTAINER names the packager, as "Name <address>". Needs dpkg-dev and help2man, and no root.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -ne 2 ] || [ ! -x "$1" ]; then
    echo "deb.sh: expected a program that make has built and a folder; found '$*'" >&2
    exit 2
fi
for tool in dpkg-deb dpkg-shlibdeps strip help2man; do
    if ! command -v $tool >/dev/null; then
        echo "deb.sh: $tool is not installed; install dpkg-dev, binutils and help2man" >&2
        exit 1
    fi
done
program=$1 folder=$2 name=train-gpt2
maintainer=${MAINTAINER:-train_gpt2 authors <train_gpt2@example.com>}
version=$(sed -n 's/^version: //p' CITATION.cff)-1 architecture=$(dpkg --print-architecture)
released=$(date -u -d "$(sed -n 's/^date-released: //p' CITATION.cff)" -R)
SOURCE_DATE_EPOCH=$(date -d "$released" +%s) # the same files give the same package
export SOURCE_DATE_EPOCH
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root documents=$work/root/usr/share/doc/$name
PREFIX=/usr DESTDIR=$root PROGRAM=$program DOCDIR=share/doc/$name scripts/install.sh install >/dev/null
strip --remove-section=.comment --remove-section=.note "$root/usr/bin/train_gpt2"

# ---- the documents that Debian's policy asks for

{
    cat <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: train_gpt2

Files: *
$(sed -n 's/^Copyright (c) /Copyright: /p' LICENSE)
License: Expat
END
    sed '1,/^Copyright/d; 1,/^$/!b' LICENSE | sed '/./,$!d; s/^$/./; s/^/ /'
} >"$documents/copyright"
mv "$documents/CHANGELOG.md" "$documents/changelog"
rm "$documents/LICENSE"
cat >"$documents/changelog.Debian" <<END
$name ($version) unstable; urgency=medium

  * Version ${version%-1}; changelog.gz lists the changes.

 -- $maintainer  $released
END
gzip -9n "$documents/changelog" "$documents/changelog.Debian" "$root/usr/share/man/man1/train_gpt2.1"
mkdir -p "$root/usr/share/lintian/overrides"
cat >"$root/usr/share/lintian/overrides/$name" <<END
# the package is not built from a bug report of Debian's
$name: initial-upload-closes-no-bugs
END

# ---- control

mkdir -p "$root/DEBIAN" "$work/debian"
printf 'Source: %s\n\nPackage: %s\nArchitecture: any\n' $name $name >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O -eroot/usr/bin/train_gpt2 2>"$work/shlibdeps") ||
    { cat "$work/shlibdeps" >&2 && exit 1; }
mpi=
[[ $libraries != *openmpi* ]] || mpi=", openmpi-bin"
cat >"$root/DEBIAN/control" <<END
Package: $name
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f 1)
Depends: ${libraries#shlibs:Depends=}
Recommends: python3$mpi
Suggests: python3-matplotlib
Section: science
Priority: optional
Description: trainer of GPT-2 language models in C
 train_gpt2 trains GPT-2 on a text or on token shards, on one CPU or on many
 ranks through MPI, with ZeRO and tensor parallelism. It prints the memory plan
 of a run beforehand, writes checkpoints that Hugging Face's GPT-2 loads,
 resumes them bit for bit, and generates text.
 .
 Scripts draw plans and losses and start the runs of GPT-2 124M to 1558M.
END
(cd "$root" && find usr -type f -printf '%P\0' | sort -z | sed -z 's,^,usr/,' | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$folder"
package=$folder/${name}_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package"
