/*
 * run_state.c - read the run state from an mp_rank file, and compare it between files
 */
#include "libcommon/ckpt/run_state.h"
#include "libcommon/base/parse.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/model/config.h"
#include "libcommon/model/params.h"
#include "libcommon/model/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/layout.h"

/*
 * Returns the name of the program that wrote the zip container. torch writes a descriptor after the bytes of a record.
 * This program writes the next record directly after these bytes.
 */
static const char *dialect(const struct pt *pt)
{
    const struct zip *z = pt_zip(pt);
    const struct zip_entry *first = zip_n(z) > 1 ? zip_entry(z, 0) : NULL, *second = first ? zip_entry(z, 1) : NULL;
    char name[300];

    if (first && first->size > 0 && second->header_at >= first->at + first->packed_size &&
        second->header_at - (first->at + first->packed_size) < 16)
        return "shardkit";
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s", pt_prefix(pt), i ? "byteorder" : ".format_version");
        if (zip_find(z, name))
            return "torch 2";
    }
    return "torch < 2";
}

static void read_saved_vocab(struct model_config *c, const struct pk *root)
{
    const struct pk *info = pk_get(root, "checkpoint_info"), *uni = pk_get(root, "universal_checkpoint_info");
    int64_t rows =
        pk_int_or(pk_get(info, "padded_vocab_size"), pk_int_or(pk_get(uni, "padded_vocab_size"), 0));

    if (!c->vocab && rows > 0)
        c->vocab = rows;
    c->vocab_tokens = pk_int_or(pk_get(info, "original_vocab_size"),
                                       pk_int_or(pk_get(uni, "original_vocab_size"), c->vocab_tokens));
    if (c->vocab_tokens < 0)
        c->vocab_tokens = 0;
}

static void read_topology(struct topology *t, const struct pk *args)
{
    if (!t->tp)
        t->tp = (int)pk_int_or(pk_get(args, "tensor_model_parallel_size"), 0);
    if (!t->pp)
        t->pp = (int)pk_int_or(pk_get(args, "pipeline_model_parallel_size"), 0);
    if (!t->dp)
        t->dp = (int)pk_int_or(pk_get(args, "data_parallel_size"), 0);
}

void run_state_read(struct source *s, const struct pt *mp)
{
    struct run_state *run = &s->run;
    const struct pk *root = pt_root(mp), *args = pk_get(root, "args");
    const char *version = pk_as_str(pk_get(root, "ds_version"));

    run->values_pt = mp;
    run->args = args;
    run->iteration = pk_int_or(pk_get(root, "iteration"), pk_int_or(pk_get(root, "global_steps"), -1));
    run->consumed_samples =
        pk_int_or(pk_get(args, "consumed_train_samples"), pk_int_or(pk_get(root, "global_samples"), -1));
    run->consumed_tokens =
        pk_int_or(pk_get(root, "tokens"), pk_int_or(pk_get(args, "consumed_train_tokens"), -1));
    /* The version stands for the order of query, key and value rows, which all saves since 2021 have in common. */
    run->checkpoint_version = 3.0;
    pk_as_double(pk_get(root, "checkpoint_version"), &run->checkpoint_version);
    snprintf(run->ds_version, sizeof run->ds_version, "%s", version ? version : "");
    snprintf(run->torch_dialect, sizeof run->torch_dialect, "%s", dialect(mp));
    model_config_from_args(&s->config, args);
    read_saved_vocab(&s->config, root);
    read_topology(&s->topo, args);
}

void run_state_begin(struct source *s, const struct pk *args)
{
    struct run_state *run = &s->run;

    run->args = args;
    run->iteration = run->consumed_tokens = 0;
    run->consumed_samples = pk_int_or(pk_get(args, "consumed_train_samples"), 0);
    run->opt_step = -1;
    run->checkpoint_version = 3.0;
    snprintf(run->ds_version, sizeof run->ds_version, "%s", DS_WRITTEN_VERSION);
    snprintf(run->torch_dialect, sizeof run->torch_dialect, "shardkit");
    model_config_from_args(&s->config, args);
    read_topology(&s->topo, args);
}

