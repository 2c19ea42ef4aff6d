/*
 * checkpoint_impl.h - internal declarations shared by the checkpoint_*.c files
 *
 *   checkpoint_open.c   choose the tag and read its contents; replicas
 *   checkpoint_steps.c  the checkpoints in a folder of --save (checkpoint_steps.h)
 *   checkpoint_check.c  decide whether training may continue from a checkpoint, given the findings about it
 *   checkpoint_match.c  match the checkpoint's parameters with the stage's
 *   checkpoint_load.c   read the state into this rank's buffers, by a plan of plan.h
 *   checkpoint_share.c  divide the reading among the data-parallel ranks
 *   checkpoint_transpose.c   transpose matrices that are stored as [in, out]
 *   checkpoint_template.c  what saves carry over from the loaded checkpoint, or create without one
 *   checkpoint_mp.c     make the mp_rank file at setup, and update it at each save
 *   checkpoint_args.c   the arguments in the mp_rank file
 *   checkpoint_save.c   the trainer's side of a save
 *   checkpoint_replicas.c    check the copies of tensor ranks
 *   checkpoint_area.c   the layout of the state in the staging area
 *   checkpoint_copy.c   copy the state to the staging area while the next iteration runs
 *   checkpoint_engine.c, checkpoint_rendezvous.c  the writer process's side (checkpoint_engine.h)
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_IMPL_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_IMPL_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/hf/hf_gpt_names.h"
#include "tools/train/checkpoint/checkpoint.h"

struct checkpoint {
    struct source *src;
    struct arena *arena;
    struct checkpoint_info info;
    int first_layer;            /* number of the first block in names: 3, or 2 in Microsoft's fork */
    bool accept_mismatch;
    /*
     * How the source names its tensors, if its names had to be translated. All members are 0 if the source has the
     * names that this program uses.
     */
    struct hf_gpt_naming names;
};

/*
 * Find the parameter of the source that corresponds to a parameter of the stage: both have the same kind and belong to
 * the same block. The source numbers its blocks from first_layer. Returns NULL if there is no such parameter.
 */
const struct param *checkpoint_find(const struct source *s, int first_layer, const struct stage_param *p);
/*
 * Returns true if `name` is a parameter of the same kind and in the same block as p. Blocks are numbered from
 * first_layer in `name`.
 */
bool checkpoint_same(const char *name, int first_layer, const struct stage_param *p);

/* Returns the first parameter that lacks one of its two Adam moments, or NULL if all parameters have both. */
const struct param *checkpoint_bare(const struct checkpoint *c);

/* ---- checkpoint_check.c ---- */

/*
 * Copy the warnings of the report r to `notes`. Returns -1 if r has an error. *e is then the first error. If it is
 * possible to continue in spite of this error, the message states how.
 */
MUST_CHECK int checkpoint_check_findings(const struct report *r, const char *path, struct report *notes, struct err *e);

/* ---- checkpoint_match.c ---- */

/*
 * Match all parameters: from[i] is set to the source's parameter that corresponds to parameter i of the stage. Sets
 * out->new_rows and out->lost_rows. Fails with ERR_USAGE if the models differ.
 */
MUST_CHECK int checkpoint_match(struct checkpoint *of, const struct stage *s, const struct checkpoint_load_opts *o,
                                const struct param **from, struct checkpoint_loaded *out, struct err *e);

/* ---- checkpoint_mp.c ---- */

/* Build this rank's mp_rank file for the target t, with this run's arguments and random states. The caller frees it. */
MUST_CHECK int checkpoint_mp_make(const struct ds_target *t, const struct checkpoint_saver_opts *o, uint8_t **bytes,
                                  uint64_t *size, struct err *e);
/*
 * Update the tree `root` of an mp_rank file for a save. was_gigaflos is the value that rank 0 has loaded, or 0 if rank
 * 0 has loaded no value.
 */
void checkpoint_mp_renew(struct arena *a, struct pk *root, const struct checkpoint_now *now, double was_gigaflos);

