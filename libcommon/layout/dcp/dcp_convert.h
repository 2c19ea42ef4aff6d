/*
 * dcp_convert.h - describe a source as a folder of entries, for all layouts that consist of entries (dcp and
 * torchdist)
 */
#ifndef SHARDKIT_LAYOUT_DCP_CONVERT_H
#define SHARDKIT_LAYOUT_DCP_CONVERT_H

#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/layout_write.h"

/* The properties in which these layouts differ. */
struct dcp_conversion {
    const struct layout_target_ops *ops;
    const char *name;                   /* name of the layout in the line that describes the result */
    /*
     * Returns the entries and small files of the result, to be freed with dcp_target_free(). Returns NULL with *e set
     * on error.
     */
    struct dcp_target *(*make)(const struct source *s, const struct write_request *q, struct report *notes,
                               struct err *e);
};
/* A source described as one of these layouts. layout_target.of points to this struct. */
struct dcp_described {
    const struct dcp_conversion *how;
    struct dcp_target *entries;
    struct dcp_mesh mesh;
};

/*
 * Return -1 with ERR_USAGE if the request has an option that has no meaning for entries. `renames` is true if
 * layout_describe_as() will change the names and the vocabulary to those of another program. `same` is true if source
 * and result have the same layout.
 */
MUST_CHECK int dcp_check_request(const struct source *s, const struct write_request *q, bool renames, bool same,
                                 struct err *e);
/* Fill *t. Returns -1 with *e set if the target cannot be made. */
MUST_CHECK int dcp_describe_entries(struct source *s, const struct write_request *q, const struct dcp_conversion *how,
                                    struct report *notes, struct layout_target *t, struct err *e);
/* These functions are members of layout_target_ops. */
struct sink *dcp_open_folder(const struct layout_target *t, const struct sink_opts *o);
char *dcp_folder_text(const struct layout_target *t);
void dcp_folder_facts(const struct layout_target *t, json_t *o);
void dcp_list_entries(const struct layout_target *t, struct strbuf *sb);
void dcp_folder_free(void *of);

#endif
