/*
 * checkpoint_impl.h - internal declarations shared by the checkpoint_*.c files
 *
 *   checkpoint_open.c   choose the tag and read its contents; replicas
 *   checkpoint_steps.c  the checkpoints in a folder of --save (checkpoint_steps.h)
 *   checkpoint_check.c  decide whether the findings about a checkpoint allow training to continue
 *   checkpoint_match.c  match the checkpoint's parameters with the stage's
 *   checkpoint_load.c   a plan whose items end in this rank's buffers
 *   checkpoint_share.c  distribute that plan over the data-parallel ranks
 *   checkpoint_transpose.c   transpose matrices that are stored as [in, out]
 *   checkpoint_template.c  what saves carry over from the loaded checkpoint, or begin with
 *   checkpoint_mp.c     the mp_rank file: once, and at each save
 *   checkpoint_args.c   the arguments in it
 *   checkpoint_save.c   the trainer's side of a save
 *   checkpoint_replicas.c    check the copies of tensor ranks
 *   checkpoint_area.c   the layout of the state in the staging area
 *   checkpoint_copy.c   copy the state there during the passes
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
    /* the names of a source whose names had to be translated; all 0: the source had canonical names */
    struct hf_gpt_naming names;
};

/*
 * Returns the source's parameter that corresponds to a stage's parameter: the same kind in the same block, under the
 * source's own numbering. Returns NULL if the source has none.
 */
const struct param *checkpoint_find(const struct source *s, int first_layer, const struct stage_param *p);
/*
 * Returns true if `name` denotes the same kind of parameter in the same block as p. `name` numbers blocks from
 * first_layer.
 */
bool checkpoint_same(const char *name, int first_layer, const struct stage_param *p);

/* Returns the first parameter that lacks one of its two moments, or NULL if all parameters have both. */
const struct param *checkpoint_bare(const struct checkpoint *c);

/* ---- checkpoint_check.c ---- */

/*
 * Copy the warnings of `r` to `notes`. Returns -1 if `r` has an error: *e is the first error, and its message states
 * how to continue despite it, if that is possible.
 */
MUST_CHECK int checkpoint_check_findings(const struct report *r, const char *path, struct report *notes, struct err *e);

/* ---- checkpoint_match.c ---- */

/*
 * Match all parameters: from[i] becomes the source's parameter for the stage's parameter i. Sets out->new_rows and
 * lost_rows. ERR_USAGE if the models differ.
 */
MUST_CHECK int checkpoint_match(struct checkpoint *of, const struct stage *s, const struct checkpoint_load_opts *o,
                                const struct param **from, struct checkpoint_loaded *out, struct err *e);

/* ---- checkpoint_mp.c ---- */

/* Build this rank's mp_rank file of the target, with this run's arguments and random states. The caller frees it. */
MUST_CHECK int checkpoint_mp_make(const struct ds_target *t, const struct checkpoint_saver_opts *o, uint8_t **bytes,
                                  uint64_t *size, struct err *e);
/* Update the tree `root` of an mp_rank file for a save. was_gigaflos: the value that rank 0 loaded; 0: none. */
void checkpoint_mp_renew(struct arena *a, struct pk *root, const struct checkpoint_now *now, double was_gigaflos);

/* ---- checkpoint_args.c ---- */

/* Set the arguments that follow from the shape of the model in d, which is a dict or a Namespace. */
void checkpoint_args_of_model(struct arena *a, struct pk *d, const struct model_config *m);
/* Set all arguments of the run, including those of the model. */
void checkpoint_args_of_run(struct arena *a, struct pk *d, const struct checkpoint_saver_opts *o);

/* ---- checkpoint_replicas.c ---- */

/* Returns the bytes of the replicated states that this rank owns. */
uint64_t checkpoint_replicas_bytes(const struct checkpoint_saver_opts *o);
/*
 * Check that replicated parameters have the same bits on all ranks of o->tp, which make the call together. host:
 * memory for checkpoint_replicas_bytes() bytes; not used if the group has one rank. Returns -1 if they differ, with
 * the first such tensor in `tensor`, the same on all ranks of the group; or if the device or a link failed, with
 * `tensor` empty.
 */
MUST_CHECK int checkpoint_replicas_check(const struct checkpoint_saver_opts *o, char *host, char tensor[112],
                                         struct err *e);

/* ---- the staging area ---- */

/*
 * The layout of the shard on its way to the writer: its buckets from the last to the first, in the order in which the
 * optimizer overwrites them; within a bucket the four states one after the other. The area has space for the whole
 * shard, or is a ring of two windows, where one is filled while the writer empties the other.
 */
struct checkpoint_area {
    uint64_t bytes;             /* size of the shard */
    uint64_t room;              /* size of the area: byte x of the shard is at x % room */
    uint64_t window;            /* size of the unit that is passed on at once: everything, or half of room */
};
static inline int checkpoint_state_bytes(enum state st, enum dtype weights)
{
    return st == STATE_BF16 ? dtype_size(weights) : (int)sizeof(float);
}
/* Compute the layout. memory_bytes: the maximum size of the area; 0: as large as needed. The minimum is two pages. */
struct checkpoint_area checkpoint_area_of(const struct stage *s, enum dtype weights, uint64_t memory_bytes);
/* Returns the position of the given state of element `shard_at` of the shard. */
uint64_t checkpoint_area_at(const struct stage *s, enum dtype weights, enum state st, int64_t shard_at);

/* ---- checkpoint_copy.c ---- */

/*
 * The copying of this rank's state to the staging area while training continues, by a thread and a stream of its own.
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
    /* device memory of aside_room bytes for data that the optimizer would otherwise wait for */
    char *aside;
    uint64_t aside_room;
};
MUST_CHECK struct state_copy *state_copy_new(const struct state_copy_opts *o, struct err *e);
void state_copy_free(struct state_copy *c);             /* waits for a copy in progress; NULL is allowed */
/*
 * Start to copy the state as it is after all work queued in `s`. No copy may be in progress, and the writer must have
 * received its order.
 */
void state_copy_start(struct state_copy *c, struct dev_stream *s);
/*
 * Make sure that `bucket` may be overwritten by work that is queued in s from then on, because it has been copied or
 * set aside. Must be called for the buckets from the last to the first.
 */
void state_copy_release(struct state_copy *c, int bucket, struct dev_stream *s);
bool state_copy_waits(struct state_copy *c, int bucket);        /* returns true if a part of it is not copied yet */
void state_copy_wait(struct state_copy *c);           /* waits until everything is copied */

#endif
