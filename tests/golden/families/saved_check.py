"""Small models of many families through FSDP2 and ZeRO-3 into Transformers, under the names of save_pretrained.

  make OUT FSDP|ZERO    on two ranks: each family's model is trained one step and saved, OUT/FAMILY/ckpt by
                        torch.distributed.checkpoint (fsdp) or by DeepSpeed's engine (zero3), and OUT/FAMILY/hf by the
                        model's own save_pretrained; OUT/families lists them, one a line
  check OUT EXPORTS     EXPORTS/FAMILY has the names of OUT/FAMILY/hf, no more and no fewer, their shapes and bytes, and
                        from_pretrained loads it without missing, unexpected or mismatched keys; a line a family
"""
import json
import os
import sys
import warnings

os.environ["ACCELERATE_USE_FSDP"] = "0"
warnings.simplefilter("ignore")
import torch
import transformers
from safetensors import safe_open

transformers.logging.set_verbosity_error()
BASE = dict(vocab_size=92, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GPT = dict(n_embd=32, n_layer=2, n_head=4, n_positions=32)
MOE = dict(num_experts=4, moe_intermediate_size=16, num_experts_per_tok=2)
FAMILIES = {
    "llama": {}, "mistral": {}, "qwen2": dict(tie_word_embeddings=True), "qwen3": dict(head_dim=8), "gpt2": GPT,
    "gpt_neox": {}, "gpt_neo": dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    "gptj": dict(GPT, rotary_dim=4), "opt": dict(ffn_dim=48, word_embed_proj_dim=32), "bloom": dict(n_layer=2, n_head=4),
    "falcon": {}, "phi": {}, "phi3": {}, "gemma": dict(head_dim=8), "gemma2": dict(head_dim=8), "stablelm": {},
    "starcoder2": {}, "olmo": {}, "olmo2": {}, "cohere": {}, "granite": {}, "smollm3": {},
    "mixtral": dict(num_local_experts=4), "qwen2_moe": dict(MOE, shared_expert_intermediate_size=16),
    "qwen3_moe": dict(MOE, head_dim=8), "granitemoe": dict(num_local_experts=4), "olmoe": dict(num_experts=4, num_experts_per_tok=2),
    "t5": dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0),
}


def build(family):
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(family, **{**BASE, **FAMILIES[family]})
    if family == "t5":
        return transformers.AutoModelForSeq2SeqLM.from_config(config)
    return transformers.AutoModelForCausalLM.from_config(config)


def tensors(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(folder, name), "pt") as f:
                out.update({k: f.get_tensor(k) for k in f.keys()})
    return out


def genuine(model, folder, state=None):
    model.save_pretrained(folder, state_dict=state)


def step(model, backward):
    torch.manual_seed(11)
    ids = torch.randint(3, 90, (2, 8))
    loss = model(input_ids=ids, labels=ids).loss
    backward(loss)


def whole(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def make_fsdp(family, out, rank):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = build(family)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step(model, lambda loss: loss.backward())
    opt.step()
    weights, state = get_state_dict(model, opt)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=f"{out}/{family}/ckpt")
    full = {k: whole(t).clone() for k, t in weights.items()}
    if rank == 0:
        fresh = build(family)
        fresh.load_state_dict(full)
        genuine(fresh, f"{out}/{family}/hf")


def make_zero(family, out, rank):
    import deepspeed
    model = build(family)
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True}
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=opt, config=config)
    step(engine, engine.backward)
    engine.step()
    engine.save_checkpoint(f"{out}/{family}/ckpt")
    full = engine._zero3_consolidated_16bit_state_dict()
    if rank == 0:
        fresh = build(family)
        fresh.load_state_dict(full, strict=False)
        fresh.tie_weights()
        genuine(fresh, f"{out}/{family}/hf")


def make(out, how):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29517"), WORLD_SIZE="2",
                      DS_ACCELERATOR="cpu")
    pid = os.fork()
    rank = 0 if pid else 1
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    if how == "zero":
        import deepspeed
        deepspeed.init_distributed("gloo")
    else:
        torch.distributed.init_process_group("gloo")
    only = os.environ.get("FAMILIES", "").split()
    done = []
    for family in FAMILIES:
        if not only or family in only:
            (make_zero if how == "zero" else make_fsdp)(family, out, rank)
            torch.distributed.barrier()
            done.append(family)
    if rank == 0:
        with open(out + "/families", "w") as f:
            f.write("\n".join(done) + "\n")
        _, status = os.waitpid(pid, 0)
        sys.exit(status != 0)
    os._exit(0)


def check_family(out, family, export):
    want, got = tensors(f"{out}/{family}/hf"), tensors(export)
    assert set(want) == set(got), f"names differ: {sorted(set(want) ^ set(got))[:8]}"
    for name, t in want.items():
        assert t.shape == got[name].shape and t.dtype == got[name].dtype, (name, t.shape, got[name].shape)
        assert torch.equal(t, got[name]), f"{name} differs"
    config = json.load(open(export + "/config.json"))
    kind = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    _, info = kind.from_pretrained(export, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert config.get("dtype", config.get("torch_dtype")) == "float32", config.get("dtype")
    print(f"{family}: {len(want)} tensors under the names of save_pretrained")


def check(out, exports):
    wrong = []
    for family in open(out + "/families").read().split():
        try:
            check_family(out, family, f"{exports}/{family}")
        except Exception as why:
            print(f"{family}: WRONG: {why}")
            wrong.append(family)
    sys.exit(f"wrong: {' '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
