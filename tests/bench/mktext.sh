#!/bin/sh
# mktext.sh FOLDER - a dataset of real text for training runs that are looked at, not only timed
#
# Two English works that Debian packages: "An Anarchist FAQ" (prose) and the kernel's documentation
# (technical). A byte-level BPE of VOCAB (50000) tokens is trained on them, then preprocess makes
# FOLDER/text_document.bin and .idx of them, a document a file. Needs apt-get, and PYTHON with the
# package tokenizers. About 8 million tokens, 16 MB.
set -eu
export LC_ALL=C
folder=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
python=${PYTHON:-python3} vocab=${VOCAB:-50000}
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-text-XXXXXX")
trap 'rm -rf "$work"' EXIT

(cd "$work" && apt-get download -q anarchism linux-doc-6.1 && for f in *.deb; do dpkg -x "$f" x; done) >"$work/log" 2>&1 ||
    { tail -n 3 "$work/log" >&2; exit 1; }
# By name, so that the documents' order is the same everywhere.
find "$work"/x/usr/share/doc/anarchism/markdown "$work"/x/usr/share/doc/linux-doc-6.1/Documentation \
    \( -name '*.md*' -o -name '*.rst*' \) -type f ! -path '*/translations/*' | sort >"$work/files"
"$python" - "$work/files" "$work/text.jsonl" "$work/tokenizer.json" "$vocab" <<'PY'
import gzip, json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
files, out, tokenizer, vocab = sys.argv[1:]
texts = []
for path in open(files).read().split("\n")[:-1]:
    raw = (gzip.open if path.endswith(".gz") else open)(path, "rb").read()
    texts.append(raw.decode(errors="ignore"))
with open(out, "w") as f:
    f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.train_from_iterator(texts, trainers.BpeTrainer(
    vocab_size=int(vocab), special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
bpe.save(tokenizer)
PY
"$BIN/preprocess" -f -q --input "$work/text.jsonl" --tokenizer "$work/tokenizer.json" --append-eod \
    --output-prefix "$folder/x"
mv "$folder/x_text_document.bin" "$folder/text_document.bin"
mv "$folder/x_text_document.idx" "$folder/text_document.idx"
cp "$work/tokenizer.json" "$folder"
ls -l "$folder"
