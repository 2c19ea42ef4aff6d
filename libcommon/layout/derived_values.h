/*
 * derived_values.h - the values of a checkpoint's trees that something else determines
 *
 * Sizes of the model follow from the tensors, numbers of ranks from the topology, and counters agree in many places. A
 * tool that sets single values refuses these keys and names what changes them together with all that depends on them.
 */
#ifndef SHARDKIT_LAYOUT_DERIVED_VALUES_H
#define SHARDKIT_LAYOUT_DERIVED_VALUES_H

struct derived_value {
    const char *key;                    /* a path, "args.num_layers"; everything below it is included */
    const char *by_reshape;             /* reason of reshape --set: "--step changes it" */
    const char *by_edit;                /* reason of ckpt-edit set: "ckpt-edit retag changes it" */
};

/* Returns the row for the value at `path`. Returns NULL if the value is not derived from others. */
const struct derived_value *derived_value_find(const char *path);

#endif
