"""zero_from_check.py - DeepSpeed goes on from what reshape made of Megatron's checkpoints, as Megatron's own would

Both under torchrun, on CPUs with gloo. Every engine begins with other weights, rates and decays than the saved ones.

  pipeline UNIVERSAL STAGE DIR    DIR: files of ZeRO, made of GPT-2's shards of the pipeline engine; UNIVERSAL: the same
                                  as .pt files, from which torch's own AdamW takes the same steps
  core FOLDER STAGE DIR           DIR: of a torch_dist folder, with Megatron's names for norms put back; FOLDER itself is
                                  loaded by Megatron-core, whose GPTModel and optimizer take the same steps
  frozen FOLDER STAGE DIR         saves into DIR what an engine of that model has after a step of its own: three groups,
                                  listed backwards, and the norms of one block frozen; for --like

Losses of three steps, to 1e-5: they are summed in another order. DIR's engine, where it was made --like `frozen`, has to
have that one's groups: `core FOLDER STAGE DIR like`.
"""
import contextlib
import os
import sys

import torch
import torch.distributed as dist

STEPS, SEQ = 3, 16
SETTINGS = ("lr", "betas", "eps", "weight_decay")


def batch(i, vocab):
    g = torch.Generator().manual_seed(4321 + i)
    return torch.randint(0, vocab, (2, SEQ + 1), generator=g)


def engine_of(model, groups, stage, folder):
    import deepspeed
    conf = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": stage}, "communication_data_type": "fp32",
            "optimizer": {"type": "AdamW", "params": {"lr": 0.5, "betas": [0.1, 0.2], "eps": 0.1, "weight_decay": 0.7,
                                                      "torch_adam": True}}}
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=conf)
    if folder:
        path, client = engine.load_checkpoint(folder, load_lr_scheduler_states=False)
        assert path, folder
        engine.client = client
    return engine


def steps(loss_of, vocab, engine=None, optimizer=None, clip=None):
    out = []
    for i in range(STEPS):
        loss = loss_of(batch(i, vocab))
        if engine:
            engine.backward(loss)
            engine.step()
        else:
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], clip)
            optimizer.step()
            optimizer.zero_grad()
        out.append(loss.item())
    return out


def tell(what, got, want):
    if dist.get_rank() == 0:
        print(f"{what}, {dist.get_world_size()} ranks: losses {got}, without DeepSpeed {want}")
    assert all(abs(a - b) < 1e-5 for a, b in zip(got, want)), (got, want)
    assert want[0] != want[1] != want[2]


# ---- the pipeline engine's ----

class Block(torch.nn.Module):
    def __init__(self, h):
        super().__init__()
        part = lambda **kinds: torch.nn.ModuleDict(kinds)
        self.input_layernorm = torch.nn.LayerNorm(h)
        self.self_attention = part(query_key_value=torch.nn.Linear(h, 3 * h), dense=torch.nn.Linear(h, h))
        self.post_attention_layernorm = torch.nn.LayerNorm(h)
        self.mlp = part(dense_h_to_4h=torch.nn.Linear(h, 4 * h), dense_4h_to_h=torch.nn.Linear(4 * h, h))

    def forward(self, x, heads):
        b, s, h = x.shape
        y = self.self_attention["query_key_value"](self.input_layernorm(x)).view(b, s, heads, 3 * h // heads)
        q, k, v = (t.transpose(1, 2) for t in y.chunk(3, dim=-1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, h)
        x = x + self.self_attention["dense"](y)
        y = self.mlp["dense_h_to_4h"](self.post_attention_layernorm(x))
        return x + self.mlp["dense_4h_to_h"](torch.nn.functional.gelu(y, approximate="tanh"))


class Gpt2(torch.nn.Module):
    """Under the names that the pipeline engine gives: blocks by their numbers, the embedding among tied modules."""

    def __init__(self, h=64, vocab=512, seq=128, blocks=4, heads=4):
        super().__init__()
        self.heads = heads
        embed = torch.nn.ModuleDict({"word_embeddings": torch.nn.Embedding(vocab, h),
                                     "position_embeddings": torch.nn.Embedding(seq, h)})
        self.tied_modules = torch.nn.ModuleDict({"embed": embed})
        for i in range(blocks):
            self.add_module(str(3 + i), Block(h))
        self.last = str(4 + blocks)
        self.add_module(self.last, torch.nn.LayerNorm(h))

    def forward(self, x):
        embed = self.tied_modules["embed"]
        h = embed["word_embeddings"](x[:, :-1]) + embed["position_embeddings"](torch.arange(x.shape[1] - 1))
        for name, block in self.named_children():
            if isinstance(block, Block):
                h = block(h, self.heads)
        h = getattr(self, self.last)(h)
        logits = torch.nn.functional.linear(h, embed["word_embeddings"].weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())


def by_decay(model):
    params = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p for p in params if p.dim() > 1]}, {"params": [p for p in params if p.dim() == 1]}]