int64_t run_state_zero_stage(const struct pk *opt)
{
    static const char *const members[] = { "disabled", "optimizer_states", "gradients", "weights" };
    const struct pk *v = pk_get(opt, "zero_stage");
    int64_t stage;
    const char *member;

    if (!v || pk_is_none(v))
        return 0;
    if (pk_as_int(v, &stage))
        return stage;
    member = pk_enum(v, &stage);
    for (int i = 0; member && i < 4; i++)
        if (strcmp(member, members[i]) == 0)
            return i;
    return stage;
}

/* ---- what the files of a save share ---- */

/*
 * Keys whose values are equal in all mp_rank files of a save, and in those zero files that have the keys. `dict` is
 * NULL for a key at the top level. Any other key is in this dict (the arguments or the schedule).
 */
static const struct {
    const char *dict, *key;
} shared[RUN_SHARED] = {
    { NULL, "iteration" }, { NULL, "global_steps" }, { NULL, "ds_version" }, { NULL, "checkpoint_version" },
    { NULL, "global_samples" }, { NULL, "skipped_steps" }, { NULL, "tokens" },
    { "args", "consumed_train_samples" }, { "args", "consumed_valid_samples" }, { "args", "seed" },
    { "args", "num_layers" }, { "args", "hidden_size" }, { "args", "ffn_hidden_size" },
    { "args", "num_attention_heads" }, { "args", "seq_length" }, { "args", "padded_vocab_size" },
    { "args", "micro_batch_size" }, { "args", "global_batch_size" }, { "args", "train_samples" },
    { "args", "train_iters" }, { "args", "lr" }, { "args", "min_lr" }, { "args", "adam_beta1" },
    { "args", "adam_beta2" }, { "args", "adam_eps" }, { "args", "weight_decay" }, { "args", "clip_grad" },
    { "args", "init_method_std" }, { "args", "position_embedding_type" },
    { "lr_scheduler", "max_lr" }, { "lr_scheduler", "num_steps" }, { "lr_scheduler", "num_tokens" },
};

const struct pk *run_shared_get(const struct pk *root, int k)
{
    return pk_get(shared[k].dict ? pk_get(root, shared[k].dict) : root, shared[k].key);
}

const char *run_shared_name(int k, char buf[64])
{
    snprintf(buf, 64, "%s%s%s", shared[k].dict ? shared[k].dict : "", shared[k].dict ? "." : "", shared[k].key);
    return buf;
}

/* Returns true if a value of client_state with this key may differ between ranks. */
static bool is_value_of_rank(const char *key)
{
    static const char *const parts[] = { "seed", "rng", "random", "loss", "local" };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(key, parts[i]))
            return true;
    return false;
}

/* Returns true if the argument's value differs between the ranks of a save. */
static bool is_argument_of_rank(const char *key)
{
    static const char *const parts[] = { "rank", "host", "device", "time", "gigaflos", "parameters_in_billions" };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(key, parts[i]))
            return true;
    return false;
}

static bool is_compared_value(const struct pk *v)
{
    const char *text = pk_as_str(v);

    return text ? !strpbrk(text, "/\n") : v->type == PK_BOOL || v->type == PK_INT || v->type == PK_FLOAT;
}

