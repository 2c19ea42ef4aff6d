/*
 * run_state.h - the state of a run, and how it is read from an mp_rank file together with the model's configuration
 */
#ifndef SHARDKIT_CKPT_RUN_STATE_H
#define SHARDKIT_CKPT_RUN_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/report.h"

struct err;
struct files;
struct pk;
struct pt;
struct source;

/*
 * The state of the run. Values that tools use are members of this struct. Other values are only in the trees of the
 * open files.
 */
struct run_state {
    int64_t iteration;                  /* -1 if unknown */
    int64_t consumed_samples, consumed_tokens;      /* -1 if unknown */
    double checkpoint_version;          /* 3.0 in all known files */
    char ds_version[64];
    char torch_dialect[32];             /* program that wrote the zip container: "torch < 2", "torch 2" or "shardkit" */
    int64_t opt_step;                   /* Adam's step counter; -1 if unknown */
    /*
     * true if the counter is stored in the state of each group, as torch's Adam does; a conversion must then write
     * step.pt
     */
    bool step_in_state;
    /* if step_in_state: true if the counter is a 0-dimensional fp32 tensor, false if it is an int */
    bool step_is_tensor;
    int n_groups;
    const struct pk *args;  /* the training arguments, a Namespace in the mp_rank_00 file; owned by the source */
    /*
     * The optimizer's dict, which DeepSpeed's writers copy. It is the optimizer_state_dict of shard (pp 0, dp 0, tp 0),
     * or the tree of optimizer_state.pt. For Megatron-core's layout it is the dict `optimizer` of common.pt. NULL for
     * other layouts, whose groups are in source.groups.
     */
    const struct pk *optimizer;
    const struct pk *param_groups;      /* list of the groups' dicts in `optimizer`, or NULL */
    struct pt *optimizer_pt;            /* the file that contains `optimizer` and `param_groups` */
    /* file whose root contains the run state and other values of the training program, or NULL */
    const struct pt *values_pt;
    /* names of optimizer states other than Adam's, which are values of the source; NULL if there are none */
    const char *more_states;
};

/*
 * Fill in s->run, s->config and s->topo from `mp`, an mp_rank_*_model_states.pt that the source keeps open. The values
 * are iteration, counters, versions, arguments and model configuration. Members of s->topo that are still 0 are filled
 * in from the arguments. Values that the file does not contain become -1 or 0. The optimizer's members of s->run are
 * not changed.
 */
void run_state_read(struct source *s, const struct pt *mp);
/*
 * Fill in s->run, s->config and s->topo for a new run at iteration 0. `args` are its training arguments, a Namespace in
 * the source's arena. The number of consumed samples and the model configuration are taken from the arguments, and also
 * the members of s->topo that are still 0. The number of consumed tokens is 0, the versions are those that this program
 * writes, and the optimizer's step is unknown.
 */
void run_state_begin(struct source *s, const struct pk *args);
/*
 * Returns the ZeRO stage in an optimizer_state_dict. The stage may be stored as a number, as the value of an enum
 * member, or as the name of one. Returns 0 if there is no stage, as in files of BF16_Optimizer.
 */
int64_t run_state_zero_stage(const struct pk *opt);
/* Number of values that are equal in all mp_rank files of a save. They are numbered from 0 to RUN_SHARED - 1. */
enum { RUN_SHARED = 32 };
/* Returns shared value number k in the tree `root` of a file, or NULL if the file does not have it. */
const struct pk *run_shared_get(const struct pk *root, int k);
/*
 * Returns the values in the arguments and the schedule of a file as text, in sorted lines such as "args.seed 1234". The
 * text lists numbers, booleans and strings. It also lists the whole numbers, booleans and strings that a caller of
 * DeepSpeed saved in client_state, including those in nested dicts. Values that may differ between the ranks of a save
 * are omitted. For values of other types, and for strings that contain a path, only the key is listed. Returns NULL if
 * there are none. The caller frees the text.
 */
char *run_values_text(const struct pk *root);
/*
 * Compare two texts of run_values_text(). Returns true with the first difference in `what`, such as "args.seed 1,
 * others 2". Returns false if there is no difference. A key of the arguments or the schedule that only one text has is
 * a difference, too.
 */
bool run_values_differ(const char *mine, const char *others, char what[512]);
/* Two files of a save: the first one, whose values conversions copy, and another one. */
struct run_client {
    const struct pt *first, *pt;
    struct files *first_files, *files;  /* the tables in which their records are numbered */
    enum severity severity;             /* of values that differ and cannot be those of a rank */
    struct report *r;
};
/*
 * Compare the tensors that the training program saved in client_state in both files. Their types, shapes and the CRCs
 * of their storages are compared. A difference has the given severity. It is only a WARNING "mixed_saves" for tensors
 * of floats, which may differ between ranks. A value that the first file lacks is a WARNING "missing_key". Generators
 * of random numbers and losses, recognised by their names, are omitted.
 */
void run_state_compare_client(const struct run_client *c);
/* Write the name of shared value number k, such as "iteration" or "args.seed", to buf, and return buf. */
const char *run_shared_name(int k, char buf[64]);
/*
 * Check the run state of an opened checkpoint of the pipeline engine, or of a universal form. Reports "config" if the
 * tensors do not match the number of layers, the hidden size, the heads or the MLP size in the arguments. Reports
 * "mixed_saves" if the mp_rank files of a universal form differ in values that must be equal. The severity is ERROR, or
 * WARNING with accept_mismatch.
 */
void run_state_check(const struct source *s, struct report *r);
/* Report an ERROR "counters" if v, a counter of the run, is present and is neither None nor a whole number. */
void run_state_check_counter(const char *path, const char *name, const struct pk *v, struct report *r);
/* Check the counters in run.values_pt and in the arguments in the same way. */
void run_state_check_counters(const struct source *s, struct report *r);
/*
 * Compare facts that one save states twice. Adds a warning "counters" in each of these cases: iteration differs from
 * global_steps, or from the step in the folder's name (names of NeMo and Lightning have this step, or one less); the
 * optimizer's step differs from that of the engine; the samples and tokens in the arguments differ from those of the
 * engine or of the schedule. Adds a warning "precision" if the flags bf16 and fp16 of the arguments contradict each
 * other, params_dtype or the type of all weights.
 */
void run_state_check_claims(const struct source *s, struct report *r);

/*
 * Compare the numbers of attention heads and of groups of heads in config.json with those in the training arguments, if
 * there are training arguments. Returns -1 with ERR_DATA if they differ.
 */
int run_state_compare_heads(const struct source *s, int64_t heads, int64_t groups, struct err *e);

#endif