/* ---- checkpoint_args.c ---- */

/* Set the arguments in d that follow from the shape of the model. d is a dict or a Namespace. */
void checkpoint_args_of_model(struct arena *a, struct pk *d, const struct model_config *m);
/* Set all arguments of the run in d, including those that follow from the shape of the model. */
void checkpoint_args_of_run(struct arena *a, struct pk *d, const struct checkpoint_saver_opts *o);

/* ---- checkpoint_replicas.c ---- */

/* Returns the total size in bytes of the replicated states that this rank owns. */
uint64_t checkpoint_replicas_bytes(const struct checkpoint_saver_opts *o);
/*
 * Check that replicated parameters have the same bits on all ranks of o->tp. All of these ranks must call it. host:
 * memory for checkpoint_replicas_bytes() bytes, which is not used if the group has one rank. Returns -1 if a tensor
 * differs; `tensor` then has the name of the first one, which is the same on all ranks of the group. Also returns -1,
 * with `tensor` empty, if the device or a link failed.
 */
MUST_CHECK int checkpoint_replicas_check(const struct checkpoint_saver_opts *o, char *host, char tensor[112],
                                         struct err *e);

/* ---- the staging area ---- */

/*
 * The layout of this rank's state (the shard) in the staging area. The state is passed to the writer through this area.
 * The buckets are in descending order, in which the optimizer overwrites them. Each bucket has the four states one
 * after the other. The area has space for the whole shard, or it is a ring of two windows: one is filled while the
 * writer empties the other.
 */
struct checkpoint_area {
    uint64_t bytes;             /* size of the shard */
    uint64_t room;              /* size of the area: byte x of the shard is at x % room */
    /* size of the unit that is passed to the writer: the whole shard, or half of the ring */
    uint64_t window;
};
static inline int checkpoint_state_bytes(enum state st, enum dtype weights)
{
    return st == STATE_BF16 ? dtype_size(weights) : (int)sizeof(float);
}
/* Compute the layout. memory_bytes is the maximum size of the area, at least two pages; 0: as large as needed. */
struct checkpoint_area checkpoint_area_of(const struct stage *s, enum dtype weights, uint64_t memory_bytes);
/* Returns the position in the staging area of one value: the state `st` of element `shard_at` of the shard. */
uint64_t checkpoint_area_at(const struct stage *s, enum dtype weights, enum state st, int64_t shard_at);

/* ---- checkpoint_copy.c ---- */

/*
 * An object that copies this rank's state to the staging area while training continues. It has a thread and a stream of
 * its own.
 */
struct state_copy;
struct state_copy_opts {
    const struct stage *stage;
    const struct stage_state *state;
    enum dtype weights;
    const struct dev_ops *dev;
    struct writer *writer;
    char *memory;               /* the staging area */
    struct checkpoint_area area;
    /*
     * Device memory of aside_room bytes. Data that is not copied yet when the optimizer is about to overwrite it is
     * first copied to this memory.
     */
    char *aside;
    uint64_t aside_room;
};
MUST_CHECK struct state_copy *state_copy_new(const struct state_copy_opts *o, struct err *e);
void state_copy_free(struct state_copy *c);             /* waits for a copy in progress; NULL is allowed */
/*
 * Start to copy the state as it is after all work queued in `s`. No other copy may be in progress, and the writer must
 * have received its order for the save.
 */
void state_copy_start(struct state_copy *c, struct dev_stream *s);
/*
 * Make `bucket` safe to overwrite by work that is queued in s after this call: the bucket's state has then been copied
 * or set aside. The buckets must be passed in descending order.
 */
void state_copy_release(struct state_copy *c, int bucket, struct dev_stream *s);
/* returns true if a part of the bucket is not copied yet */
bool state_copy_waits(struct state_copy *c, int bucket);
void state_copy_wait(struct state_copy *c);           /* waits until everything is copied */

#endif
