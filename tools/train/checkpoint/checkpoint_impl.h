/*
 * checkpoint_impl.h - what the checkpoint_*.c files share; for the room only
 *
 *   checkpoint_open.c   which tag, what it says; replicas
 *   checkpoint_steps.c  what a folder of --save holds (checkpoint_steps.h)
 *   checkpoint_judge.c  whether what is found in it lets training go on
 *   checkpoint_match.c  whose parameters the checkpoint's are
 *   checkpoint_load.c   a plan whose items end in this rank's buffers
 *   checkpoint_share.c  ... and in those of the other data-parallel ranks
 *   checkpoint_turn.c   ... and matrices that lie as [in, out] there
 *   checkpoint_carry.c  what saves carry on from the loaded checkpoint, or begin with
 *   checkpoint_mp.c     the mp_rank file: once, and at each save
 *   checkpoint_args.c   the arguments in it
 *   checkpoint_rng.c    random states made from the seed
 *   checkpoint_save.c   the trainer's side of a save
 *   checkpoint_area.c   how the state lies in the staging area
 *   checkpoint_copy.c   ... and gets there beside the passes
 *   checkpoint_engine.c, _meet.c  the writer process's side (checkpoint_engine.h)
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_IMPL_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_IMPL_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/hf/hf_canonical.h"
#include "tools/train/checkpoint/checkpoint.h"

struct checkpoint {
    struct source *src;
    struct arena *arena;
    struct checkpoint_info info;
    int first_layer;            /* number of the first block in names: 3, or 2 in Microsoft's fork */
    bool accept_mismatch;
    struct hf_canonical names;  /* of a source that had others; all 0: it had none */
};

/*
 * A stage's parameter under a checkpoint's own numbering: the same kind in the same block.
 * NULL: the source has none.
 */
const struct param *checkpoint_find(const struct source *s, int first_layer, const struct stage_param *p);
/* Same kind and block? `name` numbers blocks from first_layer. */
bool checkpoint_same(const char *name, int first_layer, const struct stage_param *p);

/* A parameter without both moments; NULL: all have them. */
const struct param *checkpoint_bare(const struct checkpoint *c);

/* ---- checkpoint_judge.c ---- */

/* Warnings are passed on; the first error is the failure, and says how to go on all the same where that can be. */
MUST_CHECK int checkpoint_judge(const struct report *r, const char *path, struct report *notes, struct err *e);

/* ---- checkpoint_match.c ---- */

/* from[i] is what the stage's parameter i is in the source; out->new_rows, lost_rows. ERR_USAGE: another model. */
MUST_CHECK int checkpoint_match(struct checkpoint *of, const struct stage *s, const struct checkpoint_load_opts *o,
                                const struct param **from, struct checkpoint_loaded *out, struct err *e);

/* ---- checkpoint_mp.c ---- */

/* This rank's file of the target, with this run's arguments and random states. Caller frees. */
MUST_CHECK int checkpoint_mp_make(const struct ds_target *t, const struct checkpoint_saver_opts *o, uint8_t **bytes,
                                  uint64_t *size, struct err *e);
/* Its tree as a save has it; was_gigaflos: rank 0's as loaded, 0: none. */
void checkpoint_mp_renew(struct arena *a, struct pk *root, const struct checkpoint_now *now, double was_gigaflos);

/* ---- checkpoint_args.c ---- */

/* The arguments that the model's shape decides, into a dict or Namespace. */
void checkpoint_args_of_model(struct arena *a, struct pk *d, const struct model_config *m);
/* All of the run's, those too. */
void checkpoint_args_of_run(struct arena *a, struct pk *d, const struct checkpoint_saver_opts *o);

/* ---- checkpoint_rng.c ---- */

/* Set all five kinds of states, as rank (pp, tp) has them after seeding. */
void checkpoint_rng_set(struct arena *a, struct pk *dict, int64_t seed, int pp, int tp);
void checkpoint_rng_remove(struct pk *dict);

/* ---- the staging area ---- */

/*
 * The shard as it flows to the writer: its buckets from the last to the first, as the optimizer overwrites them, of
 * each the four states one behind the other. The area has room for all of it, or is a ring of two windows: one is
 * filled while the writer empties the other.
 */
struct checkpoint_area {
    uint64_t bytes;             /* of the shard */
    uint64_t room;              /* of the area: byte x of the shard is at x % room */
    uint64_t window;            /* what is handed over at once: all, or half the room */
};
static inline int checkpoint_state_bytes(enum state st, enum dtype weights)
{
    return st == STATE_BF16 ? dtype_size(weights) : (int)sizeof(float);
}
/* memory_bytes: the most that the area may take; 0: as much as it wants. At least two pages are taken. */
struct checkpoint_area checkpoint_area_of(const struct stage *s, enum dtype weights, uint64_t memory_bytes);
/* Where element `shard_at` of the shard has that state. */
uint64_t checkpoint_area_at(const struct stage *s, enum dtype weights, enum state st, int64_t shard_at);

/* ---- checkpoint_copy.c ---- */

/* Copies the state beside whatever else goes on, by a thread and a stream of its own. */
struct state_copy;
struct state_copy_opts {
    const struct stage *stage;
    const struct stage_state *state;
    enum dtype weights;
    const struct dev_ops *dev;
    struct writer *writer;
    char *memory;               /* the area */
    struct checkpoint_area area;
    char *aside;                /* memory of the device for what the optimizer would wait for; aside_room bytes */
    uint64_t aside_room;
};
MUST_CHECK struct state_copy *state_copy_new(const struct state_copy_opts *o, struct err *e);
void state_copy_free(struct state_copy *c);             /* waits for what it copies; NULL is fine */
/* Copy what the state is once all that is queued in `s` is done. Nothing is being copied; the writer has been told. */
void state_copy_start(struct state_copy *c, struct dev_stream *s);
/*
 * Bucket `bucket` may be overwritten by what is queued in s from then on: it is copied, or set aside. Buckets from the
 * last to the first.
 */
void state_copy_release(struct state_copy *c, int bucket, struct dev_stream *s);
bool state_copy_waits(struct state_copy *c, int bucket);        /* is something of it not copied yet? */
void state_copy_settle(struct state_copy *c);           /* until all is copied */

#endif
