"""core_average.py - make torch_dist checkpoints of a GPT with Megatron-Core, and average them with its functions

  core_average.py make OUT N HIDDEN LAYERS      OUT/iter_0000001 ... of bf16 weights that differ a little
  core_average.py average OUT WEIGHTS IN...     as Megatron-LM's tools/checkpoint/weighted_merge.py does in its mode
                                                cpu-resident: each folder is loaded by dist_checkpointing into the
                                                state of a model, summed in fp32, and the sum is rounded and saved
  core_average.py compare A B IN... WEIGHTS     largest difference of A and B from the mean in fp64, in ulps of bf16

One process, on a CPU. Needs torch and megatron-core.
"""
import os
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/forms"))
import distopt_check


def model_of(hidden, layers):
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(1, 1)
    config = TransformerConfig(num_layers=layers, hidden_size=hidden, num_attention_heads=8, bf16=True,
                               use_cpu_initialization=True, params_dtype=torch.bfloat16, attention_dropout=0.0,
                               hidden_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False,
                               gradient_accumulation_fusion=False)
    torch.manual_seed(1)
    return GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=32000,
                    max_sequence_length=512).bfloat16()


def make(out, n, hidden, layers):
    from megatron.core import dist_checkpointing
    model = model_of(hidden, layers)
    for i in range(1, n + 1):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 1e-3)
        folder = f"{out}/iter_{i:07}"
        os.makedirs(folder)
        dist_checkpointing.save({"model": model.sharded_state_dict(), "iteration": i, "checkpoint_version": 3.0}, folder)


def average(out, weights, folders):
    from megatron.core import dist_checkpointing
    size = os.environ["SIZE"].split(",")
    model = model_of(*map(int, size))
    total = {}
    for weight, folder in zip(weights, folders):
        loaded = dist_checkpointing.load({"model": model.sharded_state_dict()}, folder)["model"]
        for name, tensor in loaded.items():
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                if name not in total:
                    total[name] = torch.zeros_like(tensor, dtype=torch.float32)
                total[name].add_(tensor.float(), alpha=weight)
    state = model.sharded_state_dict()
    for name, tensor in total.items():
        state[name].data = tensor.to(state[name].data.dtype)
    os.makedirs(out)
    dist_checkpointing.save({"model": state, "iteration": 0, "checkpoint_version": 3.0}, out)


def compare(a, b, folders, weights):
    from megatron.core import dist_checkpointing
    model = model_of(*map(int, os.environ["SIZE"].split(",")))
    def load(folder):
        state = dist_checkpointing.load({"model": model.sharded_state_dict()}, folder)["model"]
        return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
    values = [load(x) for x in (a, b, *folders)]
    worst = [0.0, 0.0]
    differ = n = 0
    for name, tensor in values[0].items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            continue
        mean = sum(w * v[name].double() for w, v in zip(weights, values[2:]))
        ulp = torch.exp2(torch.floor(torch.log2(mean.abs().clamp_min(2.0 ** -126))) - 7)
        for i in range(2):
            worst[i] = max(worst[i], float(((values[i][name].double() - mean).abs() / ulp).max()))
        differ += int((values[0][name] != values[1][name]).sum())
        n += tensor.numel()
    print(f"{differ} of {n} weights differ; from the mean in fp64 at most {worst[0]:.4f} and {worst[1]:.4f} ulp")


def main():
    distopt_check.no_gpu()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29677"), RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    command, *rest = sys.argv[1:]
    if command == "make":
        make(rest[0], *map(int, rest[1:]))
    elif command == "average":
        average(rest[0], [float(x) for x in rest[1].split(",")], rest[2:])
    else:
        compare(rest[0], rest[1], rest[2:-1], [float(x) for x in rest[-1].split(",")])


if __name__ == "__main__":
    main()
