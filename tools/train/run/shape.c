/*
 * shape.c - the sizes of the model, its vocabulary and the partition into pipeline stages
 */
#include "tools/train/run/shape.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/tokens/bpe.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/run/show.h"
#include "tools/train/run/trainer.h"

/* ---- architecture: from the options, else from the checkpoint ---- */

/*
 * Set *option to the size in the checkpoint. If the option was given with another value, fail with ERR_USAGE
 * (docs/training.md 6.2; the reference uses an assertion).
 */
static int apply_saved_size(struct trainer *t, int64_t *option, size_t field, int64_t saved, const char *what,
                            struct err *e)
{
    if (saved <= 0)
        return 0;
    if (options_source(&t->o, field) >= FROM_DEEPSPEED && *option != saved) {
        err_usage(e, "%s: %s is %lld in %s, %s sets %lld", options_where(&t->o, field), what, (long long)saved,
                  checkpoint_info(t->from)->path, options_where(&t->o, field), (long long)*option);
        return -1;
    }
    *option = saved;
    options_mark(&t->o, field, FROM_CHECKPOINT);
    return 0;
}
#define APPLY_SAVED_SIZE(t, field, saved, e) \
    apply_saved_size((t), &(t)->o.field, offsetof(struct train_opts, field), (saved), #field, (e))

static int apply_saved_position(struct trainer *t, const struct model_config *c, struct err *e)
{
    const int saved = !strcmp(c->position, "alibi") ? POSITION_ALIBI : POSITION_ABSOLUTE;

    if (OPTS_GIVEN(&t->o, position_embedding_type) && t->o.position_embedding_type != saved) {
        err_usage(e, "%s: %s has %s positions", OPTS_WHERE(&t->o, position_embedding_type),
                  checkpoint_info(t->from)->path, c->position);
        return -1;
    }
    t->o.position_embedding_type = saved;
    OPTS_MARK(&t->o, position_embedding_type);
    if (!OPTS_GIVEN(&t->o, embed_layernorm)) {
        t->o.embed_layernorm = c->embed_layernorm;
        OPTS_MARK(&t->o, embed_layernorm);
    } else if (t->o.embed_layernorm != c->embed_layernorm) {
        err_usage(e, "%s: %s has %s embedding LayerNorm", OPTS_WHERE(&t->o, embed_layernorm),
                  checkpoint_info(t->from)->path, c->embed_layernorm ? "an" : "no");
        return -1;
    }
    return 0;
}

/*
 * Set the option for epsilon to the checkpoint's value. Only a Transformers folder contains this value. The value is
 * used only if the weights have not been trained with another epsilon since they were imported from that folder.
 */
static int apply_saved_epsilon(struct trainer *t, double saved, struct err *e)
{
    if (saved <= 0)
        return 0;
    if (OPTS_GIVEN(&t->o, layernorm_epsilon) && t->o.layernorm_epsilon != saved) {
        err_usage(e, "%s: layer_norm_epsilon is %g in %s", OPTS_WHERE(&t->o, layernorm_epsilon), saved,
                  checkpoint_info(t->from)->path);
        return -1;
    }
    t->o.layernorm_epsilon = saved;
    OPTS_MARK(&t->o, layernorm_epsilon);
    return 0;
}

/* Set the type of the weights to the checkpoint's, unless --bf16 or --fp16 is given. */
static void apply_saved_precision(struct trainer *t, enum dtype saved)
{
    if (OPTS_GIVEN(&t->o, bf16) || OPTS_GIVEN(&t->o, fp16) || (saved != DTYPE_BF16 && saved != DTYPE_F16))
        return;
    t->o.bf16 = saved == DTYPE_BF16;
    t->o.fp16 = saved == DTYPE_F16;
    if (t->o.bf16)
        OPTS_MARK(&t->o, bf16);
    else
        OPTS_MARK(&t->o, fp16);
    show_line(&t->log, "note: weights are in %s, as in the checkpoint; --bf16 False trains in fp32",
              t->o.bf16 ? "bf16" : "fp16");
}

int shape_from_checkpoint(struct trainer *t, struct err *e)
{
    const struct checkpoint_info *f = checkpoint_info(t->from);
    const struct model_config *c = &f->model;
    const char *method = pk_as_str(pk_get(f->args, "pp_partition_method"));

    if (APPLY_SAVED_SIZE(t, num_layers, c->n_layers, e) < 0 || APPLY_SAVED_SIZE(t, hidden_size, c->hidden, e) < 0 ||
        APPLY_SAVED_SIZE(t, num_attention_heads, c->n_heads, e) < 0 ||
        APPLY_SAVED_SIZE(t, ffn_hidden_size, c->ffn_hidden, e) < 0 ||
        apply_saved_position(t, c, e) < 0 || apply_saved_epsilon(t, f->epsilon, e) < 0)
        return -1;
    if (!strcmp(c->position, "absolute") &&
        APPLY_SAVED_SIZE(t, max_position_embeddings, c->max_positions, e) < 0)
        return -1;
    if (!OPTS_GIVEN(&t->o, seq_length) && c->seq_len > 0) {
        t->o.seq_length = c->seq_len;
        OPTS_MARK(&t->o, seq_length);
    }
    if (!OPTS_GIVEN(&t->o, max_position_embeddings) && c->max_positions > 0) {
        t->o.max_position_embeddings = c->max_positions;
        OPTS_MARK(&t->o, max_position_embeddings);
    }
    if (!OPTS_GIVEN(&t->o, pp_partition_method) && method) {
        t->o.pp_partition_method = t->shape.saved_method = xstrdup(method);
        OPTS_MARK(&t->o, pp_partition_method);
    }
    if (!OPTS_GIVEN(&t->o, partition_algorithm)) {
        t->o.partition_algorithm = (int)pipeline_balance_of(f->ds_version);
        OPTS_MARK(&t->o, partition_algorithm);
    }
    apply_saved_precision(t, f->weights);
    return 0;
}

/* ---- vocabulary ---- */

/*
 * Set *tokens to the number of tokens of the tokenizer that the options name. If they name none, *tokens is not
 * changed. Also sets t->shape.eod to the tokenizer's end-of-document token, or -1 if it has none.
 */
static int tokenizer_size(struct trainer *t, int64_t *tokens, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct bpe *b;

    if (o->vocab_file && o->merge_file)
        b = bpe_open_gpt2(o->vocab_file, o->merge_file, e);
    else if (o->tokenizer_name_or_path)
        b = bpe_open_json(o->tokenizer_name_or_path, e);
    else
        return 0;
    if (!b)
        return -1;
    if (bpe_path(b) && !str_starts(bpe_path(b), o->tokenizer_name_or_path))
        show_line(&t->log, "tokenizer %s: %s", o->tokenizer_name_or_path, bpe_path(b));
    *tokens = bpe_vocab_size(b);
    t->shape.eod = bpe_eod(b);
    bpe_free(b);
    return 0;
}

/*
 * Choose the padded vocabulary size V (docs/training.md 2.2). V is the checkpoint's V if the tensor degree divides it,
 * because the padding rows have been trained. Otherwise V is --pad-vocab-size-to or, if that is not given, the next
 * multiple of 128 * tp.
 */
static int choose_vocab(struct trainer *t, struct err *e)
{
    struct train_opts *o = &t->o;
    const int64_t step = o->make_vocab_size_divisible_by * t->ranks.topo.tp, saved = t->shape.config.vocab;
    int64_t tokens = 0;

    t->shape.eod = -1;
    if (tokenizer_size(t, &tokens, e) < 0)
        return -1;
    if (o->eod_id >= 0)
        t->shape.eod = o->eod_id;
    if (!tokens)
        tokens = o->vocab_size > 0 ? o->vocab_size : t->shape.config.vocab_tokens;
    t->shape.config.vocab_tokens = tokens;
    if (o->pad_vocab_size_to > 0) {
        t->shape.config.vocab = o->pad_vocab_size_to;
    } else if (saved > 0 && saved % t->ranks.topo.tp == 0) {
        t->shape.config.vocab = saved;
    } else if (tokens > 0 || saved > 0) {
        int64_t least = tokens > saved ? tokens : saved;

        t->shape.config.vocab = (least + step - 1) / step * step;
    } else {
        err_usage(e, "the vocabulary is not known: give --vocab-size, --vocab-file with --merge-file, "
                     "--tokenizer-name-or-path, or --pad-vocab-size-to");
        return -1;
    }
    if (t->shape.config.vocab < tokens || t->shape.config.vocab % t->ranks.topo.tp) {
        err_usage(e, "%lld vocabulary rows: expected at least %lld, and a multiple of tensor degree %d",
                  (long long)t->shape.config.vocab, (long long)tokens, t->ranks.topo.tp);
        return -1;
    }
    return 0;
}

/* ---- the whole model, and its partition ---- */

static void resolve_model_config(struct trainer *t)
{
    const struct train_opts *o = &t->o;
    struct model_config *c = &t->shape.config;

    if (t->from)
        *c = checkpoint_info(t->from)->model;
    c->n_layers = o->num_layers;
    c->hidden = o->hidden_size;
    c->n_heads = o->num_attention_heads;
    c->ffn_hidden = o->ffn_hidden_size;
    c->seq_len = o->seq_length;
    c->max_positions = o->max_position_embeddings;
    c->embed_layernorm = o->embed_layernorm;
    strcpy(c->position, o->position_embedding_type == POSITION_ALIBI ? "alibi" : "absolute");
}

/* Partition the blocks into stages by one method. Returns the stage that has the final LayerNorm, or -1 on error. */
static int cut_by(const struct trainer *t, const char *method, struct topology topo, enum opts_recompute recompute,
                  int *blocks, struct err *e)
{
    const struct train_opts *o = &t->o;
    const int L = (int)o->num_layers;
    const int64_t h = o->hidden_size, f = o->ffn_hidden_size, tp = topo.tp;
    struct pipeline_specs specs = {
        .n = L + 7, .embedding = 1, .first_layer = 3, .n_layers = L, .final_norm = L + 4,
        .embedding_elems = t->shape.config.vocab / tp * h +
                           (o->position_embedding_type == POSITION_ABSOLUTE ? o->max_position_embeddings * h : 0),
        .layer_elems = (4 * h * h + 2 * h * f + 3 * h + f) / tp + 6 * h, .final_norm_elems = 2 * h,
    };

    pipeline_costs(&specs, h, f, o->seq_length, t->shape.config.vocab);
    /* The cost of a block is three passes, or four if the block is recomputed. The head is never recomputed. */
    if (recompute == RECOMPUTE_FULL)
        specs.layer_cost *= 4.0 / 3;
    return pipeline_cut(&specs, method, (enum pipeline_balance)o->partition_algorithm, topo.pp, blocks, e);
}

/*
 * Returns true if this program can use the partition. The final LayerNorm must be in the stage of the last block.
 * DeepSpeed's "uniform" may put it into a later stage, which then has only the head.
 */
static bool can_be(int norm, const int *blocks)
{
    return norm >= 0 && blocks[norm] > 0;
}

int shape_cut(const struct trainer *t, struct topology topo, enum opts_recompute recompute, int *blocks, struct err *e)
{
    const char *method = t->o.pp_partition_method;

    if (can_be(cut_by(t, method, topo, recompute, blocks, e), blocks))
        return 0;
    if (t->o.num_layers < topo.pp || !pipeline_method_known(method))
        return -1;
    err_clear(e);
    return cut_by(t, "even", topo, recompute, blocks, e) < 0 ? -1 : 1;
}

/*
 * Returns the partition method to save in checkpoints. DeepSpeed computes the partition again from this method when it
 * resumes. The result is therefore a method of DeepSpeed that gives the same stages; if there is none, it is `given`.
 */
static const char *method_of_cut(const struct trainer *t, const char *given)
{
    const char *const names[] = { given, "type:transformer", "type:transformer|embedding", "parameters", "uniform" };
    int *blocks = xcalloc((size_t)t->ranks.topo.pp, sizeof *blocks);
    const char *found = given;
    bool same = false;

    for (int i = 0; i < 5 && !same; i++) {
        struct err e = {0};
        int norm = -1;

        if (pipeline_method_genuine(names[i]))
            norm = cut_by(t, names[i], t->ranks.topo, RECOMPUTE_NONE, blocks, &e);
        same = can_be(norm, blocks) && memcmp(blocks, t->shape.blocks, (size_t)t->ranks.topo.pp * sizeof *blocks) == 0;
        found = same ? names[i] : found;
    }
    free(blocks);
    return found;
}

/*
 * Set the number of blocks of each stage. The checkpoint determines the numbers, unless the options request another
 * partition. Without a checkpoint, the partition method determines them.
 */
static int cut_stages(struct trainer *t, struct err *e)
{
    const struct checkpoint_info *from = t->from ? checkpoint_info(t->from) : NULL;
    const struct train_opts *o = &t->o;
    int rc = 0;

    t->shape.blocks = xcalloc((size_t)t->ranks.topo.pp, sizeof *t->shape.blocks);
    if (from && from->n_stages == t->ranks.topo.pp && !OPTS_GIVEN(o, pp_partition_method) &&
        !OPTS_GIVEN(o, partition_algorithm))
        memcpy(t->shape.blocks, from->blocks, (size_t)t->ranks.topo.pp * sizeof *t->shape.blocks);
    else
        rc = shape_cut(t, t->ranks.topo, (enum opts_recompute)o->recompute_granularity, t->shape.blocks, e);
    if (rc < 0)
        return -1;
    if (rc > 0)
        show_line(&t->log, "note: '%s' leaves a stage of %d without what it needs: blocks are dealt out evenly",
                  o->pp_partition_method, t->ranks.topo.pp);
    t->shape.recorded_method = method_of_cut(t, rc > 0 ? "even" : o->pp_partition_method);
    return 0;
}

int shape_resolve_model(struct trainer *t, struct err *e)
{
    resolve_model_config(t);
    return choose_vocab(t, e) < 0 ? -1 : cut_stages(t, e);
}
