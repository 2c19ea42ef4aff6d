"""broken.py FAULT OUT - make OUT/broken with the genuine software that writes it wrong, and OUT/sound, its sound twin

Each function below is one fault of docs/broken-writers.md; broken.py alone prints their names, and the packages and
ranks that each needs. All run on CPUs, with gloo. A fault of more than one rank is started by torchrun.
"""
import os
import sys

FAULTS = {}


def fault(ranks, *packages):
    def add(f):
        FAULTS[f.__name__.replace("_", "-")] = (f, ranks, packages)
        return f
    return add


def llama(tie=False, **sizes):
    """A Llama of two layers in bf16, with the same weights in each call."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    config = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  vocab_size=32, max_position_embeddings=32, tie_word_embeddings=tie)
    return LlamaForCausalLM(LlamaConfig(**{**config, **sizes})).to(torch.bfloat16)


def zero(model, stage, parameters=None, **more):
    """The model under DeepSpeed, after one step."""
    import deepspeed
    import torch
    parameters = parameters or [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config={
        "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 1e-3}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more})
    x = torch.arange(16).view(2, 8)
    loss = engine(input_ids=x, labels=x).loss if hasattr(model, "config") else engine(x)
    engine.backward(loss)
    engine.step()
    return engine


def gloo():
    import torch.distributed as dist
    dist.init_process_group("gloo")
    return dist.get_rank()


@fault(1, "torch", "transformers", "safetensors")
def compiled(out):
    """The state of what torch.compile() returns: each name has the prefix _orig_mod."""
    import torch
    from safetensors.torch import save_file
    m = llama()
    m.save_pretrained(out + "/sound")
    m.config.save_pretrained(out + "/broken")
    save_file(torch.compile(m).state_dict(), out + "/broken/model.safetensors", metadata={"format": "pt"})


@fault(1, "torch", "transformers", "safetensors")
def wrapped(out):
    """The state of DistributedDataParallel instead of the model's: each name has the prefix module."""
    import torch
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29671", RANK="0", WORLD_SIZE="1")
    gloo()
    m = llama()
    m.save_pretrained(out + "/sound")
    m.config.save_pretrained(out + "/broken")
    torch.save(torch.nn.parallel.DistributedDataParallel(m).state_dict(), out + "/broken/pytorch_model.bin")


@fault(2, "torch", "transformers", "safetensors", "deepspeed")
def zero3_placeholders(out):
    """save_pretrained() under ZeRO-3 without gathering the parameters: tensors of shape [0]."""
    import deepspeed
    import torch
    e = zero(llama(), 3)
    if torch.distributed.get_rank() == 0:
        e.module.save_pretrained(out + "/broken")
    with deepspeed.zero.GatheredParameters(list(e.module.parameters())):
        if torch.distributed.get_rank() == 0:
            e.module.save_pretrained(out + "/sound")


@fault(2, "torch", "transformers", "safetensors", "deepspeed", "peft")
def zero3_adapter(out):
    """The same for a LoRA adapter."""
    import deepspeed
    import torch
    from peft import LoraConfig, get_peft_model
    m = llama()
    if int(os.environ["RANK"]) == 0:
        m.save_pretrained(out + "/base")
    e = zero(get_peft_model(m, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)), 3)
    if torch.distributed.get_rank() == 0:
        e.module.save_pretrained(out + "/broken")
    with deepspeed.zero.GatheredParameters(list(e.module.parameters())):
        if torch.distributed.get_rank() == 0:
            e.module.save_pretrained(out + "/sound")


