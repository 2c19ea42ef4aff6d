/*
 * edit_hdf5.c - write a universal form in HDF5 again if an edit changes its tables
 *
 * If only elements of tensors change, the .h5 files keep all other bytes, as in any layout with uncompressed tensors.
 * This is possible because the seal of an .h5 file does not cover the tensors. Names, shapes and the run state in the
 * index are tables of HDF5, which only the HDF5 library can write. If the list of tensors or the tree of a .pt file
 * changes, the whole form is therefore written again from a changed copy of the source.
 */
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/edit/dcp/edit_dcp.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_source.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/layout/universal/universal_hdf5.h"

/*
 * If the tree of file i was changed, set it in `to`, the copy of the source. For optimizer_state.pt, also update the
 * pointers from the run state into the tree.
 */
static void set_rewritten_file_tree(struct edit *x, struct source *to, int i)
{
    const struct edit_file *f = edit_find_file(x, x->s->file[i].file);
    struct pt *pt = f->root ? pt_with_tree(x->arena, f->pt, f->root) : NULL;

    if (!pt)
        return;
    to->file[i].pt = pt;
    if (x->s->file[i].pt != x->s->run.optimizer_pt)
        return;
    to->run.optimizer_pt = pt;
    to->run.optimizer = f->root;
    to->run.param_groups = pk_get(f->root, "param_groups");
}

static int check_hdf5_group_names(const struct edit_states *list, struct err *e)
{
    for (int i = 0; i < list->n; i++)
        if (!universal_hdf5_is_name(list->tensor[i].name)) {
            err_usage(e, "'%.80s' cannot be the name of an HDF5 group (a dot in front, slashes and '%%' cannot be in "
                      "it)", list->tensor[i].name);
            return -1;
        }
    return 0;
}

/* Returns true if the form has a separate HDF5 file for each parameter. */
static bool is_split(const struct source *s)
{
    for (int i = 0; i < s->n_files; i++)
        if (s->file[i].cls == FILE_OPTIMIZER && strcmp(s->file[i].name, INDEX_NAME) != 0)
            return true;
    return false;
}

static struct sink *open_hdf5(const struct sink_opts *o, const void *source)
{
    struct sink_opts own = *o;

    own.vocab = VOCAB_KEEP;
    own.split = is_split(source);
    return universal_hdf5_sink(&own);
}

int edit_resolve_rewrite(struct edit *x, struct err *e)
{
    bool bytes_alone = !x->states;
    struct source *to;

    if (x->values_set)
        return edit_dcp_end(x, e);
    for (int i = 0; i < x->n_files; i++)
        bytes_alone = bytes_alone && !x->file[i].root;
    if (!x->s->layout->datasets || bytes_alone)
        return 0;
    if (x->states && check_hdf5_group_names(x->states, e) < 0)
        return -1;
    to = x->to ? x->to : edit_source_copy(x);
    for (int i = 0; i < to->n_files; i++)
        set_rewritten_file_tree(x, to, i);
    universal_hdf5_run(to);
    if (x->states)
        edit_source_list(x, to, x->states);
    edit_rewrite(x, &(struct edit_rewrite){ to, arena_fmt(x->arena, "HDF5, %d parameters", to->n_params), x->s,
                                            open_hdf5, NULL });
    return 0;
}
