/*
 * ds_names.h - the information in the names of DeepSpeed's files
 *
 *   layer_<layer>-model_<tp>-model_states.pt               weights of the pipeline engine
 *   mp_rank_<mp>_model_states.pt                           other engines: weights, up to ZeRO-2
 *   zero_pp_rank_<dp>_mp_rank_<mp>_model_states.pt         ZeRO-3
 *   [bf16_]zero_pp_rank_<dp>_mp_rank_<mp>_optim_states.pt  "pp" is the parameter partition: dp
 *
 * Numbers are padded to two digits or not at all, and may be longer, so they are compared as integers.
 */
#ifndef SHARDKIT_CKPT_DS_NAMES_H
#define SHARDKIT_CKPT_DS_NAMES_H

#include "libcommon/base/report.h"
#include "libcommon/format/pt.h"

/*
 * Maximum number of ranks, or of a product of such numbers: far above any cluster, and far below what exhausts memory.
 */
enum { DS_RANK_MAX = 1 << 20 };

enum ds_kind { DS_OTHER, DS_LAYER, DS_MP, DS_ZERO, DS_ZERO3, DS_MOE };

struct ds_name {
    enum ds_kind kind;
    int layer, tp;              /* LAYER */
    int mp;                     /* MP, ZERO */
    int dp;                     /* ZERO */
    bool bf16;                  /* ZERO: bf16_ prefix */
    bool joined;                /* ZERO: old "...mp_rank_00optim_states.pt" */
};
/* Parse a file name. Numbers are parsed as integers; if one is out of range the kind is DS_OTHER. */
struct ds_name ds_name_parse(const char *name);
/* Returns true if only a tag folder of DeepSpeed has files with such a name. */
bool ds_name_marks(const char *name);
/*
 * Compare a file's name with the name stored in it. torch.save() to a path names the folder inside the archive after
 * the file, and neither a copy nor a rename changes that. Reports "other_rank" if the stored name is that of a
 * checkpoint file, but not the one described by `is`.
 */
void ds_name_check(const struct ds_name *is, const struct pt *pt, const char *path, enum severity severity,
                   struct report *r);

/* The release of DeepSpeed for which files are written if the source names none. */
#define DS_WRITTEN_VERSION "0.12.6"

/* Name of a log stored with the files of a tag: it lists how merge-tp resolved copies that had drifted apart. */
#define DS_REPAIR_LOG_NAME "repair.jsonl"

#endif
