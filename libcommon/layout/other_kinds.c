/*
 * other_kinds.c - the table of other kinds of folders, with the most specific names first
 */
#include "libcommon/layout/other_kinds.h"

#include <stddef.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/format/delta/delta.h"

static bool is_adapter(const char *name)
{
    return strcmp(name, "adapter_config.json") == 0 || str_starts(name, "adapter_model.");
}

static bool is_lightning(const char *name)
{
    return str_ends(name, ".ckpt");
}

static bool is_gguf(const char *name)
{
    return str_ends(name, ".gguf");
}

static bool is_safetensors(const char *name)
{
    return !strchr(name, '/') && str_ends(name, ".safetensors");
}

static bool is_token_index(const char *name)
{
    return !strchr(name, '/') && str_ends(name, ".idx");
}

static bool is_torch_file(const char *name)
{
    return !strchr(name, '/') && (str_ends(name, ".pt") || str_ends(name, ".pth") || str_ends(name, ".bin"));
}

static bool is_tokenizer(const char *name)
{
    return strcmp(name, "tokenizer.json") == 0 || strcmp(name, "tokenizer.model") == 0 ||
           strcmp(name, "tokenizer_config.json") == 0;
}

static bool is_config(const char *name)
{
    return strcmp(name, "config.json") == 0;
}

static const struct other_kind_row {
    bool (*marks)(const char *name);
    bool sure;                          /* no other kind of folder has a file of this name */
    const char *text;
} kinds[] = {
    { is_adapter, true, "a PEFT adapter; merge it into its base with: ckpt-edit merge-adapter BASE ADAPTER OUT" },
    { is_lightning, true, "a folder of checkpoints in one file each (*.ckpt), as PyTorch Lightning writes "
                          "them; give one of the files" },
    { is_gguf, true, "a model in GGUF; AutoModelForCausalLM.from_pretrained(IN, gguf_file=FILE).save_pretrained(OUT) "
                     "converts it to a model folder" },
    { is_safetensors, false, "a folder of safetensors files under names that Transformers does not read; a model "
                             "folder must have model.safetensors, or model.safetensors.index.json with the names of "
                             "the files" },
    { is_token_index, false, "a folder of Megatron's token files (NAME.bin with NAME.idx): train --data-path IN/NAME "
      "and preprocess --decode IN/NAME read them" },
    { is_torch_file, false, "a folder of single files of torch.save; ckpt-inspect IN/FILE lists the tensors of "
                            "one file" },
    { is_tokenizer, false, "a tokenizer without a model: preprocess --tokenizer and export-hf --tokenizer read it" },
    { is_config, false, "a model's config.json without weights" },
};

const char *other_kind(const char *const *name, int n, bool sure)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0; i < n; i++)
            if (kinds[k].marks(name[i]) && (kinds[k].sure || !sure))
                return kinds[k].text;
    return NULL;
}

const char *other_kind_of_file(const char *path)
{
    return delta_is_file(path) ? "a patch of 'ckpt-inspect diff --patch'; 'ckpt-edit apply PATCH IN OUT' applies it" :
           NULL;
}
