"""Hugging Face's tokenizers over JSONL packed by Zstandard: hf_tokens.py VOCAB MERGES THREADS FILE...

What Megatron's preprocess_data.py asks of them, without its processes: batches of documents go to encode_batch(),
which uses THREADS threads. Prints seconds, tokens, the SHA-256 of all ids as u16, and the version.
"""
import hashlib, json, os, subprocess, sys, time

vocab, merges, threads, *files = sys.argv[1:]
os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"] = threads, "true"
import numpy, tokenizers

tok = tokenizers.ByteLevelBPETokenizer(vocab, merges, add_prefix_space=False)
begin, tokens, digest = time.time(), 0, hashlib.sha256()


def encode(batch):
    global tokens
    ids = numpy.array([i for e in tok.encode_batch(batch) for i in e.ids], dtype=numpy.uint16)
    tokens += len(ids)
    digest.update(ids.tobytes())


for name in files:
    batch = []
    for line in subprocess.Popen(["zstdcat", name], stdout=subprocess.PIPE).stdout:
        batch.append(json.loads(line)["text"])
        if len(batch) == 1000:
            encode(batch)
            batch = []
    if batch:
        encode(batch)
print(f"{time.time() - begin:.3f} {tokens} {digest.hexdigest()} {tokenizers.__version__}")
