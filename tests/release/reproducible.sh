#!/bin/sh
# reproducible.sh - `make release` in two clones of this commit gives the same bytes in every file
#
# The clones lie in folders of other names and lengths and are built with another umask, time zone, language, number of
# jobs and age of the files, without a compiler's cache. ARCHES and DEB are those of `make release`. Two whole releases take an hour of
# processor time, so the script runs only with REPRODUCIBLE=1. FIRST and SECOND name releases (dist folders) that are
# there already and only have to be compared.
export LC_ALL=C
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh || exit 1

if [ -z "${FIRST:-}" ]; then
    [ -n "${REPRODUCIBLE:-}" ] || skip "reproducible: two releases take an hour: REPRODUCIBLE=1"
    for program in git zstd python3 autoreconf dpkg-source; do
        command -v $program >/dev/null || skip "reproducible: no $program"
    done
fi

# Clone into a folder and run `make release` there. Sources that are downloaded already are copied. The files get a time of
# their own, because a checkout may be older than its last commit.
release() { # FOLDER UMASK TIME ENVIRONMENT...
    folder=$1 mask=$2 time=$3
    shift 3
    git clone -q . "$folder" && mkdir "$folder/build" || return 1
    find "$folder" -path "$folder/.git" -prune -o -type f -exec touch -d "$time" {} + || return 1
    [ ! -d build/static-sources ] || cp -R build/static-sources "$folder/build/" || return 1
    (cd "$folder" && umask "$mask" && env -u MAKEFLAGS CCACHE_DISABLE=1 "$@" make release CUDA=0 \
        ${ARCHES:+"ARCHES=$ARCHES"} ${DEB:+"DEB=$DEB"})
}

if [ -z "${FIRST:-}" ]; then
    check "the first release" release "$W/first" 022 2020-02-29 TZ=UTC LANG=C JOBS=1 MAKEFLAGS=
    check "the second release" release "$W/a/second/folder-of-a-longer-name" 077 now TZ=Asia/Kathmandu LANG=de_DE.UTF-8 \
        JOBS=2 MAKEFLAGS=-j2
    FIRST=$W/first/dist SECOND=$W/a/second/folder-of-a-longer-name/dist
fi
(cd "$FIRST" && ls) >"$W/first.names"
(cd "$SECOND" && ls) >"$W/second.names"
check "a release has files" test -s "$W/first.names"
check "the same names" diff "$W/first.names" "$W/second.names"
while read -r name; do
    check "$name" cmp "$FIRST/$name" "$SECOND/$name"
done <"$W/first.names"
finish
