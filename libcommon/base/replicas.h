/*
 * replicas.h - what to do when tensor-parallel copies of one parameter disagree
 */
#ifndef SHARDKIT_BASE_REPLICAS_H
#define SHARDKIT_BASE_REPLICAS_H

enum replica_policy {
    REPLICAS_AVERAGE,           /* (0 + s0 + s1 + ...) / n in fp32: the reference's arithmetic */
    REPLICAS_FIRST,             /* tensor-parallel rank 0's copy */
    REPLICAS_MAJORITY,          /* element by element, the value most ranks hold; ties: lowest rank */
    REPLICAS_FAIL,              /* refuse */
};

/* For the end of a message about copies that disagree. */
#define REPLICAS_NEXT_STEP "--replicas average, first or majority settles it, merge-tp --check tells more"

#endif
