"""logits_check.py IN HFDIR - Megatron-core and Transformers compute the same with IN (torch_dist) and our export of it

Both are genuine; the calls of CUDA that Megatron-core makes on the way are stubbed in this process. What Transformers has
to load must be all there is, and logits in fp32 must be equal but for the order of sums.
"""
import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

src, out = sys.argv[1:]
config = json.load(open(os.path.join(out, "config.json")))
# First: Transformers leaves its rotary frequencies unset where a process group is there already.
hf, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, dtype=torch.float32)
left = {k: v for k, v in info.items() if v}

torch.cuda.synchronize = lambda *x, **k: None
torch.cuda.current_device = lambda: "cpu"
plain = torch.tensor
torch.tensor = lambda *x, **k: plain(*x, **{**k, **({"device": "cpu"} if str(k.get("device")) == "cuda" else {})})
dist.init_process_group("gloo", init_method="file://" + os.path.abspath(out) + ".meet", rank=0, world_size=1)

from megatron.core import dist_checkpointing as dc, parallel_state as ps
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random as mcr
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed.checkpoint import FileSystemReader

mcr.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
ps.initialize_model_parallel(1, 1)
c = TransformerConfig(num_layers=config["num_hidden_layers"], hidden_size=config["hidden_size"],
                      ffn_hidden_size=config["intermediate_size"], num_attention_heads=config["num_attention_heads"],
                      num_query_groups=config["num_key_value_heads"], use_cpu_initialization=True,
                      pipeline_dtype=torch.float32, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
                      add_bias_linear=False, normalization="RMSNorm", attention_dropout=0.0, hidden_dropout=0.0,
                      bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
                      layernorm_epsilon=config["rms_norm_eps"])
meta = FileSystemReader(src).read_metadata().state_dict_metadata
rows = meta["embedding.word_embeddings.weight"].size[0]
stacked = "decoder.layers.mlp.linear_fc2.weight" in meta
m = GPTModel(config=c, transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=rows,
             max_sequence_length=16, share_embeddings_and_output_weights=False, position_embedding_type="rope")
sd = {"model": m.sharded_state_dict(prefix="", metadata=None if stacked else {"non_homogeneous_layers": True})}
m.load_state_dict(dc.load(sd, src)["model"], strict=False)

g = torch.Generator().manual_seed(7)
x = torch.randint(0, config["vocab_size"], (2, 16), generator=g)
pos = torch.arange(16).unsqueeze(0).expand(2, -1)
mask = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1)[None, None]
with torch.no_grad():
    want = m(x, pos, mask)[..., :config["vocab_size"]]

with torch.no_grad():
    got = hf.eval()(input_ids=x).logits
off = (got - want).abs().max().item() / want.abs().max().item()
print(f"{type(hf).__name__}: logits differ by {off:.1e} of the largest, loading left {left or 'nothing'}")
sys.stdout.flush()
os._exit(0 if off < 1e-5 and not left else 1)
