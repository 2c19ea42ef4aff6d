/*
 * megatron_source.c - open a folder of Megatron-LM: find the files of the ranks, and put the model's tensors together
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/core_args.h"
#include "libcommon/layout/megatron/megatron.h"
#include "libcommon/layout/pt_files.h"

/*
 * Limits for numbers in the names of folders, for the chunks of a stage, and for missing files that are reported by
 * name.
 */
enum { RANKS_MAX = 1 << 12, CHUNKS_MAX = 64, MISSING_NAMED = 16 };

static const char *const file_names[MEGATRON_FILES] = { "model_optim_rng.pt", "distrib_optim.pt" };

/* ---- names of files ---- */

/* Parse `digits` digits at s. Returns the text after them, or NULL. */
static const char *parse_rank_digits(const char *s, size_t digits, int *out)
{
    const size_t n = strspn(s, "0123456789");

    if (n != digits)
        return NULL;
    *out = atoi(s);
    return s + n;
}

/*
 * Parse the folder in a name such as "mp_rank_01_000/model_optim_rng.pt". A rank that is not in the name is set to -1.
 * Returns the text after the folder, or NULL if this is not the folder of a rank.
 */
static const char *parse_rank_folder(const char *name, int rank[3])
{
    static const char prefix[] = "mp_rank_";
    const char *s = str_starts(name, prefix) ? parse_rank_digits(name + sizeof prefix - 1, 2, &rank[0]) : NULL;

    rank[1] = rank[2] = -1;
    for (int i = 1; s && i < 3 && *s == '_'; i++)
        s = parse_rank_digits(s + 1, 3, &rank[i]);
    return s;
}

/* Parse the name of a file. Returns false if this layout has no file of this name. */
static bool parse_megatron_name(const char *name, enum megatron_file *kind, int rank[3])
{
    const char *s = parse_rank_folder(name, rank);

    if (!s || *s != '/')
        return false;
    for (int k = 0; k < MEGATRON_FILES; k++)
        if (strcmp(s + 1, file_names[k]) == 0) {
            *kind = (enum megatron_file)k;
            return true;
        }
    return false;
}

/* Also returns true for the folder of a rank. The folder above it is thereby found to be a checkpoint. */
bool megatron_marks(const char *name)
{
    enum megatron_file kind;
    int rank[3];
    const char *rest = parse_rank_folder(name, rank);

    return (rest && !*rest) || parse_megatron_name(name, &kind, rank);
}

/* ---- files ---- */

/* Find the numbers of ranks. All names must have the same form. */
static int find_megatron_ranks(struct megatron *x, struct err *e)
{
    const char *first = NULL;
    bool has_pp = false;

    x->tp = x->pp = 1;
    for (int i = 0; i < x->l->n; i++) {
        const char *name = x->l->member[i].name;
        enum megatron_file kind;
        int rank[3];

        if (!parse_megatron_name(name, &kind, rank))
            continue;
        if (rank[2] >= 0) {
            err_data(e, x->s->path, ERR_NO_BYTE, "%s: a folder of an expert rank; expert parallelism is not read from "
                     "this form: save it with --ckpt-format torch_dist", name);
            return -1;
        }
        if (first && has_pp != (rank[1] >= 0)) {
            err_data(e, x->s->path, ERR_NO_BYTE, "%s and %s: folders of two saves, with and without pipeline ranks",
                     first, name);
            return -1;
        }
        first = name;
        has_pp = rank[1] >= 0;
        x->tp = rank[0] + 1 > x->tp ? rank[0] + 1 : x->tp;
        x->pp = rank[1] + 1 > x->pp ? rank[1] + 1 : x->pp;
    }
    return 0;
}

