"""converters.py - the conversions of bench_converters.sh by the programs that people use today

converters.py PAIR DCP ZERO3 OUT; PAIR: dcp-torch, dcp-merge, zero3-fp32, zero3-universal.
"""
import os
import sys

pair, dcp, zero3, out = sys.argv[1:]

if pair == "dcp-torch":
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    os.mkdir(out)
    dcp_to_torch_save(dcp, os.path.join(out, "pytorch_model.bin"))
elif pair == "dcp-merge":
    from accelerate.utils import merge_fsdp_weights
    merge_fsdp_weights(dcp, out, safe_serialization=True)
elif pair == "zero3-fp32":
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
    convert_zero_checkpoint_to_fp32_state_dict(zero3, out, safe_serialization=True)
elif pair == "zero3-universal":
    import subprocess
    code = "from deepspeed.checkpoint.ds_to_universal import main, parse_arguments; main(parse_arguments())"
    os.mkdir(out)
    subprocess.run([sys.executable, "-c", code, "--input_folder", os.path.join(zero3, "global_step20"),
                    "--output_folder", os.path.join(out, "global_step20"), "--num_extract_workers", str(os.cpu_count()),
                    "--num_merge_workers", str(os.cpu_count())], check=True)
else:
    sys.exit(f"unknown pair {pair}")
