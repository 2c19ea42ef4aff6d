#!/bin/sh
# deps.sh PACKAGE... - install the Debian packages that are missing; does nothing when all are there
set -u

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
# Package lists may be too old to install from, or absent on a fresh machine: fetch them, then try again.
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 && exit 0
if ! $sudo apt-get update -qq; then
    echo "deps: apt-get update failed; is there a network?" >&2
    exit 1
fi
# shellcheck disable=SC2086
if ! $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
    echo "deps: could not install$missing" >&2
    exit 1
fi
echo "deps: done"
