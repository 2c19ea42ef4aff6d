#!/bin/sh
# deb.sh - make Debian packages of this tree in build/deb, for `make deb`
#
#   shardkit         the tools that need neither MPI nor a GPU, ops/, man pages, completion
#   libshardkit1, libshardkit-dev   the library of shardkit.h, and the header
#   shardkit-train   train
#   shardkit-cuda    the kernels that train loads if an NVIDIA driver is present; built if nvcc is found
# The script needs dpkg-dev and debhelper. The version is that of the file VERSION.
set -eu
cd "$(dirname "$0")/../.."
for program in dpkg-buildpackage dh; do
    command -v $program >/dev/null || { echo "deb: no $program here: apt-get install dpkg-dev debhelper" >&2; exit 1; }
done
version=$(cat VERSION)
# All files get the time of the source, so that two builds of one tree give the same package: dpkg-deb sets back only
# those that are newer, and a checkout has older ones.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
tree=build/deb/shardkit-$version
rm -rf build/deb
mkdir -p "$tree"
{ git ls-files -co --exclude-standard 2>/dev/null || find . -type f ! -path './build/*' ! -path './bin/*'; } |
    tar -cf - -T - | tar -xf - -C "$tree"
cp -R ops/packaging/debian "$tree/debian"
{
    echo "shardkit ($version) unstable; urgency=medium"
    echo
    echo "  * As built by make deb; the history is the repository's."
    echo
    echo " -- shardkit maintainers <maintainers@shardkit.invalid>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
} >"$tree/debian/changelog"
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
(cd "$tree" && dpkg-buildpackage -b -us -uc ${DEB_FLAGS:-}) >build/deb/log 2>&1 || {
    tail -n 20 build/deb/log >&2
    echo "deb: dpkg-buildpackage failed; all it said is in build/deb/log" >&2
    exit 1
}
ls build/deb/*.deb
