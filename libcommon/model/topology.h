/*
 * topology.h - tensor x pipeline x data parallel sizes, and the rank arithmetic for them
 *
 * The axes are (pipe, data, model), in row-major order: global rank = (pp * DP + dp) * TP + tp.
 * File names use mp = pp * TP + tp and dp (docs/formats.md, section 4.1).
 */
#ifndef SHARDKIT_MODEL_TOPOLOGY_H
#define SHARDKIT_MODEL_TOPOLOGY_H

struct topology {
    int tp, pp, dp;
};

static inline int topo_mp(struct topology t, int pp, int tp) { return pp * t.tp + tp; }
static inline int topo_world(struct topology t) { return t.tp * t.pp * t.dp; }
static inline int topo_rank(struct topology t, int pp, int dp, int tp) { return (pp * t.dp + dp) * t.tp + tp; }

#endif