static int by_line(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

#define UNIVERSAL_INFO "universal_checkpoint_info"

/* Returns true for keys of DeepSpeed's engines. Their values have checks of their own, or may differ between ranks. */
static bool is_engine_key(const char *key)
{
    static const char *const keys[] = {
        "param_shapes", "frozen_param_shapes", "buffer_names", "global_steps", "global_samples", "skipped_steps",
        "lr_scheduler", "dp_world_size", "mp_world_size", "ds_config", "ds_version", "module",
        "frozen_param_fragments", "shared_params", "optimizer", "data_sampler", "random_ltd",
        "sparse_tensor_module_names", "csr_tensor_module_names", "args",
        UNIVERSAL_INFO,
    };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* The lines of a text of values, in any order. */
struct value_lines {
    char **line;
    size_t n, cap;
    /* values of client_state: dicts in dicts are listed, too; floats are listed without their value */
    bool client;
};

static bool is_listed(const struct value_lines *l, const char *key, int depth)
{
    return key && !strpbrk(key, " \n") && !is_argument_of_rank(key) &&
           !(l->client && (is_value_of_rank(key) || (depth == 0 && is_engine_key(key))));
}

static void add_line(struct value_lines *l, struct strbuf *line)
{
    strbuf_add(line, "", 1);
    ARRAY_ROOM(l->line, l->cap, l->n + 1);
    l->line[l->n++] = line->buf;
}

/* Add a line for each key of universal_checkpoint_info. The lists in it are also equal in all files. */
static void add_universal_info_lines(struct value_lines *l, const struct pk *info)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(info, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        struct strbuf sb = {0};

        if (!pk_as_str(pair[2 * i]) || strpbrk(pk_as_str(pair[2 * i]), " \n"))
            continue;
        strbuf_addf(&sb, UNIVERSAL_INFO ".%s ", pk_as_str(pair[2 * i]));
        pk_text(pair[2 * i + 1], &sb);
        add_line(l, &sb);
    }
}

static void add_value_lines(struct value_lines *l, const char *prefix, const struct pk *dict, int depth)
{
    enum { MAX_DEPTH = 8, MAX_LINES = 1 << 16 };
    uint32_t n = 0, n_inside;
    struct pk **pair = pk_pairs(dict, &n);

    for (uint32_t i = 0; pair && i < n && l->n < MAX_LINES; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        const struct pk *v = pair[2 * i + 1];
        struct strbuf sb = {0};

        if (!is_listed(l, key, depth))
            continue;
        strbuf_addf(&sb, "%s%s", prefix, key);
        if (l->client && depth < MAX_DEPTH && v->type == PK_DICT && pk_pairs(v, &n_inside)) {
            strbuf_addf(&sb, ".");
            add_value_lines(l, sb.buf, v, depth + 1);
            strbuf_free(&sb);
            continue;
        }
        strbuf_addf(&sb, " ");
        if (is_compared_value(v) && !(l->client && v->type == PK_FLOAT))
            pk_text(v, &sb);
        add_line(l, &sb);
    }
}

char *run_values_text(const struct pk *root)
{
    struct value_lines l = {0};
    struct strbuf text = {0};

    add_value_lines(&l, "args.", pk_get(root, "args"), 0);
    add_value_lines(&l, "lr_scheduler.", pk_get(root, "lr_scheduler"), 0);
    l.client = true;
    add_value_lines(&l, "", root, 0);
    add_universal_info_lines(&l, pk_get(root, UNIVERSAL_INFO));
    if (l.n)
        qsort(l.line, l.n, sizeof *l.line, by_line);
    for (size_t i = 0; i < l.n; i++) {
        strbuf_addf(&text, "%s\n", l.line[i]);
        free(l.line[i]);
    }
    free(l.line);
    if (text.buf)
        strbuf_add(&text, "", 1);
    return text.buf;
}

/* Write the difference of two lines to `what`. A line is NULL if only the other text has it. */
static void print_difference(const char *mine, const char *others, char what[512])
{
    enum { MOST = 160, CONTEXT = 40 };
    const char *line = mine ? mine : others;
    /* for two long values, the equal characters before the difference are omitted */
    int skip = 0;
    const int key = (int)strcspn(line, " \n");
    int n = mine ? (int)strcspn(mine, "\n") - key - 1 : 0, m = others ? (int)strcspn(others, "\n") - key - 1 : 0;

    while (n > MOST && m > MOST && skip < n && skip < m && mine[key + 1 + skip] == others[key + 1 + skip])
        skip++;
    skip -= skip < CONTEXT ? skip : CONTEXT;
    n = n - skip < MOST ? n - skip : MOST;
    m = m - skip < MOST ? m - skip : MOST;
    if (skip)
        snprintf(what, 512, "%.*s ...%.*s, others ...%.*s", key, line, n, mine + key + 1 + skip, m,
                 others + key + 1 + skip);
    else if (mine && others)
        snprintf(what, 512, "%.*s %.*s, others %.*s", key, line, n, mine + key + 1, m, others + key + 1);
    else if (mine)
        snprintf(what, 512, "%.*s%s%.*s, others do not have it", key, line, n ? " " : "", n, mine + key + 1);
    else
        snprintf(what, 512, "%.*s is missing, others have it%s%.*s", key, line, m ? ": " : "", m, others + key + 1);
}

/* Returns true if all ranks have the key, which is the case for an argument and for a key of the schedule. */
static bool is_key_of_all(const char *line)
{
    return str_starts(line, "args.") || str_starts(line, "lr_scheduler.") || str_starts(line, UNIVERSAL_INFO ".");
}

bool run_values_differ(const char *mine, const char *others, char what[512])
{
    while (*mine || *others) {
        const size_t n = strcspn(mine, "\n"), m = strcspn(others, "\n");
        const size_t key = strcspn(mine, " \n"), its_key = strcspn(others, " \n");
        const bool same_key = *mine && *others && key == its_key && memcmp(mine, others, key) == 0;
        const int order = same_key ? 0 : !*mine ? 1 : !*others ? -1 : strcmp(mine, others);
        /* A line without a value is of a type that is not compared. */
        const bool compared = n > key + 1 && m > its_key + 1;

        if (same_key ? compared && (n != m || memcmp(mine, others, n) != 0)
                     : is_key_of_all(order <= 0 ? mine : others)) {
            print_difference(order <= 0 ? mine : NULL, order >= 0 ? others : NULL, what);
            return true;
        }
        mine += order <= 0 ? n + (mine[n] == '\n') : 0;
        others += order >= 0 ? m + (others[m] == '\n') : 0;
    }
    return false;
}

/*
 * Returns true if two tensors have the same type and shape, and the CRCs of their storages show no difference. CRCs are
 * compared only if both storages have one and the storages are of the same length.
 */
static bool is_same_client_tensor(const struct run_client *c, const struct pt_tensor *x, const struct pt_tensor *y)
{
    const struct record *a = files_record(c->files, x->record), *b = files_record(c->first_files, y->record);

    return x->dtype == y->dtype && shape_equal(x->ndim, x->shape, y->ndim, y->shape) &&
           (a->len != b->len || !a->has_crc || !b->has_crc || a->crc == b->crc);
}

/* Compare the value v of client_state with that of the first file. If both are dicts, their members are compared. */
static void compare_client_value(const struct run_client *c, const char *name, const struct pk *v,
                                 const struct pk *firsts, int depth)
{
    enum { MAX_DEPTH = 8 };
    struct value_lines rule = { .client = true };
    struct pt_tensor x, y;
    uint32_t n = 0;
    struct pk **pair;

    if (pt_tensor(c->pt, v, &x)) {
        if (pt_tensor(c->first, firsts, &y) && !is_same_client_tensor(c, &x, &y))
            report_add(c->r, dtype_is_float(x.dtype) ? SEV_WARNING : c->severity, "mixed_saves", pt_path(c->pt),
                       ERR_NO_BYTE, NULL, "%s, a tensor that the training program saved, differs from that of %s, "
                       "which conversions carry", name, pt_path(c->first));
        return;
    }
    pair = v->type == PK_DICT && depth < MAX_DEPTH ? pk_pairs(v, &n) : NULL;
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        const struct pk *other = key ? pk_get(firsts, key) : NULL;
        char *below;

        if (!is_listed(&rule, key, depth + 1) || !other)
            continue;
        below = str_fmt("%s.%s", name, key);
        compare_client_value(c, below, pair[2 * i + 1], other, depth + 1);
        free(below);
    }
}

