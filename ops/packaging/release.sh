#!/bin/sh
# release.sh [ARCH...] - make the files of a release in dist/, for `make release`
#
#   shardkit-V-linux-ARCH.tar.zst   the static program and links, train, man pages, completion, docs, licences
#   shardkit-V-*_ARCH.whl           the same for pip, with the Python module
#   shardkit-V-1.ARCH.rpm           the same for RPM, if rpmbuild is there
#   *.deb                           those of `make deb` (DEB=0 omits them)
#   shardkit-V-linux-ARCH.spdx.json the bill of materials
#   SHA256SUMS
# `make all`, and `make static` for each ARCH, must have been run. V is that of the file VERSION. All times are that of the last commit
# (SOURCE_DATE_EPOCH), so equal sources and tools give equal files. Needs zstd and python3.
set -eu
export LC_ALL=C TZ=UTC
umask 022
cd "$(dirname "$0")/../.."
version=$(cat VERSION)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
COMMIT=${COMMIT:-$(git rev-parse --short=12 HEAD)}
export SOURCE_DATE_EPOCH COMMIT
arches=${*:-$(uname -m)}
lists=ops/packaging/static/sources.list
for program in zstd python3; do
    command -v $program >/dev/null || { echo "release: no $program here: apt-get install $program" >&2; exit 1; }
done
rm -rf dist build/release-stage
mkdir -p dist build/release-stage

# Copy the licences of what is linked into a folder, one file per part.
copy_licences() { # ARCH FOLDER
    mkdir -p "$2"
    awk '$1 == "package" && $2 != "cmocka" { print $2, $5 }' $lists | while read -r name file; do
        cp "build/static-$1/src/$name/$file" "$2/$name"
    done
    awk '$1 == "linked" { print $2 }' $lists | while read -r name; do
        # The folder of a -dev package may be a link to that of the shared library, which this machine has.
        copyright=build/static-$1/sysroot/usr/share/doc/$name/copyright
        [ -e "$copyright" ] || copyright=/usr/share/doc/$name/copyright
        cp "$copyright" "$2/${name%-dev}"
    done
    cp /usr/share/doc/libc6-dev/copyright "$2/glibc"
    cp "/usr/share/doc/libgcc-$(gcc -dumpversion)-dev/copyright" "$2/gcc"
    cat >"$2/README" <<'TEXT'
The program is linked statically with the libraries that this folder names. glibc is under the LGPL: the source of
shardkit is public, and `make static` links it with another glibc.
TEXT
}

# Lay a release's files out in a folder, as below /usr.
stage() { # ARCH FOLDER
    static=build/static-$1/bin doc=$2/share/doc/shardkit
    [ -x "$static/shardkit" ] || { echo "release: no $static/shardkit: make static ARCH=$1" >&2; exit 1; }
    mkdir -p "$2/bin" "$2/share/man/man1" "$2/share/bash-completion/completions" "$2/share/zsh/site-functions" \
        "$2/share/fish/vendor_completions.d" "$doc" "$2/share/shardkit"
    cp -P "$static"/* "$2/bin"
    # The scripts are the same for every architecture. That of shardkit contains those of all tools, train included, so
    # the normal programs print them.
    for link in "$static"/*; do
        tool=${link##*/}
        "bin/$tool" --completion bash >"$2/share/bash-completion/completions/$tool"
        "bin/$tool" --completion zsh >"$2/share/zsh/site-functions/_$tool"
        "bin/$tool" --completion fish >"$2/share/fish/vendor_completions.d/$tool.fish"
        cp "docs/$tool.1" "$2/share/man/man1"
    done
    cp README.md LICENSE CHANGELOG.md SECURITY.md docs/*.md "$doc"
    copy_licences "$1" "$doc/licenses"
    cp -R ops rules "$2/share/shardkit"
    rm -rf "$2/share/shardkit/ops/packaging"
    find "$2" -type d -exec chmod 755 {} +
    # Modes are those of the release, not of the umask of the build.
    find "$2" -type f ! -perm -100 -exec chmod 644 {} +
    find "$2" -type f -perm -100 -exec chmod 755 {} +
    find "$2" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

pack_rpm() { # ARCH FOLDER
    rpmbuild -bb --quiet --target "$1" --define "_topdir $PWD/build/release-stage/rpm" --define "release_version $version" \
        --define "stage $PWD/$2" --define '_buildhost shardkit' --define 'use_source_date_epoch_as_buildtime 1' \
        --define 'clamp_mtime_to_source_date_epoch 1' --define '_binary_payload w19.zstdio' --define '_build_id_links none' \
        ops/packaging/shardkit.spec >build/release-stage/rpm.log 2>&1 ||
        { tail -n 20 build/release-stage/rpm.log >&2; echo "release: rpmbuild failed" >&2; exit 1; }
    mv build/release-stage/rpm/RPMS/"$1"/*.rpm dist/
}

for arch in $arches; do
    name=shardkit-$version-linux-$arch
    stage "$arch" "build/release-stage/$name"
    tar -cf - -C build/release-stage --sort=name --format=gnu --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" "$name" | zstd -q -19 -T1 -o "dist/$name.tar.zst"
    LIBRARIES=build/static-$arch/lib python3 ops/packaging/wheel.py "$version" "$arch" "build/release-stage/$name" dist \
        >/dev/null
    python3 ops/packaging/sbom.py "$version" "$arch" "build/static-$arch/linked" >"dist/$name.spdx.json"
    if command -v rpmbuild >/dev/null; then
        pack_rpm "$arch" "build/release-stage/$name"
    else
        echo "release: no rpmbuild here (apt-get install rpm): no RPM package" >&2
    fi
done
if [ "${DEB:-1}" != 0 ]; then
    sh ops/packaging/deb.sh >/dev/null
    find build/deb -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*' -exec cp {} dist/ \;
fi
(cd dist && sha256sum -- * >SHA256SUMS)
(cd dist && ls -l)
