"""core_check.py HFDIR FOLDER [TP] - Megatron-core loads FOLDER, a torch_dist that was made of HFDIR, and is the same model

`dist_checkpointing.load` at its default strictness into a GPTModel of Megatron-core's own layers: what the model asks for
and what the folder holds are the same keys, objects included, and every parameter is there (load_state_dict is strict).
Logits in fp32 equal Transformers' but for the order of sums. With TP that many tensor ranks load it and compute together.
Both are genuine; the calls of CUDA that Megatron-core makes on the way are stubbed in this process.
"""
import contextlib
import json
import os
import sys
import tempfile
from functools import partial

GELU = {"gelu": {}, "gelu_new": {"approximate": "tanh"}}


def config_of(hf, rows):
    """What a person would tell Megatron of the model: settings of the network, and of the GPTModel round it."""
    import torch
    heads = hf.num_attention_heads
    net = dict(num_layers=hf.num_hidden_layers, hidden_size=hf.hidden_size, num_attention_heads=heads,
               ffn_hidden_size=getattr(hf, "intermediate_size", None) or 4 * hf.hidden_size)
    gpt = dict(vocab_size=rows, max_sequence_length=16, share_embeddings_and_output_weights=hf.tie_word_embeddings)
    if hasattr(hf, "rms_norm_eps"):
        net.update(num_query_groups=hf.num_key_value_heads, gated_linear_unit=True, add_bias_linear=False,
                   activation_func=torch.nn.functional.silu, normalization="RMSNorm", layernorm_epsilon=hf.rms_norm_eps,
                   kv_channels=getattr(hf, "head_dim", None) or hf.hidden_size // heads,
                   add_qkv_bias=hf.model_type == "qwen2", qk_layernorm=hf.model_type == "qwen3")
    else:
        net.update(activation_func=partial(torch.nn.functional.gelu, **GELU[getattr(hf, "hidden_act", None) or
                                                                            hf.activation_function]),
                   layernorm_epsilon=getattr(hf, "layer_norm_epsilon", None) or hf.layer_norm_eps)
    if hf.model_type == "gpt2":
        gpt["position_embedding_type"] = "learned_absolute"
    else:
        rope = hf.rope_parameters
        gpt.update(position_embedding_type="rope", rotary_base=int(rope["rope_theta"]),
                   rotary_percent=rope.get("partial_rotary_factor", 1.0))
    return net, gpt


def core_model(hf, rows, tp):
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    net, gpt = config_of(hf, rows)
    c = TransformerConfig(**net, use_cpu_initialization=True, pipeline_dtype=torch.float32, attention_dropout=0.0,
                          hidden_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False,
                          gradient_accumulation_fusion=False, tensor_model_parallel_size=tp)
    spec = get_gpt_layer_local_spec(normalization=c.normalization, qk_layernorm=c.qk_layernorm)
    return GPTModel(config=c, transformer_layer_spec=spec, **gpt, parallel_output=False)


def check_keys(wanted, folder):
    """The model's own keys and shapes, and no others."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, apply_factories
    from torch.distributed.checkpoint import FileSystemReader
    apply_factories(wanted)
    want = {x.unique_key if isinstance(x, ShardedObject) else x.key:
            None if isinstance(x, ShardedObject) else tuple(x.global_shape) for x in nested_values(wanted)}
    meta = FileSystemReader(folder).read_metadata().state_dict_metadata
    there = {k: tuple(v.size) if hasattr(v, "size") else None for k, v in meta.items()}
    bad = {k: (want.get(k, "not asked for"), there.get(k, "not there")) for k in {*want, *there}
           if want.get(k, 0) != there.get(k, 0)}
    assert not bad, bad
    return want


def rank_main(rank, tp, meet, hfdir, folder):
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM
    # First: Transformers leaves its rotary frequencies unset where a process group is there already.
    hf = AutoModelForCausalLM.from_pretrained(hfdir, dtype=torch.float32).eval()
    torch.cuda.synchronize = lambda *x, **k: None
    torch.cuda.current_device = lambda: "cpu"
    plain = torch.tensor
    torch.tensor = lambda *x, **k: plain(*x, **{**k, **({"device": "cpu"} if str(k.get("device")) == "cuda" else {})})
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=tp)
    from megatron.core import dist_checkpointing as dc, parallel_state as ps
    from megatron.core.tensor_parallel import random as mcr
    from torch.distributed.checkpoint import FileSystemReader
    mcr.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
    ps.initialize_model_parallel(tp, 1)
    rows = FileSystemReader(folder).read_metadata().state_dict_metadata["embedding.word_embeddings.weight"].size[0]
    m = core_model(hf.config, rows, tp).eval()
    n = len(check_keys(m.sharded_state_dict(prefix=""), folder))
    state = dc.load({"model": m.sharded_state_dict(prefix="")}, folder)
    m.load_state_dict(state["model"])
    assert state["iteration"] == 0 and state["checkpoint_version"] == 3.0, state

    vocab = hf.config.vocab_size
    x = torch.randint(0, vocab, (2, 16), generator=torch.Generator().manual_seed(7))
    mask = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1)[None, None]
    with torch.no_grad():
        got = m(x, torch.arange(16).unsqueeze(0).expand(2, -1), mask)
        want = hf(input_ids=x).logits
    off = (got[..., :vocab] - want).abs().max().item() / want.abs().max().item()
    spare = 0.0 if rows == vocab else (got[..., vocab:] - got[..., vocab - 1:vocab]).abs().max().item()
    if rank == 0:
        print(f"{type(hf).__name__}, {tp} ranks: {n} keys, logits differ by {off:.1e} of the largest")
    sys.stdout.flush()
    os._exit(0 if off < 2e-6 and spare < 1e-5 else 1)


if __name__ == "__main__":
    import multiprocessing as mp
    hfdir, folder, tp = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with tempfile.TemporaryDirectory() as tmp:
        meet = os.path.join(tmp, "meet")
        ranks = [mp.get_context("spawn").Process(target=rank_main, args=(r, tp, meet, hfdir, folder)) for r in range(tp)]
        for p in ranks:
            p.start()
        for p in ranks:
            p.join()
    sys.exit(max(abs(p.exitcode) for p in ranks))
