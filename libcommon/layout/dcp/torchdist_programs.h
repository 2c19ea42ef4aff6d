/*
 * torchdist_programs.h - what programs that train with Megatron-core add to its folders (docs/formats.md, section 13)
 *
 * NeMo 2 saves with PyTorch Lightning, whose counters are in common.pt. Its folder has Megatron-core's folder as
 * weights/, and the configuration in context/. Megatron-Bridge adds files: train_state.pt has its counters. Codes of
 * findings:
 *   crc E            a counter in train_state.pt cannot be read
 *   not_compared N   a model in hf/ or hf_weights/, which is not read; a manifest in weights/
 *   missing_file W   run_config.yaml without train_state.pt, or the reverse; weights/ without context/ or its io.json
 *   mixed_saves E    train_state.pt states another iteration than common.pt, or none
 *   unreadable E     train_state.pt cannot be read
 *   unfinished E     NeMo's marker of an unfinished save is next to the folder
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_PROGRAMS_H
#define SHARDKIT_LAYOUT_TORCHDIST_PROGRAMS_H

#include "libcommon/layout/layouts.h"

#define RUN_CONFIG "run_config.yaml"        /* of Megatron-Bridge */
#define NEMO_WEIGHTS "weights/"
#define NEMO_CONTEXT "context/"
#define NEMO_CONTEXT_FILE NEMO_CONTEXT "io.json"
#define NEMO_MODEL_FILE NEMO_CONTEXT "model.yaml"

/*
 * The pointer file of Megatron-Bridge. It is a copy of the train_state.pt of the last checkpoint. The step in it is the
 * number in the name of the checkpoint's folder.
 */
#define LATEST_TRAIN_STATE "latest_train_state.pt"

struct files;
struct pk;

/* Returns the optimizer's dict in the root of common.pt, or NULL. NeMo stores this dict as the only item of a list. */
const struct pk *torchdist_optimizer_of(const struct pk *root);
/*
 * Read the counters that PyTorch Lightning stores in common.pt. Does nothing if Lightning did not write this common.pt.
 */
void lightning_counters_read(struct source *s, const struct pk *root);
/* Returns -1 with *e set if the listing of a folder of NeMo has no file in weights/. */
int nemo_check_weights(const struct source *s, const struct source_listing *l, struct err *e);
/* Add to the source the files of a NeMo folder that are outside of weights/, and report missing ones. */
void nemo_files_read(struct source *s, const struct source_listing *l, bool holes, struct report *r);
/*
 * Returns the path of the marker that NeMo leaves next to a folder whose save did not finish. If the folder is a link,
 * the marker is next to the folder to which the link leads. Returns NULL if there is no marker. The caller frees the
 * path.
 */
char *nemo_find_marker(const char *folder);
/* Read the step in a file train_state.pt. Returns -1 with *e set if the file has no step, or cannot be read. */
MUST_CHECK int bridge_read_step(struct files *f, int file, int64_t *step, struct err *e);
/*
 * If the listing has a file that only Megatron-Bridge writes, add the program's files to the source. Compare the
 * counters in these files with those in common.pt, and use them where common.pt has none.
 */
void bridge_files_read(struct source *s, const struct source_listing *l, bool holes, struct report *r);

#endif
