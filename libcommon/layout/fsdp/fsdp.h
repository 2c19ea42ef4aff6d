/*
 * fsdp.h - folders in which each rank of an FSDP2 run saved its own pickles (docs/formats.md, section 16), as verl and
 * SkyRL write them
 *
 *   model_world_size_<N>_rank_<R>.pt         OrderedDict: name -> DTensor, or a plain tensor, which all ranks have
 *   optim_world_size_<N>_rank_<R>.pt         torch's optimizer.state_dict(), whose parameters are numbered
 *   extra_state_world_size_<N>_rank_<R>.pt   schedule, random states
 *   fsdp_config.json                         {"FSDP_version": 2, "world_size": N}
 *   huggingface/                             config.json and tokenizer
 *
 * Codes of findings:
 *   missing_file E   a rank has no file of a kind that other ranks have
 *   ranks E          fsdp_config.json states another number of ranks than the names of the files, or a file is that of
 *                    another rank than its name states; a tensor states the position of another rank in its mesh
 *   no_optimizer W   there are no files of the optimizer
 *   names E          a rank lists other tensors than rank 0
 *   unread E         a tensor cannot be put together: the reason is given
 *   optimizer E      its parameters cannot be assigned to names, or it is that of FSDP version 1; ranks have different
 *                    states of a parameter, or one lacks a state that others of its group have
 *   no_state N, W    parameters without any state (adam_report_no_state())
 *   shape E          a state that torch makes by zeros_like() has another shape than its parameter
 *   strided E        such a state is cut over the ranks in another way than its parameter, or a parameter in a way that
 *                    contradicts another parameter of the same mesh
 *   mixed_saves E    ranks have different copies of a step, of a buffer of integers, or of the schedule
 *   overlap E        two tensors have the same elements on one rank, and not on another
 *   step E           the step of a parameter is not a whole number; W: parameters have different steps
 *   groups E         ranks have different settings of the optimizer
 */
#ifndef SHARDKIT_LAYOUT_FSDP_H
#define SHARDKIT_LAYOUT_FSDP_H

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"

struct report;
struct source;
struct source_listing;
struct source_opts;

enum fsdp_kind { FSDP_MODEL, FSDP_OPTIM, FSDP_EXTRA, FSDP_KINDS };

/* A folder that is being opened. */
struct fsdp {
    struct source *s;
    const struct source_listing *l;
    const struct source_opts *o;
    struct report *r;
    int world;                          /* number of ranks */
    int *file[FSDP_KINDS];              /* [world]: index in s->file, or -1 */
    bool version_1;                     /* fsdp_config.json states FSDP version 1 */
};

/* Returns the open file of a rank, or NULL if it is missing or could not be opened. */
const struct pt *fsdp_file(const struct fsdp *x, enum fsdp_kind kind, int rank);
/*
 * A tensor that is put together from the values v[rank] in the files of all ranks. If that fails, `map` is NULL, and
 * `why` gives the reason.
 */
struct fsdp_tensor {
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    struct pt_mesh mesh;                /* the same on all ranks; n is 0 for a plain tensor */
    struct tmap *map;
    const char *why;
};
/*
 * Put a tensor together from its parts. If several ranks hold the same part, these copies must be equal. The map then
 * has one slice for each copy of the whole tensor.
 */
struct fsdp_tensor fsdp_join(const struct fsdp *x, enum fsdp_kind kind, const struct pk *const *v);
/* Returns true if t->map is set. Otherwise reports that tensor `name` is not read, and returns false. */
bool fsdp_is_joined(const struct fsdp *x, const char *name, const struct fsdp_tensor *t);
/*
 * Returns true if the first DTensor in v was saved by this rank, or if its rank is not known. Otherwise reports that
 * the file has the name of another rank. v is a dict, which may contain dicts.
 */
bool fsdp_is_of_rank(const struct fsdp *x, enum fsdp_kind kind, int rank, const struct pk *v);
/* Add a value to the source. */
void fsdp_add_value(const struct fsdp *x, const struct source_value *v);

/* The model's parameters in the order in which the optimizer numbers them. */
struct fsdp_numbered {
    int n;
    const char **name;                  /* [n] */
    struct pt_mesh *mesh;               /* [n]: their placements */
    const struct pk **value;            /* [n * world]: value[i * world + r] is parameter i in the file of rank r */
};
/*
 * Read the states of the optimizer into the parameters and values of the source, and read the groups. Parameter i of
 * the optimizer has the name of->name[i].
 */
void fsdp_read_optimizer(const struct fsdp *x, const struct fsdp_numbered *of);

/*
 * Check the state `key` of parameter `number`. It has the values v[rank], and t is the whole tensor. torch makes most
 * states by zeros_like(parameter). Such a state must have the shape of its parameter, and each rank must hold the same
 * part of both. If not, the function reports this and returns false. It returns true for states that are made in
 * another way.
 */
bool fsdp_check_state(const struct fsdp *x, const struct fsdp_numbered *of, int number, const char *key,
                      const struct fsdp_tensor *t, const struct pk *const *v);
/*
 * Compare the states of a parameter on rank 0 with those on rank `rank`. Both are dicts or NULL. They must have the
 * same keys, and whole numbers must be equal. Otherwise reports the difference and returns false.
 */
bool fsdp_check_same_keys(const struct fsdp *x, const char *name, int rank, const struct pk *first,
                          const struct pk *other);
/*
 * Report each parameter that lacks one of Adam's states (step, exp_avg, exp_avg_sq, max_exp_avg_sq), if another
 * parameter of its group has that state. Only parameters with some of these states and no others are compared. state[i]
 * is the dict of parameter i on rank 0, or NULL, and group[i] is the number of its group.
 */
void fsdp_check_missing_states(const struct fsdp *x, const struct fsdp_numbered *of, const struct pk *const *state,
                               const int *group);
/*
 * Compare the copies of a value that is not a parameter, and report the first copy that differs. Copies of parameters
 * are compared by the functions that read the parameters.
 */
void fsdp_check_copies(const struct fsdp *x, const char *name, const struct tmap *m);
/*
 * Report each parameter whose placements are Shard in two dimensions of the mesh for the same dimension of the tensor,
 * if another parameter has a _StridedShard in such a place. fully_shard() writes a _StridedShard for each tensor that a
 * later dimension of the mesh cuts in the same dimension.
 */
void fsdp_check_placements(const struct fsdp *x, const struct fsdp_numbered *of);
/* Report, for each rank, the first parameter that states the position of another rank in its mesh. */
void fsdp_check_positions(const struct fsdp *x, const struct fsdp_numbered *of);

#endif
