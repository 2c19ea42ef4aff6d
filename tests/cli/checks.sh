# checks.sh - what the cases share that compare the table of ckpt-inspect(1), CHECKS, with the tools; sourced. $layouts
# names the columns that a case changes sets of; $tools is the folder of forge; $L is the layout of the set that is
# changed, in the folder $L, and $W its parameter.
all="3D Z2 Z3 UP H5 HV DC TD HF HB HS FP MG"

# ---- changes: a function of a layout makes bad of it ----
copy() { rm -rf bad; cp -r ${1:-$L} bad; }
# edit COMMAND ARGUMENT... [OF]: bad is the set after ckpt-edit, without its manifest
edit() { rm -rf bad; ckpt-edit -q "$@" $L bad 2>edit.log; rm -f bad/manifest.json; }
# odd STATE BYTES: an element of W replaced
odd() { ckpt-inspect cat --npy $L $W.$1 >odd.npy; printf "$2" | poke odd.npy $(($(wc -c <odd.npy) - 4 * 8)); edit --accept-mismatch put $W:$1 odd.npy; }
poke() { dd of="$1" bs=1 seek=$2 conv=notrunc 2>/dev/null; }     # FILE BYTE, bytes on stdin
flip() { b=$(od -An -tu1 -j$2 -N1 "$1"); printf "\\$(printf %o $((b ^ ${3:-64})))" | poke "$1" $2; }  # FILE BYTE [BITS]
# alias_tensor FILE A B: the tensor A of a safetensors file has the bytes of B
alias_tensor() { python3 -c "
import json, struct, sys
p, a, b = sys.argv[1:]
d = open(p, 'rb').read()
n = struct.unpack('<Q', d[:8])[0]
h = json.loads(d[8:8 + n])
h[a]['data_offsets'] = h[b]['data_offsets']
j = json.dumps(h).encode()
open(p, 'wb').write(struct.pack('<Q', len(j)) + j + d[8 + n:])" "$@"; }
# alias_range FILE FROM TO: each 8-byte number FROM becomes TO
alias_range() { python3 -c "
import struct, sys
p, a, b = sys.argv[1], *map(int, sys.argv[2:])
d = open(p, 'rb').read()
open(p, 'wb').write(d.replace(struct.pack('<Q', a), struct.pack('<Q', b)))" "$@"; }
place() { ckpt-inspect ls -v --param "$W" $L 2>/dev/null | grep "^  $1 " | sed -n "${2:-1}{s/+[0-9]*//;p}" | awk '{ print bad "/" $NF, $(NF - 1) }' bad=bad; }
pickle() { sed -i "$2" "bad/$1"; "$tools/forge" mend "bad/$1"; }    # FILE SED-COMMAND, and CRCs as they should be
# number FILE PATTERN: the number after the pattern becomes 7
number() { LC_ALL=C sed -i "0,/${2%%q*}q/s/\($2\)./\1\x07/" "bad/$1"; "$tools/forge" mend "bad/$1"; }
later() { copy; for f; do cp "$L.later/$f" bad/"$f"; done; }
optim() { echo bf16_zero_pp_rank_${1}_mp_rank_00_optim_states.pt; }
# step FILE TENSOR: the step that it says is another
step() { set -- "bad/$1" $(ckpt-inspect ls -v bad/$1 | grep -A1 "$2" | sed -n '2{s/^ *0 *//;s/+.*//;p}'); printf '\000\000\340\100' | poke "$1" $2; "$tools/forge" mend "$1"; }

# ---- what verify finds ----
# table: CLAIM|LAYOUT|CELL|CODES, of the man page
awk -v all="$all" -v layouts="$layouts" '
    BEGIN { m = split(all, l) }
    /^\.SH/ { on = $2 == "CHECKS" } /^\.nf/ { rows = on } /^\.fi/ { rows = 0 }
    !rows || /^\.nf/ || /^claim/ { next }
    /^ / { codes[n] = codes[n] $0 " "; next }
    { gsub(/\\/, ""); n++; claim[n] = substr($0, 1, 29); sub(/ *$/, "", claim[n]); split(substr($0, 30), field, / +/)
      for (i = 1; i <= m; i++) cell[n, i] = field[i] }
    END { for (i = 1; i <= n; i++) for (k = 1; k <= m; k++) if (index(layouts, l[k]))
              print claim[i] "|" l[k] "|" cell[i, k] "|" codes[i] " " (l[k] == "HV" ? "shard_changed shard_missing crc " : "") }
' "$ROOT/docs/ckpt-inspect.1" >table
bad=bad with=                           # what verify reads, and with which option
findings() { ckpt-inspect verify $with --json $bad | grep -o '"severity":"[a-z]*","code":"[a-z_0-9]*"' | cut -d'"' -f4,8 | tr '"' ' ' | sort -u >found; }
has() { for code in $codes; do grep -qx "$1 $code" found && return; done; return 1; }
# agree WHAT: a conversion that reads every state of bad refuses it if verify finds an error in it, and only then
agree() {
    case $L in
    3D|HV|Z2|Z3|DC) set -- "$1" ds2universal -q ;;
    UP|H5) set -- "$1" reshape -q --target-dp 1 ;;
    TD) set -- "$1" reshape -q --ranks 1 ;;
    FP|MG) set -- "$1" reshape -q --to dcp --ranks 1 ;;
    *) set -- "$1" export-hf -q ;;
    esac
    what=$1; shift
    "$@" $with $bad converted >agree.log 2>&1; refused=$?
    [ $((refused != 0)) = $(grep -qc ^error found; echo $((! $?))) ] ||
        echo "$what, $L: verify finds $(tr '\n' ',' <found) and $1 ends with $refused: $(tail -n 1 agree.log)"
    rm -rf converted*
}
# found CLAIM [listed]: verify finds in bad what the cell of this claim and $L says; listed: with the manifest of the set
found() {
    [ "$L$2" != 3D ] || virtual "$1"
    cell=$(grep -F "$1|$L|" table | cut -d'|' -f3) codes=$(grep -F "$1|$L|" table | cut -d'|' -f4)
    echo "$1|$L|$2" >>tried; findings; agree "$1${2:+, $2}"
    case ${2:-$cell} in
    E|listed) has error && return ;;
    W) ! grep -q ^error found && has warning && return ;;
    M) ! grep -q ^error found && grep -qx "note no_manifest" found && return ;;
    esac
    echo "$1, $L${2:+, $2}: the table has '$cell' $codes, verify finds $(tr '\n' ',' <found)"
}
# HV/V is a virtual form, HV/S its shards. virtual CLAIM: what was changed in 3D is changed in the shards.
hv() { rm -rf HV; mkdir HV; cp -r 3D HV/S; ds2universal -q --format virtual HV/S HV/V; rm HV/V/manifest.json; }
found_hv() { was=$L; L=HV bad=HV/V; found "$1"; L=$was bad=bad; }
virtual() {
    grep -qF "$1|HV|-|" table || grep -qxF "$1|HV|" tried && return
    hv; rm -r HV/S; cp -r bad HV/S; found_hv "$1"
}
