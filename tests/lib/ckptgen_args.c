/*
 * ckptgen_args.c - the contents of an mp_rank file: DeepSpeed's keys, then the trainer's
 *
 * Keys, types and order are those of real files. Arguments without influence on the shape of a checkpoint carry the
 * values of a small reference run.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/format/pt.h"
#include "tests/lib/ckptgen_impl.h"

#define RNG_BYTES       5056    /* size of torch's CPU generator state */
#define RNG_BYTES_SLIM  16

/* name=value as Python writes it; own_args() fills in the values marked @. */
static const char *const args_table[] = {
    "num_layers=@", "hidden_size=@", "ffn_hidden_size=@", "num_attention_heads=@",
    "kv_channels=@", "max_position_embeddings=@", "make_vocab_size_divisible_by=128",
    "pad_vocab_size_to=None", "layernorm_epsilon=1e-05", "sync_tp_duplicated_parameters=False",
    "apply_residual_connection_post_layernorm=False", "embed_layernorm=@", "openai_gelu=False",
    "onnx_safe=None", "bert_binary_head=True", "position_embedding_type=@", "glu_activation=None",
    "kill_switch_path=None", "log_level=None", "log_level_replica=None", "attention_dropout=0.0",
    "hidden_dropout=0.0", "weight_decay=0.1", "clip_grad=1.0", "adam_beta1=0.9",
    "adam_beta2=0.95", "adam_eps=1e-08", "sgd_momentum=0.9", "micro_batch_size=1",
    "global_batch_size=@", "rampup_batch_size=None", "checkpoint_activations=False",
    "distribute_checkpointed_activations=False", "checkpoint_num_layers=1", "train_iters=83",
    "train_samples=1200", "train_tokens=None", "log_interval=1", "exit_interval=None",
    "exit_duration_in_mins=None", "tensorboard_dir=None", "masked_softmax_fusion=False",
    "bias_gelu_fusion=True", "bias_dropout_fusion=True", "optimizer='adam'",
    "use_bnb_optimizer=False", "dataloader_type='single'", "cpu_optimizer=False",
    "cpu_torch_adam=False", "codecarbon_dir=None", "eval_only=None",
    "skip_train_iteration_range=None", "inference=False",
    "abort_on_unmet_fused_kernel_constraints=False", "pp_partition_method=@", "seed=@",
    "init_method_std=0.02", "init_method_xavier_uniform=False", "lr=0.002",
    "lr_decay_style='cosine'", "lr_decay_iters=None", "lr_decay_samples=1500",
    "lr_decay_tokens=None", "lr_warmup_fraction=None", "lr_warmup_iters=0",
    "lr_warmup_samples=80", "min_lr=0.0002", "override_lr_scheduler=False",
    "use_checkpoint_lr_scheduler=False", "universal_checkpoint=False", "save='ckpt'",
    "save_interval=10", "no_save_optim=None", "no_save_rng=None", "load=None",
    "no_load_optim=None", "no_load_rng=None", "finetune=False", "fp16=@", "bf16=@",
    "loss_scale=None", "initial_loss_scale=4294967296", "min_loss_scale=1.0",
    "loss_scale_window=1000", "hysteresis=2", "fp32_residual_connection=False",
    "apply_query_key_layer_scaling=True", "attention_softmax_in_fp32=False",
    "accumulate_allreduce_grads_in_fp32=True", "fp16_lm_cross_entropy=False",
    "tensor_model_parallel_size=@", "pipeline_model_parallel_size=@",
    "num_layers_per_virtual_pipeline_stage=None", "distributed_backend='nccl'",
    "DDP_impl='local'", "use_contiguous_buffers_in_ddp=True",
    "scatter_gather_tensors_in_pipeline=True", "local_rank=@", "lazy_mpu_init=None",
    "use_cpu_initialization=None", "eval_iters=2", "eval_interval=10", "data_path=[]",
    "split='949,50,1'", "train_weighted_split_paths=None", "valid_weighted_split_paths=None",
    "test_weighted_split_paths=None", "train_weighted_split_paths_path=None",
    "valid_weighted_split_paths_path=None", "test_weighted_split_paths_path=None",
    "log_path=None", "vocab_file='data/byte-vocab.json'", "merge_file='data/byte-merges.txt'",
    "vocab_extra_ids=0", "seq_length=@", "encoder_seq_length=@", "decoder_seq_length=None",
    "retriever_seq_length=256", "sample_rate=1.0", "mask_prob=0.15", "short_seq_prob=0.1",
    "mmap_warmup=False", "num_workers=0", "valid_num_workers=2",
    "tokenizer_type='GPT2BPETokenizer'", "tokenizer_name_or_path=None", "data_impl='mmap'",
    "reset_position_ids=False", "reset_attention_mask=False", "eod_mask_loss=False",
    "loss_on_targets_only=False", "reweight_loss_based_on_position_frequency=False",
    "noise_density=None", "mean_noise_span_length=None", "adlr_autoresume=False",
    "adlr_autoresume_interval=1000", "ict_head_size=None", "biencoder_projection_dim=0",
    "biencoder_shared_query_context_model=False", "ict_load=None", "bert_load=None",
    "titles_data_path=None", "query_in_block_prob=0.1", "use_one_sent_docs=False",
    "evidence_data_path=None", "retriever_report_topk_accuracies=[]",
    "retriever_score_scaling=False", "block_data_path=None", "embedding_path=None",
    "indexer_batch_size=128", "indexer_log_interval=1000", "num_classes=1000", "img_dim=224",
    "num_channels=3", "patch_dim=16", "log_params_norm=False", "log_num_zeros_in_grad=False",
    "tensorboard_log_interval=1", "tensorboard_queue_size=1000",
    "log_timers_to_tensorboard=False", "log_batch_size_to_tensorboard=False",
    "log_learning_rate_to_tensorboard=True", "log_loss_scale_to_tensorboard=True",
    "log_validation_ppl_to_tensorboard=False", "zero_stage=@", "zero_reduce_scatter=False",
    "zero_contigious_gradients=False", "zero_reduce_bucket_size=0.0",
    "zero_allgather_bucket_size=0.0", "remote_device='none'", "use_pin_memory=False",
    "scattered_embeddings=False", "split_transformers=False", "memory_centric_tiled_linear=False",
    "tile_factor=1", "deepspeed_activation_checkpointing=False", "partition_activations=False",
    "contigious_checkpointing=False", "checkpoint_in_cpu=False", "synchronize_each_layer=False",
    "profile_backward=False", "deepspeed=True", "deepspeed_config='ds.json'", "deepscale=False",
    "deepscale_config=None", "deepspeed_mpi=False", "rank=@", "world_size=@",
    "data_parallel_size=@", "valid_weighted_split_names=None",
    "valid_weighted_split_weights=None", "valid_weighted_split_splits=None",
    "test_weighted_split_names=None", "test_weighted_split_weights=None",
    "test_weighted_split_splits=None", "virtual_pipeline_model_parallel_size=None",
    "params_dtype=@", "consumed_train_samples=@", "consumed_valid_samples=48",
    "consumed_train_tokens=@", "gigaflos_no_embeds=27.922268159999998",
    "curriculum_learning=False", "padded_vocab_size=@", "deepspeed_configuration=@",
    "pretrain_causal_attention=True", "iteration=@",
    "parameters_in_billions_no_embedding=0.000201984", "do_train=1", "do_valid=True",
    "do_test=False", "data_prefixes=None", "data_weights=None",
};

