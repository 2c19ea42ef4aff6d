/*
 * replicas.h - policies for tensor-parallel copies of one parameter that disagree
 */
#ifndef SHARDKIT_BASE_REPLICAS_H
#define SHARDKIT_BASE_REPLICAS_H

enum replica_policy {
    REPLICAS_AVERAGE,           /* (0 + s0 + s1 + ...) / n in fp32, the reference implementation's arithmetic */
    REPLICAS_FIRST,             /* the copy of tensor-parallel rank 0 */
    REPLICAS_MAJORITY,          /* per element, the value that most ranks hold; ties: lowest rank */
    REPLICAS_FAIL,              /* fail */
};

/* Last part of a message about copies that disagree. */
#define REPLICAS_NEXT_STEP "--replicas average, first or majority resolves this, merge-tp --check lists the differences"

#endif