void run_state_compare_client(const struct run_client *c)
{
    struct value_lines rule = { .client = true };
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pt_root(c->pt), &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        const struct pk *other = key ? pk_get(pt_root(c->first), key) : NULL;

        if (!is_listed(&rule, key, 0))
            continue;
        if (other)
            compare_client_value(c, key, pair[2 * i + 1], other, 0);
        else
            report_add(c->r, SEV_WARNING, "missing_key", pt_path(c->pt), ERR_NO_BYTE, NULL,
                       "has %s, which %s lacks: conversions omit it", key, pt_path(c->first));
    }
}

static enum severity mismatch_severity(const struct source *s)
{
    return s->accept_mismatch ? SEV_WARNING : SEV_ERROR;
}

/* Compare all values in the arguments and the schedule of a file with the values in the first file. */
static void check_values(const struct source *s, const struct source_file *f, const struct source_file *first,
                         struct report *r)
{
    char *mine = run_values_text(pt_root(f->pt)), *its = run_values_text(pt_root(first->pt)), what[512];

    if (mine && its && run_values_differ(mine, its, what))
        report_add(r, mismatch_severity(s), "mixed_saves", files_name(s->files, f->file), ERR_NO_BYTE, NULL,
                   "%s: the files are from different saves", what);
    free(mine);
    free(its);
}

