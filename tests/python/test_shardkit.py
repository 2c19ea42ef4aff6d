"""test_shardkit.py - the Python module over sets of tests/data; parts skip without NumPy, ml_dtypes and torch"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.environ.get("SHARDKIT_MODULE", os.path.join(ROOT, "python")))
import shardkit  # noqa: E402

DATA = os.path.join(ROOT, "tests", "data")
GPT2 = os.path.join(DATA, "gpt2-tp2pp2dp1")
FP8 = os.path.join(DATA, "hf-fp8", "a")
NAME = "3.mlp.dense_4h_to_h.weight"

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None


def write_model(path, byte):
    """A model folder of two tensors of eight bytes."""
    header = json.dumps({"x": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                         "y": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]}}).encode()
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + bytes([byte] * 16))
    with open(os.path.join(path, "config.json"), "w") as f:
        f.write('{"model_type": "x"}')


class Reads(unittest.TestCase):
    def setUp(self):
        self.ck = shardkit.open(GPT2)
        self.addCleanup(self.ck.close)

    def test_mapping(self):
        self.assertEqual((self.ck.layout, self.ck.iteration, len(self.ck)), ("deepspeed", 20, 52))
        self.assertEqual(os.path.basename(self.ck.path), "global_step20")
        names = list(self.ck)
        self.assertEqual(names[0], "tied_modules.embed.word_embeddings.weight")
        self.assertIn(NAME, self.ck)
        self.assertNotIn("nothing", self.ck)
        self.assertEqual(len(dict(self.ck.items())), 52)
        self.assertEqual(self.ck.states(NAME), ["bf16", "fp32", "exp_avg", "exp_avg_sq"])
        t = self.ck.info(NAME, "bf16")
        self.assertEqual((t.dtype, t.shape, t.nbytes, t.kind), ("bf16", (64, 256), 64 * 256 * 2, "parameter"))
        self.assertEqual(self.ck.info(NAME).state, "fp32")
        self.assertEqual(self.ck.info(NAME + ":exp_avg").state, "exp_avg")
        self.assertEqual([f.code for f in self.ck.findings], ["tied_positions"])

    def test_read(self):
        whole = self.ck.read(NAME)
        self.assertEqual(len(whole), 64 * 256 * 4)
        self.assertEqual(self.ck.read(NAME, first=100, count=7), whole[400:428])
        self.assertEqual(self.ck.read(NAME, count=0), b"")
        out = subprocess.run([os.path.join(ROOT, "bin", "ckpt-inspect"), "cat", GPT2, NAME, "--raw"],
                             stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(whole, out)

    def test_errors(self):
        with self.assertRaisesRegex(shardkit.NotFound, "did you mean '" + NAME):
            self.ck["3.mlp.dense_4h_to_h.wieght"]
        with self.assertRaises(KeyError):
            self.ck.states("nothing")
        with self.assertRaisesRegex(shardkit.Error, "no state is called") as e:
            self.ck.info(NAME, "momentum")
        self.assertEqual(e.exception.code, "usage")
        for first, count in ((-1, 1), (0, 64 * 256 + 1), (64 * 256, 1)):
            with self.assertRaisesRegex(shardkit.Error, "are not in it"):
                self.ck.read(NAME, first=first, count=count)
        with self.assertRaises(shardkit.Error) as e:
            shardkit.open(os.path.join(DATA, "nothing"))
        self.assertEqual((e.exception.code, e.exception.errno), ("system", 2))
        with self.assertRaisesRegex(shardkit.Error, "expected one of average"):
            shardkit.open(GPT2, replicas="any")
        self.ck.close()
        with self.assertRaisesRegex(shardkit.Error, "is closed"):
            self.ck.read(NAME)

    def test_wrong_arguments(self):
        for call in (lambda: shardkit.open(GPT2 + "\0x"), lambda: self.ck.info(NAME + "\0x"),
                     lambda: self.ck.info(NAME, "fp32\0"), lambda: shardkit.open(GPT2, model="\0"),
                     lambda: shardkit.verify(GPT2, certificate="a\0b"), lambda: shardkit.open("\ud800"),
                     lambda: self.ck.read(NAME, first=2**64, count=1), lambda: self.ck.read(NAME, count=2**64 + 1),
                     lambda: self.ck.read(NAME, first=-2**63), lambda: self.ck.read(NAME, count=2**40),
                     lambda: shardkit.open(GPT2, threads=1025), lambda: shardkit.open(GPT2, threads=-3),
                     lambda: shardkit.open(GPT2, threads=2**32 + 1), lambda: shardkit.verify(GPT2, threads=100000),
                     lambda: shardkit.verify(GPT2, threads=2**31 - 1), lambda: shardkit.verify(GPT2, threads=-1)):
            with self.assertRaises(shardkit.Error) as e:
                call()
            self.assertEqual(e.exception.code, "usage")
        self.assertNotIn(NAME + "\0junk", self.ck)
        self.assertNotIn("\ud800", self.ck)
        with self.assertRaises(shardkit.NotFound):
            self.ck["\ud800"]

    def test_names_on_disk_change(self):
        """A checkpoint that is open reads and maps the files that were opened, whatever their names refer to."""
        with tempfile.TemporaryDirectory() as d:
            first, second = os.path.join(d, "first"), os.path.join(d, "second")
            for path, byte in ((first, 1), (second, 2)):
                write_model(path, byte)
            here = os.getcwd()
            os.chdir(d)
            try:
                with shardkit.open("first") as ck:
                    os.replace(os.path.join("second", "model.safetensors"), os.path.join("first", "model.safetensors"))
                    os.chdir(here)
                    self.assertEqual(bytes(ck["x"]), b"\1" * 8)
                    self.assertEqual(ck.read("x"), b"\1" * 8)
                    if torch:
                        self.assertEqual(ck.tensor("x").tolist(), [1] * 8)
                    os.remove(os.path.join(first, "model.safetensors"))
                    self.assertEqual(bytes(ck["y"]), b"\1" * 8)
                    if torch:
                        self.assertEqual(ck.tensor("y").tolist(), [1] * 8)
            finally:
                os.chdir(here)

    @unittest.skipUnless(np, "no NumPy")
    def test_file_changes(self):
        with tempfile.TemporaryDirectory() as d:
            write_model(d, 1)
            with shardkit.open(d) as ck:
                with open(os.path.join(d, "model.safetensors"), "ab") as f:
                    f.write(b"more")
                with self.assertRaisesRegex(shardkit.Error, "was changed or replaced after the checkpoint was opened"):
                    ck["x"]

    def test_threads(self):
        want, have = bytes(self.ck.read(NAME)), []
        threads = [threading.Thread(target=lambda: have.append(bytes(self.ck.read(NAME)) == want)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(have, [True] * 8)

    @unittest.skipIf(np, "NumPy is here")
    def test_without_numpy(self):
        self.assertEqual(self.ck[NAME], self.ck.read(NAME))
        self.assertTrue(self.ck[NAME].readonly)

    @unittest.skipUnless(np, "no NumPy")
    def test_numpy(self):
        array = self.ck[NAME]
        self.assertEqual((array.dtype, array.shape, array.tobytes()), (np.float32, (64, 256), self.ck.read(NAME)))
        self.assertFalse(array.flags.writeable)
        with shardkit.open(GPT2, replicas="first") as ck:
            mapped = ck.array("3.input_layernorm.weight", "bf16")
            self.assertIsInstance(mapped, np.memmap)
            self.assertEqual(mapped.dtype.itemsize, 2)
            path, at = ck.location("3.input_layernorm.weight", "bf16")
        with open(path, "rb") as f:
            self.assertEqual(mapped.tobytes(), f.read()[at:at + 128])       # valid after close

    @unittest.skipUnless(torch, "no torch")
    def test_torch(self):
        t = self.ck.tensor(NAME, "bf16")
        self.assertEqual((t.dtype, tuple(t.shape)), (torch.bfloat16, (64, 256)))
        self.assertEqual(t.view(torch.uint8).numpy().tobytes(), self.ck.read(NAME, "bf16"))
        with shardkit.open(FP8) as ck:
            name = next(t.name for t in ck.tensors if t.dtype == "f8_e4m3")
            before = bytes(ck.read(name))
            mapped = ck.tensor(name)
            self.assertEqual(mapped.dtype, torch.float8_e4m3fn)
            mapped.zero_()                                                  # private: the file stays,
            self.assertEqual(ck.read(name), before)
            again = ck.tensor(name)                                         # and so do later tensors
            self.assertEqual(again.view(torch.uint8).numpy().tobytes(), before)
            self.assertEqual(ck[name].tobytes(), before)


class Verifies(unittest.TestCase):
    def test_sound(self):
        v = shardkit.verify(GPT2)
        self.assertTrue(v)
        self.assertEqual((v.layout, v.files, v.errors, v.warnings), ("deepspeed", 20, [], []))

    def test_damage(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "global_step20")
            shutil.copytree(os.path.join(GPT2, "global_step20"), path)
            name = os.path.join(path, "layer_03-model_00-model_states.pt")
            with open(name, "r+b") as f:
                f.seek(4096)
                byte = f.read(1)
                f.seek(4096)
                f.write(bytes([byte[0] ^ 1]))
            v = shardkit.verify(path)
            self.assertFalse(v)
            self.assertEqual((v.errors[0].code, v.errors[0].file), ("crc", name))
            out = subprocess.run([os.path.join(ROOT, "bin", "ckpt-inspect"), "verify", "--json", path],
                                 stdout=subprocess.PIPE, check=False).stdout
            tool = json.loads(out)
            self.assertEqual([f["code"] for f in tool["findings"]], [f.code for f in v.findings])
            self.assertEqual((tool["sound"], tool["n_files"], tool["size_bytes"]), (v.sound, v.files, v.nbytes))
            os.remove(name)
            with self.assertRaisesRegex(shardkit.Error, "layer_03-model_00"):
                shardkit.open(path)
            with shardkit.open(path, damaged=True) as ck:
                self.assertIn("missing_file", [f.code for f in ck.findings])
        with self.assertRaises(shardkit.Error):
            shardkit.verify(path)


if __name__ == "__main__":
    unittest.main()
