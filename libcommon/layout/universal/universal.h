/*
 * universal.h - what the universal forms share: names, the optimizer's common state, vocabulary rows
 *
 * docs/formats.md, sections 5 and 6. All three forms keep zero/optimizer_state.pt and copies of the
 * mp_rank_*_model_states.pt files beside the tensors, so run state never gets lost.
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_H
#define SHARDKIT_LAYOUT_UNIVERSAL_H

#include "libcommon/layout/layout.h"

/* The states a universal checkpoint holds, in the order the reference writes them. */
#define UNIVERSAL_STATES 3
extern const enum state universal_states[UNIVERSAL_STATES];

/* Logical bytes of one state that go out: all rows, or the first V0 with VOCAB_STRIP. Sets shape[0] of it, too. */
uint64_t universal_shape(const struct source *s, const struct param *p, enum vocab_policy vocab,
                         int64_t shape[TENSOR_MAX_DIM]);
/*
 * The bytes of zero/optimizer_state.pt: shard (0,0,0)'s optimizer_state_dict without its
 * per-rank entries, plus param_groups. Caller frees.
 */
MUST_CHECK int universal_optimizer_state(const struct source *s, uint8_t **out, uint64_t *size, struct err *e);
/* The bytes of step.pt (a bare 0-dim fp32 tensor or int); 0 bytes when the state has no step. Caller frees. */
void universal_step(const struct source *s, uint8_t **out, uint64_t *size);
/* The source's mp_rank files into `dir`: copies, every record's CRC checked; with another tree (pt_retold()) anew. */
MUST_CHECK int universal_copy_mp_ranks(const struct source *s, const char *dir, struct err *e);
/* Trained, as far as a checkpoint of any model shows it; the pipeline engine's parameters all are. */
bool universal_is_trained(const struct source *s, const struct param *p);
/* What a state in a universal form is made of. */
struct universal_state {
    const struct tmap *map;             /* NULL: the form has no such state */
    int op;                             /* on its way, an enum plan_op; -1: none makes fp32 of it */
    enum dtype dtype;                   /* of the result: fp32 but for a buffer of integers */
    uint64_t len;                       /* bytes of the map */
};
/* A master that is not there is made of the weights; what is not trained has its values as master, and no moments. */
struct universal_state universal_state_of(const struct source *s, const struct param *p, enum state st,
                                          enum vocab_policy vocab);
/* A form has every trained parameter's master and both moments: -1 names the first that lacks one. */
MUST_CHECK int universal_check_states(const struct source *s, struct err *e);
/*
 * Findings "no_params" and "missing_param": a form without parameters, or without one that
 * its mp_rank files list. Of s->param the names are enough.
 */
void universal_check_params(const struct source *s, struct report *r);
/*
 * The file of a parameter's state in .pt form: storage 0 is the tensor; where universal_pt_zero_row() says so,
 * storage 1 is a row of zeros to pad with. Caller frees.
 */
struct pt_image;
struct pt_image *universal_pt_image(const struct source *s, const struct param *p, enum state st,
                                    enum vocab_policy vocab);
bool universal_pt_zero_row(const struct source *s, const struct param *p, enum vocab_policy vocab);
/* Bytes of all that, for disk-space checks. */
uint64_t universal_extra_bytes(const struct source *s);

#endif
