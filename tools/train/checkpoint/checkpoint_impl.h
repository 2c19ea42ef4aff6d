/*
 * checkpoint_impl.h - what the checkpoint_*.c files share; for the room only
 *
 *   checkpoint_open.c   which tag, what it says; replicas
 *   checkpoint_load.c   a plan whose items end in this rank's buffers
 *   checkpoint_base.c   what a new checkpoint carries on from the loaded one, or begins with
 *   checkpoint_scratch.c  the latter
 *   checkpoint_args.c   the arguments that it carries
 *   checkpoint_rng.c    random states made from the seed
 *   checkpoint_save.c   the trainer's side of a save
 *   checkpoint_files.c, _write.c, _meet.c  the writer process's side (checkpoint_write.h)
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_IMPL_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_IMPL_H

#include "libcommon/layout/memory_source.h"
#include "tools/train/checkpoint/checkpoint.h"

struct checkpoint {
    struct source *src;
    struct arena *arena;
    struct checkpoint_info info;
    int first_layer;            /* number of the first block in names: 3, or 2 in Microsoft's fork */
    bool accept_mismatch;
};

/*
 * A stage's parameter under a checkpoint's own numbering: the same kind in the same block.
 * NULL: the source has none.
 */
const struct param *checkpoint_find(const struct source *s, int first_layer, const struct stage_param *p);
/* Same kind and block? `name` numbers blocks from first_layer. */
bool checkpoint_same(const char *name, int first_layer, const struct stage_param *p);

/* ---- checkpoint_base.c ---- */

/* What a saver tells its writer once: numbers, then files. */
struct checkpoint_base_file {
    int pp, tp;                 /* an mp_rank file; pp < 0: the optimizer shard */
    uint8_t *bytes;
    uint64_t size;
};
struct checkpoint_base {
    struct topology topo;
    int pp, dp, tp;
    struct model_config model;
    enum dtype weights;
    int bf16_prefix, threads;
    uint64_t area_bytes;
    int n_files;
    struct checkpoint_base_file *file;
    int *blocks;                /* [topo.pp] */
};
MUST_CHECK int checkpoint_base_make(const struct checkpoint_saver_opts *o, struct checkpoint_base *out,
                                    struct report *notes, struct err *e);
void checkpoint_base_free(struct checkpoint_base *s);
void checkpoint_base_pack(const struct checkpoint_base *s, struct strbuf *out);
/* Copies; free *out by checkpoint_base_free(). */
MUST_CHECK int checkpoint_base_unpack(const void *msg, size_t n, struct checkpoint_base *out, struct err *e);

/* ---- checkpoint_args.c ---- */

/* The arguments that the model's shape decides, into a dict or Namespace. */
void checkpoint_args_of_model(struct arena *a, struct pk *d, const struct model_config *m);
/* All of the run's, those too. */
void checkpoint_args_of_run(struct arena *a, struct pk *d, const struct checkpoint_saver_opts *o);

/* ---- checkpoint_scratch.c ---- */

/* A source of one rank, and the bytes it stands on. `args`: a Namespace to begin with, or NULL. Free in any case. */
struct checkpoint_scratch {
    struct source *src;
    uint8_t *mp, *shard;
};
MUST_CHECK int checkpoint_scratch_make(struct checkpoint_scratch *x, const struct checkpoint_saver_opts *o,
                                       const struct pk *args, struct err *e);
void checkpoint_scratch_free(struct checkpoint_scratch *x);

/* ---- checkpoint_rng.c ---- */

/* Set all five kinds of states, as rank (pp, tp) has them after seeding. */
void checkpoint_rng_set(struct arena *a, struct pk *dict, struct memory_storages *st, int64_t seed, int pp, int tp);
void checkpoint_rng_remove(struct pk *dict);

/* ---- the staging area ---- */

/* Where the four states of the shard lie in it; each begins at a page. */
struct checkpoint_area {
    uint64_t at[STATE_N], bytes;
};
static inline struct checkpoint_area checkpoint_area_of(const struct stage *s, enum dtype weights)
{
    struct checkpoint_area a = {0};

    for (int st = 0; st < STATE_N; st++) {
        a.at[st] = a.bytes;
        a.bytes += align_up((uint64_t)s->shard_n * (st == STATE_BF16 ? (uint64_t)dtype_size(weights) : 4), 4096);
    }
    return a;
}

#endif