/*
 * Compare the shared values of each file with those of the first file. Only the first difference of each file is
 * reported, because a file of another save differs in many values.
 */
static void check_shared(const struct source *s, struct report *r)
{
    const struct source_file *first = NULL;
    char buf[64];

    for (int i = 0; i < s->n_files; i++) {
        const struct source_file *f = &s->file[i];
        int k;

        if (!f->pt || !str_ends(f->name, "_model_states.pt"))
            continue;
        first = first ? first : f;
        for (k = 0; k < RUN_SHARED; k++) {
            const struct pk *mine = run_shared_get(pt_root(f->pt), k), *its = run_shared_get(pt_root(first->pt), k);

            if (f == first || (!mine && !its) || (mine && its && pk_same_text(mine, its)))
                continue;
            report_add(r, mismatch_severity(s), "mixed_saves", files_name(s->files, f->file), ERR_NO_BYTE, NULL,
                       "%s differs from that of %s: the files are from different saves", run_shared_name(k, buf),
                       first->name);
            break;
        }
        if (k == RUN_SHARED && f != first)
            check_values(s, f, first, r);
    }
}

/* ---- the configuration and the tensors ---- */

static void check_claim(const struct source *s, const char *param, const char *what, int64_t claimed, int64_t found,
                        struct report *r)
{
    if (claimed > 0 && found > 0 && claimed != found)
        report_add(r, mismatch_severity(s), "config", s->path, ERR_NO_BYTE, param,
                   "the training arguments list %s %lld, but the tensors have %lld", what, (long long)claimed,
                   (long long)found);
}

/*
 * Returns the total number of rows of queries, keys and values according to the arguments. There are
 * num_attention_heads query heads and num_key_value_heads heads each of keys and of values, and each head has
 * kv_channels rows. Returns 0 if an argument is absent.
 */
static int64_t claimed_qkv_rows(const struct source *s)
{
    const int64_t heads = s->config.n_heads;
    int64_t channels = 0, kv_heads = heads;

    pk_as_int(pk_get(s->run.args, "kv_channels"), &channels);
    pk_as_int(pk_get(s->run.args, "num_key_value_heads"), &kv_heads);
    if (heads <= 0 || channels <= 0 || kv_heads <= 0 || heads > INT32_MAX || channels > INT32_MAX ||
        kv_heads > heads)
        return 0;
    return (heads + 2 * kv_heads) * channels;
}

/* Returns true if an argument is there and is true. */
static bool is_argument_true(const struct source *s, const char *key)
{
    return pk_int_or(pk_get(s->run.args, key), 0) != 0;
}

/*
 * Compare the tensors of the embedding with the arguments. The type "absolute" has position embeddings; "alibi" and
 * "rotary" have none. The norm after the word embeddings is compared, too.
 */
