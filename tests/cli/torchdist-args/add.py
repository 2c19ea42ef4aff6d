"""add.py FOLDER KEY=VALUE... - add args, a Namespace, to common.pt of a folder of Megatron-core"""
import argparse, ast, io, pickle, sys, zipfile

path = sys.argv[1] + '/common.pt'
args = argparse.Namespace(num_layers=2, hidden_size=8, ffn_hidden_size=12, num_attention_heads=2, num_query_groups=1,
                          group_query_attention=False, kv_channels=4, padded_vocab_size=16, swiglu=True,
                          untie_embeddings_and_output_weights=True, normalization='RMSNorm', add_bias_linear=False,
                          add_qkv_bias=False, qk_layernorm=False, num_experts=None, mtp_num_layers=None,
                          position_embedding_type='rope', tensor_model_parallel_size=2, data_parallel_size=1,
                          pipeline_model_parallel_size=1, context_parallel_size=1, world_size=2)
for one in sys.argv[2:]:
    key, value = one.split('=')
    setattr(args, key, ast.literal_eval(value))
with zipfile.ZipFile(path) as z:
    files = [(i.filename, z.read(i)) for i in z.infolist()]
with zipfile.ZipFile(path, 'w') as z:
    for name, data in files:
        if name.endswith('/data.pkl'):  # the dict, then a key, its value, SETITEM and STOP
            data = data[:-1] + pickle.dumps('args', 2)[2:-1] + pickle.dumps(args, 2)[2:-1] + b's.'
        z.writestr(name, data)
