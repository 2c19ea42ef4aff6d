/*
 * deepspeed_share.h - write a sharded checkpoint from the memory of the processes of a job
 *
 * A conversion has a source with all tensors; a job does not. Each process of the job holds runs of the slices of its
 * rank (pp, tp), and the runs are split differently than the files are. All processes of one (pp, tp) write to the same
 * files: the layer files of the stage for that tensor rank, and the shards of dp 0, 1, ... A share describes what one
 * process has to write: the trees of those files, and the place of each run in a storage. It is computed once. It is
 * plain data, so it can be sent to another process, which writes:
 *
 *   process that trains   ds_target_new(no_tensors) -> ds_share_new() -> ds_share_pack() ~~~>
 *   process that writes   ds_share_unpack(), then for each save
 *                         ds_share_sink(): prepare() -> plan -> executor -> finish()
 *
 * finish() synchronises the processes: each sends the others of its (pp, tp) the CRC parts of what it wrote, and the
 * owner of a file writes its headers after it has received all parts. The caller provides the communication
 * (ds_rendezvous) and the folder (`dir` of prepare()).
 *
 * An fp16 run needs a source of ZeRO stage 1 (ds_new_run_source() can make one), whose zero files are named
 * zero_pp_rank_*, ds_request.weights DTYPE_F16, and ds_now.scaler at each save. The trainer sets the last two through
 * checkpoint_saver_opts.weights and checkpoint_now.scaler (tools/train/checkpoint/checkpoint.h).
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHARE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHARE_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/model/loss_scale.h"
#include "libcommon/write/sink.h"

/* ---- once ---- */

/*
 * Elements [from, from + n) of a parameter's slice, which a process holds in memory. Each state is at an offset of its
 * own.
 */
struct ds_held {
    int param;                  /* index in target->param */
    int64_t from, n;
    uint64_t at[STATE_N];       /* offsets in bytes; weights have the type target->weights, other states are fp32 */
};

struct ds_share_of {
    int pp, dp, tp;             /* the rank of the process */
    int n_held;
    const struct ds_held *held;
    const struct pk *ds_config; /* the run's present ds_config, which replaces the source's; NULL: keep the source's */
    const char *ds_version;     /* the run's present ds_version, likewise */
};

struct ds_share;
/*
 * Compute a share. Returns NULL with ERR_DATA if a run in of->held does not belong to any place in the files. `t` may
 * be freed afterwards.
 */
MUST_CHECK struct ds_share *ds_share_new(const struct ds_target *t, const struct ds_share_of *of, struct err *e);
void ds_share_free(struct ds_share *s);         /* NULL is allowed */
/* Serialise a share, to be sent to a process of the same build on the same machine. */
void ds_share_pack(const struct ds_share *s, struct strbuf *out);
MUST_CHECK struct ds_share *ds_share_unpack(const void *bytes, size_t n, struct err *e);

/* ---- at each save ---- */

/* The settings of one optimizer group. */
struct ds_settings {
    double lr, beta1, beta2, eps, weight_decay;
};
/* Values in the shards that change at every save. */
struct ds_now {
    int64_t opt_step;           /* Adam's step counter */
    struct ds_settings decay, no_decay;
    double clip_grad;
    const struct loss_scale *scaler;    /* loss scaler of an fp16 run; NULL for other runs */
    bool overflow;              /* only with a scaler: the gradients of the last step overflowed */
};

/* Functions of the caller by which the processes of one (pp, tp) communicate. */
struct ds_rendezvous {
    /*
     * Send `text` to the other processes. The sink calls this once, when everything that this process wrote is on disk.
     */
    int (*tell)(void *ctx, const char *text, size_t n, struct err *e);
    /*
     * Wait for the text that data-parallel rank `dp` sends, and return it; the caller frees it. Returns NULL if it
     * will not arrive.
     */
    char *(*hear)(void *ctx, int dp, struct err *e);
    void *ctx;
};

struct ds_save {
    /*
     * The memory that ds_held.at refers to. If `bytes` is smaller than the largest offset, the memory is a ring:
     * offset x is at byte x % bytes. If `window` is not 0, it must divide `bytes`, and no plan item crosses a multiple
     * of `window`.
     */
    const void *memory;
    uint64_t bytes, window;
    struct ds_now now;
    struct ds_rendezvous rendezvous;
    /* The tree of the mp_rank file of this (pp, tp). NULL if another process writes this file. */
    const struct pk *mp_root;
    const struct pt *mp;        /* open file in mp_files that contains the tree's tensors */
    struct files *mp_files;
};

/* What the user pointer of a plan item refers to. */
struct ds_piece {
    int held;                   /* index in of->held of the run that the item belongs to */
    enum state state;
    int elem_bytes;
    int64_t first;              /* index of the item's first element in the parameter's slice */
    int file, storage;
    uint64_t at;                /* offset in the storage, in bytes */
    uint64_t from, len;         /* offset in the process's memory, and length, in bytes */
};

/*
 * Returns the sink of one save. `s`, `how` and what they point to must outlive the sink. The sink's prepare() and
 * estimate() ignore their source argument. estimate() counts only the files that this process owns. The plan needs no
 * item_done.
 */
struct sink *ds_share_sink(const struct ds_share *s, const struct ds_save *how);

#endif