def pipeline(universal, stage, folder):
    torch.manual_seed(7)
    model = Gpt2()
    groups = by_decay(model)
    saved = torch.load(os.path.join(universal, "zero/optimizer_state.pt"), weights_only=False)["param_groups"]
    for g, was in zip(groups, (saved[0], saved[-1])):
        g.update({k: was[k] for k in SETTINGS})
    optimizer = torch.optim.AdamW(groups)
    for name, p in model.named_parameters():
        state = lambda k: torch.load(os.path.join(universal, "zero", name, k + ".pt"), weights_only=False)
        p.data.copy_(state("fp32")["param"])
        optimizer.state[p] = {"step": torch.tensor(float(state("step"))), "exp_avg": state("exp_avg")["param"].clone(),
                              "exp_avg_sq": state("exp_avg_sq")["param"].clone()}
    want = steps(model, 257, optimizer=optimizer, clip=1.0)
    torch.manual_seed(11)
    model = Gpt2()
    engine = engine_of(model, by_decay(model), stage, folder)
    assert engine.client["iteration"] == engine.global_steps == 20 and engine.client["checkpoint_version"] == 3.0
    tell(f"the pipeline engine's GPT-2 as ZeRO-{stage}", steps(engine, 257, engine=engine), want)


# ---- Megatron-core's ----

def core_model(seed):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    torch.manual_seed(seed)
    c = TransformerConfig(
        num_layers=2, hidden_size=8, ffn_hidden_size=12, num_attention_heads=2, num_query_groups=2,
        use_cpu_initialization=True, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, normalization="RMSNorm", attention_dropout=0.0, hidden_dropout=0.0,
        bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False)
    return GPTModel(config=c, transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=16,
                    max_sequence_length=SEQ, share_embeddings_and_output_weights=False, position_embedding_type="rope")


def core_loss(model):
    where = torch.arange(SEQ).unsqueeze(0).expand(2, -1)
    mask = torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool), 1)[None, None]
    return lambda x: model(x[:, :-1].contiguous(), where, mask, labels=x[:, 1:].contiguous()).mean()


def core_start():
    """What megatron-core asks CUDA for on its way, on a machine that has none."""
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.current_device = lambda: "cpu"
    tensor = torch.tensor
    torch.tensor = lambda *a, **k: tensor(*a, **{**k, **({"device": "cpu"} if str(k.get("device")) == "cuda" else {})})
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
    parallel_state.initialize_model_parallel(1, 1)


def core_goes_on(folder, frozen=()):
    """Megatron-core loads the folder as it is, two tensor ranks' in one, and takes the steps."""
    from megatron.core import dist_checkpointing as dc
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer
    model = core_model(3)
    flags = {"lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
    groups = [dict(g, **flags, wd_mult=1.0 - i) for i, g in enumerate(by_decay(model))]
    base = torch.optim.AdamW(groups, lr=0.5, foreach=False)

    def fill(o, config=None):
        for p in model.parameters():
            if not o.state[p]:
                o.state[p].update(exp_avg=torch.zeros_like(p.data), exp_avg_sq=torch.zeros_like(p.data))

    optimizer = FP32Optimizer(base, OptimizerConfig(optimizer="adam", lr=0.5, clip_grad=0.0), fill)
    state = {"model": model.sharded_state_dict(prefix="")}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=True)
    got = dc.load(state, folder)
    model.load_state_dict(got["model"], strict=False)
    optimizer.load_state_dict(got["optimizer"])
    for name, p in model.named_parameters():
        if name in frozen:                      # an update of nothing
            base.param_groups[1]["params"] = [q for q in base.param_groups[1]["params"] if q is not p]
    return steps(core_loss(model), 16, optimizer=optimizer)


FROZEN = ("decoder.layers.1.input_layernorm.weight", "decoder.layers.1.pre_mlp_layernorm.weight")


def odd_groups(model):
    """Not what Megatron would make: three groups, backwards, two parameters frozen."""
    for name, p in model.named_parameters():
        p.requires_grad_(name not in FROZEN)
    decay, rest = by_decay(model)
    back = list(reversed(decay["params"]))
    return [{"params": back[:2]}, {"params": list(reversed(rest["params"]))}, {"params": back[2:]}]


def core(folder, stage, out, like=None):
    core_start()
    want = core_goes_on(folder, FROZEN if like else ())
    model = core_model(5)
    engine = engine_of(model, odd_groups(model) if like else by_decay(model), stage, out)
    assert engine.client["iteration"] == engine.global_steps == 2, engine.global_steps
    tell(f"Megatron-core's GPT as ZeRO-{stage}{', groups of another' if like else ''}",
         steps(core_loss(engine), 16, engine=engine), want)


def frozen(folder, stage, out):
    core_start()
    model = core_model(5)
    engine = engine_of(model, odd_groups(model), stage, None)
    engine.backward(core_loss(engine)(batch(9, 16)))        # before that Adam has nothing to save
    engine.step()
    engine.save_checkpoint(out, tag="start")


if __name__ == "__main__":
    import deepspeed
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    {"pipeline": pipeline, "core": core, "frozen": frozen}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)                         # in torch's own teardown a thread of gloo aborts the process now and then
