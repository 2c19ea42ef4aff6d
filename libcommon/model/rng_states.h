/*
 * rng_states.h - random states that a Python trainer has right after seeding
 *
 * Five keys of an mp_rank file: random_rng_state, np_rng_state, torch_rng_state, cuda_rng_state and
 * rng_tracker_states (docs/training.md, section 6.6). What is set lies in the arena.
 */
#ifndef SHARDKIT_MODEL_RNG_STATES_H
#define SHARDKIT_MODEL_RNG_STATES_H

#include "libcommon/base/mem.h"
#include "libcommon/format/pickle/pickle.h"

/* The rank, and how the run was seeded. */
struct rng_states {
    int64_t seed;
    int pp, tp;
    bool no_gpu;                /* CUDA's two are states of the CPU's generator, as in a run without a GPU */
};
/* Set all five, as rank (pp, tp) has them after seeding. */
void rng_states_set(struct arena *a, struct pk *dict, const struct rng_states *of);
/* Remove all five. */
void rng_states_remove(struct pk *dict);

#endif