@fault(2, "torch", "transformers", "safetensors")
def tensor_rank(out):
    """Each tensor-parallel rank saves its own part under one name: the file of the last one stays."""
    import torch.distributed as dist
    from safetensors.torch import save_file
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    rank, m = gloo(), llama()
    if rank == 0:
        m.save_pretrained(out + "/sound")
        m.config.save_pretrained(out + "/broken")
    plan = {"self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in m.model.layers:
        parallelize_module(layer, dist.init_device_mesh("cpu", (2,)), plan)
    state = {k: (v.to_local() if isinstance(v, DTensor) else v).contiguous() for k, v in m.state_dict().items()}
    for one in range(2):
        if one == rank:
            save_file(state, out + "/broken/model.safetensors", metadata={"format": "pt"})
        dist.barrier()


@fault(2, "torch", "transformers")
def rank0_alone(out):
    """torch.save() of an FSDP2 model's state on rank 0 alone: the parts of the other ranks are in no file."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    rank, m = gloo(), llama()
    for layer in m.model.layers:
        fully_shard(layer)
    fully_shard(m)
    for name in ("broken", "sound"):
        os.makedirs(f"{out}/{name}", exist_ok=True)
        if rank == 0 or name == "sound":
            torch.save(m.state_dict(), f"{out}/{name}/model_world_size_2_rank_{rank}.pt")
    dist.barrier()


@fault(2, "torch", "deepspeed")
def experts_of_one_rank(out):
    """save_16bit_model() of DeepSpeed's MoE over two expert ranks: the experts of rank 0 alone."""
    import deepspeed
    import torch
    from torch import nn
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            expert = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16))
            self.emb = nn.Embedding(32, 16)
            self.moe = MoE(16, expert, num_experts=4, ep_size=2, k=1, min_capacity=0)
            self.head = nn.Linear(16, 32)

        def forward(self, x):
            h, balance, _ = self.moe(self.emb(x))
            return self.head(h).float().logsumexp(-1).mean() + balance

    m = Model()
    e = zero(m, 1, split({"params": list(m.parameters()), "name": "all"}))
    e.save_checkpoint(out + "/sound")
    e.save_16bit_model(out + "/broken")


@fault(1, "torch", "transformers", "safetensors", "peft")
def tied_head(out):
    """peft's merge of an adapter of the head, where head and embedding are one tensor: the embedding changes."""
    from peft import LoraConfig, get_peft_model
    m = llama(tie=True)
    m.save_pretrained(out + "/base")
    p = get_peft_model(m, LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False))
    p.save_pretrained(out + "/adapter")
    p.merge_and_unload().save_pretrained(out + "/broken")


@fault(1, "torch", "transformers", "safetensors")
def fp8_blocks(out):
    """Transformers' dequantisation of block FP8, of a matrix that 128 does not divide: blocks of another size."""
    import subprocess
    import torch
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config
    m = llama(hidden_size=128, intermediate_size=144, num_hidden_layers=1, vocab_size=16)
    m.save_pretrained(out + "/bf16")
    subprocess.run(["ckpt-edit", "-q", "cast", "fp8", out + "/bf16", out + "/fp8"], check=True)
    subprocess.run(["ckpt-edit", "-q", "cast", "bf16", out + "/fp8", out + "/sound"], check=True)
    AutoModelForCausalLM.from_pretrained(
        out + "/fp8", quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16,
    ).save_pretrained(out + "/broken")


@fault(2, "torch", "megatron.core")
def shifted_buckets(out):
    """Megatron-Core's fully_reshardable save of several padded buckets: masters and moments from shifted places."""
    import torch
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/forms"))
    import distopt_check
    distopt_check.no_gpu()
    distopt_check.no_apex()
    rank = gloo()
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig
    parallel_state.initialize_model_parallel(1, 1)
    config = TransformerConfig(num_layers=2, hidden_size=16, ffn_hidden_size=24, num_attention_heads=4, bf16=True,
                               use_cpu_initialization=True, params_dtype=torch.bfloat16, attention_dropout=0.0,
                               hidden_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False,
                               gradient_accumulation_fusion=False)
    for name, bucket in (("broken", 600), ("sound", None)):
        torch.manual_seed(1)
        model = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=32,
                         max_sequence_length=16).bfloat16()
        model = DistributedDataParallel(config=config, module=model, ddp_config=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=True, overlap_grad_reduce=bool(bucket),
            bucket_size=bucket))
        optimizer = get_megatron_optimizer(OptimizerConfig(
            optimizer="adam", lr=3e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), [model])
        x = torch.arange(34).remainder(32).view(2, 17)
        mask = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1)[None, None]
        model(x[:, :-1].contiguous(), torch.arange(16).expand(2, -1), mask, labels=x[:, 1:].contiguous()).mean().backward()
        model.finish_grad_sync()
        optimizer.step()
        form = {"distrib_optim_sharding_type": "fully_reshardable"}
        state = model.module.sharded_state_dict(prefix="", metadata=form)
        if rank == 0:
            os.makedirs(f"{out}/{name}")
        torch.distributed.barrier()
        dist_checkpointing.save({"model": state, "optimizer": optimizer.sharded_state_dict(state, metadata=form),
                                 "iteration": 1, "checkpoint_version": 3.0}, f"{out}/{name}", content_metadata=form)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        for name, (f, ranks, packages) in FAULTS.items():
            print(name, ranks, ", ".join(packages))
        sys.exit()
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.makedirs(sys.argv[2], exist_ok=True)
    FAULTS[sys.argv[1]][0](sys.argv[2])
