/*
 * folder_file.h - one file to be written, as data: its containers, and where tensors lie in them
 *
 * A file is a sequence of boxes. A box is a container: a .pt, whose tree gives its storages, or plain bytes with gaps
 * (a safetensors file is a header and a gap for each tensor). A storage is a run of bytes inside a box that the box
 * leaves to others, mostly to the items of a plan.
 *
 * A layout describes a file (struct folder_desc). The description is made when the file is laid out, and again when
 * its headers are written, and is the same both times; in between only offsets, lengths and CRCs are kept (struct
 * folder_file). Until its headers are written, a .pt has no directory and cannot be read.
 */
#ifndef SHARDKIT_WRITE_FOLDER_FILE_H
#define SHARDKIT_WRITE_FOLDER_FILE_H

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/pt.h"
#include "libcommon/plan/plan.h"
#include "libcommon/plan/tmap_slice.h"

struct folder_storage {
    uint64_t len;
    uint64_t at;                /* offset in the box, for a box of plain bytes; a .pt computes its own */
    const void *bytes;          /* [len] its contents; NULL if items write it. Bytes that no item writes are zeros */
};

struct folder_box {
    const char *prefix;         /* name of the archive in a .pt; NULL for plain bytes */
    const struct pk *root;      /* tree of a .pt, whose pt_new_tensor() name the box's storages */
    struct pt_image *image;     /* or the .pt itself, made by the caller */
    struct zip_layout *zip;     /* or a zip made by the caller, whose storages are its records ... */
    struct zip_out *record;     /* ... [n], which receive their CRCs */
    const void *head;           /* plain bytes: those at the beginning */
    uint64_t head_len, size;    /* plain bytes: their number; size of the whole box */
    int n;
    struct folder_storage *storage;     /* [n] */
};

/* A place in the folder. Storages are counted over all boxes of a file. With file -1 the bytes are only hashed. */
struct folder_place {
    int file, storage;
    uint64_t at;                /* offset in the storage, in bytes */
};

/*
 * A range of a tensor map that is written to a place. The default (0) is a copy that belongs to no tensor of the
 * result; then set param to -1.
 */
struct folder_fill {
    const struct tmap *map;
    uint64_t from, len;         /* bytes of the map */
    enum plan_op op;
    uint64_t transpose_row;     /* as in struct plan_item */
    const char *name;           /* for messages; must live as long as the plan */
    struct folder_place to;
    /* If the columns of its rows are distributed: the places that receive them, and bytes of a row for each. */
    int n_outs;
    const struct folder_place *out;
    uint64_t part;
    int param;                  /* parameter of the source whose state it is; -1 if none */
    enum state state;
    bool repeated;              /* another fill reads the same elements, and counts their differences */
    /*
     * The tensor of the result whose digest includes these bytes; -1 if none does. They are at byte `in` of it. If
     * row_len is set, the tensor has rows of row_len bytes, and each column_len bytes of the map are those at
     * column_at of one row, from the first row on.
     */
    int tensor;
    uint64_t in, row_len, column_at, column_len;
    const struct tensor_runs *part_of;  /* the bytes are this part of the tensor, row-major, and `in` is 0; or NULL */
};

struct folder_desc {
    struct arena *arena;        /* for everything below; freed with the description */
    /* Arena for maps that the fills use until the plan has run; NULL if the caller wants no fills. */
    struct arena *keep;
    const char *name;           /* in the folder: "zero/3.x/fp32.pt" */
    int n_boxes, cap_boxes;
    struct folder_box *box;
    int n_fills, cap_fills;
    struct folder_fill *fill;
};
void folder_desc_init(struct folder_desc *d, struct arena *keep);
void folder_desc_free(struct folder_desc *d);
/* Append a box. The caller keeps what it points to until the description is freed, e.g. in its arena. */
void folder_add_box(struct folder_desc *d, const struct folder_box *b);
/* Append a fill, unless none are wanted. */
void folder_add_fill(struct folder_desc *d, const struct folder_fill *f);

/* A file that is laid out. */
struct folder_file {
    char *name;
    int dst;                    /* number in the plan; -1 if no item writes to it */
    uint64_t size;              /* 0: the file is not made */
    int n_boxes;
    uint64_t *box_at;           /* [n_boxes + 1] offsets of the boxes, then the size */
    int n;
    struct {
        uint64_t at, len;       /* in the file */
        struct crc_sum sum;     /* CRC of the storage, combined from items */
        bool given;             /* the description has its bytes */
    } *storage;                 /* [n] */
};
/* Return the size of a box. */
uint64_t folder_box_size(const struct folder_box *b);
/* Return the size that a file of this description has. */
uint64_t folder_file_size(const struct folder_desc *d);
/* Lay out a file. Its tables are allocated in `a`; dst is -1 and the sums are empty. */
struct folder_file folder_file_lay_out(struct arena *a, const struct folder_desc *d);
/*
 * Write everything that items do not write, into `dir`. The description must be that of folder_file_lay_out(), and
 * all sums must be complete. With `sync` the file is on disk afterwards.
 */
MUST_CHECK int folder_file_seal(const char *dir, const struct folder_file *f, const struct folder_desc *d, bool sync,
                                struct err *e);
/*
 * Create a file of that size without reserving disk space. This is used in a rehearsal, and on tmpfs, where reserving a
 * file's space keeps one thread busy and the writers do it in parallel.
 */
MUST_CHECK int folder_make_hollow(const char *path, uint64_t size, struct err *e);
/* Write a whole small file of the folder `dir`, e.g. a configuration. */
MUST_CHECK int folder_write_small(const char *dir, const char *name, const void *bytes, uint64_t len, struct err *e);

#endif