static void check_embedding(const struct source *s, const struct param *positions, bool norm, struct report *r)
{
    const struct model_config *c = &s->config;
    const bool absolute = strcmp(c->position, "absolute") == 0;
    const bool none = strcmp(c->position, "alibi") == 0 || strcmp(c->position, "rotary") == 0;

    if (positions)
        check_claim(s, positions->name, "max_position_embeddings", c->max_positions, positions->shape[0], r);
    if ((absolute && !positions) || (none && positions))
        report_add(r, mismatch_severity(s), "config", s->path, ERR_NO_BYTE, positions ? positions->name : NULL,
                   "the training arguments list positions of the type %s, but the files have %sposition embeddings",
                   c->position, positions ? "" : "no ");
    if (pk_get(s->run.args, "embed_layernorm") &&
        norm != (c->embed_layernorm || is_argument_true(s, "use_bnb_optimizer")))
        report_add(r, mismatch_severity(s), "config", s->path, ERR_NO_BYTE, NULL,
                   "the training arguments list %s norm after the word embeddings (embed_layernorm), but the files "
                   "have %s", norm ? "no" : "a", norm ? "one" : "none");
}

static void check_config(const struct source *s, struct report *r)
{
    const struct model_config *c = &s->config;
    const struct param *mlp = NULL, *words = NULL, *qkv = NULL, *positions = NULL;
    bool norm = false;
    int64_t n_layers = 0;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        char buf[128];
        int layer;
        const char *kind = param_kind(p->name, &layer, buf);

        n_layers += layer >= 0 && strcmp(kind, "input_layernorm.weight") == 0;
        if (p->ndim == 2 && layer >= 0 && strcmp(kind, "mlp.dense_h_to_4h.weight") == 0)
            mlp = p;
        if (p->ndim == 2 && layer >= 0 && strcmp(kind, "self_attention.query_key_value.weight") == 0)
            qkv = p;
        if (p->ndim == 2 && param_ends(p->name, ROLE_WORD))
            words = p;
        if (p->ndim == 2 && param_ends(p->name, ROLE_POSITION))
            positions = p;
        norm |= param_ends(p->name, ROLE_WORD_NORM_W);
    }
    if (words)
        check_embedding(s, positions, norm, r);
    check_claim(s, NULL, "num_layers", c->n_layers, n_layers, r);
    if (words)
        check_claim(s, words->name, "hidden_size", c->hidden, words->shape[1], r);
    if (mlp)
        check_claim(s, mlp->name, "ffn_hidden_size", c->ffn_hidden, mlp->shape[0] / (c->glu ? 2 : 1), r);
    if (qkv)
        check_claim(s, qkv->name, "rows of queries, keys and values (heads x kv_channels)", claimed_qkv_rows(s),
                    qkv->shape[0], r);
    if (words && c->n_heads > 0 && words->shape[1] % c->n_heads)
        report_add(r, mismatch_severity(s), "config", s->path, ERR_NO_BYTE, words->name,
                   "the training arguments list %lld heads, which do not divide the hidden size %lld",
                   (long long)c->n_heads, (long long)words->shape[1]);
}

void run_state_check(const struct source *s, struct report *r)
{
    /* Missing or damaged files have been reported already, and are the likely reason for any mismatch. */
    if (report_count(r, SEV_ERROR) > 0)
        return;
    if (!s->layout->pipeline_files)
        check_shared(s, r);
    check_config(s, r);
}

/* ---- what the arguments and the name state ---- */

void run_state_check_counter(const char *path, const char *name, const struct pk *v, struct report *r)
{
    struct strbuf text = {0};
    int64_t n;

    if (!v || pk_is_none(v) || pk_as_int(v, &n))
        return;
    pk_text(v, &text);
    report_add(r, SEV_ERROR, "counters", path, ERR_NO_BYTE, NULL, "%s is %.60s, but it must be a whole number", name,
               text.buf);
    strbuf_free(&text);
}

void run_state_check_counters(const struct source *s, struct report *r)
{
    static const char *const keys[] = { "iteration", "global_steps", "global_samples", "skipped_steps", "tokens" };
    static const char *const args[] = { "consumed_train_samples", "consumed_valid_samples", "consumed_train_tokens" };
    const struct pk *root = s->run.values_pt ? pt_root(s->run.values_pt) : NULL;
    char name[64];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        run_state_check_counter(s->path, keys[i], pk_get(root, keys[i]), r);
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        snprintf(name, sizeof name, "args.%s", args[i]);
        run_state_check_counter(s->path, name, pk_get(s->run.args, args[i]), r);
    }
}

