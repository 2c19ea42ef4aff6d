#!/bin/sh
# libraries.sh ARCH [cmocka] - build the static libraries of ARCH (x86_64, aarch64) in build/static-ARCH/prefix,
# for `make static`; with cmocka, also the library of the unit tests
#
# HDF5, libarchive and ISA-L are compiled from the source packages of sources.list, with Debian's patches and only the
# features that the tools use: no curl, krb5, ldap, acl or xml2. Every other library is the .a file of Debian's -dev
# package; the packages are unpacked into build/static-ARCH/sysroot, so nothing is installed and root is not needed.
# The mirrors are those of this machine: SOURCES, else /etc/apt/sources.list and sources.list.d/debian.sources. apt's
# lists and caches are private, in build/static-apt-ARCH. Files stay in build/static-sources between builds.
# Needs apt, dpkg-dev, autoconf, automake, libtool and, for x86_64, nasm; for aarch64, gcc-aarch64-linux-gnu,
# libc6-dev-arm64-cross and qemu-user-static.
set -eu
cd "$(dirname "$0")/../../.."
here=$PWD list=$PWD/ops/packaging/static/sources.list
arch=${1:?}  dest=$PWD/build/static-$1 files=$PWD/build/static-sources apt=$PWD/build/static-apt-$1
jobs=${JOBS:-$(nproc)}
case $arch in
x86_64) debian=amd64 cpu=-march=x86-64-v2 ;;
aarch64) debian=arm64 cpu= ;;
*) echo "static: architecture $arch: expected x86_64 or aarch64" >&2; exit 2 ;;
esac
host=$arch-linux-gnu
cc=$host-gcc
# The variables of an outer make (CC, CFLAGS, B) are those of shardkit, not of the libraries.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS CPPFLAGS LDFLAGS
dev=$(awk '$1 == "linked" { print $2 }' "$list")

fail() { echo "static: $*" >&2; exit 1; }

for program in apt-get dpkg-source autoreconf "$cc"; do
    command -v "$program" >/dev/null || fail "no $program; the head of ops/packaging/static/libraries.sh lists the packages"
done

# ---- files ---------------------------------------------------------------------------

# Configure an apt that knows this machine's Debian mirrors, sources included, and only the architecture built for.
apt_setup() {
    [ "${APT_CONFIG:-}" != "$apt/apt.conf" ] || return 0
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/etc"
    : >"$apt/state/status"
    if [ -n "${SOURCES:-}" ]; then
        cp "$SOURCES" "$apt/etc/"
    elif [ -f /etc/apt/sources.list.d/debian.sources ]; then
        sed 's/^Types:.*/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources >"$apt/etc/debian.sources"
    else
        sed -n 's/^deb \(.*\)/deb \1\ndeb-src \1/p' /etc/apt/sources.list >"$apt/etc/debian.list"
    fi
    cat >"$apt/apt.conf" <<CONF
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$apt/etc";
APT::Architecture "$debian";
APT::Architectures { "$debian"; };
APT::Sandbox::User "";
CONF
    APT_CONFIG=$apt/apt.conf
    export APT_CONFIG
    apt-get update -qq
}

# Print "SHA-256  file" for each file of a source package.
files_of() { awk -v name="$1" '$1 == "package" || $1 == "linked" { on = $2 == name; next } on { print $1 "  " $2 }' "$list"; }
version_of() { awk -v name="$1" '$1 == "package" && $2 == name { print $3 }' "$list"; }

fetch_source() {
    files_of "$1" >"$files/$1.sums"
    (cd "$files" && sha256sum --quiet -c "$1.sums" >/dev/null 2>&1) && return
    apt_setup
    (cd "$files" && apt-get source --download-only -qq "$1=$(version_of "$1")" >/dev/null) ||
        fail "$1 $(version_of "$1"): not on the mirror; sources.list needs the present version and its SHA-256"
    (cd "$files" && sha256sum --quiet -c "$1.sums") || fail "$1: a file differs from its SHA-256 in sources.list"
}

unpack_source() {
    rm -rf "$dest/src/$1"
    mkdir -p "$dest/src"
    dpkg-source --no-check -x "$files/$1_$(version_of "$1" | sed 's/^[0-9]*://').dsc" "$dest/src/$1" >/dev/null 2>&1 ||
        fail "$1: dpkg-source cannot unpack it"
}

# Unpack the -dev packages, and record their versions for the list of what is linked.
fetch_sysroot() {
    rm -rf "$dest/sysroot" "$dest/debs"
    mkdir -p "$dest/sysroot" "$dest/debs"
    # shellcheck disable=SC2086
    (cd "$dest/debs" && apt-get download -qq $dev)
    for deb in "$dest"/debs/*.deb; do
        dpkg -x "$deb" "$dest/sysroot"
        dpkg-deb -f "$deb" Package Version Source | awk -F': ' '{ v[$1] = $2 }
            END { sub(/ .*/, "", v["Source"]); print v["Package"], v["Version"], v["Source"] }'
    done >"$dest/linked"
}

# ---- builds --------------------------------------------------------------------------

