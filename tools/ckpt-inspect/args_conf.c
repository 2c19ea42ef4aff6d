/*
 * args_conf.c - print the saved arguments as a file of options for train
 *
 * Only options that describe the run are printed: the model, the data, the schedule, the topology. Paths of checkpoints
 * and logs, and options that a launcher sets, are left out. The test tests/cli/ckpt-inspect-conf passes the result to
 * train.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/model/config.h"
#include "tools/ckpt-inspect/inspect.h"

/*
 * The arguments that are printed, with their names in the saved Namespace, which are also the names of the options. If
 * `only_with` is not NULL, the group is printed only if the Namespace has this argument and it is set.
 */
static const struct conf_group {
    const char *title, *only_with;
    const char *names[24];
} groups[] = {
    { "the model", NULL,
      { "num_layers", "hidden_size", "ffn_hidden_size", "kv_channels", "num_attention_heads", "seq_length",
        "max_position_embeddings", "position_embedding_type", "embed_layernorm", "layernorm_epsilon", "init_method_std",
        "bf16", "fp16" } },
    { "loss scaling", "fp16",
      { "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis",
        "accumulate_allreduce_grads_in_fp32" } },
    { "tokens", NULL,
      { "tokenizer_type", "tokenizer_name_or_path", "vocab_file", "merge_file", "vocab_size", "eod_id",
        "make_vocab_size_divisible_by", "pad_vocab_size_to", "eod_mask_loss" } },
    { "the data", NULL,
      { "data_path", "split", "train_weighted_split_paths", "valid_weighted_split_paths", "test_weighted_split_paths",
        "train_weighted_split_paths_path", "valid_weighted_split_paths_path", "test_weighted_split_paths_path" } },
    { "the run", NULL,
      { "train_samples", "train_tokens", "micro_batch_size", "global_batch_size", "rampup_batch_size", "seed",
        "skip_train_iteration_range" } },
    { "the learning rate", NULL, { "lr", "min_lr", "lr_decay_style", "lr_warmup_fraction" } },
    { "its schedule", "train_samples", { "lr_decay_samples", "lr_decay_tokens", "lr_warmup_samples" } },
    { "the optimizer", NULL,
      { "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps", "attention_dropout", "hidden_dropout" } },
    { "the topology", NULL,
      { "tensor_model_parallel_size", "pipeline_model_parallel_size", "pp_partition_method", "sequence_parallel" } },
    { "evaluation, checkpoints, log", NULL, { "eval_interval", "eval_iters", "save_interval", "log_interval" } },
};
/* Printed if the run of the checkpoint counts its length in iterations and not in samples. */
static const struct conf_group iterations = {
    "the length of the run, and its schedule", NULL, { "train_iters", "lr_decay_iters", "lr_warmup_iters" }
};

static bool is_given(const struct pk *v)
{
    return !pk_is_none(v) && !(v->type == PK_BOOL && !v->i);
}

/* Append one word of a value. It is put in quotes if it has characters that would end the word or begin a comment. */
static void append_word(struct strbuf *line, const char *word)
{
    const char *quote = !*word || strpbrk(word, " \t#'") ? "\"" : strchr(word, '"') ? "'" : "";

    strbuf_addf(line, " %s%s%s", quote, word, quote);
}

static void append_value(struct strbuf *line, const struct pk *v)
{
    int64_t value = 0;
    uint32_t n;
    struct pk **item = pk_items(v, &n);
    struct strbuf text = {0};
    const char *s = pk_as_str(v);

    if (item) {
        for (uint32_t i = 0; i < n; i++)
            append_value(line, item[i]);
        return;
    }
    s = s ? s : pk_enum(v, &value);     /* position_embedding_type is the only enum; its member's name is printed */
    s = s ? s : config_position_name(value);
    if (!s)
        pk_text(v, &text);
    append_word(line, s ? s : text.buf);
    strbuf_free(&text);
}

/* Print the options of a group. A value that cannot be written in one line is printed as a comment. */
static void print_conf_group(const struct pk *args, const struct conf_group *g)
{
    bool titled = false;

    for (const char *const *name = g->names; *name; name++) {
        const struct pk *v = pk_get(args, *name);
        struct strbuf line = {0};

        if (!is_given(v))
            continue;
        if (!titled)
            printf("\n# %s\n", g->title);
        titled = true;
        if (v->type != PK_BOOL)
            append_value(&line, v);
        if (line.buf && strpbrk(line.buf, "\r\n"))
            printf("# %s: omitted, because the value has several lines\n", *name);
        else
            printf("%s%s%s\n", *name, line.buf ? " =" : "", line.buf ? line.buf : "");
        strbuf_free(&line);
    }
}

void args_print_conf(const struct pk *args, const char *path)
{
    int64_t rows;

    printf("# options of train, from the arguments that %s holds; use: train --config FILE\n", path);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (!groups[i].only_with || is_given(pk_get(args, groups[i].only_with)))
            print_conf_group(args, &groups[i]);
    if (!is_given(pk_get(args, "train_samples")))
        print_conf_group(args, &iterations);
    if (!is_given(pk_get(args, "bf16")) && !is_given(pk_get(args, "fp16")))
        printf("\n# weights in fp32\nbf16 = False\n");
    if (!is_given(pk_get(args, "vocab_size")) && pk_as_int(pk_get(args, "padded_vocab_size"), &rows))
        printf("\n# The number of tokens is not saved; the embedding has %lld rows.\n", (long long)rows);
}
