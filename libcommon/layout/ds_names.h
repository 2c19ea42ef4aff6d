/*
 * ds_names.h - what the names of DeepSpeed's files say
 *
 *   layer_<layer>-model_<tp>-model_states.pt               weights of the pipeline engine
 *   mp_rank_<mp>_model_states.pt                           without it, weights up to ZeRO-2
 *   zero_pp_rank_<dp>_mp_rank_<mp>_model_states.pt         ZeRO-3
 *   [bf16_]zero_pp_rank_<dp>_mp_rank_<mp>_optim_states.pt  "pp" is the parameter partition: dp
 *
 * Numbers are padded to two digits or not at all and grow wider, so they are compared as integers.
 */
#ifndef SHARDKIT_LAYOUT_DS_NAMES_H
#define SHARDKIT_LAYOUT_DS_NAMES_H

#include "libcommon/base/report.h"
#include "libcommon/format/pt.h"

/* Ranks in one number or product; far above any cluster, far below memory trouble. */
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
/* What a file name says. Numbers are parsed as integers; absurd ones make it DS_OTHER. */
struct ds_name ds_name_parse(const char *name);
/*
 * torch.save() to a path calls the folder inside the archive after the file, and neither a copy nor a rename changes
 * that. A finding "other_rank" when it is one of a checkpoint, but not the one that `is` says.
 */
void ds_name_check(const struct ds_name *is, const struct pt *pt, const char *path, enum severity severity,
                   struct report *r);

/* Beside the files of a tag: what merge-tp settled where copies had drifted apart. */
#define DS_REPAIR_LOG_NAME "repair.jsonl"

#endif