static void list_megatron_files(struct megatron *x)
{
    const size_t n = (size_t)x->tp * (size_t)x->pp;
    struct source *s = x->s;

    s->file = arena_alloc(s->arena, ((size_t)x->l->n + 1) * sizeof *s->file);
    for (int k = 0; k < MEGATRON_FILES; k++) {
        x->file[k] = arena_alloc(s->arena, n * sizeof *x->file[k]);
        memset(x->file[k], -1, n * sizeof *x->file[k]);
    }
    for (int i = 0; i < x->l->n; i++) {
        const struct archive_member *m = &x->l->member[i];
        struct source_file f = { .name = arena_fmt(s->arena, "%s", m->name), .file = m->file, .cls = FILE_OTHER,
                                 .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
        enum megatron_file kind;
        int rank[3];

        if (parse_megatron_name(m->name, &kind, rank)) {
            f.tp = rank[0];
            f.pp = rank[1] < 0 ? 0 : rank[1];
            f.cls = kind == MEGATRON_MODEL ? FILE_WEIGHTS : FILE_OPTIMIZER;
            x->file[kind][f.pp * x->tp + f.tp] = s->n_files;
        } else if (strcmp(m->name, MANIFEST_NAME) != 0 && strcmp(m->name, DS_REPAIR_LOG_NAME) != 0) {
            continue;
        }
        s->file[s->n_files++] = f;
    }
}

static void report_missing_file(const struct megatron *x, enum megatron_file kind, int stage, int tp)
{
    char folder[64];

    snprintf(folder, sizeof folder, x->pp > 1 ? "mp_rank_%02d_%03d" : "mp_rank_%02d", tp, stage);
    report_add(x->r, SEV_ERROR, "missing_file", x->s->path, ERR_NO_BYTE, NULL, "%s/%s is missing", folder,
               file_names[kind]);
}

/* Report missing files. If all files of the optimizer are missing, this is permitted. */
static void report_missing_files(const struct megatron *x)
{
    for (int k = 0; k < MEGATRON_FILES; k++) {
        int n = 0, n_missing = 0;

        if (k == MEGATRON_DISTRIBUTED && x->o->no_optimizer)
            continue;
        for (int i = 0; i < x->tp * x->pp; i++)
            n += x->file[k][i] >= 0;
        for (int i = 0; i < x->tp * x->pp && (n || k == MEGATRON_MODEL); i++)
            if (x->file[k][i] < 0 && ++n_missing <= MISSING_NAMED)
                report_missing_file(x, (enum megatron_file)k, i / x->tp, i % x->tp);
        if (n_missing > MISSING_NAMED)
            report_add(x->r, SEV_ERROR, "missing_file", x->s->path, ERR_NO_BYTE, NULL, "%d more files are missing",
                       n_missing - MISSING_NAMED);
    }
}

static void skip_read(const struct pt_files_job *j)
{
    (void)j;
}

static void open_megatron_files(struct megatron *x)
{
    struct pt_files o = { .s = x->s, .r = x->r, .threads = x->o->threads, .ctx = x, .read = skip_read };

    pt_files_keep(&o, x->file[MEGATRON_MODEL], x->tp * x->pp);
    if (!x->o->no_optimizer)
        pt_files_keep(&o, x->file[MEGATRON_DISTRIBUTED], x->tp * x->pp);
}

/* ---- arguments ---- */

/* Report an argument with a number of ranks if the folders contradict it. */
static void check_rank_argument(const struct megatron *x, const struct pt *pt, const char *key, int64_t found,
                                const char *what)
{
    const int64_t stated = pk_int_or(pk_get(pk_get(pt_root(pt), "args"), key), found);

    if (stated != found)
        report_add(x->r, SEV_ERROR, "ranks", pt_path(pt), ERR_NO_BYTE, NULL,
                   "args.%s is %" PRId64 ", but the number of %s ranks in the names of the folders is %" PRId64, key,
                   stated, what, found);
}

/*
 * Compare the number of the process that saved a file with the ranks in the name of its folder. Processes are numbered
 * by tensor rank first, and by pipeline rank last, or with --use-tp-pp-dp-mapping, by pipeline rank next
 * (megatron/core/parallel_state.py).
 */
static void check_saving_rank(const struct megatron *x, const struct pt *pt, int stage, int tp)
{
    const struct pk *args = pk_get(pt_root(pt), "args");
    const int64_t rank = pk_int_or(pk_get(args, "rank"), -1), world = pk_int_or(pk_get(args, "world_size"), -1);
    int64_t own;

    if (rank < 0 || world < 1 || rank >= world || world % (x->tp * x->pp) != 0)
        return;
    own = pk_int_or(pk_get(args, "use_tp_pp_dp_mapping"), 0) ? rank / x->tp % x->pp : rank / (world / x->pp);
    if (rank % x->tp != tp || own != stage)
        report_add(x->r, SEV_ERROR, "ranks", pt_path(pt), ERR_NO_BYTE, NULL,
                   "was saved by process %" PRId64 " of %" PRId64 ", which is tensor rank %" PRId64 " and pipeline "
                   "rank %" PRId64 ": it is that rank's file under another name", rank, world, rank % x->tp, own);
}

/* Compare what all ranks of a save share with the first file. */
static void compare_megatron_files(struct megatron *x)
{
    const enum severity severity = x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
    const struct pt *first = NULL;
    char *its = NULL;

    for (int i = 0; i < x->tp * x->pp; i++) {
        const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, i / x->tp, i % x->tp);
        char *mine, what[512];

        if (!pt)
            continue;
        check_rank_argument(x, pt, "tensor_model_parallel_size", x->tp, "tensor");
        check_rank_argument(x, pt, "pipeline_model_parallel_size", x->pp, "pipeline");
        check_saving_rank(x, pt, i / x->tp, i % x->tp);
        mine = run_values_text(pt_root(pt));
        if (!first) {
            first = pt;
            its = mine;
            continue;
        }
        if (run_values_differ(mine ? mine : "", its ? its : "", what))
            report_add(x->r, severity, "mixed_saves", pt_path(pt), ERR_NO_BYTE, NULL,
                       "%s: the files are from different saves", what);
        else if (!pk_same_text(pk_get(pt_root(first), "iteration"), pk_get(pt_root(pt), "iteration")))
            report_add(x->r, severity, "mixed_saves", pt_path(pt), ERR_NO_BYTE, NULL,
                       "has another iteration than %s: the files are from different saves", pt_path(first));
        free(mine);
    }
    free(its);
}

