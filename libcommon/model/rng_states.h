/*
 * rng_states.h - make the random states that a Python trainer has right after seeding
 *
 * An mp_rank file stores them under five keys: random_rng_state, np_rng_state, torch_rng_state, cuda_rng_state and
 * rng_tracker_states (docs/training.md, section 6.6).
 */
#ifndef SHARDKIT_MODEL_RNG_STATES_H
#define SHARDKIT_MODEL_RNG_STATES_H

#include "libcommon/base/mem.h"
#include "libcommon/format/pickle/pickle.h"

/* The seed of the run, and the rank whose states are made. */
struct rng_states {
    int64_t seed;
    int pp, tp;
    bool no_gpu;  /* the run has no GPU; cuda_rng_state and rng_tracker_states then hold states of the CPU generator */
};
/*
 * Set all five keys in `dict` to the states that rank (pp, tp) has after seeding. The states are allocated in the
 * arena.
 */
void rng_states_set(struct arena *a, struct pk *dict, const struct rng_states *of);
/* Remove all five keys from `dict`. */
void rng_states_remove(struct pk *dict);

#endif