static struct pk *literal(struct arena *a, const char *v)
{
    if (strcmp(v, "None") == 0 || strcmp(v, "@") == 0)
        return pk_none(a);
    if (strcmp(v, "True") == 0 || strcmp(v, "False") == 0)
        return pk_bool(a, v[0] == 'T');
    if (strcmp(v, "[]") == 0)
        return pk_list(a);
    if (v[0] == '\'') {
        struct pk *s;
        char *copy = xstrdup(v + 1);

        copy[strlen(copy) - 1] = '\0';
        s = pk_str(a, copy);
        free(copy);
        return s;
    }
    if (strpbrk(v, ".e"))
        return pk_float(a, strtod(v, NULL));
    return pk_int(a, strtoll(v, NULL, 10));
}

static struct pk *tuple_of(struct arena *a, int n, ...)
{
    struct pk *t = pk_tuple(a);
    va_list ap;

    va_start(ap, n);
    for (int i = 0; i < n; i++)
        pk_add(a, t, va_arg(ap, struct pk *));
    va_end(ap);
    return t;
}

static int64_t batch(const struct ckptgen_set *s) { return 8 * (int64_t)s->g.topo.dp; }
static int64_t samples(const struct ckptgen_set *s) { return s->g.iteration * batch(s); }

static struct pk *deepspeed_configuration(const struct ckptgen_set *s, struct arena *a)
{
    struct pk *d = pk_dict(a), *zero = pk_dict(a), *half = pk_dict(a);

