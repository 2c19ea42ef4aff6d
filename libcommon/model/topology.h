/*
 * topology.h - numbers of tensor-, pipeline- and data-parallel ranks, and the numbering of ranks
 *
 * Ranks are numbered by (pipe, data, model) in row-major order: global rank = (pp * DP + dp) * TP + tp. The names of
 * files contain dp and mp = pp * TP + tp (docs/formats.md, section 4.1).
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
