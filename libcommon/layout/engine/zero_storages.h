/*
 * zero_storages.h - the tree of a file of DeepSpeed's engine that is being made, and the contents of its storages
 *
 * Layouts that write such files make a tree, add a storage for each tensor in it, and list the ranges of the source
 * that fill the storages.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_STORAGES_H
#define SHARDKIT_LAYOUT_ZERO_STORAGES_H

#include "libcommon/layout/ds_file.h"
#include "libcommon/plan/plan.h"

struct pk;
struct pt;

/* A range of bytes of a storage, and the map from which these bytes are copied. Bytes that no fill covers are zero. */
struct zero_fill {
    int storage;
    uint64_t at;                        /* offset in the storage */
    const struct tmap *map;
    uint64_t from, len;                 /* range in the map, in bytes */
    enum plan_op op;
    int param;                          /* index in the source's parameters; -1 if the bytes belong to no parameter */
    enum state state;
};
struct zero_tree {
    struct ds_tree ds;
    int n, cap;
    struct zero_fill *fill;
    struct arena *keep;  /* arena for maps that are not the source's; NULL: the tree frees them */
};

void zero_tree_new(struct zero_tree *x, struct arena *keep);
/* Add a storage of `len` bytes. Returns the number of the storage. */
int zero_tree_storage(struct zero_tree *x, uint64_t len);
void zero_tree_fill(struct zero_tree *x, const struct zero_fill *fill);
/* Add a storage that contains the fp32 value v only. Returns the number of the storage. */
int zero_tree_number(struct zero_tree *x, float v);
struct pk *zero_tree_vector(struct zero_tree *x, int storage, enum dtype dtype, int64_t n, bool requires_grad);
/* Returns a copy of v, a value of the source. Its tensors, which must be in pt, get storages of their own. */
struct pk *zero_tree_copy_value(struct zero_tree *x, const struct pk *v, const struct pt *pt);
/*
 * Check that the tensors of pt are contiguous, because zero_tree_copy_value() copies them as bytes. Returns -1 with
 * ERR_DATA and the path of the first that is not.
 */
MUST_CHECK int zero_check_carried(const struct pt *pt, struct err *e);
void zero_tree_free(struct zero_tree *x);

#endif