/* Read the run state, and the facts about the model that the arguments state. */
static int read_megatron_run(struct megatron *x, struct err *e)
{
    const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, 0, 0);
    struct source *s = x->s;
    const struct pk *args;
    int64_t experts;

    if (!pt)
        return 0;
    run_state_read(s, pt);
    memset(&s->config, 0, sizeof s->config);
    s->topo = (struct topology){0};
    args = s->run.args;
    x->gated = pk_int_or(pk_get(args, "swiglu"), 0) != 0 || pk_int_or(pk_get(args, "gated_linear_unit"), 0) != 0;
    experts = pk_int_or(pk_get(args, "expert_model_parallel_size"), 1);
    if (experts > 1) {
        err_data(e, pt_path(pt), ERR_NO_BYTE, "args.expert_model_parallel_size is %" PRId64 ": expert parallelism is "
                 "not read from this form: save it with --ckpt-format torch_dist", experts);
        return -1;
    }
    if (!pk_get(args, "swiglu") && x->tp > 1) {
        err_data(e, pt_path(pt), ERR_NO_BYTE, "no args.swiglu, so whether the rows of linear_fc1 are those of a gate "
                 "and an up projection is not known");
        return -1;
    }
    return 0;
}

/* ---- the model ---- */

/* Returns the dict of a chunk of a stage's model, or NULL. */
static const struct pk *model_of_chunk(const struct megatron *x, int stage, int tp, int chunk)
{
    const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, stage, tp);
    char key[24];

    snprintf(key, sizeof key, x->chunks > 1 ? "model%d" : "model", chunk);
    return pt ? pk_get(pt_root(pt), key) : NULL;
}

static int count_chunks(const struct megatron *x)
{
    const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, 0, 0);
    int n = 0;

    for (char key[24]; pt && n < CHUNKS_MAX; n++) {
        snprintf(key, sizeof key, "model%d", n);
        if (!pk_get(pt_root(pt), key))
            break;
    }
    return n > 1 ? n : 1;
}

/* The model of one chunk of a stage, which is being read. */
struct chunk_reader {
    struct megatron *x;
    int stage, chunk, first_layer;
    uint32_t n;
    struct pk ***pair;                  /* [tp]: pairs of each tensor rank's dict */
    struct names *known;                /* canonical name -> index of the parameter */
    struct names *dense;                /* the layers of this chunk whose MLP is not one of experts */
};