/*
 * Returns the step in the name of the folder, or -1 if the name does not have the layout's form for the name of a step.
 */
static int64_t find_tag_step(const struct source *s)
{
    const char *prefix = s->layout->tag_prefix;
    int64_t step;

    if (!prefix || !s->tag || !str_starts(s->tag, prefix) ||
        strspn(s->tag + strlen(prefix), "0123456789") != strlen(s->tag) - strlen(prefix) ||
        parse_int(s->tag + strlen(prefix), 0, INT64_MAX, &step) < 0)
        return -1;
    return step;
}

/*
 * Returns the step in a name such as "gpt--step=9-consumed_samples=80.0-last", which NeMo and Lightning give, or -1.
 * The step is that of the run, or its number from 0.
 */
static int64_t find_named_step(const char *tag)
{
    static const char key[] = "step=";
    const char *at = tag ? strstr(tag, key) : NULL;
    char digits[20];
    int64_t step;
    size_t n;

    while (at && at > tag && at[-1] != '-')
        at = strstr(at + 1, key);
    n = at ? strspn(at + strlen(key), "0123456789") : 0;
    if (n == 0 || n >= sizeof digits)
        return -1;
    memcpy(digits, at + strlen(key), n);
    digits[n] = '\0';
    return parse_int(digits, 0, INT64_MAX - 1, &step) < 0 ? -1 : step;
}

/*
 * Compare the optimizer's step with the number of the engine's steps that were not skipped. In some releases the
 * optimizer's step is larger by one. For ZeRO's files this comparison was made when they were opened.
 */
static void check_optimizer_step(const struct source *s, const struct pk *root, struct report *r)
{
    int64_t steps, skipped = 0;

    if (s->layout->zero_files || s->run.opt_step < 0 || !pk_as_int(pk_get(root, "global_steps"), &steps))
        return;
    pk_as_int(pk_get(root, "skipped_steps"), &skipped);
    if (s->run.opt_step != steps - skipped && s->run.opt_step != steps - skipped + 1)
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "records %lld steps, %lld of them skipped, and the optimizer has %lld: the files are from different "
                   "saves, or the optimizer started at another step", (long long)steps, (long long)skipped,
                   (long long)s->run.opt_step);
}

/* Returns true and sets *a and *b if both values are whole numbers, and they differ. */
static bool counters_differ(const struct pk *x, const struct pk *y, int64_t *a, int64_t *b)
{
    return pk_as_int(x, a) && pk_as_int(y, b) && *a != *b;
}

/*
 * Compare the numbers of samples and tokens in the arguments with the engine's numbers, and with the schedule's
 * numbers, which do not include skipped steps.
 */
static void check_samples(const struct source *s, struct report *r)
{
    const struct pk *root = s->run.values_pt ? pt_root(s->run.values_pt) : NULL, *args = pk_get(root, "args");
    const struct pk *samples = pk_get(args, "consumed_train_samples");
    const int64_t skipped = pk_int_or(pk_get(root, "skipped_steps"), 0);
    int64_t a, b;

    if (counters_differ(samples, pk_get(root, "global_samples"), &a, &b))
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "args.consumed_train_samples is %lld, but global_samples is %lld", (long long)a, (long long)b);
    if (counters_differ(pk_get(args, "consumed_train_tokens"), pk_get(root, "tokens"), &a, &b))
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "args.consumed_train_tokens is %lld, but tokens is %lld", (long long)a, (long long)b);
    if (counters_differ(samples, pk_get(pk_get(root, "lr_scheduler"), "num_steps"), &a, &b) && (!skipped || b > a))
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "args.consumed_train_samples is %lld, but the schedule is at sample %lld (lr_scheduler.num_steps)",
                   (long long)a, (long long)b);
}

