/*
 * verbs.c - the table of verbs and the table of forms
 */
#include "libcommon/cli/verbs.h"

#include <string.h>

#include "libcommon/base/parse.h"

const char *const verb_group_titles[N_VERB_GROUPS] = {
    [VERBS_LOOK] = "Look at a checkpoint", [VERBS_FORM] = "Change its form", [VERBS_CONTENT] = "Change its content",
    [VERBS_SAFE] = "Keep it safe", [VERBS_TRAIN] = "Train",
};

const struct front_verb verbs[] = {
    { "inspect", VERBS_LOOK, "ckpt-inspect", "summary", "print topology, step, model, sizes and missing files" },
    { "ls", VERBS_LOOK, "ckpt-inspect", "ls", "list all parameters" },
    { "cat", VERBS_LOOK, "ckpt-inspect", "cat", "print one tensor, or part of it" },
    { "stats", VERBS_LOOK, "ckpt-inspect", "stats", "print norm, min, max, mean, NaN, infinities and zeros" },
    { "args", VERBS_LOOK, "ckpt-inspect", "args", "print the saved training arguments" },
    { "verify", VERBS_LOOK, "ckpt-inspect", "verify", "check every file, rank, checksum and value" },
    { "damage", VERBS_LOOK, "ckpt-inspect", "damage", "list lost data, and what can be recovered" },
    { "replicas", VERBS_LOOK, "ckpt-inspect", "replicas", "compare the copies that tensor-parallel ranks keep" },
    { "diff", VERBS_LOOK, "ckpt-inspect", "diff", "compare two checkpoints of any topology and layout" },
    { "convert", VERBS_FORM, NULL, NULL, "convert to another layout (--to FORM)" },
    { "reshape", VERBS_FORM, "reshape", NULL, "convert for another number of GPUs" },
    { "export", VERBS_FORM, "export-hf", NULL, "convert to a model folder of Transformers" },
    { "import", VERBS_FORM, "export-hf", "--import", "convert a model folder of Transformers to 3D shards" },
    { "merge", VERBS_FORM, "merge-tp", NULL, "merge tensor-parallel ranks, or repair copies that drifted apart" },
    { "edit", VERBS_CONTENT, "ckpt-edit", NULL, "change, average, cut, salvage: 'shardkit edit --help' lists how" },
    { "backup", VERBS_SAFE, "ckpt-backup", NULL, "make, verify, restore and remove backups" },
    { "preprocess", VERBS_TRAIN, "preprocess", NULL, "convert text to token files" },
    { "train", VERBS_TRAIN, "train", NULL, "train a model" },
    { "watch", VERBS_TRAIN, "run-watch", NULL, "check whether a run is in order, and draw its curves" },
    { 0 },
};

const struct front_form forms[] = {
    { "3d", "deepspeed", "reshape", "--to", "deepspeed", "3D shards of Megatron-DeepSpeed" },
    { "universal", NULL, "ds2universal", "--format", "pt",
      "one .pt file per tensor, which DeepSpeed loads; also writes latest_universal" },
    { "hdf5", NULL, "ds2universal", "--format", "hdf5", "a folder with one HDF5 file" },
    { "virtual", NULL, "ds2universal", "--format", "virtual",
      "a folder with an HDF5 index that refers to the bytes in IN" },
    { "zero1", NULL, "reshape", "--to", "zero1", "DeepSpeed ZeRO-1 without pipeline" },
    { "zero2", NULL, "reshape", "--to", "zero2", "DeepSpeed ZeRO-2" },
    { "zero3", NULL, "reshape", "--to", "zero3", "DeepSpeed ZeRO-3" },
    { "dcp", NULL, "reshape", "--to", "dcp", "torch.distributed, as FSDP2 saves" },
    { "torchdist", "torch_dist", "reshape", "--to", "torchdist", "Megatron-core" },
    { "hf", "safetensors", "export-hf", NULL, NULL, "a model folder of Transformers, as safetensors" },
    { "bin", NULL, "export-hf", "--format", "bin", "the same with files .bin" },
    { "hfstorage", NULL, "reshape", "--to", "hfstorage", "safetensors shards of torch's HuggingFaceStorageWriter" },
    { 0 },
};

enum { WORDS_MAX = 32 };

const struct front_verb *verb_find(const char *name)
{
    for (const struct front_verb *v = verbs; v->name; v++)
        if (strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

const struct front_form *form_find(const char *name)
{
    for (const struct front_form *f = forms; f->name; f++)
        if (strcmp(f->name, name) == 0 || (f->alias && strcmp(f->alias, name) == 0))
            return f;
    return NULL;
}

const char *verb_nearest(const char *name)
{
    const char *names[WORDS_MAX];
    int n = 0;

    for (const struct front_verb *v = verbs; v->name && n < WORDS_MAX; v++) {
        if (v->tool && strcmp(v->tool, name) == 0)
            return v->name;
        names[n++] = v->name;
    }
    return parse_nearest(name, names, n);
}

/* If `text` begins with `word`, and the word ends there, returns the length of `word`. Otherwise returns 0. */
static size_t begins_with(const char *text, const char *word)
{
    const size_t n = strlen(word);
    const char *end = text + n;

    if (strncmp(text, word, n) != 0)
        return 0;
    end += *end == '.';                 /* a full stop ends the word, but "run-watch.json" is another word */
    return !*end || strchr(" ;,:)'\"\n", *end) ? n : 0;
}

/*
 * If `text` begins with the words `a` and `b`, separated by a space, returns the length of both with the space.
 * Otherwise returns 0. If b is NULL, only `a` is compared.
 */
static size_t begins_with_two(const char *text, const char *a, const char *b)
{
    const size_t n = begins_with(text, a), m = n && b && text[n] == ' ' ? begins_with(text + n + 1, b) : 0;

    return !b ? n : m ? n + 1 + m : 0;
}

size_t verb_of_command(const char *words, const char **verb, const char **form)
{
    const struct front_verb *found = NULL;
    size_t n = 0, len;

    *form = NULL;
    for (const struct front_verb *v = verbs; v->name; v++)
        if (v->tool && (len = begins_with(words, v->tool)) > 0) {
            const size_t both = begins_with_two(words, v->tool, v->word);

            if (both > n || !found) {
                found = v;
                n = both ? both : len;
            }
        }
    if (found) {
        *verb = found->name;
        return n;
    }
    for (const struct front_form *f = forms; f->name; f++)
        if ((len = begins_with(words, f->tool)) > 0) {
            size_t option = words[len] == ' ' ? begins_with_two(words + len + 1, f->option, f->value) : 0;

            if (option || !n) {
                *verb = "convert";
                *form = f->name;
                n = option ? len + 1 + option : len;
            }
        }
    return n;
}

const char *form_nearest(const char *name)
{
    const char *names[WORDS_MAX];
    int n = 0;

    for (const struct front_form *f = forms; f->name && n < WORDS_MAX; f++)
        names[n++] = f->name;
    return parse_nearest(name, names, n);
}