/*
 * Read the pairs of all tensor ranks. If these do not list the same names in the same order, reports this and returns
 * false.
 */
static bool list_chunk_pairs(struct chunk_reader *c)
{
    const struct megatron *x = c->x;

    for (int t = 0; t < x->tp; t++) {
        const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, c->stage, t);
        const struct pk *model = model_of_chunk(x, c->stage, t, c->chunk);
        uint32_t n = 0, n_below;

        if (!pt)
            return false;               /* has been reported */
        c->pair[t] = pk_pairs(model, &n);
        if (!c->pair[t] || pk_pairs(pk_get(model, "language_model"), &n_below)) {
            report_add(x->r, SEV_ERROR, "unread", pt_path(pt), ERR_NO_BYTE, NULL,
                       c->pair[t] ? "the model is one of Megatron-LM's own classes (language_model), not of "
                                    "Megatron-core: its names are not read" : "has no model, a dict of tensors");
            return false;
        }
        if (t == 0)
            c->n = n;
        for (uint32_t i = 0; n == c->n && i < n; i++) {
            const char *a = pk_as_str(c->pair[0][2 * i]), *b = pk_as_str(c->pair[t][2 * i]);

            if (!a || !b || strcmp(a, b) != 0)
                n = c->n + 1;           /* no rank has this number of tensors */
        }
        if (n != c->n) {
            report_add(x->r, SEV_ERROR, "names", pt_path(pt), ERR_NO_BYTE, NULL,
                       "lists other tensors than tensor rank 0 of this stage: it is of another save");
            return false;
        }
    }
    return true;
}

static struct param *add_megatron_param(const struct chunk_reader *c, const char *name, int ndim, const int64_t *shape)
{
    struct source *s = c->x->s;
    struct param *p = &s->param[s->n_params++];

    *p = (struct param){ .name = name, .ndim = ndim, .merge = MERGE_REPLICATED, .stage = -1, .group = -1 };
    memcpy(p->shape, shape, sizeof p->shape);
    return p;
}

/* Returns true if the tensor is the last stage's copy of a tied embedding. */
static bool is_tied_copy(const struct chunk_reader *c, const char *name)
{
    const struct pk *args = c->x->s->run.args;

    return c->x->pp > 1 && c->stage == c->x->pp - 1 && strcmp(name, "output_layer.weight") == 0 &&
           pk_int_or(pk_get(args, "untie_embeddings_and_output_weights"), 1) == 0 &&
           names_find(c->known, "embedding.word_embeddings.weight") >= 0;
}

/* Append to the weights of the stage. Returns the new one. */
static struct megatron_weight *add_stage_weight(const struct chunk_reader *c)
{
    struct megatron_stage *st = &c->x->stage[c->stage];

    ARRAY_ROOM(st->weight, st->cap, st->n + 1);
    st->weight[st->n] = (struct megatron_weight){ .chunk = c->chunk };
    return &st->weight[st->n++];
}

