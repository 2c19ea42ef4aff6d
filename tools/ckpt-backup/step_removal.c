/* step_removal.c - remove the folder of a step from a run, if all its files belong to a checkpoint */
#include "tools/ckpt-backup/step_removal.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/replace.h"
#include "tools/ckpt-backup/rules/step_name.h"

/* Files that the trainer of Transformers, its tokenizers and processors write into checkpoint-N. */
static const char *const trainer_file[] = {
    "*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json",
    "config.json", "generation_config.json", "adapter_config.json", "adapter_model.bin", "trainer_state.json",
    "training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth",
    "rng_state_[0-9]*.pth", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json",
};

static bool is_trainer_file(const char *name)
{
    for (size_t i = 0; i < sizeof trainer_file / sizeof *trainer_file; i++)
        if (fnmatch(trainer_file[i], name, FNM_PATHNAME | FNM_PERIOD) == 0)
            return true;
    return false;
}

/* Returns true if the file belongs to the checkpoint. A model folder may have other files, so names are compared. */
static bool is_file_of_step(const struct source *s, const char *name)
{
    const struct source_file *f = source_file(s, name);

    return source_is_model_alone(s) ? is_trainer_file(name) : f && !f->stray;
}

/* Returns -1 with *e set if the file is a link, is on another file system than the folder, or does not belong to it. */
static int check_step_file(const struct source *s, const char *folder, dev_t dev, const char *name, struct err *e)
{
    char *path = path_join(folder, name);
    struct stat st;
    int rc = lstat(path, &st);

    if (rc < 0) {
        err_sys(e, path, "cannot stat it");
    } else if (!S_ISREG(st.st_mode) || st.st_dev != dev || !is_file_of_step(s, name)) {
        err_usage(e, "%s: holds %s%s, which is not part of a checkpoint, so the folder is not removed; move it to "
                     "another folder", folder, name, S_ISLNK(st.st_mode) ? " (a symbolic link)" : "");
        rc = -1;
    }
    free(path);
    return rc;
}

/* Check that every file in the folder of a step belongs to the layout of the checkpoint. */
static int check_step_files(const char *path, struct err *e)
{
    const struct source_opts so = { .threads = 1, .hf = true };
    struct report *r = report_new();
    struct content c = {0};
    struct source *s = NULL;
    struct stat st;
    int rc = lstat(path, &st);

    if (rc < 0)
        err_sys(e, path, "cannot stat it");
    else if (!S_ISDIR(st.st_mode)) {
        err_usage(e, "%s: is no folder, so it is not removed", path);
        rc = -1;
    } else {
        s = source_open(path, &so, r, e);
        rc = s ? content_list(&c, path, e) : -1;
    }
    for (int i = 0; i < c.n_files && rc == 0; i++)
        rc = check_step_file(s, path, st.st_dev, c.file[i].name, e);
    content_free(&c);
    source_close(s);
    report_free(r);
    return rc;
}

/* Remove a folder that was renamed to NAME.gone.part. The files of global_stepN are checked once more. */
static int remove_gone(const char *gone, bool is_global, struct err *e)
{
    return is_global ? replace_remove(gone, REPLACE_PART, e) : dir_remove(gone, e);
}

int step_remove(const char *path, struct err *e)
{
    char *gone = str_fmt("%s" STEP_GONE, path), *name = path_base(path);
    const bool is_global = step_name_is_global(name);
    int rc = is_global ? replace_check(path, REPLACE_OUT, e) : check_step_files(path, e);

    if (rc == 0 && rename(path, gone) < 0) {
        err_sys(e, path, "cannot rename to %s", gone);
        rc = -1;
    }
    if (rc == 0)
        rc = dir_sync(path, e) < 0 ? -1 : remove_gone(gone, is_global, e);
    free(name);
    free(gone);
    return rc;
}

int step_sweep(const struct survey *s, struct err *e)
{
    int rc = 0;

    for (int i = 0; i < s->n_gone && rc == 0; i++) {
        char *name = path_base(s->gone[i]);

        name[strlen(name) - strlen(STEP_GONE)] = '\0';
        rc = remove_gone(s->gone[i], step_name_is_global(name), e);
        free(name);
    }
    return rc;
}