static void check_counters(const struct source *s, struct report *r)
{
    const struct pk *root = s->run.values_pt ? pt_root(s->run.values_pt) : NULL;
    const int64_t named = find_tag_step(s), other = find_named_step(s->tag);
    int64_t iteration, steps;

    if (pk_as_int(pk_get(root, "iteration"), &iteration) && pk_as_int(pk_get(root, "global_steps"), &steps) &&
        iteration != steps)
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "records iteration %lld and global_steps %lld: one of them was changed, or the run started at a "
                   "step other than that of the engine; ckpt-edit retag --step N sets both", (long long)iteration,
                   (long long)steps);
    else if (named >= 0 && s->run.iteration >= 0 && named != s->run.iteration)
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "records step %lld, but its name has step %lld; rename it, or set the counters with ckpt-edit retag "
                   "--step N",
                   (long long)s->run.iteration, (long long)named);
    else if (other >= 0 && s->run.iteration >= 0 && other != s->run.iteration && other + 1 != s->run.iteration)
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "records step %lld, but its name has step %lld; rename it, or use the folder that has this name",
                   (long long)s->run.iteration, (long long)other);
    check_optimizer_step(s, root, r);
    check_samples(s, r);
}

/* Returns true if the source has weights of floating-point types, but none of the type `type`. */
static bool has_other_weights(const struct source *s, enum dtype type, enum dtype *found)
{
    bool other = false;

    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *w = s->param[i].copy ? s->param[i].copy : s->param[i].state[STATE_BF16];

        if (!w || !dtype_is_float(w->dtype))
            continue;
        if (w->dtype == type)
            return false;
        other = true;
        *found = w->dtype;
    }
    return other;
}

/* Compare the flags bf16 and fp16 of the arguments with each other, with params_dtype and with the weights. */
static void check_precision(const struct source *s, struct report *r)
{
    const struct pk *args = s->run.args, *type = pk_get(args, "params_dtype");
    enum dtype want, found = DTYPE_N;
    int64_t bf16, fp16;

    if (!pk_as_int(pk_get(args, "bf16"), &bf16) || !pk_as_int(pk_get(args, "fp16"), &fp16))
        return;
    want = bf16 ? DTYPE_BF16 : fp16 ? DTYPE_F16 : DTYPE_F32;
    if (bf16 && fp16)
        report_add(r, SEV_WARNING, "precision", s->path, ERR_NO_BYTE, NULL,
                   "the training arguments state both bf16 and fp16");
    else if (has_other_weights(s, want, &found))
        report_add(r, SEV_WARNING, "precision", s->path, ERR_NO_BYTE, NULL,
                   "the training arguments state bf16 %s and fp16 %s, but the weights are %s", bf16 ? "true" : "false",
                   fp16 ? "true" : "false", dtype_torch_name(found));
    else if (type && !pk_is_none(type) && !pk_is_class(type, "torch", dtype_torch_name(want)))
        report_add(r, SEV_WARNING, "precision", s->path, ERR_NO_BYTE, NULL,
                   "the training arguments state bf16 %s and fp16 %s, but params_dtype contradicts this",
                   bf16 ? "true" : "false", fp16 ? "true" : "false");
}

void run_state_check_claims(const struct source *s, struct report *r)
{
    check_counters(s, r);
    check_precision(s, r);
}

int run_state_compare_heads(const struct source *s, int64_t heads, int64_t groups, struct err *e)
{
    const struct pk *args = s->run.args;
    const int64_t own_heads = pk_int_or(pk_get(args, "num_attention_heads"), heads);
    const bool grouped = pk_int_or(pk_get(args, "group_query_attention"), 0) != 0;
    const int64_t own_groups = grouped ? pk_int_or(pk_get(args, "num_query_groups"), groups) : groups;

    if (own_heads == heads && own_groups == groups)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "the arguments of the run state %lld heads and %lld groups of them, but "
             "config.json states %lld and %lld", (long long)own_heads, (long long)own_groups, (long long)heads,
             (long long)groups);
    return -1;
}
