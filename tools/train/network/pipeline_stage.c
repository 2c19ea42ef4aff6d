/*
 * pipeline_stage.c - determine the parameters of a rank and their order
 */
#include <assert.h>
#include <string.h>

#include "tools/train/network/pipeline_stage.h"

/*
 * How parameters are numbered in names: blocks from 3 on, and the number of the final LayerNorm leaves a gap of 1 after
 * the last block (docs/training.md 1.9).
 */
enum { NAME_FIRST_BLOCK = 3, NAME_AFTER_BLOCKS = 4 };
enum { BLOCK_ROLES = ROLE_DOWN_B - ROLE_NORM1_W + 1 };

/*
 * Returns the index of a parameter among all parameters of the model. It is the same in every topology, and follows the
 * order embedding, blocks, final LayerNorm.
 */
static int stage_param_id(const struct model_config *m, enum role r, int block)
{
    if (block >= 0)
        return ROLE_POSITION + 1 + block * BLOCK_ROLES + (r - ROLE_NORM1_W);
    if (r <= ROLE_POSITION)
        return r;
    return ROLE_POSITION + 1 + (int)m->n_layers * BLOCK_ROLES + (r - ROLE_FINAL_NORM_W);
}

static void add_stage_param(struct stage *s, enum role r, int block)
{
    struct stage_param *p = &s->param[s->n_params];
    const struct model_config *m = &s->model;
    const struct param_dims dims = { m->vocab, m->max_positions, m->hidden, m->ffn_hidden };
    const struct param_row *row = param_row(r);
    const int place = block >= 0 ? block - s->first_block : s->n_blocks;

    p->role = r;
    p->block = block;
    p->id = stage_param_id(&s->model, r, block);
    if (block >= 0)
        p->name = arena_fmt(s->arena, "%d.%s", block + NAME_FIRST_BLOCK, row->key);
    else if (r >= ROLE_FINAL_NORM_W)
        p->name = arena_fmt(s->arena, "%d.%s", (int)s->model.n_layers + NAME_AFTER_BLOCKS, row->key);
    else
        p->name = param_embedding_name(r);
    p->ndim = row->ndim;
    for (int d = 0; d < row->ndim; d++)
        p->shape[d] = param_dim(&dims, row->dims[d]);
    p->decays = p->ndim == 2;
    p->merge = row->merge;
    p->split = p->merge != MERGE_REPLICATED;
    memcpy(p->slice, p->shape, sizeof p->slice);
    if (p->split) {
        int64_t *cut = &p->slice[p->merge == MERGE_CAT1];

        assert(*cut % s->topo.tp == 0);
        *cut /= s->topo.tp;
    }
    p->n = p->slice[0] * (p->ndim == 2 ? p->slice[1] : 1);
    p->at = s->flat_n;
    s->flat_n += (int64_t)align_up((uint64_t)p->n, STAGE_ALIGN);
    s->by_role[place][r] = s->n_params++;
}

static void end_bucket(struct stage *s, int block)
{
    struct stage_bucket *b = &s->bucket[s->n_buckets];

    b->at = s->n_buckets ? b[-1].at + b[-1].n : 0;
    b->n = (int64_t)align_up((uint64_t)(s->flat_n - b->at), (uint64_t)STAGE_ALIGN * s->topo.dp);
    b->shard_at = s->shard_n;
    b->block = block;
    s->flat_n = b->at + b->n;
    s->shard_n += b->n / s->topo.dp;
    s->n_buckets++;
}

/* Add the parameters of the embedding. On the last of several stages they are copies, which the head uses. */
static void add_embedding(struct stage *s, bool copy)
{
    const bool positions = !strcmp(s->model.position, "absolute");
    int from = s->n_params;

    add_stage_param(s, ROLE_WORD, -1);
    if (s->model.embed_layernorm && !copy) {
        add_stage_param(s, ROLE_WORD_NORM_W, -1);
        add_stage_param(s, ROLE_WORD_NORM_B, -1);
    }
    if (positions)
        add_stage_param(s, ROLE_POSITION, -1);
    for (; copy && from < s->n_params; from++) {
        s->param[from].tied_copy = s->param[from].role == ROLE_WORD;
        s->param[from].untrained = s->param[from].role == ROLE_POSITION;
    }
}

/*
 * Returns the ranges of parameters that data-parallel rank dp owns. These are the intersections of the parameters with
 * the parts of buckets that the rank owns.
 */
struct stage_run *stage_runs(const struct stage *s, int dp, struct arena *a, int *n)
{
    struct stage_run *run = arena_alloc(a, (size_t)(s->n_params + s->n_buckets) * sizeof *run);

    *n = 0;
    for (int k = 0; k < s->n_buckets; k++) {
        const struct stage_bucket *b = &s->bucket[k];
        int64_t own = b->n / s->topo.dp, from = b->at + dp * own, end = from + own;

        for (int i = 0; i < s->n_params; i++) {
            const struct stage_param *p = &s->param[i];
            int64_t lo = p->at > from ? p->at : from, hi = p->at + p->n < end ? p->at + p->n : end;

            if (lo < hi)
                run[(*n)++] = (struct stage_run){ i, lo - p->at, hi - lo, b->shard_at + lo - from };
        }
    }
    return run;
}

struct stage *stage_new(const struct model_config *m, struct topology topo, int pp, int dp, int tp, const int *blocks)
{
    struct arena *a = arena_new(0);
    struct stage *s = arena_alloc(a, sizeof *s);
    int most;

    s->arena = a;
    s->topo = topo;
    s->pp = pp;
    s->dp = dp;
    s->tp = tp;
    s->model = *m;
    for (int i = 0; i < pp; i++)
        s->first_block += blocks[i];
    s->n_blocks = blocks[pp];
    s->first = pp == 0;
    s->last = pp == topo.pp - 1;
    s->norm = s->n_blocks > 0;
    for (int i = pp + 1; i < topo.pp; i++)
        s->norm = s->norm && blocks[i] == 0;
    s->n_ids = stage_param_id(m, ROLE_FINAL_NORM_B, -1) + 1;
    most = s->n_blocks * BLOCK_ROLES + ROLE_N;
    s->param = arena_alloc(a, (size_t)most * sizeof *s->param);
    s->by_role = arena_alloc(a, (size_t)(s->n_blocks + 1) * sizeof *s->by_role);
    for (int i = 0; i <= s->n_blocks; i++)
        for (int r = 0; r < ROLE_N; r++)
            s->by_role[i][r] = -1;
    s->bucket = arena_alloc(a, (size_t)(s->n_blocks + 2) * sizeof *s->bucket);

    if (s->norm) {
        add_stage_param(s, ROLE_FINAL_NORM_W, -1);
        add_stage_param(s, ROLE_FINAL_NORM_B, -1);
    }
    if (s->last && !s->first)
        add_embedding(s, true);
    if (s->norm || s->last)
        end_bucket(s, -1);
    for (int i = s->n_blocks - 1; i >= 0; i--) {
        for (enum role r = ROLE_NORM1_W; r <= ROLE_DOWN_B; r++)
            add_stage_param(s, r, s->first_block + i);
        end_bucket(s, s->first_block + i);
    }
    if (s->first) {
        add_embedding(s, false);
        end_bucket(s, -1);
    }
    s->run = stage_runs(s, dp, a, &s->n_runs);
    return s;
}

void stage_free(struct stage *s)
{
    if (s)
        arena_free(s->arena);
}

const struct stage_param *stage_get(const struct stage *s, int block, enum role r)
{
    int i = s->by_role[block < 0 ? s->n_blocks : block][r];

    return i < 0 ? NULL : &s->param[i];
}
