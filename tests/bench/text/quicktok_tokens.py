"""quicktok (PyPI: quicktok-v1) on documents in memory, for bench_tokens.sh.

quicktok_tokens.py tokenizer ENCODING OUT       write one of its vocabularies as a tokenizer.json
quicktok_tokens.py documents OUT FILE...        write the files' text as documents of about 20,000 characters
quicktok_tokens.py run ENCODING ROUNDS DOCS IDS print processor times as bench_tokens does, and write the tokens

A merge of the tokenizer.json joins the two parts that a token has before the merge list reaches it.
"""
import json, sys, time
import quicktok
from quicktok import _import_core as core

SCANNERS = {"qwen3": "qwen", "llama3": "llama3", "o200k_base": "o200k", "cl100k_base": "cl100k"}


def byte_alphabet():
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printed]
    return {b: chr(b) for b in printed} | {b: chr(256 + i) for i, b in enumerate(others)}


def parts(token, ranks):
    p = [token[i:i + 1] for i in range(len(token))]
    while len(p) > 2:
        pairs = [(ranks.get(p[i] + p[i + 1], len(ranks)), i) for i in range(len(p) - 1)]
        rank, i = min(pairs)
        if rank >= ranks[token]:
            return None
        p[i:i + 2] = [p[i] + p[i + 1]]
    return p


def write_tokenizer(encoding, out):
    enc, letters = quicktok.get_encoding(encoding), byte_alphabet()
    spell = lambda token: "".join(letters[b] for b in token)
    tokens = sorted((enc.encode_single_token(t), t) for t in enc.token_byte_values() if t)
    ranks = {t: i for i, t in tokens}
    merges = [p for p in (parts(t, ranks) for _, t in tokens if len(t) > 1) if p]
    pattern = next(p for p, name in core.KNOWN_PATTERNS.items() if name == SCANNERS[encoding])
    qwen = encoding == "qwen3"
    root = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "NFC"} if qwen else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "ignore_merges": not qwen,
                  "vocab": {spell(t): i for i, t in tokens}, "merges": [[spell(a), spell(b)] for a, b in merges]},
    }
    with open(out, "w", encoding="utf-8") as f:
        json.dump(root, f, ensure_ascii=False, indent=2)


def write_documents(out, files):
    text = "\n".join(open(f, encoding="utf-8", errors="ignore").read() for f in files)
    # Names of special tokens are left out, because quicktok treats them in another way.
    text = text.replace("\0", "").replace("<|", "< |")
    with open(out, "w", encoding="utf-8", newline="") as f:
        f.write("\0".join(text[i:i + 20000] for i in range(0, len(text), 20000)))


def run(encoding, rounds, docs, ids):
    import numpy
    docs = open(docs, encoding="utf-8", newline="").read().split("\0")
    times, begin = [], time.process_time()
    enc = quicktok.Tokenizer(encoding)
    opened = time.process_time() - begin
    for _ in range(int(rounds)):
        begin = time.process_time()
        tokens, _ = enc.encode_batch(docs, threads=1)
        times.append(time.process_time() - begin)
    tokens.astype(numpy.uint32).tofile(ids)
    print(f"{opened:.4f} {times[0]:.4f} {sorted(times)[len(times) // 2]:.4f}")


{"tokenizer": write_tokenizer, "documents": lambda out, *files: write_documents(out, files), "run": run}[sys.argv[1]](
    *sys.argv[2:])
