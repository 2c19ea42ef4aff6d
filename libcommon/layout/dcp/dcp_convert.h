/*
 * dcp_convert.h - describe a source as a folder of entries, for the layouts that have them
 */
#ifndef SHARDKIT_LAYOUT_DCP_CONVERT_H
#define SHARDKIT_LAYOUT_DCP_CONVERT_H

#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/layout_write.h"

/* How one of these layouts differs from the others. */
struct dcp_conversion {
    const struct layout_target_ops *ops;
    const char *name;                   /* for the line of the result */
    /* Returns the entries and small files (dcp_target_free()), or NULL with *e. */
    struct dcp_target *(*make)(const struct source *s, const struct write_request *q, struct report *notes,
                               struct err *e);
};
/* A target of one of these layouts: layout_target.of. */
struct dcp_described {
    const struct dcp_conversion *how;
    struct dcp_target *entries;
    struct dcp_mesh mesh;
};

/*
 * Refuse options that have no meaning for entries. With `renames` the parameters will get the names and the vocabulary
 * of another program (layout_describe_as()), and `same` is true if the source has the layout of the result. Returns -1
 * with ERR_USAGE.
 */
MUST_CHECK int dcp_check_request(const struct source *s, const struct write_request *q, bool renames, bool same,
                                 struct err *e);
/* Fill *t. Returns -1 with *e if the target cannot be made. */
MUST_CHECK int dcp_describe_entries(struct source *s, const struct write_request *q, const struct dcp_conversion *how,
                                    struct report *notes, struct layout_target *t, struct err *e);
/* The functions of layout_target_ops. */
struct sink *dcp_open_folder(const struct layout_target *t, const struct sink_opts *o);
char *dcp_folder_text(const struct layout_target *t);
void dcp_folder_facts(const struct layout_target *t, json_t *o);
void dcp_list_entries(const struct layout_target *t, struct strbuf *sb);
void dcp_folder_free(void *of);

#endif
