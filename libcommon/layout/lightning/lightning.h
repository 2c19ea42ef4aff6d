/*
 * lightning.h - checkpoints of PyTorch Lightning: one file *.ckpt (docs/formats.md, section 20)
 *
 *   {"state_dict": {"model.lm_head.weight": tensor, ...}, "optimizer_states": [...], "global_step": 3, "epoch": 1,
 *    "pytorch-lightning_version": "2.6.6", "loops": ..., "callbacks": ..., "lr_schedulers": ...,
 *    "hyper_parameters": ...}
 *
 * The names of the tensors begin with an attribute of the user's module. If all of them begin with the same one, the
 * parameters get the names after it. Objects of the user's classes are neither run nor read.
 *
 * Codes of findings:
 *   class E, W       E: a function, or a class of Python's libraries, that acts when it is loaded; W: a value that is
 *                    an object of another class, or holds one, and is left out
 *   unread E         a tensor cannot be read: the reason is given
 *   prefix NOTE      the attribute with which all names begin
 *   no_optimizer W   the file has no states of an optimizer
 *   optimizer E      states cannot be assigned to parameters, have other shapes, or lack one that others have
 *   no_state N, W    parameters without any state (adam_report_no_state())
 *   step E, W        a step is no number of steps; W: the steps of parameters differ
 *   counters W       the optimizer has made more steps than global_step
 */
#ifndef SHARDKIT_LAYOUT_LIGHTNING_H
#define SHARDKIT_LAYOUT_LIGHTNING_H

#include <stdint.h>

#include "libcommon/format/pt.h"

struct report;
struct source;
struct source_opts;
struct source_value;

/*
 * A tensor of state_dict that the optimizer may number: it has floating-point numbers, and is not a second name of
 * another tensor.
 */
struct lightning_tensor {
    const char *name;                   /* the parameter's name in the source */
    int ndim;
    const int64_t *shape;
};

/* A file that is being opened. */
struct lightning {
    struct source *s;
    const struct source_opts *o;
    struct report *r;
    const struct pt *pt;
    const char *path;                   /* name of the file, for messages */
    int n_tensors;
    struct lightning_tensor *tensor;    /* [n_tensors], in the order of state_dict */
    int cap_values;
    int n_visited;                      /* values that have been looked at */
};

/* Add a value to the source. */
void lightning_add_value(struct lightning *x, const struct source_value *v);
/* Returns a map of the tensor, or NULL if its elements are scattered over its storage. */
struct tmap *lightning_map(const struct lightning *x, const struct pt_tensor *t);
/* Read all values but the model and the optimizer. */
void lightning_read_values(struct lightning *x);
/* Read the states, settings and steps of the optimizer. */
void lightning_read_optimizer(struct lightning *x);

#endif
