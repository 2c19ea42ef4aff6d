/*
 * ds_names.h - parse the names of DeepSpeed's files
 *
 *   layer_<layer>-model_<tp>-model_states.pt               weights of the pipeline engine
 *   mp_rank_<mp>_model_states.pt                           run state; without pipeline up to ZeRO-2 also weights
 *   zero_pp_rank_<dp>_mp_rank_<mp>_model_states.pt         the same for ZeRO-3, for each rank
 *   [bf16_]zero_pp_rank_<dp>_mp_rank_<mp>_optim_states.pt  optimizer shards; "pp" means the dp rank
 *   layer_<layer>_expert_<expert>_mp_rank_<mp>_model_states.pt     weights of one expert of a layer of DeepSpeed's MoE
 *   expp_rank_<ep>_mp_rank_<mp>_optim_states.pt            with such layers and without ZeRO: optimizer of a rank of
 *                                                          expert parallelism
 *
 * Numbers are padded to two digits or not at all, and may be longer, so they are compared as integers.
 */
#ifndef SHARDKIT_CKPT_DS_NAMES_H
#define SHARDKIT_CKPT_DS_NAMES_H

#include "libcommon/base/report.h"
#include "libcommon/format/pt.h"

/*
 * Maximum number of ranks, or of a product of numbers of ranks. It is far above any real cluster, but so small that
 * tables of this length fit in memory.
 */
enum { DS_RANK_MAX = 1 << 20 };

enum ds_kind { DS_OTHER, DS_LAYER, DS_MP, DS_ZERO, DS_ZERO3, DS_EXPERT, DS_EXPERT_OPTIM };

struct ds_name {
    enum ds_kind kind;
    /* for DS_LAYER the number of the layer; for DS_EXPERT its number among the layers that have experts */
    int layer;
    int tp;                     /* set for DS_LAYER */
    int mp;                     /* set for all kinds but DS_LAYER */
    int dp;                     /* set for DS_ZERO, DS_ZERO3 */
    /* set for DS_EXPERT: number of the expert; set for DS_EXPERT_OPTIM: expert-parallel rank */
    int expert;
    bool bf16;                  /* DS_ZERO: the name has the prefix bf16_ */
    bool joined;                /* DS_ZERO: the name has the old form "...mp_rank_00optim_states.pt" */
};
/*
 * Parse a file name. Numbers are parsed as integers. The kind is DS_OTHER if a number is out of range, or if DeepSpeed
 * does not use names of this form.
 */
struct ds_name ds_name_parse(const char *name);
/* Returns true if a file with this name shows that a folder is a tag folder of DeepSpeed. */
bool ds_name_marks(const char *name);
/*
 * Compare a file's present name with the name stored in the file. torch.save() stores the file's name as the name of
 * the folder inside the archive, and neither copying nor renaming the file changes the stored name. Reports
 * "other_rank" with the given severity if the stored name is that of a different checkpoint file than `is`, the present
 * name.
 */
void ds_name_check(const struct ds_name *is, const struct pt *pt, const char *path, enum severity severity,
                   struct report *r);

/* DeepSpeed version that is written to files if the source gives none. */
#define DS_WRITTEN_VERSION "0.12.6"

/* Name of a log in a tag folder. For example, the log lists how merge-tp resolved copies that had drifted apart. */
#define DS_REPAIR_LOG_NAME "repair.jsonl"

#endif
