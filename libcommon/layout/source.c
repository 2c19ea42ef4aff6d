/*
 * source.c - an opened checkpoint: its parameters and files by name, and its end
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/pt.h"
#include "libcommon/layout/layout.h"

const char *layout_name(enum layout_kind k)
{
    static const char *const names[] = {
        [LAYOUT_DEEPSPEED] = "deepspeed", [LAYOUT_UNIVERSAL_PT] = "universal-pt",
        [LAYOUT_UNIVERSAL_HDF5] = "universal-hdf5", [LAYOUT_UNIVERSAL_VIRTUAL] = "universal-virtual",
        [LAYOUT_HF] = "hf",
    };

    return names[k];
}

/* Tables, names and tensor maps are the arena's; handles and files are closed one by one. */
void source_close(struct source *s)
{
    bool closed_optimizer = false;

    if (!s)
        return;
    for (int i = 0; i < s->n_files; i++) {
        closed_optimizer |= s->file[i].pt == s->run.optimizer_pt;
        pt_close(s->file[i].pt);
    }
    if (!closed_optimizer)
        pt_close(s->run.optimizer_pt);
    files_free(s->files);
    arena_free(s->arena);
    free(s);
}

/* ---- by name ---- */

/* Names that were added since the table was made are added to it; after a sort it is made anew. */
static int look_up(const struct source *s, struct names **t, int n, const char *(*name_at)(const struct source *, int),
                   const char *name)
{
    int found = -1;

    for (int again = 0; again < 2; again++) {
        if (!*t || names_n(*t) > n || again)
            *t = names_new(s->arena);
        for (int i = names_n(*t); i < n; i++)
            names_add(*t, name_at(s, i), i);
        found = names_find(*t, name);
        if (found < 0 || strcmp(name_at(s, found), name) == 0)
            break;
    }
    return found;
}

static int compare_all(const struct source *s, int n, const char *(*name_at)(const struct source *, int),
                       const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name_at(s, i), name) == 0)
            return i;
    return -1;
}

static const char *param_name(const struct source *s, int i)
{
    return s->param[i].name;
}

static const char *file_name(const struct source *s, int i)
{
    return s->file[i].name;
}

struct param *source_param(const struct source *s, const char *name)
{
    int i = s->names ? look_up(s, &s->names->param, s->n_params, param_name, name)
                     : compare_all(s, s->n_params, param_name, name);

    return i < 0 ? NULL : &s->param[i];
}

const struct source_file *source_file(const struct source *s, const char *name)
{
    int i = s->names ? look_up(s, &s->names->file, s->n_files, file_name, name)
                     : compare_all(s, s->n_files, file_name, name);

    return i < 0 ? NULL : &s->file[i];
}
