#!/bin/sh
# deps.sh [-e] PACKAGE... - install the Debian packages that are missing; does nothing when all are there
#
# -e: what tests can do without. Where not all can be installed, each that can is; the others are named, and it is no
# failure. Their services are not started.
set -u
each=
if [ "${1:-}" = -e ]; then each=1; shift; fi

if ! command -v dpkg >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps: no apt-get here. Install by your system's means what Debian calls:" >&2
    echo "  $*" >&2
    exit 1
fi
missing=
for p in "$@"; do
    dpkg -s "$p" 2>/dev/null | grep -q '^Status: install ok installed' || missing="$missing $p"
done
if [ -z "$missing" ]; then
    echo "deps: all $# packages are installed"
    exit 0
fi

sudo=
if [ "$(id -u)" -ne 0 ]; then
    sudo=sudo
    if ! command -v sudo >/dev/null; then
        echo "deps: not root and no sudo; run as root: apt-get install$missing" >&2
        exit 1
    fi
fi
echo "deps: installing${sudo:+ with sudo}:$missing"
export DEBIAN_FRONTEND=noninteractive
install() { $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
# A package asks this program whether its service may be started.
policy=/usr/sbin/policy-rc.d
if [ -n "$each" ] && [ ! -e $policy ]; then
    trap '$sudo rm -f $policy' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null && $sudo chmod 755 $policy
fi
# Package lists may be too old to install from, or absent on a fresh machine: fetch them, then try again.
# shellcheck disable=SC2086
install $missing 2>/dev/null && exit 0
if ! $sudo apt-get update -qq; then
    echo "deps: apt-get update failed; is there a network?" >&2
    exit $((1 - ${each:-0}))
fi
# shellcheck disable=SC2086
if [ -z "$each" ]; then
    install $missing || { echo "deps: could not install$missing" >&2; exit 1; }
else
    for p in $missing; do install "$p" 2>/dev/null || echo "deps: could not install $p: tests that need it are skipped" >&2; done
fi
echo "deps: done"
