/* replicas.h - policies for a parameter whose copies on the tensor-parallel ranks disagree */
#ifndef SHARDKIT_BASE_REPLICAS_H
#define SHARDKIT_BASE_REPLICAS_H

enum replica_policy {
    REPLICAS_AVERAGE,           /* the mean (0 + s0 + s1 + ...) / n in fp32, computed as the reference implementation
                                 * does */
    REPLICAS_FIRST,             /* the copy of tensor-parallel rank 0 */
    /*
     * for each element, the value that most ranks have; if several values are equally frequent, the one of the lowest
     * rank
     */
    REPLICAS_MAJORITY,
    REPLICAS_FAIL,              /* report an error */
};

/* The end of a message about copies that disagree. It lists the options of the user. */
#define REPLICAS_NEXT_STEP \
    "--replicas average, first or majority defines the value, merge-tp --check lists the differences"

#endif