    pk_set_int(a, d, "train_batch_size", batch(s));
    pk_set_int(a, d, "train_micro_batch_size_per_gpu", 1);
    pk_set_int(a, d, "steps_per_print", 2000);
    pk_set_str(a, d, "gradient_clipping", pk_float(a, 1.0));
    pk_set_int(a, zero, "stage", s->g.zero1);
    pk_set_str(a, d, "zero_optimization", zero);
    pk_set_str(a, half, "enabled", pk_bool(a, true));
    pk_set_str(a, d, s->g.zero1 ? "fp16" : "bf16", half);
    pk_set_str(a, d, "zero_allow_untested_optimizer", pk_bool(a, true));
    pk_set_str(a, d, "wall_clock_breakdown", pk_bool(a, false));
    return d;
}

/* Describe an enum member as Python 3.11 pickles it: getattr(cls, 'alibi'). */
static struct pk *enum_member(struct arena *a, const char *module, const char *cls, const char *name)
{
    return pk_call(a, pk_global(a, "__builtin__", "getattr"),
                   tuple_of(a, 2, pk_global(a, module, cls), pk_str(a, name)));
}

/* Add the arguments that follow from the shape of the set. */
static void own_args(const struct ckptgen_set *s, struct arena *a, int pp, int tp, struct pk *d)
{
    const struct ckptgen *g = &s->g;
    int rank = topo_rank(g->topo, pp, 0, tp);

    pk_set_int(a, d, "num_layers", g->n_layers);
    pk_set_int(a, d, "hidden_size", g->hidden);
    pk_set_int(a, d, "ffn_hidden_size", 4 * g->hidden);
    pk_set_int(a, d, "num_attention_heads", g->n_heads);
    pk_set_int(a, d, "kv_channels", g->hidden / g->n_heads);
    pk_set_int(a, d, "max_position_embeddings", g->seq_len);
    pk_set_str(a, d, "embed_layernorm", pk_bool(a, g->embed_layernorm));
    pk_set_str(a, d, "position_embedding_type",
               enum_member(a, "megatron.enums", "PositionEmbeddingType",
                           g->absolute_positions ? "absolute" : "alibi"));
    pk_set_int(a, d, "global_batch_size", batch(s));
    pk_set_str(a, d, "pp_partition_method", pk_str(a, g->partition));
    pk_set_int(a, d, "seed", (int64_t)g->seed);
    pk_set_str(a, d, "fp16", pk_bool(a, g->zero1));
    pk_set_str(a, d, "bf16", pk_bool(a, !g->zero1));
    pk_set_int(a, d, "tensor_model_parallel_size", g->topo.tp);
    pk_set_int(a, d, "pipeline_model_parallel_size", g->topo.pp);
    pk_set_int(a, d, "seq_length", g->seq_len);
    pk_set_int(a, d, "encoder_seq_length", g->seq_len);
    pk_set_int(a, d, "zero_stage", g->zero1);
    pk_set_int(a, d, "local_rank", rank % 8);
    pk_set_int(a, d, "rank", rank);
    pk_set_int(a, d, "world_size", topo_world(g->topo));
    pk_set_int(a, d, "data_parallel_size", g->topo.dp);
    pk_set_str(a, d, "params_dtype", pk_global(a, "torch", g->zero1 ? "float16" : "bfloat16"));
    pk_set_int(a, d, "consumed_train_samples", samples(s));
    pk_set_int(a, d, "consumed_train_tokens", samples(s) * g->seq_len);
    pk_set_int(a, d, "padded_vocab_size", g->vocab);
    pk_set_str(a, d, "deepspeed_configuration", deepspeed_configuration(s, a));
    pk_set_int(a, d, "iteration", g->iteration);
}

static struct pk *args(const struct ckptgen_set *s, struct arena *a, int pp, int tp)
{
    struct pk *d = pk_dict(a);

    for (size_t i = 0; i < sizeof args_table / sizeof *args_table && !s->g.slim; i++) {
        const char *eq = strchr(args_table[i], '=');
        char name[64];

        memcpy(name, args_table[i], (size_t)(eq - args_table[i]));
        name[eq - args_table[i]] = '\0';
        pk_set_str(a, d, name, literal(a, eq + 1));
    }
    own_args(s, a, pp, tp, d);
    return pk_object(a, "argparse", "Namespace", d);
}