# Paths of this machine do not get into the objects.
flags="-O2 $cpu -fPIC -ffunction-sections -fdata-sections -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffile-prefix-map=$here=."
prefix=$dest/prefix sys=$dest/sysroot/usr
include="-isystem $sys/include -isystem $sys/include/$host"

quietly() {
    "$@" >>"$dest/log" 2>&1 || { tail -n 20 "$dest/log" >&2; fail "$1 failed; $dest/log has all output"; }
}

# HDF5's configure and two of its generators run programs of the target. Make `$dest/cc`, a compiler of which the linked
# programs run here: those of another architecture run under qemu.
make_cc() {
    if [ "$arch" = "$(uname -m)" ]; then
        printf '#!/bin/sh\nexec %s "$@"\n' "$cc" >"$dest/cc"
    else
        cat >"$dest/cc" <<CC
#!/bin/sh
out=a.out last= link=yes
for a; do
    case \$a in -c | -E | -S | -v | -V | --version | -print* | -dump*) link= ;; esac
    [ "\$last" != -o ] || out=\$a
    last=\$a
done
$cc "\$@" || exit
[ -n "\$link" ] && [ -f "\$out" ] || exit 0
mv "\$out" "\$out.$arch"
printf '#!/bin/sh\nexec qemu-$arch-static -L /usr/$host "\$0.$arch" "\$@"\n' >"\$out"
chmod +x "\$out"
CC
    fi
    chmod +x "$dest/cc"
}

build_hdf5() {
    make_cc
    mkdir -p "$dest/obj/hdf5"
    cd "$dest/obj/hdf5"
    quietly ../../src/hdf5/configure --prefix="$prefix" CC="$dest/cc" CFLAGS="$flags -w" CPPFLAGS="$include" \
        LDFLAGS="-L$sys/lib/$host" --disable-shared --enable-static --enable-build-mode=production --disable-hl \
        --disable-tests --disable-tools --enable-unsupported --enable-threadsafe --with-pthread --with-zlib --with-szlib \
        --disable-libtool-lock --enable-embedded-libinfo=no --with-default-plugindir=/nonexistent
    quietly make -C src -j "$jobs" install
    cd "$here"
}

build_libarchive() {
    mkdir -p "$dest/obj/libarchive"
    cd "$dest/obj/libarchive"
    quietly ../../src/libarchive/configure --host="$host" --prefix="$prefix" --disable-shared --enable-static CC="$cc" \
        CFLAGS="$flags" CPPFLAGS="$include" LDFLAGS="-L$sys/lib/$host" --disable-bsdtar --disable-bsdcpio \
        --disable-bsdcat --disable-acl --disable-xattr --without-xml2 --without-expat --without-nettle \
        --without-openssl --without-libb2 --with-zlib --with-lzma --with-bz2lib --with-lz4 --with-zstd
    # The patches changed times of files; nothing has to be generated again.
    quietly make -j "$jobs" install AUTOCONF=: AUTOHEADER=: AUTOMAKE=: ACLOCAL=:
    cd "$here"
}

build_libisal() {
    (cd "$dest/src/libisal" && quietly autoreconf -fi)
    mkdir -p "$dest/obj/libisal"
    cd "$dest/obj/libisal"
    quietly ../../src/libisal/configure --host="$host" --prefix="$prefix" --disable-shared --enable-static CC="$cc" \
        CFLAGS="$flags"
    quietly make -j "$jobs" install-libLTLIBRARIES install-data
    cd "$here"
}

# The unit tests link cmocka, of which Debian has no static library.
build_cmocka() {
    # shellcheck disable=SC2086
    quietly "$cc" $flags -w -include setjmp.h -include stdarg.h -include stdint.h -include signal.h -include strings.h \
        -include time.h -DHAVE_SIGNAL_H -DHAVE_STRUCT_TIMESPEC -DHAVE_CLOCK_REALTIME -DHAVE_STRSIGNAL \
        -I"$dest/src/cmocka/include" -c "$dest/src/cmocka/src/cmocka.c" -o "$dest/obj/cmocka.o"
    cp "$dest"/src/cmocka/include/cmocka*.h "$prefix/include/"
    quietly "$host-ar" rcs "$prefix/lib/libcmocka.a" "$dest/obj/cmocka.o"
}

# Build a library unless the one that is there was made of the same files with the same flags.
build() {
    { files_of "$1"; echo "$flags"; } | sha256sum >"$dest/obj/$1.now"
    cmp -s "$dest/obj/$1.now" "$dest/obj/$1.made" && return
    fetch_source "$1"
    unpack_source "$1"
    rm -rf "${dest:?}/obj/$1"
    "build_$1"
    mv "$dest/obj/$1.now" "$dest/obj/$1.made"
    echo "  LIB   $1 $(version_of "$1")"
}

mkdir -p "$files" "$dest/obj" "$prefix"
: >"$dest/log"
[ -e "$dest/linked" ] || { apt_setup; fetch_sysroot; }
# shellcheck disable=SC2086
for source in hdf5 libarchive libisal ${2:-}; do
    build $source
done
