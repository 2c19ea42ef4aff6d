/*
 * deepspeed_share.h - write a sharded checkpoint from the memory of the processes of a job
 *
 * A conversion has a source with all tensors; a job does not. Each of its processes holds runs of the slices of its
 * (pp, tp), split differently than files are, and all processes of one (pp, tp) fill the same files: the layer files
 * of the stage for that tensor rank, and the shards of dp 0, 1, ... A share describes what one process has to write,
 * computed once: the trees of those files, and for each run its place in a storage. It is plain
 * data, so it can be sent to another process, which writes:
 *
 *   process that trains   ds_target_new(no_tensors) -> ds_share_new() -> ds_share_pack() ~~~>
 *   process that writes   ds_share_unpack(), then for each save
 *                         ds_share_sink(): prepare() -> plan -> executor -> finish()
 *
 * finish() synchronises the processes: each sends the others of its (pp, tp) the CRC parts of what it wrote, and the
 * owner of a file writes its headers after it has received all parts. The caller provides the communication
 * (ds_rendezvous) and the folder (`dir` of prepare()).
 *
 * An fp16 run: source and target of ZeRO stage 1 (ds_new_run_source() makes such a source, zero_pp_rank_* files),
 * ds_request.weights DTYPE_F16, and ds_now.scaler at each save. The trainer sets these through
 * checkpoint_saver_opts.weights and checkpoint_now.scaler (tools/train/checkpoint/checkpoint.h).
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHARE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHARE_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/model/loss_scale.h"
#include "libcommon/write/sink.h"

/* ---- once ---- */

/* Elements [from, from + n) of the slice of a parameter; each state has its own offset in the process's memory. */
struct ds_held {
    int param;                  /* index in target->param */
    int64_t from, n;
    uint64_t at[STATE_N];       /* byte offsets; weights have target->weights, other states fp32 */
};

struct ds_share_of {
    int pp, dp, tp;             /* the process */
    int n_held;
    const struct ds_held *held;
    const struct pk *ds_config; /* of the run, replaces the source's; NULL: use the source's */
    const char *ds_version;     /* likewise */
};

struct ds_share;
/*
 * Compute a share. Returns NULL with ERR_DATA if a held run has no place in the files. `t` is not needed afterwards.
 */
MUST_CHECK struct ds_share *ds_share_new(const struct ds_target *t, const struct ds_share_of *of, struct err *e);
void ds_share_free(struct ds_share *s);         /* NULL is allowed */
/* Serialise a share for another process, which must be of the same build and on the same machine. */
void ds_share_pack(const struct ds_share *s, struct strbuf *out);
MUST_CHECK struct ds_share *ds_share_unpack(const void *bytes, size_t n, struct err *e);

/* ---- at each save ---- */

/* The settings of one optimizer group. */
struct ds_settings {
    double lr, beta1, beta2, eps, weight_decay;
};
/* Values in the shards that change with every save. */
struct ds_now {
    int64_t opt_step;           /* Adam's counter */
    struct ds_settings decay, no_decay;
    double clip_grad;
    const struct loss_scale *scaler;    /* for an fp16 run, else NULL */
    bool overflow;              /* with a scaler: the gradients of the last step overflowed */
};

/* Communication between the processes of one (pp, tp). */
struct ds_rendezvous {
    /* Send `text` to the others. What this process wrote is on disk. */
    int (*tell)(void *ctx, const char *text, size_t n, struct err *e);
    /* Wait for the text of data-parallel rank `dp` and return it, or NULL if it will not come. Caller frees. */
    char *(*hear)(void *ctx, int dp, struct err *e);
    void *ctx;
};

struct ds_save {
    /*
     * The memory that the offsets of ds_held refer to. If it is smaller than the largest offset, it is a ring: byte x
     * of the state is at x % bytes. No plan item crosses a multiple of `window` then, which divides `bytes` (0: no such
     * limit).
     */
    const void *memory;
    uint64_t bytes, window;
    struct ds_now now;
    struct ds_rendezvous rendezvous;
    /* The mp_rank file of this (pp, tp) if this process writes it. Its root is NULL if another process writes it. */
    const struct pk *mp_root;
    const struct pt *mp;        /* file in mp_files whose tensors the tree may hold */
    struct files *mp_files;
};

/* The user pointer of a plan item. */
struct ds_piece {
    int held;                   /* index of the run that it belongs to */
    enum state state;
    int elem_bytes;
    int64_t first;              /* its first element in the parameter's slice */
    int file, storage;
    uint64_t at;                /* byte offset in the storage */
    uint64_t from, len;         /* bytes in the memory */
};

/*
 * Return the sink of one save. share, save and what they point to must outlive it. prepare() and estimate() (which
 * counts the files that this process owns) ignore their source, and the plan needs no item_done.
 */
struct sink *ds_share_sink(const struct ds_share *s, const struct ds_save *how);

#endif