static struct pk *lr_scheduler(const struct ckptgen_set *s, struct arena *a)
{
    struct pk *d = pk_dict(a);

    pk_set_str(a, d, "max_lr", pk_float(a, 0.002));
    pk_set_int(a, d, "warmup_steps", 80);
    pk_set_int(a, d, "num_steps", samples(s));
    pk_set_int(a, d, "warmup_tokens", 0);
    pk_set_int(a, d, "num_tokens", samples(s) * s->g.seq_len);
    pk_set_str(a, d, "decay_style", pk_str(a, "cosine"));
    pk_set_int(a, d, "decay_steps", 1500);
    pk_set_str(a, d, "min_lr", pk_float(a, 0.0002));
    return d;
}

static struct pk *param_shapes(const struct ckptgen_set *s, struct arena *a, int pp)
{
    struct pk *list = pk_list(a), *size = pk_global(a, "torch", "Size");

    for (int g = 0; g < s->g.n_groups; g++) {
        const struct group *gr = &s->stage[pp].group[g];
        struct pk *d = pk_ordered_dict(a);

        for (int i = 0; i < gr->n; i++) {
            int64_t shape[2];
            int ndim = ckptgen_slice_shape(s, gr->member[i].param, shape);
            struct pk *dims = pk_tuple(a);

            for (int k = 0; k < ndim; k++)
                pk_add(a, dims, pk_int(a, shape[k]));
            pk_set_str(a, d, s->param[gr->member[i].param].name,
                       pk_call(a, size, tuple_of(a, 1, dims)));
        }
        pk_add(a, list, d);
    }
    return list;
}

/* ---- random number generators: plausible words, the shapes of the real ones ---- */

static uint32_t word(const struct ckptgen_set *s, int pp, int tp, uint32_t i)
{
    float unused[64];
    uint32_t u;

    /* The value formula serves as the source: its bits below the exponent are uniform. */
    ckptgen_fill(s->g.seed + (uint64_t)(100 * pp + tp), STATE_FP32, true, i, 1, unused);
    memcpy(&u, unused, 4);
    return u * 0x9e3779b9u;
}

static struct pk *python_rng(const struct ckptgen_set *s, struct arena *a, int pp)
{
    struct pk *words = pk_tuple(a);

    for (uint32_t i = 0; i < (s->g.slim ? 4 : 625); i++)
        pk_add(a, words, pk_int(a, word(s, pp, 0, i)));
    return tuple_of(a, 3, pk_int(a, 3), words, pk_none(a));
}

static struct pk *bytes_of(struct arena *a, const void *p, size_t n)
{
    struct pk *v = arena_alloc(a, sizeof *v);

    v->type = PK_BYTES;
    v->str = arena_strndup(a, p, n);
    v->len = n;
    return v;
}

/* Build ('MT19937', uint32[624], pos, has_gauss, cached), with the array as numpy pickles it. */
static struct pk *numpy_rng(const struct ckptgen_set *s, struct arena *a, int pp)
{
    int n = s->g.slim ? 4 : 624;
    uint8_t raw[4 * 624];
    struct pk *dtype, *array;

    for (int i = 0; i < n; i++)
        put_le32(raw + 4 * i, word(s, pp, 0, (uint32_t)i));
    dtype = pk_call(a, pk_global(a, "numpy", "dtype"),
                    tuple_of(a, 3, pk_str(a, "u4"), pk_bool(a, false), pk_bool(a, true)));
    dtype->state = tuple_of(a, 8, pk_int(a, 3), pk_str(a, "<"), pk_none(a), pk_none(a), pk_none(a),
                            pk_int(a, -1), pk_int(a, -1), pk_int(a, 0));
    array = pk_call(a, pk_global(a, "numpy.core.multiarray", "_reconstruct"),
                    tuple_of(a, 3, pk_global(a, "numpy", "ndarray"), tuple_of(a, 1, pk_int(a, 0)),
                             bytes_of(a, "b", 1)));
    array->state = tuple_of(a, 5, pk_int(a, 1), tuple_of(a, 1, pk_int(a, n)), dtype, pk_bool(a, false),
                            bytes_of(a, raw, 4 * (size_t)n));
    return tuple_of(a, 5, pk_str(a, "MT19937"), array, pk_int(a, 624), pk_int(a, 0), pk_float(a, 0.0));
}

static struct pk *torch_rng(const struct ckptgen_set *s, struct arena *a, int pp, int tp, int storage,
                            struct blob *blob)
{
    int64_t n = s->g.slim ? RNG_BYTES_SLIM : RNG_BYTES;