/* Read tensor number i of the chunk's dicts. `name` is its name in the files. */
static void read_model_tensor(struct chunk_reader *c, uint32_t i, const char *name)
{
    struct megatron *x = c->x;
    struct arena *a = x->s->arena;
    struct pt_tensor *part = arena_alloc(a, (size_t)x->tp * sizeof *part);
    const char *key = arena_fmt(a, "%d", core_layer_of(name)), *why = NULL;
    const char *own = megatron_param_name(a, name, c->first_layer, names_find(c->dense, key) >= 0);
    const bool tied = is_tied_copy(c, name);
    int64_t shape[TENSOR_MAX_DIM];
    struct megatron_weight w = { .chunk = c->chunk, .cut = megatron_cut_of(name, x->gated), .part = part };
    struct tmap *map = NULL;

    for (int t = 0; t < x->tp && !why; t++)
        if (!pt_tensor(megatron_pt(x, MEGATRON_MODEL, c->stage, t), c->pair[t][2 * i + 1], &part[t]))
            why = "it is no tensor that can be read";
    if (!why)
        map = megatron_join(x, w.cut, part, shape, &why);
    if (!why && !tied && names_find(c->known, own) >= 0)
        why = "another stage has a tensor of this name";
    if (why) {
        source_add_unread(x->s, x->o, x->r, (struct source_spot){ x->s->path, ERR_NO_BYTE }, own, why);
        return;
    }
    if (!dtype_is_weight(part[0].dtype)) {
        struct source_value v = { .name = own, .map = map, .ndim = part[0].ndim, .buffer = true };

        memcpy(v.shape, shape, sizeof v.shape);
        x->s->value[x->s->n_values++] = v;
        return;
    }
    w.tied_copy = tied;
    w.param = tied ? names_find(c->known, "embedding.word_embeddings.weight") : x->s->n_params;
    if (!tied) {
        names_add(c->known, own, x->s->n_params);
        add_megatron_param(c, own, part[0].ndim, shape);
    }
    megatron_set_state(x, &w, part[0].dtype == DTYPE_F32 || part[0].dtype == DTYPE_F64 ? STATE_FP32 : STATE_BF16, map);
    *add_stage_weight(c) = w;
}

/* Find the layers whose MLP has no experts. Returns the number of layers of the chunk. */
static int find_layers(struct chunk_reader *c)
{
    int n = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        const char *name = pk_as_str(c->pair[0][2 * i]);
        const int layer = core_layer_of(name);

        if (layer >= n)
            n = layer + 1;
        if (layer >= 0 && str_ends(name, ".mlp.linear_fc1.weight"))
            names_add(c->dense, arena_fmt(c->x->s->arena, "%d", layer), layer);
    }
    return n;
}

/* Read one chunk of a stage. Returns the number of its layers. If that fails, reports this and returns -1. */
static int read_chunk(struct chunk_reader *c)
{
    int layers;

    if (!list_chunk_pairs(c))
        return -1;
    layers = find_layers(c);
    for (uint32_t i = 0; i < c->n; i++) {
        const char *name = pk_as_str(c->pair[0][2 * i]);
        const struct pk *v = c->pair[0][2 * i + 1];

        /* Transformer Engine's modules store statistics of FP8 here. Megatron-core's own modules store nothing. */
        if (!str_ends(name, "._extra_state"))
            read_model_tensor(c, i, name);
        else if (!pk_is_none(v))
            c->x->s->value[c->x->s->n_values++] =
                (struct source_value){ .name = megatron_param_name(c->x->s->arena, name, c->first_layer, true),
                                       .tree = v, .pt = megatron_pt(c->x, MEGATRON_MODEL, c->stage, 0) };
    }
    return layers;
}

/* Count the pairs of all models and roots, for the arrays of parameters and values. */
static size_t count_pairs(const struct megatron *x)
{
    size_t room = 64;

    for (int i = 0; i < x->tp * x->pp; i++) {
        const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, i / x->tp, i % x->tp);
        uint32_t n = 0;

        if (pt && pk_pairs(pt_root(pt), &n))
            room += n;
    }
    for (int p = 0; p < x->pp; p++) {
        uint32_t n = 0;

        for (int c = 0; c < x->chunks; c++)
            if (pk_pairs(model_of_chunk(x, p, 0, c), &n))
                room += n;
    }
    return room;
}

/* Read the model. If there are virtual stages, chunk 0 of all stages is read before chunk 1 of the first stage. */
static void read_megatron_model(struct megatron *x)
{
    struct source *s = x->s;
    const size_t room = count_pairs(x);
    struct chunk_reader c = { .x = x, .known = names_new(s->arena) };
    const int64_t stated = pk_int_or(pk_get(s->run.args, "num_layers"), -1);

    x->whole = true;
    s->param = arena_alloc(s->arena, room * sizeof *s->param);
    s->value = arena_alloc(s->arena, room * sizeof *s->value);
    c.pair = arena_alloc(s->arena, (size_t)x->tp * sizeof *c.pair);
    for (c.chunk = 0; c.chunk < x->chunks; c.chunk++)
        for (c.stage = 0; c.stage < x->pp; c.stage++) {
            int layers;

            c.dense = names_new(s->arena);
            layers = read_chunk(&c);
            x->whole = x->whole && layers >= 0;
            c.first_layer += layers > 0 ? layers : 0;
        }
    if (x->whole && stated >= 0 && stated != c.first_layer)
        report_add(x->r, SEV_ERROR, "config", s->path, ERR_NO_BYTE, NULL,
                   "args.num_layers is %" PRId64 ", but the files have %d layers", stated, c.first_layer);
}

