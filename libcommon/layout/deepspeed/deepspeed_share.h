/*
 * deepspeed_share.h - a sharded checkpoint out of the memory of the processes of a job
 *
 * A conversion has a source with all tensors; a job has none. Each of its processes holds runs of the slices of its
 * (pp, tp), cut for other ends than files are, and all of one (pp, tp) fill the same files: the layer files of the
 * stage for that tensor rank, and the shards of dp 0, 1, ... A share is what one process has to do, worked out once:
 * trees of those files, and for each run which bytes of which storages it becomes. It is plain data, so that it can be
 * handed to another process, which writes:
 *
 *   process that trains   ds_target_new(no_tensors) -> ds_share_new() -> ds_share_pack() ~~~>
 *   process that writes   ds_share_unpack(), then for each save
 *                         ds_share_sink(): prepare() -> plan -> executor -> finish()
 *
 * finish() is where processes meet: each tells the others of its (pp, tp) the CRC parts of what it wrote, and the
 * owner of a file, once it has heard from all, writes its headers. How they hear of each other, and in which folder all
 * of this goes on, is the caller's (ds_meeting, prepare()'s `dir`).
 *
 * An fp16 run: source and target of ZeRO stage 1 (ds_fresh_source() makes such a one, zero_pp_rank_* files),
 * ds_request.weights DTYPE_F16, and ds_now.scaler at each save. The trainer gets there by checkpoint_saver_opts.weights
 * and checkpoint_now.scaler (tools/train/checkpoint/checkpoint.h).
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHARE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHARE_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/model/loss_scale.h"

/* ---- once ---- */

/* Elements [from, from + n) of the slice of a parameter, in each state at a place of the process's memory. */
struct ds_held {
    int param;                  /* in target->param */
    int64_t from, n;
    uint64_t at[STATE_N];       /* bytes; weights have target->weights, other states fp32 */
};

struct ds_share_of {
    int pp, dp, tp;             /* the process */
    int n_held;
    const struct ds_held *held;
    const struct pk *ds_config; /* of the run, in place of the source's; NULL: that one */
    const char *ds_version;     /* the same */
};

struct ds_share;
/* ERR_DATA: something that is held has no place in the files. `t` is not needed afterwards. */
MUST_CHECK struct ds_share *ds_share_new(const struct ds_target *t, const struct ds_share_of *of, struct err *e);
void ds_share_free(struct ds_share *s);         /* NULL is fine */
/* As bytes, for a process of the same build on the same machine. */
void ds_share_pack(const struct ds_share *s, struct strbuf *out);
MUST_CHECK struct ds_share *ds_share_unpack(const void *bytes, size_t n, struct err *e);

/* ---- at each save ---- */

/* One optimizer group's settings. */
struct ds_settings {
    double lr, beta1, beta2, eps, weight_decay;
};
/* What shards say anew. */
struct ds_now {
    int64_t opt_step;           /* Adam's counter */
    struct ds_settings decay, no_decay;
    double clip_grad;
    const struct loss_scale *scaler;    /* of an fp16 run, else NULL */
    bool overflow;              /* with it: the gradients of the last step did */
};

/* Between processes of one (pp, tp). */
struct ds_meeting {
    /* What this process wrote is on disk: the others may read `text`. */
    int (*tell)(void *ctx, const char *text, size_t n, struct err *e);
    /* What data-parallel rank `dp` told; waits for it. NULL: it will not. Caller frees. */
    char *(*hear)(void *ctx, int dp, struct err *e);
    void *ctx;
};

struct ds_save {
    /*
     * What ds_held's places are in. Memory that is smaller than the last of them is a ring: byte x of the state is at
     * x % bytes, and no item of the plan crosses a multiple of `window` (0: there is none), which divides `bytes`.
     */
    const void *memory;
    uint64_t bytes, window;
    struct ds_now now;
    struct ds_meeting meeting;
    /* The mp_rank file of this (pp, tp), where this process writes it; root NULL: another one does. */
    const struct pk *mp_root;
    const struct pt *mp;        /* whose tensors it may hold, in mp_files */
    struct files *mp_files;
};

/* A plan item's user: what it is. */
struct ds_piece {
    int held;                   /* the run that it is of */
    enum state state;
    int elem_bytes;
    int64_t first;              /* the element of the parameter's slice that it begins with */
    int file, storage;
    uint64_t at;                /* bytes in the storage */
    uint64_t from, len;         /* in the memory */
};

/*
 * The sink of one save; share, save and what they point to outlive it. prepare() and estimate() (of the files that this
 * process owns) want no source, and the plan no item_done.
 */
struct sink *ds_share_sink(const struct ds_share *s, const struct ds_save *how);

#endif
