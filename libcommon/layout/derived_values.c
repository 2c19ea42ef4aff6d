/*
 * derived_values.c - the table of values that the tensors, the ranks or the step determine
 */
#include "libcommon/layout/derived_values.h"

#include <stddef.h>
#include <string.h>

#define OPTION(name)   name " changes it", "reshape " name " changes it"
#define TENSORS        "the tensors determine it"
#define BY_TENSORS     TENSORS, TENSORS
#define BY_CAST        TENSORS, "ckpt-edit cast changes it"
#define BY_RANKS       "it follows from --target-tp, --target-pp and --target-dp", \
                       "it follows from the number of ranks (reshape changes it)"
#define BY_STEP        "--step changes it", "ckpt-edit retag changes it"
#define BY_VOCAB       "--pad-vocab-size-to changes it", "ckpt-edit vocab changes it"

static const struct derived_value table[] = {
    { "args.tensor_model_parallel_size", OPTION("--target-tp") },
    { "args.pipeline_model_parallel_size", OPTION("--target-pp") },
    { "args.data_parallel_size", OPTION("--target-dp") },
    { "args.model_parallel_size", OPTION("--target-tp") },
    { "args.transformer_pipeline_model_parallel_size", OPTION("--target-pp") },
    { "args.ds_sequence_parallel_size", BY_RANKS },
    { "args.world_size", BY_RANKS },
    { "args.rank", BY_RANKS },
    { "args.local_rank", BY_RANKS },
    { "args.padded_vocab_size", BY_VOCAB },
    { "args.pp_partition_method", OPTION("--pp-partition-method") },
    { "args.iteration", BY_STEP },
    { "args.no_save_optim", "--drop-optimizer changes it", "ckpt-edit drop optimizer changes it" },
    { "args.num_layers", TENSORS, "ckpt-edit layers changes it" },
    { "args.hidden_size", BY_TENSORS },
    { "args.ffn_hidden_size", BY_TENSORS },
    { "args.num_attention_heads", BY_TENSORS },
    { "args.kv_channels", BY_TENSORS },
    { "args.embed_layernorm", BY_TENSORS },
    { "args.glu_activation", BY_TENSORS },
    { "args.swiglu", BY_TENSORS },
    { "args.params_dtype", BY_CAST },
    { "args.bf16", BY_CAST },
    { "args.fp16", BY_CAST },
    { "iteration", BY_STEP },
    { "global_steps", BY_STEP },
    { "dp_world_size", OPTION("--target-dp") },
    { "mp_world_size", BY_RANKS },
    { "checkpoint_parallel_dimensions", BY_RANKS },
    { "param_shapes", BY_RANKS },
    { "shared_params", BY_RANKS },
    { "checkpoint_info.padded_vocab_size", BY_VOCAB },
    { "universal_checkpoint_info", BY_TENSORS },
};

const struct derived_value *derived_value_find(const char *path)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const size_t n = strlen(table[i].key);

        if (strncmp(path, table[i].key, n) == 0 && (path[n] == '\0' || path[n] == '.'))
            return &table[i];
    }
    return NULL;
}