    blob->len = (uint64_t)n;
    blob->bytes = xcalloc(1, (size_t)n);
    blob->bytes[0] = (uint8_t)(s->g.seed + 100 * (uint64_t)pp);
    for (int i = 1; i < n / 8; i++)     /* words of 8 bytes; torch uses 4 bytes of each */
        put_le32(blob->bytes + 8 * i, word(s, pp, tp, (uint32_t)i));
    return pt_new_tensor(a, &(struct pt_new){ .storage = storage, .dtype = DTYPE_U8, .storage_elems = n, .ndim = 1,
                                              .shape = &n });
}

/* ---- the whole dict, in the order of a real one ---- */

static void deepspeed_keys(const struct ckptgen_set *s, struct arena *a, int pp, struct pk *d)
{
    pk_set_str(a, d, "module", pk_none(a));
    pk_set_str(a, d, "buffer_names", pk_list(a));
    pk_set_str(a, d, "optimizer", pk_none(a));
    pk_set_str(a, d, "param_shapes", param_shapes(s, a, pp));
    if (!s->g.no_mappings) {            /* added after DeepSpeed 0.6 */
        pk_set_str(a, d, "frozen_param_shapes", pk_none(a));
        pk_set_str(a, d, "shared_params", pk_dict(a));
        pk_set_str(a, d, "frozen_param_fragments", pk_none(a));
    }
    pk_set_str(a, d, "lr_scheduler", lr_scheduler(s, a));
    if (!s->g.no_mappings) {
        pk_set_str(a, d, "data_sampler", pk_none(a));
        pk_set_str(a, d, "random_ltd", pk_none(a));
    }
    pk_set_str(a, d, s->g.no_mappings ? "csr_tensor_module_names" : "sparse_tensor_module_names",
               pk_call(a, pk_global(a, "__builtin__", "set"), tuple_of(a, 1, pk_list(a))));
    pk_set_int(a, d, "skipped_steps", 0);
    pk_set_int(a, d, "global_steps", s->g.iteration);
    pk_set_int(a, d, "global_samples", samples(s));
    pk_set_int(a, d, "dp_world_size", s->g.topo.dp);
    pk_set_int(a, d, "mp_world_size", s->g.topo.pp * s->g.topo.tp);
    if (s->g.ds019) {
        struct pk *dimensions = pk_dict(a);

        pk_set_int(a, dimensions, "pp_degree", s->g.topo.pp);
        pk_set_int(a, dimensions, "tp_degree", s->g.topo.tp);
        pk_set_str(a, d, "checkpoint_parallel_dimensions", dimensions);
    }
    pk_set_str(a, d, "ds_config", s->g.ds019 ? pk_dict(a) : pk_str(a, "ds.json"));
    pk_set_str(a, d, "ds_version", pk_str(a, s->g.no_mappings ? "0.6.7" : "0.12.6"));
}

struct pk *ckptgen_mp_rank(const struct ckptgen_set *s, struct arena *a, int pp, int tp,
                           struct blob blob[3])
{
    struct pk *d = pk_dict(a), *info = pk_dict(a), *tracker = pk_dict(a);

    deepspeed_keys(s, a, pp, d);
    pk_set_str(a, d, "args", args(s, a, pp, tp));
    pk_set_str(a, d, "checkpoint_version", pk_float(a, 3.0));
    pk_set_int(a, d, "iteration", s->g.iteration);
    pk_set_int(a, d, "tokens", samples(s) * s->g.seq_len);
    if (!s->g.no_mappings) {
        pk_set_int(a, info, "padded_vocab_size", s->g.vocab);
        pk_set_int(a, info, "original_vocab_size", s->g.vocab_tokens);
        pk_set_str(a, d, "checkpoint_info", info);
    }
    pk_set_str(a, d, "random_rng_state", python_rng(s, a, pp));
    pk_set_str(a, d, "np_rng_state", numpy_rng(s, a, pp));
    pk_set_str(a, d, "torch_rng_state", torch_rng(s, a, pp, 0, 0, &blob[0]));
    pk_set_str(a, d, "cuda_rng_state", torch_rng(s, a, pp, 0, 1, &blob[1]));
    pk_set_str(a, tracker, "model-parallel-rng", torch_rng(s, a, pp, tp, 2, &blob[2]));
    pk_set_str(a, d, "rng_tracker_states", tracker);
    return d;
}