/* ---- values ---- */

/* Returns true if the key is that of a model or of a chunk, such as "model" or "model0". */
static bool is_model_key(const char *key)
{
    return str_starts(key, "model") && !key[5 + strspn(key + 5, "0123456789")];
}

/* Returns true if the key is that of the model that was read, or of a chunk of this model. */
static bool is_read_model(const struct megatron *x, const char *key)
{
    char own[24];

    for (int c = 0; c < x->chunks; c++) {
        snprintf(own, sizeof own, x->chunks > 1 ? "model%d" : "model", c);
        if (strcmp(own, key) == 0)
            return true;
    }
    return false;
}

/* Report the first model in a rank's file that was not read. */
static void report_other_model(const struct megatron *x)
{
    for (int r = 0; r < x->tp * x->pp; r++) {
        const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, r / x->tp, r % x->tp);
        uint32_t n = 0;
        struct pk **pair = pt ? pk_pairs(pt_root(pt), &n) : NULL;

        for (uint32_t i = 0; pair && i < n; i++) {
            const char *key = pk_as_str(pair[2 * i]);

            if (!key || !is_model_key(key) || is_read_model(x, key))
                continue;
            source_add_unread(x->s, x->o, x->r, (struct source_spot){ x->s->path, ERR_NO_BYTE }, key,
                              "it is a second model, next to the one that is read");
            return;
        }
    }
}

/*
 * Add the values of a rank's file. For ranks other than the first, only values whose keys the first rank lacks are
 * added. The names of these begin with the folder of the rank.
 */
static void read_rank_values(const struct megatron *x, int stage, int tp)
{
    const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, stage, tp), *first = megatron_pt(x, MEGATRON_MODEL, 0, 0);
    struct source *s = x->s;
    const char *folder = "", *file;
    uint32_t n = 0;
    struct pk **pair = pt ? pk_pairs(pt_root(pt), &n) : NULL;

    if (pair && pt != first) {
        file = s->file[x->file[MEGATRON_MODEL][stage * x->tp + tp]].name;
        folder = arena_fmt(s->arena, "%.*s.", (int)strcspn(file, "/"), file);
    }
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !is_model_key(key) && strcmp(key, "optimizer") != 0 &&
            (pt == first || (first && !pk_get(pt_root(first), key))))
            s->value[s->n_values++] = (struct source_value){ .name = arena_fmt(s->arena, "%s%s", folder, key),
                                                             .tree = pair[2 * i + 1], .pt = pt };
    }
}

static void read_megatron_values(const struct megatron *x)
{
    for (int i = 0; i < x->tp * x->pp; i++)
        read_rank_values(x, i / x->tp, i % x->tp);
    report_other_model(x);
}

int megatron_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                         struct report *r, struct err *e)
{
    struct megatron x = { .s = s, .l = l, .o = o, .r = r };
    bool states;
    int rc = -1;

    s->layout = &megatron_layout;
    if (find_megatron_ranks(&x, e) < 0)
        return -1;
    list_megatron_files(&x);
    report_missing_files(&x);
    open_megatron_files(&x);
    x.stage = xcalloc((size_t)x.pp, sizeof *x.stage);
    x.chunks = count_chunks(&x);
    if (read_megatron_run(&x, e) == 0) {
        compare_megatron_files(&x);
        read_megatron_model(&x);
        read_megatron_values(&x);
        states = !o->no_optimizer && megatron_read_optimizer(&x);
        if (s->n_unread == 0 && x.whole)
            megatron_check(&x, states);
        rc = o->no_tensors ? 0 : manifest_load(s, o->no_optimizer, r, e);
    }
    for (int p = 0; p < x.pp; p++)
        free(x.stage[p].weight);
    free(x.stage);
    return rc;
}
